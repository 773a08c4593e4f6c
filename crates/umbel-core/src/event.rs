//! An entry of the log that people and models see.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use smol_str::SmolStr;

use crate::actions::Actions;
use crate::code::LOOKS_AT_FILE;
use crate::content::Content;
use crate::id::{CallId, EventId, RunId};
use crate::interrupt::{REQUEST_CONFIRMATION, REQUEST_CREDENTIAL};
use crate::json::{Fields, Object, render};
use crate::part::{FunctionCall, FunctionResponse, Payload};

/// The author of what people say.
pub const USER: &str = "user";

/// What Umbel itself keeps in the metadata of events stands under this key of `customMetadata`.
pub const METADATA: &str = "umbel";

/// The call whose result is the agent's answer, in that metadata.
const DIRECT_ANSWER: &str = "directAnswer";

/// One entry of a session's log: who said or did what, in which run.
///
/// Its JSON form is google-adk's, and unknown keys survive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    /// Its name.
    pub id: EventId,
    /// The run it belongs to.
    pub run: RunId,
    /// Who speaks, and on which branch. Shared by all events of an agent in a run.
    pub source: Arc<Source>,
    /// Seconds since 1970.
    pub timestamp: f64,
    /// What is said.
    pub content: Option<Arc<Content>>,
    /// A preview: never stored, never executed.
    pub partial: Option<bool>,
    /// The model has finished its turn.
    pub turn_complete: Option<bool>,
    /// What it does.
    pub actions: Option<Box<Actions>>,
    /// Calls whose answer comes later. Empty and absent are told apart. Boxed, since most events have none.
    pub long_running_tool_ids: Option<Box<Vec<CallId>>>,
    /// What a model tells about its answer, and the seldom rest.
    pub meta: Option<Box<Meta>>,
}

/// Where an event comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// `user`, or the name of an agent.
    pub author: SmolStr,
    /// The path of parallel branches, such as `root.left`. `None` is the trunk.
    pub branch: Option<SmolStr>,
    /// The call under which a delegated agent works, out of sight of the others.
    pub isolation_scope: Option<SmolStr>,
}

impl Source {
    /// A source on the trunk.
    pub fn new(author: impl Into<SmolStr>) -> Self {
        Self { author: author.into(), branch: None, isolation_scope: None }
    }

    /// What people say, on the trunk.
    pub fn user() -> Arc<Self> {
        static USER_SOURCE: LazyLock<Arc<Source>> = LazyLock::new(|| Arc::new(Source::new(USER)));
        USER_SOURCE.clone()
    }
}

/// What a model tells about its answer, and what else an event seldom has.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Meta {
    /// Why the model stopped, such as `STOP` or `MAX_TOKENS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<SmolStr>,
    /// What the model says about why it stopped. Not written: it becomes the error message of a bad end.
    #[serde(skip)]
    pub finish_message: Option<String>,
    /// What went wrong, as a name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<SmolStr>,
    /// What went wrong, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// A person cut the model short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<bool>,
    /// Tokens used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_metadata: Option<Usage>,
    /// Sources the model found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grounding_metadata: Option<Value>,
    /// Sources the model quoted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub citation_metadata: Option<Value>,
    /// Whatever the application attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_metadata: Option<Object>,
    /// What the person said aloud.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_transcription: Option<Transcription>,
    /// What the model said aloud.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_transcription: Option<Transcription>,
    /// The model's own name for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_version: Option<SmolStr>,
    /// The spoken conversation it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_session_id: Option<SmolStr>,
    /// Place in a workflow graph; written by other systems.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_info: Option<Value>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub unknown: Object,
}

/// Tokens used by a model call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// Tokens of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_count: Option<u64>,
    /// Tokens of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidates_token_count: Option<u64>,
    /// Prompt and answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_token_count: Option<u64>,
    /// Tokens of the prompt that came from a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_content_token_count: Option<u64>,
    /// Tokens of the prompt that were put into a cache, where that has a price of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_token_count: Option<u64>,
    /// Tokens spent on thinking. They are not among those of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thoughts_token_count: Option<u64>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub unknown: Object,
}

/// Speech as text.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Transcription {
    /// The words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub unknown: Object,
}

impl Event {
    /// An event of `source` in `run`, with nothing in it yet.
    #[inline]
    pub fn new(run: RunId, source: Arc<Source>) -> Self {
        // Written out, since the default of a source is an allocation.
        Self {
            id: EventId::default(),
            run,
            source,
            timestamp: 0.0,
            content: None,
            partial: None,
            turn_complete: None,
            actions: None,
            long_running_tool_ids: None,
            meta: None,
        }
    }

    /// The same with a content.
    pub fn with_content(mut self, content: impl Into<Arc<Content>>) -> Self {
        self.content = Some(content.into());
        self
    }

    /// The same with actions; empty ones are left out.
    pub fn with_actions(mut self, actions: Actions) -> Self {
        self.actions = (!actions.is_empty()).then(|| Box::new(actions));
        self
    }

    /// Who speaks.
    pub fn author(&self) -> &str {
        &self.source.author
    }

    /// On which branch.
    pub fn branch(&self) -> Option<&str> {
        self.source.branch.as_deref()
    }

    /// Whether a person speaks.
    pub fn is_user(&self) -> bool {
        self.source.author == USER
    }

    /// Whether it is a preview.
    pub fn is_partial(&self) -> bool {
        self.partial == Some(true)
    }

    /// The calls in it.
    pub fn calls(&self) -> impl Iterator<Item = &FunctionCall> {
        self.content.iter().flat_map(|content| content.calls())
    }

    /// The responses in it.
    pub fn responses(&self) -> impl Iterator<Item = &FunctionResponse> {
        self.content.iter().flat_map(|content| content.responses())
    }

    /// The id of the code in it that the flow is to run.
    #[inline]
    pub fn code_id(&self) -> Option<&CallId> {
        self.content.as_ref()?.code_id()
    }

    /// The code in it that the flow is to run, as a call.
    pub fn code_call(&self) -> Option<FunctionCall> {
        self.content.as_ref()?.code_call()
    }

    /// The calls in it and, as calls, the code that was or is to be run: for those who show them.
    pub fn calls_and_code(&self) -> impl Iterator<Item = FunctionCall> {
        self.content.iter().flat_map(|content| content.calls_and_code())
    }

    /// The responses in it and, as responses, the results of code: for those who show them.
    pub fn responses_and_results(&self) -> impl Iterator<Item = FunctionResponse> {
        self.content.iter().flat_map(|content| content.responses_and_results())
    }

    /// The ids of the calls that it has results of. Code that was run counts as a call.
    pub fn answered(&self) -> impl Iterator<Item = &CallId> {
        self.content.iter().flat_map(|content| content.answered())
    }

    /// Its text without thoughts.
    pub fn text(&self) -> String {
        self.content.as_ref().map(|content| content.text()).unwrap_or_default()
    }

    /// Calls whose answer comes later.
    pub fn long_running(&self) -> &[CallId] {
        self.long_running_tool_ids.as_deref().map(Vec::as_slice).unwrap_or_default()
    }

    /// What went wrong, as a name.
    pub fn error_code(&self) -> Option<&str> {
        self.meta.as_ref()?.error_code.as_deref()
    }

    /// What went wrong, in words.
    pub fn error_message(&self) -> Option<&str> {
        self.meta.as_ref()?.error_message.as_deref()
    }

    /// The summary it carries.
    pub fn compaction(&self) -> Option<&crate::actions::Compaction> {
        self.actions.as_ref()?.compaction.as_deref()
    }

    /// State keys it sets.
    pub fn state_delta(&self) -> Option<&Object> {
        self.actions.as_ref()?.state_delta.as_ref()
    }

    /// The run before which the session is rewound: that run and everything since is void.
    pub fn rewinds_to(&self) -> Option<&RunId> {
        self.actions.as_ref()?.rewind_before_invocation_id.as_ref().filter(|run| !run.is_empty())
    }

    /// The actions to be changed.
    pub fn actions_mut(&mut self) -> &mut Actions {
        self.actions.get_or_insert_default()
    }

    /// The rest to be changed.
    pub fn meta_mut(&mut self) -> &mut Meta {
        self.meta.get_or_insert_default()
    }

    /// Whether a model may have said this. What handlers and agents without a model say looks the same; results, questions
    /// to people, and code that looks at files do not.
    pub fn is_answer(&self) -> bool {
        let Some(content) = &self.content else { return false };
        let asks =
            |call: &FunctionCall| [REQUEST_CONFIRMATION, REQUEST_CREDENTIAL].contains(&call.name.as_str());
        !self.is_user()
            && !self.is_partial()
            && !content.has_responses()
            && !content.answered().any(CallId::is_client)
            && !content.code_id().is_some_and(|id| id.as_str().starts_with(LOOKS_AT_FILE))
            && !content.calls().any(asks)
    }

    /// The result that is the agent's answer, if a tool answers directly: that of the last such call in call order.
    ///
    /// Events that do not tell which call that was have just one, or their last response counts.
    pub fn direct_answer(&self) -> Option<&FunctionResponse> {
        self.actions.as_ref().filter(|actions| actions.skip_summarization == Some(true))?;
        let named = self.own_metadata().and_then(|own| own.get(DIRECT_ANSWER));
        let answer = match named {
            None => self.responses().last(),
            Some(call) => {
                let call = call.as_str()?;
                self.responses().find(|response| response.id.as_ref().is_some_and(|id| *id == *call))
            }
        };
        answer.filter(|response| !response.is_waiting())
    }

    /// Tells which call's result is the agent's answer, if that is not the last one; `None` if none is.
    pub fn set_direct_answer(&mut self, call: Option<&CallId>) {
        let is_last =
            self.responses().last().is_some_and(|last| last.id.is_some() && last.id.as_ref() == call);
        if !is_last {
            let call = call.map_or(Value::Null, |call| Value::String(call.to_string()));
            self.set_own_metadata(DIRECT_ANSWER, call);
        }
    }

    /// The text of the answer that this event is: the result of a tool that answers directly, or what is said. An error is no
    /// answer.
    pub fn answer_text(&self) -> String {
        match self.direct_answer() {
            None => self.text(),
            Some(response) if response.error().is_some() => String::new(),
            Some(response) => match response.value() {
                Value::Object(object) if object.is_empty() => String::new(),
                value => render(&value),
            },
        }
    }

    /// What Umbel itself keeps in the metadata.
    pub fn own_metadata(&self) -> Option<&Object> {
        self.meta.as_ref()?.custom_metadata.as_ref()?.get(METADATA)?.as_object()
    }

    /// Puts something there.
    pub fn set_own_metadata(&mut self, key: &str, value: Value) {
        let custom = self.meta_mut().custom_metadata.get_or_insert_default();
        if let Some(Value::Object(own)) = custom.get_mut(METADATA) {
            own.insert(key.to_owned(), value);
        } else {
            let own = Object::from_iter([(key.to_owned(), value)]);
            custom.insert(METADATA.to_owned(), Value::Object(own));
        }
    }

    /// Whether the agent has said its last word of this turn with it.
    #[inline]
    pub fn is_final(&self) -> bool {
        let skips = self.actions.as_ref().is_some_and(|actions| actions.skip_summarization == Some(true));
        if skips || !self.long_running().is_empty() {
            return true;
        }
        let has_calls = self.calls().next().is_some();
        let failed = self.error_code().is_some_and(|code| !code.is_empty());
        if failed && !self.is_partial() && !has_calls {
            return true;
        }
        // The model has something to say to the result of code. So it has to code that the flow is to run.
        let ends_with_code = self.content.as_ref().is_some_and(|content| {
            let last = content.parts.last().map(|part| &part.payload);
            matches!(last, Some(Payload::CodeResult(_))) || content.code_id().is_some()
        });
        !has_calls && self.responses().next().is_none() && !self.is_partial() && !ends_with_code
    }

    fn from_json(value: Value) -> crate::Result<Self> {
        let mut fields = Fields::new("an event", value)?;
        let source = Source {
            author: fields.take("author")?.unwrap_or_default(),
            branch: fields.take("branch")?,
            isolation_scope: fields.take("isolationScope")?,
        };
        let event = Self {
            id: fields.take("id")?.unwrap_or_default(),
            run: fields.take("invocationId")?.unwrap_or_default(),
            source: Arc::new(source),
            timestamp: fields.take("timestamp")?.unwrap_or_default(),
            content: fields.take("content")?,
            partial: fields.take("partial")?,
            turn_complete: fields.take("turnComplete")?,
            actions: fields.take("actions")?,
            long_running_tool_ids: fields.take("longRunningToolIds")?,
            meta: None,
        };
        let rest = fields.rest();
        if rest.is_empty() {
            return Ok(event);
        }
        Ok(Self { meta: Meta::from_json(rest)?, ..event })
    }
}

impl Meta {
    /// Forgets what went wrong.
    pub fn clear_error(&mut self) {
        self.finish_message = None;
        self.error_code = None;
        self.error_message = None;
    }

    /// Read key by key, so that an explicit null is as good as an absent key. `None` if nothing is left.
    pub(crate) fn from_json(rest: Object) -> crate::Result<Option<Box<Self>>> {
        let mut fields = Fields::new("an event", Value::Object(rest))?;
        let meta = Self {
            finish_reason: fields.take("finishReason")?,
            finish_message: None,
            error_code: fields.take("errorCode")?,
            error_message: fields.take("errorMessage")?,
            interrupted: fields.take("interrupted")?,
            usage_metadata: fields.take("usageMetadata")?,
            grounding_metadata: fields.take("groundingMetadata")?,
            citation_metadata: fields.take("citationMetadata")?,
            custom_metadata: fields.take("customMetadata")?,
            input_transcription: fields.take("inputTranscription")?,
            output_transcription: fields.take("outputTranscription")?,
            model_version: fields.take("modelVersion")?,
            live_session_id: fields.take("liveSessionId")?,
            node_info: fields.take("nodeInfo")?,
            unknown: fields.rest(),
        };
        Ok((meta != Self::default()).then(|| Box::new(meta)))
    }
}

/// An event as it is written.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    invocation_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    author: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    branch: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    isolation_scope: Option<&'a str>,
    timestamp: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a Content>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partial: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn_complete: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    actions: Option<&'a Actions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    long_running_tool_ids: Option<&'a Vec<CallId>>,
    #[serde(flatten)]
    meta: Option<&'a Meta>,
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let wire = Wire {
            id: self.id.as_str(),
            invocation_id: self.run.as_str(),
            author: self.author(),
            branch: self.branch(),
            isolation_scope: self.source.isolation_scope.as_deref(),
            timestamp: self.timestamp,
            content: self.content.as_deref(),
            partial: self.partial,
            turn_complete: self.turn_complete,
            actions: self.actions.as_deref(),
            long_running_tool_ids: self.long_running_tool_ids.as_deref(),
            meta: self.meta.as_deref(),
        };
        wire.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_of_another_system_is_written_back_unchanged() {
        for event in [
            json!({"id": "e1", "invocationId": "i", "author": "guide", "timestamp": 1760000000.25,
                "content": {"role": "model", "parts": [{"text": "x"}]},
                "actions": {"stateDelta": {}, "artifactDelta": {}, "requestedAuthConfigs": {},
                            "requestedToolConfirmations": {}},
                "nodeInfo": {"path": ""}, "longRunningToolIds": [], "output": {"a": 1}}),
            json!({"id": "e2", "author": "user", "timestamp": 1.5, "branch": "a.b", "isolationScope": "c1",
                "content": {"parts": [{"text": "no role"}]}, "partial": false, "turnComplete": true,
                "usageMetadata": {"promptTokenCount": 1, "promptTokensDetails": []},
                "actions": {"compaction": {"startTimestamp": 1.0, "endTimestamp": 2.0,
                    "compactedContent": {"role": "model", "parts": [{"text": "s"}]}}, "route": "x"},
                "goAway": {"timeLeft": "1s"}}),
        ] {
            let read: Event = serde_json::from_value(event.clone()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), event);
        }
    }

    #[test]
    fn a_null_is_as_good_as_an_absent_key() {
        let event: Event = serde_json::from_value(
            json!({"author": "a", "errorCode": null, "content": null, "branch": null}),
        )
        .unwrap();
        assert!(event.meta.is_none() && event.content.is_none() && event.branch().is_none());
    }

    #[test]
    fn an_event_is_small() {
        assert!(size_of::<Event>() <= 104, "{}", size_of::<Event>());
    }
}
