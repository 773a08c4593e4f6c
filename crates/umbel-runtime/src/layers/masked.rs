//! JSON as it may be shown: parts of it masked, and no longer than allowed.

use std::io;

use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::Value;
use smallvec::SmallVec;
use umbel_core::Object;

/// What stands in the place of what may not be shown.
const MASK: &str = "[redacted]";
/// What stands at the end of what was cut.
const CUT: &str = "…";

/// A place in a JSON value: the keys that lead there. `*` stands for any key.
#[derive(Clone, Debug)]
pub(super) struct Pointer(Vec<String>);

impl Pointer {
    /// Reads a JSON pointer, such as `/user/password`.
    pub(super) fn parse(text: &str) -> Self {
        let keys = text.strip_prefix('/').unwrap_or(text).split('/');
        Self(keys.map(|key| key.replace("~1", "/").replace("~0", "~")).collect())
    }
}

/// The ways that are left to places further in.
type Ways<'a> = SmallVec<[&'a [String]; 4]>;

/// The ways that go through a key; `None` if one ends there.
fn through<'a>(ways: &Ways<'a>, key: &str) -> Option<Ways<'a>> {
    let mut further = Ways::new();
    for way in ways {
        match way.split_first() {
            Some((first, rest)) if first == key || first == "*" => {
                if rest.is_empty() {
                    return None;
                }
                further.push(rest);
            }
            _ => {}
        }
    }
    Some(further)
}

struct Masked<'a> {
    value: &'a Value,
    ways: Ways<'a>,
    /// How much can be shown at most.
    max_bytes: usize,
}

impl Serialize for Masked<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { value, ways, max_bytes } = self;
        match value {
            Value::Object(object) => {
                MaskedObject { object, ways: ways.clone(), max_bytes: *max_bytes }.serialize(serializer)
            }
            Value::Array(items) => {
                let mut seq = serializer.serialize_seq(Some(items.len()))?;
                for (index, value) in items.iter().enumerate() {
                    let way =
                        if ways.is_empty() { Some(Ways::new()) } else { through(ways, &index.to_string()) };
                    match way {
                        Some(ways) => {
                            seq.serialize_element(&Masked { value, ways, max_bytes: *max_bytes })?;
                        }
                        None => seq.serialize_element(MASK)?,
                    }
                }
                seq.end()
            }
            // A little more than can be shown, so that it is seen to be cut. Longer ones are not even looked through.
            Value::String(text) if text.len() > max_bytes.saturating_add(8) => {
                let (shown, _) = text.split_at(text.floor_char_boundary(max_bytes + 8));
                serializer.serialize_str(shown)
            }
            value => value.serialize(serializer),
        }
    }
}

struct MaskedObject<'a> {
    object: &'a Object,
    ways: Ways<'a>,
    max_bytes: usize,
}

impl Serialize for MaskedObject<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.object.len()))?;
        for (key, value) in self.object {
            match through(&self.ways, key) {
                Some(ways) => map.serialize_entry(key, &Masked { value, ways, max_bytes: self.max_bytes })?,
                None => map.serialize_entry(key, MASK)?,
            }
        }
        map.end()
    }
}

fn ways(masks: &[Pointer]) -> Ways<'_> {
    masks.iter().map(|pointer| pointer.0.as_slice()).collect()
}

/// An object as it may be shown.
pub(super) fn show_object(object: &Object, masks: &[Pointer], max_bytes: usize) -> String {
    show(&MaskedObject { object, ways: ways(masks), max_bytes }, max_bytes)
}

/// A value as it may be shown.
pub(super) fn show_value(value: &Value, masks: &[Pointer], max_bytes: usize) -> String {
    show(&Masked { value, ways: ways(masks), max_bytes }, max_bytes)
}

/// Writes no more than is shown: a large value is not written out to be cut.
fn show(value: &impl Serialize, max_bytes: usize) -> String {
    let mut bounded = Bounded { bytes: Vec::new(), left: max_bytes };
    let whole = serde_json::to_writer(&mut bounded, value).is_ok();
    let mut text = match String::from_utf8(bounded.bytes) {
        Ok(text) => text,
        // Cut in the middle of a character.
        Err(error) => {
            let end = error.utf8_error().valid_up_to();
            let mut bytes = error.into_bytes();
            bytes.truncate(end);
            String::from_utf8(bytes).unwrap_or_default()
        }
    };
    if !whole {
        text.push_str(CUT);
    }
    text
}

/// Takes so many bytes, and then fails.
struct Bounded {
    bytes: Vec<u8>,
    left: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.left);
        self.bytes.extend(bytes.iter().take(taken));
        self.left -= taken;
        // Zero makes the writing end with an error.
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(value: &Value, masks: &[&str], max: usize) -> String {
        let masks: Vec<_> = masks.iter().map(|mask| Pointer::parse(mask)).collect();
        show_value(value, &masks, max)
    }

    #[test]
    fn places_are_masked_by_pointer_and_no_others() {
        let value = json!({"a": {"b": 1, "c": 2}, "b": 3, "list": [{"k": 1}, {"k": 2}], "x/y": 4, "m~n": 5});
        let cases: [(&[&str], &str); 5] = [
            (&[], r#"{"a":{"b":1,"c":2},"b":3,"list":[{"k":1},{"k":2}],"x/y":4,"m~n":5}"#),
            (&["/a/b"], r#"{"a":{"b":"[redacted]","c":2},"b":3,"list":[{"k":1},{"k":2}],"x/y":4,"m~n":5}"#),
            (
                &["/a", "/a/b", "/x~1y", "/m~0n"],
                r#"{"a":"[redacted]","b":3,"list":[{"k":1},{"k":2}],"x/y":"[redacted]","m~n":"[redacted]"}"#,
            ),
            (
                &["/list/1/k", "/nope/k"],
                r#"{"a":{"b":1,"c":2},"b":3,"list":[{"k":1},{"k":"[redacted]"}],"x/y":4,"m~n":5}"#,
            ),
            (
                &["/list/*/k"],
                r#"{"a":{"b":1,"c":2},"b":3,"list":[{"k":"[redacted]"},{"k":"[redacted]"}],"x/y":4,"m~n":5}"#,
            ),
        ];
        for (masks, expected) in cases {
            assert_eq!(shown(&value, masks, 1_000), expected, "{masks:?}");
        }
        assert_eq!(
            show_object(value.as_object().unwrap(), &[Pointer::parse("/a")], 18),
            r#"{"a":"[redacted]",…"#
        );
    }

    #[test]
    fn what_is_too_long_is_cut_between_characters() {
        let value = json!("äöü");
        for (max, expected) in
            [(8, "\"äöü\""), (7, "\"äöü…"), (6, "\"äö…"), (5, "\"äö…"), (1, "\"…"), (0, "…")]
        {
            assert_eq!(shown(&value, &[], max), expected, "{max}");
        }
    }

    #[test]
    fn a_large_value_is_not_written_out_to_be_cut() {
        struct Endless(std::cell::Cell<usize>);
        impl Serialize for Endless {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut seq = serializer.serialize_seq(None)?;
                for _ in 0..1_000_000 {
                    self.0.set(self.0.get() + 1);
                    seq.serialize_element("some words")?;
                }
                seq.end()
            }
        }
        let value = Endless(Default::default());
        assert!(show(&value, 100).len() <= 100 + CUT.len());
        assert!(value.0.get() < 20, "{} items were looked at", value.0.get());
    }
}
