//! Thoughts as OpenRouter hands them on: a list of details in the words of whoever thought them, which come in pieces and
//! must go back as they are.

use serde_json::Value;
use umbel_core::Result;

use crate::frames::unreadable;

/// The most details that one answer may have.
const MOST: usize = 4096;

/// The details so far.
#[derive(Debug, Default)]
pub(super) struct Details(Vec<Value>);

impl Details {
    /// Adds a detail, or more of one that is there: of the same kind, at the same place.
    pub(super) fn add(&mut self, detail: Value) -> Result<()> {
        let same = |known: &Value| {
            let both = |key: &str| (known.get(key), detail.get(key));
            let is_same_id = match both("id") {
                (Some(known), Some(id)) if !known.is_null() && !id.is_null() => known == id,
                _ => true,
            };
            let (known_kind, kind) = both("type");
            let (known_index, index) = both("index");
            kind.is_some() && known_kind == kind && known_index == index && is_same_id
        };
        let last = self.0.len().wrapping_sub(1);
        // Without a number only the last one can go on.
        let known = self.0.iter().rposition(same).filter(|at| *at == last || detail.get("index").is_some());
        let len = self.0.len();
        match known.and_then(|at| self.0.get_mut(at)) {
            Some(known) => join(known, detail),
            None if len < MOST => self.0.push(detail),
            None => return Err(unreadable("the answer has too many thoughts")),
        }
        Ok(())
    }

    /// All of them, if there are any.
    pub(super) fn take(&mut self) -> Option<Vec<Value>> {
        Some(std::mem::take(&mut self.0)).filter(|details| !details.is_empty())
    }
}

/// Puts two pieces of one detail together: what is said goes on, all else is told once.
fn join(known: &mut Value, more: Value) {
    let (Value::Object(known), Value::Object(more)) = (known, more) else { return };
    for (key, value) in more {
        match (known.get_mut(&key), value) {
            (_, Value::Null) => {}
            (Some(Value::String(said)), Value::String(more))
                if matches!(key.as_str(), "text" | "summary" | "data" | "signature") =>
            {
                said.push_str(&more);
            }
            (_, value) => {
                known.insert(key, value);
            }
        }
    }
}

/// What a detail says to people.
pub(super) fn words(detail: &Value) -> Option<&str> {
    detail.get("text").or_else(|| detail.get("summary"))?.as_str()
}
