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

/// Variables that say how many milliseconds it may take to answer.
const TIMEOUTS: [&str; 3] =
    ["OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT"];

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

/// How long a collector may take to answer: the longest that any says, since what is shorter counts for retries anyway.
pub(crate) fn timeout() -> Option<Duration> {
    let told = TIMEOUTS.into_iter().filter_map(|name| variable(name)?.parse().ok());
    told.map(Duration::from_millis).max()
}

/// A file with certificates.
pub(crate) fn certificate() -> Option<String> {
    variable(CERTIFICATE)
}
