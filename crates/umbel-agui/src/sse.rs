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

/// The same for an event that adds words to something: `words` adds them, as JSON. It is not called if the event does not.
pub fn write_frame_of_words(
    out: &mut Vec<u8>,
    id: impl FnOnce(&mut Vec<u8>),
    event: &AguiEvent<'_>,
    words: impl FnOnce(&mut Vec<u8>),
) -> serde_json::Result<()> {
    out.extend_from_slice(b"id: ");
    id(out);
    out.extend_from_slice(b"\ndata: ");
    write_around(out, event, |out, _| {
        words(out);
        Ok(())
    })?;
    out.extend_from_slice(b"\n\n");
    Ok(())
}

/// Adds the event as JSON.
fn write_json(out: &mut Vec<u8>, event: &AguiEvent<'_>) -> serde_json::Result<()> {
    if write_around(out, event, write_text)? { Ok(()) } else { serde_json::to_writer(out, event) }
}

/// Adds the event as JSON, if it adds words to something, with the words as they are given, or only names something.
/// Nearly every event of a run is of that kind: these are put together from parts that are known, which takes a third of
/// the time.
fn write_around(
    out: &mut Vec<u8>,
    event: &AguiEvent<'_>,
    words: impl FnOnce(&mut Vec<u8>, &str) -> serde_json::Result<()>,
) -> serde_json::Result<bool> {
    let (start, id, delta) = match &event.kind {
        EventKind::TextMessageContent { message_id, delta } => {
            (&br#"{"type":"TEXT_MESSAGE_CONTENT","messageId":"#[..], message_id, Some(delta))
        }
        EventKind::ReasoningMessageContent { message_id, delta } => {
            (&br#"{"type":"REASONING_MESSAGE_CONTENT","messageId":"#[..], message_id, Some(delta))
        }
        EventKind::ToolCallArgs { tool_call_id, delta } => {
            (&br#"{"type":"TOOL_CALL_ARGS","toolCallId":"#[..], tool_call_id, Some(delta))
        }
        EventKind::TextMessageStart { message_id, role: None, name: None } => {
            (&br#"{"type":"TEXT_MESSAGE_START","messageId":"#[..], message_id, None)
        }
        EventKind::TextMessageEnd { message_id } => {
            (&br#"{"type":"TEXT_MESSAGE_END","messageId":"#[..], message_id, None)
        }
        EventKind::ToolCallEnd { tool_call_id } => {
            (&br#"{"type":"TOOL_CALL_END","toolCallId":"#[..], tool_call_id, None)
        }
        _ => return Ok(false),
    };
    if event.timestamp.is_some() || event.raw_event.is_some() || event.metadata.is_some() {
        return Ok(false);
    }
    out.extend_from_slice(start);
    write_text(out, id)?;
    if let Some(delta) = delta {
        out.extend_from_slice(br#","delta":"#);
        words(out, delta)?;
    }
    if let Some(owner) = event.owner() {
        out.extend_from_slice(br#","subagentRunId":"#);
        write_text(out, owner)?;
    }
    out.push(b'}');
    Ok(true)
}

/// Adds text as JSON. Most text has nothing that must be escaped, and is copied.
pub fn write_text(out: &mut Vec<u8>, text: &str) -> serde_json::Result<()> {
    if !is_plain(text.as_bytes()) {
        return serde_json::to_writer(out, text);
    }
    out.reserve(text.len() + 2);
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
    Ok(())
}

/// Whether nothing in a text must be escaped in JSON. Eight bytes are looked at in one step.
fn is_plain(text: &[u8]) -> bool {
    let (words, rest) = text.as_chunks::<8>();
    // The last eight bytes instead of what is left: some are looked at twice. A short text is filled up.
    let last = text.last_chunk().copied().unwrap_or_else(|| {
        let mut filled = [b' '; 8];
        filled.iter_mut().zip(rest).for_each(|(place, byte)| *place = *byte);
        filled
    });
    words.iter().chain([&last]).all(|word| is_plain_word(u64::from_ne_bytes(*word)))
}

/// The same for eight bytes. A byte that is 0 borrows from its highest bit when 1 is taken from it, and one below 32 when 32
/// is; those that have that bit themselves are not ASCII, and nothing special.
fn is_plain_word(word: u64) -> bool {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    let below = |word: u64, bound: u8| word.wrapping_sub(EACH * u64::from(bound)) & !word;
    let is = |byte: u8| below(word ^ (EACH * u64::from(byte)), 1);
    (below(word, b' ') | is(b'"') | is(b'\\')) & (EACH << 7) == 0
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
        fn text_is_plain_if_its_json_is_the_same(text in "[ -~]{0,20}[\u{0}-\u{ff}]{0,3}[ -~]{0,9}") {
            let json = serde_json::to_string(&text).unwrap();
            prop_assert_eq!(is_plain(text.as_bytes()), json == format!("\"{text}\""));
        }

        #[test]
        fn pieces_of_text_are_written_as_any_event_is(
            id in ".{0,40}", delta in any::<String>(), owner in prop::option::of(any::<String>()),
            timestamp in prop::option::of(any::<i64>()), kind in 0..7,
        ) {
            let (id, delta) = (Cow::from(id), Cow::from(delta));
            let kind = match kind {
                0 => EventKind::TextMessageContent { message_id: id, delta },
                1 => EventKind::ReasoningMessageContent { message_id: id, delta },
                2 => EventKind::ToolCallArgs { tool_call_id: id, delta },
                3 => EventKind::TextMessageEnd { message_id: id },
                4 => EventKind::TextMessageStart { message_id: id, role: None, name: None },
                5 => EventKind::TextMessageStart { message_id: id, role: None, name: Some(delta) },
                _ => EventKind::ToolCallEnd { tool_call_id: id },
            };
            let event = AguiEvent { subagent_run_id: owner.map(Cow::from), timestamp, ..kind.into() };
            let mut out = Vec::new();
            write_json(&mut out, &event).unwrap();
            prop_assert_eq!(String::from_utf8(out).unwrap(), serde_json::to_string(&event).unwrap());
        }
    }
}
