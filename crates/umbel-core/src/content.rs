//! A message: a role and its parts.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

use crate::id::CallId;
use crate::part::{FunctionCall, FunctionResponse, Part, Payload};

/// The parts of a message; most have one.
pub type Parts = SmallVec<[Part; 1]>;

/// A message: who speaks, and what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Content {
    /// Absent in some imported sessions; such contents never reach a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// What is said.
    #[serde(default)]
    pub parts: Parts,
}

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// The person, or a tool on the model's behalf.
    User,
    /// The model.
    Model,
    /// A role of another system, kept as it came.
    Other(Arc<str>),
}

impl Role {
    /// The role as it is written.
    pub fn as_str(&self) -> &str {
        match self {
            Self::User => "user",
            Self::Model => "model",
            Self::Other(name) => name,
        }
    }
}

impl From<&str> for Role {
    fn from(name: &str) -> Self {
        match name {
            "user" => Self::User,
            "model" => Self::Model,
            other => Self::Other(other.into()),
        }
    }
}

impl Serialize for Role {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|name| name.as_str().into())
    }
}

impl Content {
    /// A message of several parts.
    pub fn new(role: Role, parts: impl IntoIterator<Item = Part>) -> Self {
        Self { role: Some(role), parts: parts.into_iter().collect() }
    }

    /// A message of the user.
    pub fn user(part: impl Into<Part>) -> Self {
        Self { role: Some(Role::User), parts: Parts::from_buf([part.into()]) }
    }

    /// A message of the model.
    pub fn model(part: impl Into<Part>) -> Self {
        Self { role: Some(Role::Model), parts: Parts::from_buf([part.into()]) }
    }

    /// The calls in it, in order.
    pub fn calls(&self) -> impl Iterator<Item = &FunctionCall> {
        self.parts.iter().filter_map(Part::as_call)
    }

    /// The responses in it, in order.
    pub fn responses(&self) -> impl Iterator<Item = &FunctionResponse> {
        self.parts.iter().filter_map(Part::as_response)
    }

    /// Whether it has a call.
    #[inline]
    pub fn has_calls(&self) -> bool {
        self.calls().next().is_some()
    }

    /// Whether it has a response.
    #[inline]
    pub fn has_responses(&self) -> bool {
        self.responses().next().is_some()
    }

    /// The id of the code that the flow is to run: the last thing that a model said, with an id that the flow gave it.
    #[inline]
    pub fn code_id(&self) -> Option<&CallId> {
        match self.parts.last().map(|part| &part.payload) {
            Some(Payload::Code(code)) => code.id.as_ref().filter(|id| id.is_client()),
            _ => None,
        }
    }

    /// That code as a call.
    pub fn code_call(&self) -> Option<FunctionCall> {
        self.code_id()?;
        match self.parts.last().map(|part| &part.payload) {
            Some(Payload::Code(code)) => Some(code.as_call()),
            _ => None,
        }
    }

    /// The calls in it and, as calls, the code that was or is to be run, in order: for those who show them.
    pub fn calls_and_code(&self) -> impl Iterator<Item = FunctionCall> {
        self.parts.iter().filter_map(|part| match &part.payload {
            Payload::Call(call) => Some((**call).clone()),
            Payload::Code(code) => Some(code.as_call()),
            _ => None,
        })
    }

    /// The responses in it and, as responses, the results of code, in order: for those who show them.
    pub fn responses_and_results(&self) -> impl Iterator<Item = FunctionResponse> {
        self.parts.iter().filter_map(|part| match &part.payload {
            Payload::Response(response) => Some((**response).clone()),
            Payload::CodeResult(result) => Some(result.as_response()),
            _ => None,
        })
    }

    /// The ids of the calls that it has results of. Code that was run counts as a call.
    pub fn answered(&self) -> impl Iterator<Item = &CallId> {
        self.parts.iter().filter_map(|part| match &part.payload {
            Payload::Response(response) => response.id.as_ref(),
            Payload::CodeResult(result) => result.id.as_ref(),
            _ => None,
        })
    }

    /// Its text without thoughts, joined.
    pub fn text(&self) -> String {
        self.parts.iter().filter(|part| !part.is_thought()).filter_map(Part::as_text).collect()
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::user(text)
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::user(Part::text(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn roles_that_are_absent_or_foreign_survive() {
        for value in [
            json!({"parts": [{"text": "a"}]}),
            json!({"role": "tool", "parts": []}),
            json!({"role": "user", "parts": [{"text": "a"}, {"text": "b"}]}),
        ] {
            let content: Content = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(serde_json::to_value(&content).unwrap(), value);
        }
    }

    #[test]
    fn text_leaves_thoughts_out() {
        let content = Content::new(Role::Model, [Part::thought("hm"), "a".into(), "b".into()]);
        assert_eq!(content.text(), "ab");
    }
}
