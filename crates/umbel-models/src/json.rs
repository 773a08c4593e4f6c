//! Writing JSON straight into the bytes of a request.

use serde::Serialize;
#[cfg(feature = "openai")]
use serde_json::Value;

/// Writes a value. One that cannot be written, which none of ours is, becomes null.
pub(crate) fn write<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let start = out.len();
    if serde_json::to_writer(&mut *out, value).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
}

/// A value as JSON text.
pub(crate) fn text<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

/// An object that is being written. It is closed when it is dropped.
pub(crate) struct Fields<'a> {
    out: &'a mut Vec<u8>,
    first: bool,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, first: true }
    }

    /// A key whose value is written by whoever asks.
    pub(crate) fn key(&mut self, key: &str) -> &mut Vec<u8> {
        if !std::mem::take(&mut self.first) {
            self.out.push(b',');
        }
        write(self.out, key);
        self.out.push(b':');
        self.out
    }

    /// A key and its value.
    pub(crate) fn set<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        write(self.key(key), value);
    }

    /// A key and its value, if it has one.
    pub(crate) fn maybe<T: Serialize>(&mut self, key: &str, value: Option<T>) {
        if let Some(value) = value {
            self.set(key, &value);
        }
    }

    /// An object below a key.
    pub(crate) fn object(&mut self, key: &str) -> Fields<'_> {
        Fields::new(self.key(key))
    }
}

impl Drop for Fields<'_> {
    fn drop(&mut self) {
        self.out.push(b'}');
    }
}

/// Writes values with commas between them, in brackets.
pub(crate) fn array<T>(
    out: &mut Vec<u8>,
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(&mut Vec<u8>, T),
) {
    out.push(b'[');
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

/// Puts what was asked for by name on top of what is there: objects and lists grow, all else is replaced.
#[cfg(feature = "openai")]
pub(crate) fn add(there: &mut Value, more: &Value) {
    match (there, more) {
        (Value::Object(there), Value::Object(more)) => {
            for (key, value) in more {
                add(there.entry(key.as_str()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(there), Value::Array(more)) => {
            for value in more {
                if !there.contains(value) {
                    there.push(value.clone());
                }
            }
        }
        (there, more) => *there = more.clone(),
    }
}
