//! The rules of order, written a second time and from the specification alone: what a client rejects.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

type Owner = Option<String>;
/// Its kind, who takes the step if it is one, and its id.
type Thing = (&'static str, Owner, String);

/// A reader that rejects what breaks a rule.
#[derive(Clone, Default)]
pub(crate) struct Reader {
    begun: bool,
    active: bool,
    errored: bool,
    open: BTreeSet<Thing>,
    owners: BTreeMap<(&'static str, String), Owner>,
    working: BTreeSet<String>,
    done: BTreeSet<String>,
}

fn text(event: &Value, key: &str) -> Option<String> {
    event.get(key).map(|value| value.as_str().unwrap_or_else(|| panic!("{key} of {event}")).to_owned())
}

fn reject<T>(why: &str) -> Result<T, String> {
    Err(why.to_owned())
}

impl Reader {
    /// Whether a run is active and nothing is open.
    pub(crate) fn could_finish(&self) -> bool {
        self.active && self.open.is_empty() && self.working.is_empty()
    }

    /// Reads the next event.
    pub(crate) fn read(&mut self, event: &Value) -> Result<(), String> {
        let kind = text(event, "type").unwrap();
        if kind.ends_with("_CHUNK") {
            return reject("a chunk is not spelled out");
        }
        match kind.as_str() {
            "RUN_STARTED" if self.active => return reject("a run is active"),
            "RUN_STARTED" => {
                *self = Self { begun: true, active: true, ..Self::default() };
                let input = event.get("input").and_then(|input| input["messages"].as_array());
                for message in input.into_iter().flatten() {
                    self.seed(message, false);
                }
                return Ok(());
            }
            _ if self.errored => return reject("the run has failed"),
            "RUN_ERROR" => {
                *self = Self { begun: true, errored: true, ..Self::default() };
                return Ok(());
            }
            _ if !self.begun => return reject("the first event must start a run"),
            _ if !self.active => return reject("the run has finished"),
            "RUN_FINISHED" if !self.open.is_empty() || !self.working.is_empty() => {
                return Err(format!("open at the end: {:?} {:?}", self.open, self.working));
            }
            "RUN_FINISHED" => {
                self.active = false;
                return Ok(());
            }
            _ => {}
        }
        self.read_within(&kind, event)
    }

    fn read_within(&mut self, kind: &str, event: &Value) -> Result<(), String> {
        let tag = text(event, "subagentRunId");
        let message = || text(event, "messageId").unwrap();
        let call = || text(event, "toolCallId").unwrap();
        match kind {
            "TEXT_MESSAGE_START" => self.opens("text", "message", message(), tag),
            "TEXT_MESSAGE_CONTENT" => self.goes_on("text", "message", message(), &tag, false),
            "TEXT_MESSAGE_END" => self.goes_on("text", "message", message(), &tag, true),
            "TOOL_CALL_START" => self.opens_call(call(), text(event, "parentMessageId"), tag),
            "TOOL_CALL_ARGS" => self.goes_on("call", "call", call(), &tag, false),
            "TOOL_CALL_END" => self.goes_on("call", "call", call(), &tag, true),
            "REASONING_START" => self.opens("span", "reasoning", message(), tag),
            "REASONING_END" => self.goes_on("span", "reasoning", message(), &tag, true),
            "REASONING_MESSAGE_START" => self.opens("thought", "reasoning", message(), tag),
            "REASONING_MESSAGE_CONTENT" => self.goes_on("thought", "reasoning", message(), &tag, false),
            "REASONING_MESSAGE_END" => self.goes_on("thought", "reasoning", message(), &tag, true),
            "STEP_STARTED" => self.takes_step(|open, step| open.insert(step), event, tag),
            "STEP_FINISHED" => self.takes_step(|open, step| open.remove(&step), event, tag),
            "TOOL_CALL_RESULT" => {
                self.owners.insert(("message", message()), tag);
                Ok(())
            }
            "ACTIVITY_SNAPSHOT" => {
                let key = ("activity", message());
                if event.get("replace") != Some(&Value::Bool(false)) || !self.owners.contains_key(&key) {
                    self.owners.insert(key, tag);
                }
                Ok(())
            }
            "ACTIVITY_DELTA" => self.fits("activity", &message(), &tag),
            "REASONING_ENCRYPTED_VALUE" => {
                let id = text(event, "entityId").unwrap();
                let bucket = match text(event, "subtype").unwrap().as_str() {
                    "tool-call" => "call",
                    _ if self.owners.contains_key(&("message", id.clone())) => "message",
                    _ => "reasoning",
                };
                self.fits(bucket, &id, &tag)
            }
            "SUBAGENT_STARTED" => self.begins(tag.unwrap(), text(event, "parentSubagentRunId")),
            "SUBAGENT_FINISHED" | "SUBAGENT_ERROR" => {
                let id = tag.unwrap();
                let was_working = self.working.remove(&id);
                self.done.insert(id);
                if was_working { Ok(()) } else { reject("the sub-agent is not at work") }
            }
            "MESSAGES_SNAPSHOT" => {
                for message in event["messages"].as_array().unwrap() {
                    self.seed(message, true);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn takes_step(
        &mut self,
        change: fn(&mut BTreeSet<Thing>, Thing) -> bool,
        event: &Value,
        tag: Owner,
    ) -> Result<(), String> {
        let is_changed = change(&mut self.open, ("step", tag, text(event, "stepName").unwrap()));
        if is_changed { Ok(()) } else { reject("the step is open, or is not") }
    }

    fn fits(&self, bucket: &'static str, id: &str, tag: &Owner) -> Result<(), String> {
        match self.owners.get(&(bucket, id.to_owned())) {
            Some(owner) if tag.is_some() && owner != tag => reject("it belongs to another"),
            _ => Ok(()),
        }
    }

    fn opens(
        &mut self,
        what: &'static str,
        bucket: &'static str,
        id: String,
        tag: Owner,
    ) -> Result<(), String> {
        if self.open.contains(&(what, None, id.clone())) {
            return reject("it is open");
        }
        self.fits(bucket, &id, &tag)?;
        self.owners.entry((bucket, id.clone())).or_insert(tag);
        self.open.insert((what, None, id));
        Ok(())
    }

    fn opens_call(&mut self, id: String, parent: Option<String>, tag: Owner) -> Result<(), String> {
        if self.open.contains(&("call", None, id.clone())) {
            return reject("it is open");
        }
        let from_parent = parent.and_then(|parent| self.owners.get(&("message", parent))).cloned();
        if from_parent.as_ref().is_some_and(|owner| tag.is_some() && *owner != tag) {
            return reject("its message belongs to another");
        }
        self.fits("call", &id, &tag)?;
        let known = self.owners.get(&("call", id.clone()));
        if let (None, Some(from_parent), Some(known)) = (&tag, &from_parent, known)
            && from_parent != known
        {
            return reject("its message belongs to another");
        }
        let owner = tag.or(from_parent.flatten());
        self.owners.entry(("call", id.clone())).or_insert(owner);
        self.open.insert(("call", None, id));
        Ok(())
    }

    fn goes_on(
        &mut self,
        what: &'static str,
        bucket: &'static str,
        id: String,
        tag: &Owner,
        is_end: bool,
    ) -> Result<(), String> {
        self.fits(bucket, &id, tag)?;
        let key = (what, None, id);
        let is_open = if is_end { self.open.remove(&key) } else { self.open.contains(&key) };
        if is_open { Ok(()) } else { reject("it is not open") }
    }

    fn begins(&mut self, id: String, parent: Option<String>) -> Result<(), String> {
        if self.done.contains(&id) {
            return reject("the sub-agent is done");
        }
        if parent.is_some_and(|parent| !self.working.contains(&parent) && !self.done.contains(&parent)) {
            return reject("its parent is not known");
        }
        if self.working.insert(id) { Ok(()) } else { reject("the sub-agent is at work") }
    }

    /// Takes owners from messages; those of a snapshot count more than what is known.
    fn seed(&mut self, message: &Value, is_snapshot: bool) {
        let owner = text(message, "subagentRunId");
        let bucket = match message["role"].as_str().unwrap() {
            "reasoning" => "reasoning",
            "activity" => "activity",
            _ => "message",
        };
        let calls = message.get("toolCalls").and_then(Value::as_array).into_iter().flatten();
        let calls = calls.map(|call| ("call", text(call, "id").unwrap()));
        for key in calls.chain([(bucket, text(message, "id").unwrap())]) {
            if is_snapshot || !self.owners.contains_key(&key) {
                self.owners.insert(key, owner.clone());
            }
        }
    }
}
