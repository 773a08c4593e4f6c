//! How much room values take: as JSON, and on the heap. Caches and quotas are bounded by it.

use std::io::{self, Write};
use std::mem::size_of;

use serde::Serialize;
use serde_json::Value;

use crate::content::Content;
use crate::event::Event;
use crate::json::Object;
use crate::part::{Part, Payload};

/// The length of a value's JSON form in bytes, without making it.
pub fn json_bytes(value: &impl Serialize) -> u64 {
    struct Counter(u64);
    impl Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    // A value without a JSON form is refused where it is stored.
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

/// What an event takes on the heap, roughly: what it says, what it changes, and its own fields.
pub fn event_bytes(event: &Event) -> usize {
    let content = event.content.as_deref().map_or(0, content_bytes);
    let delta = event.state_delta().map_or(0, object_bytes);
    let metadata = event.own_metadata().map_or(0, object_bytes);
    size_of::<Event>() + content + delta + metadata
}

fn content_bytes(content: &Content) -> usize {
    size_of::<Content>() + content.parts.iter().map(part_bytes).sum::<usize>()
}

fn part_bytes(part: &Part) -> usize {
    let payload = match &part.payload {
        Payload::Text(text) => text.len(),
        Payload::Call(call) => size_of_val(&**call) + call.args.as_deref().map_or(0, object_bytes),
        Payload::Response(response) => {
            size_of_val(&**response) + response.response.as_ref().map_or(0, object_bytes)
        }
        Payload::InlineData(blob) => size_of_val(&**blob) + blob.data.len(),
        Payload::Code(code) => size_of_val(&**code) + code.code.as_ref().map_or(0, String::len),
        Payload::CodeResult(result) => size_of_val(&**result) + result.output.as_ref().map_or(0, String::len),
        Payload::FileData(file) => size_of_val(&**file),
        Payload::Empty => 0,
    };
    size_of::<Part>() + payload
}

/// What an object takes on the heap, roughly. Entries of an ordered map have a hash and a place in its table.
fn object_bytes(object: &Object) -> usize {
    const ENTRY: usize = size_of::<String>() + size_of::<Value>() + 4 * size_of::<usize>();
    object.iter().map(|(key, value)| ENTRY + key.len() + value_bytes(value)).sum()
}

fn value_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(|item| size_of::<Value>() + value_bytes(item)).sum(),
        Value::Object(object) => object_bytes(object),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::event::Source;
    use crate::id::RunId;

    #[test]
    fn the_bytes_of_json_are_counted_without_writing_it() {
        for value in [json!(null), json!({"a": [1, 2.5, "å\n"], "b": {}}), json!("x".repeat(1_000))] {
            assert_eq!(json_bytes(&value), value.to_string().len() as u64);
        }
    }

    #[test]
    fn an_event_takes_at_least_what_it_says_and_sets() {
        let said =
            |text: &str| Event::new(RunId::from("r"), Source::user()).with_content(Content::user(text));
        let small = event_bytes(&said(""));
        assert!(event_bytes(&said(&"x".repeat(10_000))) >= small + 10_000);
        let mut sets = said("");
        let value = json!({"list": vec!["y".repeat(100); 100]});
        sets.actions_mut().state_delta = Some(Object::from_iter([("k".to_owned(), value)]));
        assert!(event_bytes(&sets) >= small + 10_000);
    }
}
