//! What a model answers.

use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use smol_str::SmolStr;

use crate::content::{Content, Role};
use crate::event::{Meta, Usage};
use crate::json::{Fields, Object};

/// What a model answers: a message, or why there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Response {
    /// The message.
    pub content: Option<Arc<Content>>,
    /// A piece of a message that is still coming.
    pub partial: Option<bool>,
    /// The model has finished its turn.
    pub turn_complete: Option<bool>,
    /// What the model tells about it.
    pub meta: Option<Box<Meta>>,
}

impl Response {
    /// An answer with that content.
    pub fn new(content: impl Into<Arc<Content>>) -> Self {
        Self { content: Some(content.into()), ..Self::default() }
    }

    /// A plain text answer.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Content::model(crate::Part::text(text)))
    }

    /// Why the model stopped.
    pub fn finish_reason(&self) -> Option<&str> {
        self.meta.as_ref()?.finish_reason.as_deref()
    }

    /// What went wrong, as a name.
    pub fn error_code(&self) -> Option<&str> {
        self.meta.as_ref()?.error_code.as_deref()
    }

    /// Tokens used.
    pub fn usage(&self) -> Option<&Usage> {
        self.meta.as_ref()?.usage_metadata.as_ref()
    }

    /// The rest to be changed.
    pub fn meta_mut(&mut self) -> &mut Meta {
        self.meta.get_or_insert_default()
    }

    /// Reads the answer of a `generateContent` call: its first candidate.
    ///
    /// A candidate with parts, or one that stopped as it should, is a message; any other is an error named by
    /// its finish reason. No candidate at all is an error if the prompt was blocked, else an empty message.
    pub fn from_generate_content(value: Value) -> crate::Result<Self> {
        let mut fields = Fields::new("a generateContent response", value)?;
        let candidates: Vec<Object> = fields.take("candidates")?.unwrap_or_default();
        let feedback: Option<Object> = fields.take("promptFeedback")?;
        let mut response = Self::default();
        let mut meta = Meta {
            usage_metadata: fields.take("usageMetadata")?,
            model_version: fields.take("modelVersion")?,
            ..Meta::default()
        };
        if let Some(candidate) = candidates.into_iter().next() {
            let mut candidate = Fields::new("a candidate", Value::Object(candidate))?;
            let content: Option<Arc<Content>> = candidate.take("content")?;
            let reason: Option<SmolStr> = candidate.take("finishReason")?;
            let message: Option<String> = candidate.take("finishMessage")?;
            meta.grounding_metadata = candidate.take("groundingMetadata")?;
            meta.citation_metadata = candidate.take("citationMetadata")?;
            for key in ["avgLogprobs", "logprobsResult"] {
                meta.unknown.extend(candidate.take(key)?.map(|value: Value| (key.to_owned(), value)));
            }
            let has_parts = content.as_ref().is_some_and(|content| !content.parts.is_empty());
            if has_parts || reason.as_deref() == Some("STOP") {
                response.content = content;
            } else {
                meta.error_code.clone_from(&reason);
                meta.error_message.clone_from(&message);
            }
            meta.finish_message = message;
            meta.finish_reason = reason;
        } else if let Some(feedback) = feedback {
            let text = |key: &str| feedback.get(key).and_then(Value::as_str);
            meta.error_code = text("blockReason").map(SmolStr::new);
            meta.error_message = text("blockReasonMessage").map(str::to_owned);
        } else {
            response.content = Some(Arc::new(Content::new(Role::Model, [])));
        }
        response.meta = (meta != Meta::default()).then(|| Box::new(meta));
        Ok(response)
    }
}

impl<'de> Deserialize<'de> for Response {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = |value| -> crate::Result<Self> {
            let mut fields = Fields::new("a model response", value)?;
            Ok(Self {
                content: fields.take("content")?,
                partial: fields.take("partial")?,
                turn_complete: fields.take("turnComplete")?,
                meta: Meta::from_json(fields.rest())?,
            })
        };
        read(Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// The form of an event without what only events have.
impl serde::Serialize for Response {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(serde::Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            content: Option<&'a Content>,
            #[serde(skip_serializing_if = "Option::is_none")]
            partial: Option<bool>,
            #[serde(skip_serializing_if = "Option::is_none")]
            turn_complete: Option<bool>,
            #[serde(flatten)]
            meta: Option<&'a Meta>,
        }
        let wire = Wire {
            content: self.content.as_deref(),
            partial: self.partial,
            turn_complete: self.turn_complete,
            meta: self.meta.as_deref(),
        };
        wire.serialize(serializer)
    }
}
