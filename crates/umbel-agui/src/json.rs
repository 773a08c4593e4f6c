//! Events as JSON text.

use crate::event::{AguiEvent, EventKind};

/// Adds an event as JSON, as serde writes it. Pieces of text, of thoughts and of arguments, of which a run has hundreds,
/// are put together here: that is several times cheaper than going through their fields one by one.
pub(crate) fn write(out: &mut Vec<u8>, event: &AguiEvent<'_>) -> serde_json::Result<()> {
    let is_bare = event.timestamp.is_none() && event.raw_event.is_none() && event.metadata.is_none();
    let (head, id, delta): (&[u8], _, _) = match &event.kind {
        EventKind::TextMessageContent { message_id, delta } if is_bare => {
            (br#"{"type":"TEXT_MESSAGE_CONTENT","messageId":"#, message_id, delta)
        }
        EventKind::ReasoningMessageContent { message_id, delta } if is_bare => {
            (br#"{"type":"REASONING_MESSAGE_CONTENT","messageId":"#, message_id, delta)
        }
        EventKind::ToolCallArgs { tool_call_id, delta } if is_bare => {
            (br#"{"type":"TOOL_CALL_ARGS","toolCallId":"#, tool_call_id, delta)
        }
        _ => return serde_json::to_writer(out, event),
    };
    out.extend_from_slice(head);
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

/// Adds a string. Most have nothing that must be escaped, and that is found out for many bytes at once.
fn write_text(out: &mut Vec<u8>, text: &str) -> serde_json::Result<()> {
    let is_plain = |byte: u8| (byte >= 0x20) & (byte != b'"') & (byte != b'\\');
    if !text.bytes().fold(true, |plain, byte| plain & is_plain(byte)) {
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

    #[test]
    fn pieces_are_written_as_serde_writes_them() {
        for text in
            ["", "plain", "tab\t", "a\"b", "back\\slash", "\u{1}\u{7f}", "zwölf 🌼\u{2028}", "line\r\n"]
        {
            let (id, delta) = (|| text.into(), || text.into());
            let kinds = [
                EventKind::TextMessageContent { message_id: id(), delta: delta() },
                EventKind::ReasoningMessageContent { message_id: id(), delta: delta() },
                EventKind::ToolCallArgs { tool_call_id: id(), delta: delta() },
                EventKind::TextMessageEnd { message_id: id() },
            ];
            for kind in kinds {
                let bare = AguiEvent::from(kind);
                let owned = AguiEvent { subagent_run_id: Some(text.into()), ..bare.clone() };
                let dated = AguiEvent { timestamp: Some(7), ..owned.clone() };
                for event in [bare, owned, dated] {
                    let mut out = b"before".to_vec();
                    write(&mut out, &event).unwrap();
                    let wanted = format!("before{}", serde_json::to_string(&event).unwrap());
                    assert_eq!(String::from_utf8(out).unwrap(), wanted);
                }
            }
        }
    }
}
