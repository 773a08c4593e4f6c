//! What an event does besides saying something.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use smol_str::SmolStr;

use crate::content::Content;
use crate::event::Usage;
use crate::id::{CallId, RunId};
use crate::json::Object;

/// What an event does: state it writes, where control goes, what it asks for.
///
/// Absent and empty are told apart, since sessions of other systems do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Actions {
    /// State keys to set, scope prefixes included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_delta: Option<Object>,
    /// Artifacts written, with their new version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_delta: Option<BTreeMap<String, u64>>,
    /// The tool's answer is the agent's; the model is not asked to put it in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_summarization: Option<bool>,
    /// The agent that goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer_to_agent: Option<SmolStr>,
    /// Ends the enclosing loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalate: Option<bool>,
    /// Credentials that calls wait for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_auth_configs: Option<Object>,
    /// Confirmations that calls wait for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_tool_confirmations: Option<BTreeMap<CallId, Confirmation>>,
    /// A summary that stands for a stretch of the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compaction: Option<Box<Compaction>>,
    /// Everything from the first event of that run on is void.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rewind_before_invocation_id: Option<RunId>,
    /// The structured answer given through the answer tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_model_response: Option<Value>,
    /// The agent has ended; written by other systems.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_of_agent: Option<bool>,
    /// A checkpoint of the agent; written by other systems.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_state: Option<Value>,
    /// What models used that worked for the calls which the event answers: those of agents that are called as tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub called_usage: Vec<ModelUsage>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub unknown: Object,
}

/// What a model used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelUsage {
    /// The model, by its own name for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<SmolStr>,
    /// What it used.
    pub usage: Usage,
}

/// A person's word on a tool call, asked for or given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Confirmation {
    /// What the person is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Whether the call may go ahead.
    pub confirmed: bool,
    /// Anything the tool wants to know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub unknown: Object,
}

impl Confirmation {
    /// Reads an answer: the confirmation itself, or its JSON text under `response`.
    pub fn from_response(response: &Object) -> Result<Self, serde_json::Error> {
        match response.get("response") {
            Some(Value::String(text)) if response.len() == 1 => serde_json::from_str(text),
            _ => serde_json::from_value(Value::Object(response.clone())),
        }
    }
}

/// A summary that stands for a stretch of the log before it.
///
/// The times are how google-adk names that stretch. Umbel goes by the positions of events: see the page on the flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Compaction {
    /// First covered moment, seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_timestamp: Option<f64>,
    /// Last covered moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_timestamp: Option<f64>,
    /// What the model sees in their place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compacted_content: Option<Arc<Content>>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub unknown: Object,
}

impl Actions {
    /// Sets a state key.
    pub fn set_state(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.state_delta.get_or_insert_default().insert(key.into(), value.into());
    }

    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it only writes state and artifacts, tells what was used, or keeps the model from summing up: nothing that
    /// steers the run.
    pub fn is_plain(&self) -> bool {
        self.steering().is_empty()
    }

    /// Whether both steer the run to the same.
    pub fn steers_like(&self, other: &Self) -> bool {
        self.steering() == other.steering()
    }

    fn steering(&self) -> Self {
        Self {
            state_delta: None,
            artifact_delta: None,
            skip_summarization: None,
            called_usage: Vec::new(),
            ..self.clone()
        }
    }

    /// What was done since then, to be merged into what others did since then.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        let new = |object: &mut Option<Object>, before: &Option<Object>| {
            if let (Some(object), Some(before)) = (object, before) {
                object.retain(|key, value| before.get(key) != Some(value));
            }
        };
        new(&mut self.state_delta, &before.state_delta);
        new(&mut self.requested_auth_configs, &before.requested_auth_configs);
        new_entries(&mut self.artifact_delta, before.artifact_delta.as_ref());
        new_entries(&mut self.requested_tool_confirmations, before.requested_tool_confirmations.as_ref());
        changed(&mut self.skip_summarization, &before.skip_summarization);
        changed(&mut self.transfer_to_agent, &before.transfer_to_agent);
        changed(&mut self.escalate, &before.escalate);
        changed(&mut self.compaction, &before.compaction);
        changed(&mut self.rewind_before_invocation_id, &before.rewind_before_invocation_id);
        changed(&mut self.end_of_agent, &before.end_of_agent);
        changed(&mut self.set_model_response, &before.set_model_response);
        changed(&mut self.agent_state, &before.agent_state);
        if self.called_usage.starts_with(&before.called_usage) {
            self.called_usage.drain(..before.called_usage.len());
        }
        self.unknown.retain(|key, value| before.unknown.get(key) != Some(value));
        self
    }

    /// Adds what a later call of the same batch did: objects merge key by key, a later value wins.
    pub fn merge(&mut self, later: Self) {
        merge_objects(&mut self.state_delta, later.state_delta);
        merge_objects(&mut self.requested_auth_configs, later.requested_auth_configs);
        merge_maps(&mut self.artifact_delta, later.artifact_delta);
        merge_maps(&mut self.requested_tool_confirmations, later.requested_tool_confirmations);
        replace(&mut self.skip_summarization, later.skip_summarization);
        replace(&mut self.transfer_to_agent, later.transfer_to_agent);
        replace(&mut self.escalate, later.escalate);
        replace(&mut self.compaction, later.compaction);
        replace(&mut self.rewind_before_invocation_id, later.rewind_before_invocation_id);
        replace(&mut self.end_of_agent, later.end_of_agent);
        for (mine, theirs) in [
            (&mut self.set_model_response, later.set_model_response),
            (&mut self.agent_state, later.agent_state),
        ] {
            match (mine, theirs) {
                (_, None) => {}
                (Some(mine), Some(theirs)) => merge_values(mine, theirs),
                (mine, theirs) => *mine = theirs,
            }
        }
        self.called_usage.extend(later.called_usage);
        for (key, value) in later.unknown {
            merge_entry(&mut self.unknown, key, value);
        }
    }
}

/// Leaves a value out that is as it was before.
fn changed<T: PartialEq>(mine: &mut Option<T>, before: &Option<T>) {
    if mine == before {
        *mine = None;
    }
}

fn new_entries<K: Ord, V: PartialEq>(mine: &mut Option<BTreeMap<K, V>>, before: Option<&BTreeMap<K, V>>) {
    if let (Some(mine), Some(before)) = (mine, before) {
        mine.retain(|key, value| before.get(key) != Some(value));
    }
}

fn replace<T>(mine: &mut Option<T>, later: Option<T>) {
    if later.is_some() {
        *mine = later;
    }
}

fn merge_maps<K: Ord, V>(mine: &mut Option<BTreeMap<K, V>>, later: Option<BTreeMap<K, V>>) {
    if let Some(later) = later {
        mine.get_or_insert_default().extend(later);
    }
}

fn merge_objects(mine: &mut Option<Object>, later: Option<Object>) {
    if let Some(later) = later {
        let mine = mine.get_or_insert_default();
        for (key, value) in later {
            merge_entry(mine, key, value);
        }
    }
}

fn merge_entry(mine: &mut Object, key: String, value: Value) {
    match mine.get_mut(&key) {
        Some(present) => merge_values(present, value),
        None => {
            mine.insert(key, value);
        }
    }
}

fn merge_values(mine: &mut Value, later: Value) {
    match (mine, later) {
        (Value::Object(mine), Value::Object(later)) => {
            for (key, value) in later {
                merge_entry(mine, key, value);
            }
        }
        (mine, later) => *mine = later,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merging_goes_deep_and_lets_the_later_one_win() {
        let mut first: Actions = serde_json::from_value(json!({
            "stateDelta": {"a": {"x": 1}, "k": 1}, "escalate": true,
            "calledUsage": [{"model": "m", "usage": {"totalTokenCount": 1}}],
        }))
        .unwrap();
        let second = serde_json::from_value(json!({
            "stateDelta": {"a": {"y": 2}, "k": 2}, "artifactDelta": {"f": 0}, "new": 1,
            "calledUsage": [{"usage": {"totalTokenCount": 2}}],
        }))
        .unwrap();
        first.merge(second);
        assert_eq!(
            serde_json::to_value(&first).unwrap(),
            json!({"stateDelta": {"a": {"x": 1, "y": 2}, "k": 2}, "artifactDelta": {"f": 0},
                   "escalate": true, "new": 1,
                   "calledUsage": [{"model": "m", "usage": {"totalTokenCount": 1}}, {"usage": {"totalTokenCount": 2}}]})
        );
    }

    #[test]
    fn what_was_done_since_is_merged_into_what_others_did_since() {
        let actions = |value| serde_json::from_value::<Actions>(value).unwrap();
        let used = json!([{"model": "m", "usage": {"totalTokenCount": 1}}]);
        let before = actions(json!({"stateDelta": {"a": 1, "b": 1}, "escalate": true, "calledUsage": used}));
        let mut others = actions(json!({"stateDelta": {"a": 2, "b": 1}, "calledUsage": used}));
        let mut after = before.clone();
        after.set_state("b", 3);
        after.transfer_to_agent = Some("x".into());
        after.called_usage.push(ModelUsage::default());
        others.merge(after.since(&before));
        assert_eq!(others.state_delta, json!({"a": 2, "b": 3}).as_object().cloned());
        assert_eq!((others.escalate, others.transfer_to_agent.as_deref()), (None, Some("x")));
        assert_eq!(others.called_usage.len(), 2);
    }

    #[test]
    fn a_confirmation_may_come_as_json_text() {
        let plain = json!({"confirmed": true, "payload": 3});
        let wrapped = json!({"response": plain.to_string()});
        for form in [plain, wrapped] {
            let answer = Confirmation::from_response(form.as_object().unwrap()).unwrap();
            assert!(answer.confirmed);
            assert_eq!(answer.payload, Some(json!(3)));
        }
        assert!(Confirmation::from_response(json!({"response": "nonsense"}).as_object().unwrap()).is_err());
    }
}
