//! Logs and requests in lines that people can read and compare.

use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};
use umbel_core::{Content, Event, LogEntry, Object, Outcome, Payload, RunId, RunStep, StateScope};

/// A log in lines, without what is different each time: ids and times.
pub(super) fn log(entries: &[LogEntry]) -> Vec<String> {
    let (mut lines, mut side_by_side): (Vec<String>, Vec<Arc<Event>>) = Default::default();
    let (mut last, mut runs) = (RunId::default(), 0);
    for entry in entries {
        match entry {
            LogEntry::Event(event) => {
                if event.branch().is_some() && event.run == last {
                    side_by_side.push(event.clone());
                    continue;
                }
                flush(&mut side_by_side, &mut lines);
                if event.run != last && event.content.is_some() {
                    (last, runs) = (event.run.clone(), runs + 1);
                    lines.push(format!("run {runs}"));
                }
                lines.extend(self::event(event));
            }
            LogEntry::Record(step) => {
                if let RunStep::Ended { outcome } = &**step {
                    flush(&mut side_by_side, &mut lines);
                    lines.push(format!("  {}", ended(outcome)));
                }
            }
        }
    }
    flush(&mut side_by_side, &mut lines);
    lines
}

/// Branches stand in a log as they arrive, which is another order each time.
fn flush(events: &mut Vec<Arc<Event>>, lines: &mut Vec<String>) {
    events.sort_by(|one, other| one.branch().cmp(&other.branch()));
    events.drain(..).for_each(|event| lines.extend(self::event(&event)));
}

fn ended(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Finished => "ends: finished".to_owned(),
        Outcome::Interrupted { interrupts } => format!("ends: waits for {} answer(s)", interrupts.len()),
        Outcome::Cancelled => "ends: cancelled".to_owned(),
        Outcome::Failed { failure } => format!("ends: failed ({}) {}", failure.code, failure.message),
        _ => "ends".to_owned(),
    }
}

fn event(event: &Event) -> Vec<String> {
    let branch = event.branch().map(|branch| format!(" on {branch}")).unwrap_or_default();
    let who = format!("  {}{branch}", event.author());
    let mut lines = Vec::new();
    if let Some(content) = &event.content {
        lines.extend(self::content(&who, content));
    }
    let state = event.state_delta().into_iter().flatten();
    for (key, value) in state.filter(|(key, _)| !StateScope::is_internal(key)) {
        lines.push(format!("{who} sets {key} = {value}"));
    }
    if let Some(actions) = &event.actions {
        let artifacts = actions.artifact_delta.iter().flatten();
        lines.extend(artifacts.map(|(name, version)| format!("{who} saves {name}, version {version}")));
        lines.extend(actions.transfer_to_agent.iter().map(|agent| format!("{who} hands over to {agent}")));
        if actions.escalate == Some(true) {
            lines.push(format!("{who} ends the loop"));
        }
    }
    if let Some(code) = event.error_code() {
        lines.push(format!("{who} fails ({code}) {}", event.error_message().unwrap_or_default()));
    }
    lines
}

/// Messages in lines.
pub(super) fn messages(contents: &[Arc<Content>]) -> Vec<String> {
    let who = |content: &Content| content.role.as_ref().map(|role| role.as_str().to_owned());
    let lines = contents.iter().map(|content| self::content(&who(content).unwrap_or_default(), content));
    lines.flatten().collect()
}

fn content(who: &str, content: &Content) -> Vec<String> {
    let mut lines = Vec::new();
    for part in &content.parts {
        let verb = if part.is_thought() { "thinks" } else { "says" };
        match &part.payload {
            Payload::Text(text) => {
                lines.extend(text.lines().map(|line| format!("{who} {verb}: {line}")));
            }
            Payload::Call(call) => {
                let args = call.args.as_deref().cloned().unwrap_or_default();
                lines.push(format!("{who} calls {} {}", call.name, sorted(&call.name, args)));
            }
            Payload::Response(response) => {
                let value = sorted(&response.name, response.response.clone().unwrap_or_default());
                lines.push(format!("{who} gets from {} {value}", response.name));
            }
            other => lines.push(format!("{who} gives {}", kind(other))),
        }
    }
    lines
}

fn kind(payload: &Payload) -> String {
    match payload {
        Payload::InlineData(blob) => {
            let digest: String =
                Sha256::digest(&blob.data).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            let kind = blob.mime_type.as_deref().unwrap_or("something");
            format!("{} bytes of {kind} ({digest})", blob.data.len())
        }
        Payload::FileData(file) => format!("the file {}", file.file_uri.as_deref().unwrap_or_default()),
        Payload::Code(code) => format!("code: {}", code.code.as_deref().unwrap_or_default()),
        Payload::CodeResult(result) => format!("output: {}", result.output.as_deref().unwrap_or_default()),
        _ => "something of an unknown kind".to_owned(),
    }
}

/// The arguments or the result of a call in a line, keys in order. The digest of what a person was shown differs where that
/// differs, so it is no news; what a tool calls by that name is its own.
fn sorted(name: &str, mut object: Object) -> Value {
    if name.starts_with("adk_request_") {
        object.remove("digest");
    }
    let mut value = Value::Object(object);
    value.sort_all_objects();
    value
}

/// A value over several lines; text as it is.
pub(super) fn pretty(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        value => serde_json::to_string_pretty(value).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(more: &Value) -> Vec<String> {
        let mut value = json!({"id": "e", "invocationId": "r", "author": "a", "timestamp": 1.0});
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        log(&[LogEntry::Event(Arc::new(serde_json::from_value(value).unwrap()))])
    }

    #[test]
    fn all_that_a_run_did_makes_a_difference() {
        let part = |part: Value| json!({"content": {"role": "user", "parts": [part]}});
        let gave = |name: &str, digest: &str| {
            part(json!({"functionResponse": {"name": name, "response": {"digest": digest}}}))
        };
        let bytes = |data: &str| part(json!({"inlineData": {"data": data, "mimeType": "image/png"}}));
        for (then, now) in [
            (gave("hash", "1"), gave("hash", "2")),
            (bytes("AAAA"), bytes("AAAB")),
            (json!({"actions": {"escalate": true}}), json!({"actions": {}})),
            (
                json!({"actions": {"artifactDelta": {"f": 0}}}),
                json!({"actions": {"artifactDelta": {"f": 1}}}),
            ),
            (
                json!({"actions": {"artifactDelta": {"f": 0}}}),
                json!({"actions": {"artifactDelta": {"g": 0}}}),
            ),
        ] {
            assert_ne!(lines(&then), lines(&now), "{then}");
        }
        let question = |digest: &str| lines(&gave("adk_request_confirmation", digest));
        assert_eq!(question("1"), question("2"), "it differs where what was shown differs");
    }
}
