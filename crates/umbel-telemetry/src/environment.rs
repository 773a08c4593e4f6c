//! What the environment asks for, by the variables of OpenTelemetry that its SDK does not look at itself.

use std::time::Duration;

use crate::telemetry::Conventions;

/// The variable that turns all of it off.
const DISABLED: &str = "OTEL_SDK_DISABLED";

/// The variable that asks for conventions that are not released yet, and the word for ours.
const OPT_IN: (&str, &str) = ("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental");

/// The variable by which instrumentations of models are told to tell content.
const CAPTURE: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";

/// The words for it: as the first instrumentations had it, and as it is now, when content may also be told as events.
const CAPTURED: [&str; 3] = ["true", "span_only", "span_and_event"];

/// Variables that say where a collector is.
const ENDPOINTS: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
];

/// The variable that says how many milliseconds it may take to answer, and those that say so for one of both.
const TIMEOUT: &str = "OTEL_EXPORTER_OTLP_TIMEOUT";
const TIMEOUTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT"];

/// The variable that names a file with certificates to trust besides those of the system.
const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";

/// A variable that says something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Whether nothing is to be told at all.
pub(crate) fn is_disabled() -> bool {
    variable(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// Whether a collector is named.
pub(crate) fn names_collector() -> bool {
    ENDPOINTS.into_iter().any(|name| variable(name).is_some())
}

/// Whether what is said is to be told.
pub(crate) fn wants_content() -> bool {
    variable(CAPTURE).is_some_and(|value| CAPTURED.iter().any(|word| value.eq_ignore_ascii_case(word)))
}

/// Whether traces are to be left out.
pub(crate) fn is_without_traces() -> bool {
    variable("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none")
}

/// Whether metrics are to be left out.
pub(crate) fn is_without_metrics() -> bool {
    variable("OTEL_METRICS_EXPORTER").is_some_and(|value| value == "none")
}

/// The conventions that are asked for.
pub(crate) fn conventions() -> Conventions {
    let (name, ours) = OPT_IN;
    let asked = variable(name).unwrap_or_default();
    if asked.split(',').any(|word| word.trim() == ours) { Conventions::Latest } else { Conventions::Released }
}

/// How long a collector may take to answer, where nothing else is said: the longer of both, since what is shorter counts for
/// retries anyway.
pub(crate) fn timeout(usual: Duration) -> Duration {
    longer_timeout(|name| variable(name)?.parse().ok().map(Duration::from_millis), usual)
}

fn longer_timeout(told: impl Fn(&str) -> Option<Duration>, usual: Duration) -> Duration {
    let both = TIMEOUTS.into_iter().map(|own| told(own).or_else(|| told(TIMEOUT)).unwrap_or(usual));
    both.max().unwrap_or(usual)
}

/// A file with certificates.
pub(crate) fn certificate() -> Option<String> {
    variable(CERTIFICATE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_traces_alone_does_not_cut_metrics_short() {
        let seconds = Duration::from_secs;
        let [traces, metrics] = TIMEOUTS;
        for (told, expected) in [
            (&[][..], 10),
            (&[(TIMEOUT, 2)], 2),
            (&[(traces, 2)], 10),
            (&[(traces, 2), (metrics, 3)], 3),
            (&[(TIMEOUT, 5), (metrics, 3)], 5),
            (&[(traces, 60)], 60),
        ] {
            let find =
                |name: &str| told.iter().find(|(told, _)| *told == name).map(|(_, time)| seconds(*time));
            assert_eq!(longer_timeout(find, seconds(10)), seconds(expected), "{told:?}");
        }
    }
}
