//! A report as JUnit XML, which build servers read.

use umbel::eval::{Check, RunReport};

use super::Results;

/// The report. A file is a suite, and each run of a case a test.
pub(super) fn xml(results: &Results) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for file in &results.files {
        let runs: Vec<&RunReport> = file.report.cases.iter().flat_map(|case| &case.runs).collect();
        let failed = runs.iter().filter(|run| !run.passed).count();
        let gates = file.report.gates.len();
        let failed_gates = file.report.gates.iter().filter(|gate| !gate.passed()).count();
        let time: f64 = runs.iter().map(|run| run.spent.seconds).sum();
        let name = escape(&file.file);
        xml.push_str(&format!(
            "  <testsuite name=\"{name}\" tests=\"{}\" failures=\"{}\" time=\"{time:.3}\">\n",
            runs.len() + gates,
            failed + failed_gates,
        ));
        for case in &file.report.cases {
            for (index, run) in case.runs.iter().enumerate() {
                let number =
                    if case.runs.len() > 1 { format!(" (run {})", index + 1) } else { String::new() };
                let title = escape(&format!("{}{number}", case.name));
                let seconds = run.spent.seconds;
                let head =
                    format!("    <testcase classname=\"{name}\" name=\"{title}\" time=\"{seconds:.3}\"");
                xml.push_str(&test(&head, run.passed, || (failed_metrics(run), failures(run))));
            }
        }
        for gate in &file.report.gates {
            let head = format!("    <testcase classname=\"{name}\" name=\"gate: {}\"", escape(&gate.name));
            let message = || {
                let message = format!("{:.3}, must be {:.3}", gate.score, gate.threshold);
                (message.clone(), message)
            };
            xml.push_str(&test(&head, gate.passed(), message));
        }
        xml.push_str("  </testsuite>\n");
    }
    xml.push_str("</testsuites>\n");
    xml
}

fn test(head: &str, passed: bool, failure: impl FnOnce() -> (String, String)) -> String {
    if passed {
        return format!("{head}/>\n");
    }
    let (message, text) = failure();
    let (message, text) = (escape(&message), escape(&text));
    format!("{head}>\n      <failure message=\"{message}\">{text}</failure>\n    </testcase>\n")
}

fn failed_metrics(run: &RunReport) -> String {
    let failed = run.metrics.iter().filter(|(_, score)| !score.passed());
    failed.map(|(metric, score)| format!("{metric} {:.2}", score.score)).collect::<Vec<_>>().join(", ")
}

fn failures(run: &RunReport) -> String {
    let in_words = |check: &Check| {
        let turn = check.turn.map(|turn| format!(", turn {turn}")).unwrap_or_default();
        format!("{}{turn}\nexpected:\n{}\nfound:\n{}\n", check.metric, check.expected, check.actual)
    };
    run.failures().map(in_words).collect::<Vec<_>>().join("\n")
}

/// Text as XML takes it. What XML has no form for is replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            '\t' => escaped.push_str("&#9;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn nothing_in_a_text_is_taken_for_xml() {
        assert_eq!(
            escape("a<b & \"c\">\n\x1b[0m\u{0}"),
            "a&lt;b &amp; &quot;c&quot;&gt;&#10;\u{fffd}[0m\u{fffd}"
        );
    }
}
