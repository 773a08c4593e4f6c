//! Events as server-sent events.

use crate::event::{AguiEvent, EventKind};

/// The media type of a stream of server-sent events.
pub const MEDIA_TYPE: &str = "text/event-stream";

/// Adds a frame: `id: …`, `data: …` and an empty line, with line feeds alone, as the official client splits them.
///
/// `id` adds the id, which is the writer's own and must be one line.
pub fn write_frame(
    out: &mut Vec<u8>,
    id: impl FnOnce(&mut Vec<u8>),
    event: &AguiEvent<'_>,
) -> serde_json::Result<()> {
    out.extend_from_slice(b"id: ");
    id(out);
    out.extend_from_slice(b"\ndata: ");
    write_json(out, event)?;
    out.extend_from_slice(b"\n\n");
    Ok(())
}

/// Adds the event as JSON. Nearly every event of a run is a piece of text: these are put together from parts that are
/// known, which takes a third of the time.
fn write_json(out: &mut Vec<u8>, event: &AguiEvent<'_>) -> serde_json::Result<()> {
    let (start, id, delta) = match &event.kind {
        EventKind::TextMessageContent { message_id, delta } => {
            (&br#"{"type":"TEXT_MESSAGE_CONTENT","messageId":"#[..], message_id, delta)
        }
        EventKind::ReasoningMessageContent { message_id, delta } => {
            (&br#"{"type":"REASONING_MESSAGE_CONTENT","messageId":"#[..], message_id, delta)
        }
        EventKind::ToolCallArgs { tool_call_id, delta } => {
            (&br#"{"type":"TOOL_CALL_ARGS","toolCallId":"#[..], tool_call_id, delta)
        }
        _ => return serde_json::to_writer(out, event),
    };
    if event.timestamp.is_some() || event.raw_event.is_some() || event.metadata.is_some() {
        return serde_json::to_writer(out, event);
    }
    out.extend_from_slice(start);
    write_text(out, id)?;
    out.extend_from_slice(br#","delta":"#);
    write_text(out, delta)?;
    if let Some(owner) = event.owner() {
        out.extend_from_slice(br#","subagentRunId":"#);
        write_text(out, owner)?;
    }
    out.push(b'}');
    Ok(())
}

/// Adds text as JSON. Most text has nothing that must be escaped, and is copied.
fn write_text(out: &mut Vec<u8>, text: &str) -> serde_json::Result<()> {
    let is_special = |byte: u8| byte < 0x20 || byte == b'"' || byte == b'\\';
    // Not `any`: without a way out in the middle, many bytes are looked at in one step.
    if text.bytes().fold(false, |found, byte| found | is_special(byte)) {
        return serde_json::to_writer(out, text);
    }
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::borrow::Cow;

    #[test]
    fn a_frame_is_one_line_of_data_whatever_the_text() {
        let mut out = b"before".to_vec();
        let delta = "a\r\nb\n\nc\u{2028}";
        let event = EventKind::TextMessageContent { message_id: "m".into(), delta: delta.into() }.into();
        write_frame(&mut out, |out| out.extend_from_slice(b"r:7"), &event).unwrap();
        let data = r#"{"type":"TEXT_MESSAGE_CONTENT","messageId":"m","delta":"a\r\nb\n\nc"#;
        assert_eq!(String::from_utf8(out).unwrap(), format!("beforeid: r:7\ndata: {data}\u{2028}\"}}\n\n"));
    }

    proptest! {
        #[test]
        fn pieces_of_text_are_written_as_any_event_is(
            id in ".{0,40}", delta in any::<String>(), owner in prop::option::of(any::<String>()),
            timestamp in prop::option::of(any::<i64>()), kind in 0..4,
        ) {
            let (id, delta) = (Cow::from(id), Cow::from(delta));
            let kind = match kind {
                0 => EventKind::TextMessageContent { message_id: id, delta },
                1 => EventKind::ReasoningMessageContent { message_id: id, delta },
                2 => EventKind::ToolCallArgs { tool_call_id: id, delta },
                _ => EventKind::TextMessageEnd { message_id: id },
            };
            let event = AguiEvent { subagent_run_id: owner.map(Cow::from), timestamp, ..kind.into() };
            let mut out = Vec::new();
            write_json(&mut out, &event).unwrap();
            prop_assert_eq!(String::from_utf8(out).unwrap(), serde_json::to_string(&event).unwrap());
        }
    }
}
