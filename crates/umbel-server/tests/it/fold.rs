//! What a client makes of a stream, after the rules of the protocol and not after any code of ours.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

/// A client: it folds what it is told, and refuses what breaks a rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    pub(crate) messages: Vec<Value>,
    pub(crate) state: Value,
    pub(crate) interrupts: Vec<Value>,
    is_running: bool,
    /// The terminal event of the last run.
    pub(crate) end: Option<Value>,
    open: HashSet<(&'static str, String)>,
    owners: HashMap<String, Option<String>>,
    subagents: HashMap<String, bool>,
}

/// What a client has in the end.
#[derive(Debug, PartialEq)]
pub(crate) struct Folded {
    pub(crate) messages: Vec<Value>,
    pub(crate) state: Value,
    pub(crate) end: Value,
}

type Verdict = Result<(), String>;

fn text<'a>(event: &'a Value, key: &str) -> &'a str {
    event[key].as_str().unwrap_or_else(|| panic!("{key} in {event}"))
}

impl Client {
    /// A client that sent this.
    pub(crate) fn new(input: &Value) -> Self {
        let state = input.get("state").cloned().unwrap_or_else(|| json!({}));
        let messages = input["messages"].as_array().unwrap().clone();
        Self { messages, state, ..Self::default() }
    }

    /// Takes in events to the end of the run.
    pub(crate) fn read<'a>(mut self, events: impl IntoIterator<Item = &'a Value>) -> Result<Folded, String> {
        for event in events {
            self.take(event)?;
        }
        let end = self.end.ok_or("the stream has no end")?;
        Ok(Folded { messages: self.messages, state: self.state, end: without_wording(end) })
    }

    pub(crate) fn take(&mut self, event: &Value) -> Verdict {
        let kind = text(event, "type");
        self.check(kind, event).map_err(|why| format!("{why}: {event}"))?;
        self.apply(kind, event).map_err(|why| format!("{why}: {event}"))
    }

    fn check(&mut self, kind: &str, event: &Value) -> Verdict {
        match (self.is_running, self.end.is_some(), kind) {
            (false, _, "RUN_STARTED") => {
                *self = Self {
                    messages: std::mem::take(&mut self.messages),
                    state: std::mem::take(&mut self.state),
                    is_running: true,
                    ..Self::default()
                };
                return Ok(());
            }
            (true, _, "RUN_STARTED") => return Err("a run is under way".to_owned()),
            (false, false, "RUN_ERROR") => {}
            (false, ..) => return Err("nothing may come here".to_owned()),
            (true, ..) => {}
        }
        match kind {
            "TEXT_MESSAGE_START" => self.opens("text", event, "messageId"),
            "TEXT_MESSAGE_CONTENT" => self.goes_on("text", event, "messageId"),
            "TEXT_MESSAGE_END" => self.closes("text", event, "messageId"),
            "TOOL_CALL_START" => {
                let parent = event.get("parentMessageId").and_then(Value::as_str);
                let owner = parent.and_then(|parent| self.owners.get(&format!("text {parent}")));
                if owner.is_some_and(|owner| *owner != tag(event)) {
                    return Err("the call and its message belong to two agents".to_owned());
                }
                self.opens("call", event, "toolCallId")
            }
            "TOOL_CALL_ARGS" => self.goes_on("call", event, "toolCallId"),
            "TOOL_CALL_END" => self.closes("call", event, "toolCallId"),
            "REASONING_START" => self.opens("span", event, "messageId"),
            "REASONING_END" => self.closes("span", event, "messageId"),
            "REASONING_MESSAGE_START" => self.opens("thought", event, "messageId"),
            "REASONING_MESSAGE_CONTENT" => self.goes_on("thought", event, "messageId"),
            "REASONING_MESSAGE_END" => self.closes("thought", event, "messageId"),
            "STEP_STARTED" => self.opens("step", event, "stepName"),
            "STEP_FINISHED" => self.closes("step", event, "stepName"),
            "SUBAGENT_STARTED" => {
                match self.subagents.insert(text(event, "subagentRunId").to_owned(), true) {
                    None => Ok(()),
                    Some(_) => Err("the sub-agent began before".to_owned()),
                }
            }
            "SUBAGENT_FINISHED" | "SUBAGENT_ERROR" => {
                match self.subagents.insert(text(event, "subagentRunId").to_owned(), false) {
                    Some(true) => Ok(()),
                    _ => Err("the sub-agent is not at work".to_owned()),
                }
            }
            "RUN_FINISHED" => {
                let at_work = self.subagents.values().any(|at_work| *at_work);
                match self.open.is_empty() && !at_work {
                    true => Ok(()),
                    false => Err(format!("open: {:?}, {:?}", self.open, self.subagents)),
                }
            }
            _ => Ok(()),
        }
    }

    fn opens(&mut self, what: &'static str, event: &Value, key: &str) -> Verdict {
        let id = text(event, key);
        let owner = self.owners.entry(format!("{what} {id}")).or_insert_with(|| tag(event));
        if what != "step" && *owner != tag(event) {
            return Err(format!("it belongs to {owner:?}"));
        }
        match self.open.insert((what, id.to_owned())) {
            true => Ok(()),
            false => Err("it is open".to_owned()),
        }
    }

    fn goes_on(&self, what: &'static str, event: &Value, key: &str) -> Verdict {
        let id = text(event, key);
        if !self.open.contains(&(what, id.to_owned())) {
            return Err("it is not open".to_owned());
        }
        let (tag, owner) = (tag(event), &self.owners[&format!("{what} {id}")]);
        match tag.is_none() || tag == *owner {
            true => Ok(()),
            false => Err(format!("it belongs to {owner:?}")),
        }
    }

    fn closes(&mut self, what: &'static str, event: &Value, key: &str) -> Verdict {
        self.goes_on(what, event, key)?;
        self.open.remove(&(what, text(event, key).to_owned()));
        Ok(())
    }

    fn apply(&mut self, kind: &str, event: &Value) -> Verdict {
        match kind {
            "TEXT_MESSAGE_START" => {
                self.message(text(event, "messageId"), "assistant", event);
                Ok(())
            }
            "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT" => {
                let id = text(event, "messageId");
                let message = self.find(id).ok_or("its message is gone")?;
                add(message, "content", text(event, "delta"));
                Ok(())
            }
            "REASONING_MESSAGE_START" => {
                let message = self.message(text(event, "messageId"), "reasoning", event);
                message.entry("content").or_insert_with(|| json!(""));
                Ok(())
            }
            "TOOL_CALL_START" => {
                let parent = text(event, "parentMessageId");
                let (id, name) = (text(event, "toolCallId"), text(event, "toolCallName"));
                if let Some(call) = self.call(id) {
                    call["function"]["name"] = json!(name);
                    return Ok(());
                }
                let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": ""}});
                let message = self.message(parent, "assistant", event);
                let calls = message.entry("toolCalls").or_insert_with(|| json!([]));
                calls.as_array_mut().unwrap().push(call);
                Ok(())
            }
            "TOOL_CALL_ARGS" => {
                let call = self.call(text(event, "toolCallId")).ok_or("its call is gone")?;
                add(call["function"].as_object_mut().unwrap(), "arguments", text(event, "delta"));
                Ok(())
            }
            "TOOL_CALL_RESULT" => {
                self.result(event);
                Ok(())
            }
            "STATE_SNAPSHOT" => {
                self.state = event["snapshot"].clone();
                Ok(())
            }
            "STATE_DELTA" => event["delta"].as_array().unwrap().iter().try_for_each(|op| self.patch(op)),
            "MESSAGES_SNAPSHOT" => {
                self.snapshot(event["messages"].as_array().unwrap());
                Ok(())
            }
            "RUN_FINISHED" | "RUN_ERROR" => {
                self.is_running = false;
                if let Some(interrupts) = event["outcome"]["interrupts"].as_array() {
                    self.interrupts = interrupts.clone();
                }
                self.end = Some(event.clone());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn find(&mut self, id: &str) -> Option<&mut Map<String, Value>> {
        self.messages.iter_mut().find(|message| message["id"] == id)?.as_object_mut()
    }

    fn message(&mut self, id: &str, role: &str, event: &Value) -> &mut Map<String, Value> {
        let known = self.messages.iter().position(|message| message["id"] == id);
        let at = known.unwrap_or_else(|| {
            let mut message = json!({"id": id, "role": role});
            if let Some(owner) = tag(event) {
                message["subagentRunId"] = json!(owner);
            }
            self.messages.push(message);
            self.messages.len() - 1
        });
        self.messages[at].as_object_mut().unwrap()
    }

    fn call(&mut self, id: &str) -> Option<&mut Value> {
        let calls = self.messages.iter_mut().filter_map(|message| message.get_mut("toolCalls"));
        calls.flat_map(|calls| calls.as_array_mut().unwrap()).find(|call| call["id"] == id)
    }

    fn result(&mut self, event: &Value) {
        let (id, call) = (text(event, "messageId"), text(event, "toolCallId"));
        let mut message = json!({"id": id, "role": "tool", "toolCallId": call, "content": event["content"]});
        if let Some(owner) = tag(event) {
            message["subagentRunId"] = json!(owner);
        }
        let calls = |message: &Value| {
            message["toolCalls"].as_array().is_some_and(|calls| calls.iter().any(|one| one["id"] == call))
        };
        let at = self.messages.iter().position(calls).map_or(self.messages.len(), |caller| {
            let behind = self.messages[caller + 1..].iter();
            caller + 1 + behind.take_while(|message| message["role"] == "tool").count()
        });
        self.messages.insert(at, message);
    }

    fn snapshot(&mut self, messages: &[Value]) {
        let has_thoughts = messages.iter().any(|message| message["role"] == "reasoning");
        let find = |id: &Value| messages.iter().find(|message| message["id"] == *id);
        self.messages.retain(|message| {
            find(&message["id"]).is_some() || (message["role"] == "reasoning" && !has_thoughts)
        });
        for message in &mut self.messages {
            if let Some(new) = find(&message["id"]) {
                *message = new.clone();
            }
        }
        for message in messages {
            if !self.messages.iter().any(|known| known["id"] == message["id"]) {
                self.messages.push(message.clone());
            }
        }
    }

    fn patch(&mut self, op: &Value) -> Verdict {
        let path: Vec<String> = text(op, "path")
            .split('/')
            .skip(1)
            .map(|step| step.replace("~1", "/").replace("~0", "~"))
            .collect();
        let Some((last, parents)) = path.split_last() else {
            self.state = op["value"].clone();
            return Ok(());
        };
        let mut at = &mut self.state;
        for step in parents {
            at = match at {
                Value::Array(items) => items.get_mut(step.parse::<usize>().unwrap()),
                other => other.get_mut(step),
            }
            .ok_or("the path leads nowhere")?;
        }
        let (op, value) = (text(op, "op"), op["value"].clone());
        match (at, op) {
            (Value::Object(object), "add") => drop(object.insert(last.clone(), value)),
            (Value::Object(object), "replace") => {
                *object.get_mut(last).ok_or("there is nothing to replace")? = value;
            }
            (Value::Object(object), "remove") => {
                object.shift_remove(last).ok_or("there is nothing to remove")?;
            }
            (Value::Array(items), "add") if last == "-" => items.push(value),
            (Value::Array(items), "add") => items.insert(last.parse().unwrap(), value),
            (Value::Array(items), "replace") => items[last.parse::<usize>().unwrap()] = value,
            (Value::Array(items), "remove") => drop(items.remove(last.parse().unwrap())),
            (_, other) => return Err(format!("{other} cannot be done")),
        }
        Ok(())
    }
}

fn tag(event: &Value) -> Option<String> {
    Some(event.get("subagentRunId")?.as_str()?.to_owned())
}

fn add(object: &mut Map<String, Value>, key: &str, more: &str) {
    let old = object.get(key).and_then(Value::as_str).unwrap_or_default();
    let new = format!("{old}{more}");
    object.insert(key.to_owned(), json!(new));
}

/// An end without the words for people, which may have a reference of their own each time.
fn without_wording(mut end: Value) -> Value {
    if let Some(end) = end.as_object_mut().filter(|end| end.contains_key("message")) {
        end.shift_remove("message");
    }
    end
}
