//! What the log remembers of the input that began a run: the names that its client gave things.

use serde_json::Value;
use smol_str::SmolStr;
use umbel_core::{Event, Object};

/// The key in the metadata of a user's event.
const KEY: &str = "agui";

/// The names that a client gave to a run and to the messages that began it. It is kept in the metadata of the user's
/// event: the log is the index of what was processed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InputMark {
    /// The run.
    pub run: SmolStr,
    /// The run that the client says it comes from.
    pub parent: Option<SmolStr>,
    /// Whether it goes on with the same request as the run before: a client may answer questions and say something.
    pub follows: bool,
    /// Whether another run goes on with the same request, once this one has ended well.
    pub leads: bool,
    /// Tells the request apart from others under the same name.
    pub digest: u64,
    /// The client knows nothing of interrupts, and gets them as calls.
    pub is_plain: bool,
    /// The messages, each with how many parts of the event it became.
    pub messages: Vec<(SmolStr, usize)>,
}

impl InputMark {
    /// As metadata of a user's event.
    pub fn to_metadata(&self) -> Object {
        let text = |text: &SmolStr| Value::String(text.to_string());
        let message = |(id, parts): &(SmolStr, usize)| Value::Array(vec![text(id), Value::from(*parts)]);
        // Most have these three alone.
        let mut mark = Object::with_capacity(3);
        mark.insert("run".to_owned(), text(&self.run));
        if let Some(parent) = &self.parent {
            mark.insert("parent".to_owned(), text(parent));
        }
        if self.follows {
            mark.insert("follows".to_owned(), Value::Bool(true));
        }
        if self.leads {
            mark.insert("leads".to_owned(), Value::Bool(true));
        }
        mark.insert("digest".to_owned(), Value::String(format!("{:x}", self.digest)));
        if self.is_plain {
            mark.insert("plain".to_owned(), Value::Bool(true));
        }
        mark.insert("messages".to_owned(), Value::Array(self.messages.iter().map(message).collect()));
        Object::from_iter([(KEY.to_owned(), Value::Object(mark))])
    }

    /// The mark of an event, if it has one.
    pub fn of(event: &Event) -> Option<Self> {
        let mark = event.meta.as_ref()?.custom_metadata.as_ref()?.get(KEY)?;
        let message = |pair: &Value| {
            let (id, parts) = (pair.get(0)?.as_str()?, pair.get(1)?.as_u64()?);
            Some((SmolStr::new(id), usize::try_from(parts).ok()?))
        };
        let messages = mark.get("messages").and_then(Value::as_array);
        let is_set = |key: &str| mark.get(key).is_some_and(|set| *set == Value::Bool(true));
        let digest = mark.get("digest").and_then(Value::as_str);
        let digest = digest.and_then(|digest| u64::from_str_radix(digest, 16).ok());
        Some(Self {
            run: mark.get("run")?.as_str()?.into(),
            parent: mark.get("parent").and_then(Value::as_str).map(SmolStr::new),
            follows: is_set("follows"),
            leads: is_set("leads"),
            digest: digest.unwrap_or_default(),
            is_plain: is_set("plain"),
            messages: messages.into_iter().flatten().filter_map(message).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use umbel_core::{RunId, Source};

    #[test]
    fn a_mark_is_read_as_it_was_written_and_others_have_none() {
        let mark = InputMark {
            run: "r1".into(),
            parent: Some("r0".into()),
            follows: true,
            leads: true,
            digest: u64::MAX,
            is_plain: true,
            messages: vec![("m1".into(), 1), ("m2".into(), 3)],
        };
        let mut event = Event::new(RunId::default(), Source::user());
        assert_eq!(InputMark::of(&event), None);
        event.meta_mut().custom_metadata = Some(mark.to_metadata());
        assert_eq!(InputMark::of(&event), Some(mark));
        event.meta_mut().custom_metadata = json!({"agui": 3}).as_object().cloned();
        assert_eq!(InputMark::of(&event), None);
    }
}
