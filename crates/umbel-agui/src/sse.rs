//! Events as server-sent events.

use crate::event::AguiEvent;
use crate::json;

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
    json::write(out, event)?;
    out.extend_from_slice(b"\n\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventKind;

    #[test]
    fn a_frame_is_one_line_of_data_whatever_the_text() {
        let mut out = b"before".to_vec();
        let delta = "a\r\nb\n\nc\u{2028}";
        let event = EventKind::TextMessageContent { message_id: "m".into(), delta: delta.into() }.into();
        write_frame(&mut out, |out| out.extend_from_slice(b"r:7"), &event).unwrap();
        let data = r#"{"type":"TEXT_MESSAGE_CONTENT","messageId":"m","delta":"a\r\nb\n\nc"#;
        assert_eq!(String::from_utf8(out).unwrap(), format!("beforeid: r:7\ndata: {data}\u{2028}\"}}\n\n"));
    }
}
