//! The way back: what of an input is new, and what it means to the session.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use serde_json::value::RawValue;
use serde_json::{Value, json};
use smol_str::{SmolStr, format_smolstr};
use umbel_core::interrupt::REQUEST_CREDENTIAL;
use umbel_core::json::{MAX_DEPTH, is_within};
use umbel_core::{
    CallId, Content, Event, EventId, FunctionCall, FunctionResponse, Interrupt, Object, Part, Parts, Role,
    RunId, Source,
};

use crate::input::{InputError, InputLimits, ResumeEntry};
use crate::media;
use crate::message::{AssistantMessage, ContentPart, Message, MessageContent, ToolCall, ToolMessage};
use crate::questions::{answer_from, answer_of};

/// What a model is told of a call that nobody answered.
pub const UNANSWERED: &str = "The user did not answer this call and went on.";

/// The messages of an input that the session does not have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewMessages {
    /// What the application tells the agent for this run.
    pub instruction: Option<String>,
    /// What was said before, in a conversation that began elsewhere.
    pub history: Vec<Message>,
    /// What is said now.
    pub turn: Vec<Message>,
    /// The last message that the session has: what comes before it was told to the client.
    pub known: Option<SmolStr>,
}

impl NewMessages {
    /// Finds them from the end: clients send the whole conversation each time, and what stands before a message that is
    /// known is known too. So it costs what is new, however long the conversation is.
    ///
    /// `is_recent` knows the last messages of the session, one of which is there in nearly every input; `is_known` knows
    /// all of them.
    pub fn find(
        messages: &[Cow<'_, RawValue>],
        limits: &InputLimits,
        is_recent: impl Fn(&str) -> bool,
        mut is_known: impl FnMut(&str) -> bool,
    ) -> Result<Self, InputError> {
        let parse = |index: usize, raw: &RawValue| {
            Message::parse_within(raw, limits).map_err(|error| error.within(&format!("messages[{index}]")))
        };
        // There is seldom more than one.
        let mut new = Vec::with_capacity(1);
        let mut last_known = None;
        for (index, raw) in messages.iter().enumerate().rev() {
            let message = parse(index, raw)?;
            if is_recent(message.id()) {
                last_known = Some(SmolStr::new(message.id()));
                break;
            }
            new.push(message);
        }
        if last_known.is_none()
            && let Some(at) = new.iter().position(|message| is_known(message.id()))
        {
            last_known = new.get(at).map(|message| SmolStr::new(message.id()));
            new.truncate(at);
        }
        let from = messages.len() - new.len();
        // One that comes twice is one: the later form counts.
        let mut seen = HashSet::new();
        if new.len() > 1 {
            new.retain(|message: &Message| seen.insert(message.id().clone()));
        }
        new.reverse();
        // Instructions stand at the front and are sent with every run.
        let mut told = Vec::new();
        for (index, raw) in messages.iter().enumerate().take(from) {
            match parse(index, raw)? {
                Message::System(message) | Message::Developer(message) => told.push(message.content),
                _ => break,
            }
        }
        let mut found = Self { known: last_known, turn: Vec::with_capacity(1), ..Self::default() };
        for message in new {
            match message {
                Message::System(message) | Message::Developer(message) => told.push(message.content),
                Message::Activity(_) | Message::Reasoning(_) => {}
                Message::Assistant(_) => {
                    found.history.append(&mut found.turn);
                    found.history.push(message);
                }
                Message::User(_) | Message::Tool(_) => found.turn.push(message),
            }
        }
        found.instruction = (!told.is_empty()).then(|| told.join("\n\n"));
        Ok(found)
    }
}

/// What a session waits for.
#[derive(Clone, Debug, Default)]
pub struct Waiting {
    /// Calls that the front end answers, with their tools.
    pub calls: Vec<(CallId, SmolStr)>,
    /// Questions to people.
    pub questions: Vec<Interrupt>,
}

impl Waiting {
    /// What of these events is not answered yet; `questions` are the session's open ones.
    pub fn of<'a>(events: impl DoubleEndedIterator<Item = &'a Event>, questions: Vec<Interrupt>) -> Self {
        let mut answered: Vec<&CallId> = Vec::new();
        let mut calls = Vec::new();
        for event in events.rev() {
            answered.extend(event.responses().filter_map(|response| response.id.as_ref()));
            let is_asked = |id: &CallId| questions.iter().any(|asked| asked.id == *id);
            let waiting = event.calls().filter_map(|call| Some((call.id.clone()?, call.name.clone())));
            let waiting = waiting.filter(|(id, _)| {
                event.long_running().contains(id) && !answered.contains(&id) && !is_asked(id)
            });
            let mut waiting: Vec<_> = waiting.collect();
            waiting.append(&mut calls);
            calls = waiting;
        }
        Self { calls, questions }
    }
}

/// Why an input cannot go on with a session that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResumeError {
    /// Nobody asked that.
    UnknownInterrupt(SmolStr),
    /// People are asked, and the input answers nothing: the ids of the questions, and what they ask.
    ResumeRequired(Vec<(SmolStr, Option<String>)>),
    /// Some questions are left open: their ids, and what they ask.
    ResumeIncomplete(Vec<(SmolStr, Option<String>)>),
    /// An answer is none.
    InvalidAnswer(SmolStr, String),
}

/// What an input means to the session: answers to people's questions, and a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// Answers to questions, as responses to the calls that asked them.
    pub answers: Parts,
    /// The client's names of the messages they came in.
    pub answer_ids: Vec<(SmolStr, usize)>,
    /// Results of the front end's calls, and what the user says.
    pub message: Parts,
    /// The client's names of the messages they came in.
    pub message_ids: Vec<(SmolStr, usize)>,
}

impl Turn {
    /// What is answered and said. `knows_interrupts` is whether the client knows of interrupts; one that does not answers
    /// questions like calls.
    pub fn new(
        turn: &[Message],
        resume: &[ResumeEntry],
        waiting: &Waiting,
        was_asked: impl Fn(&str) -> bool,
        knows_interrupts: bool,
    ) -> Result<Self, ResumeError> {
        let mut new = Self::default();
        new.take_resume(resume, waiting, was_asked)?;
        let mut open: Vec<&(CallId, SmolStr)> = waiting.calls.iter().collect();
        let (mut words, mut word_ids) = (Parts::new(), Vec::new());
        for message in turn {
            match message {
                Message::User(message) => {
                    let parts = parts_of(&message.content);
                    word_ids.push((message.id.clone(), parts.len()));
                    words.extend(parts);
                }
                Message::Tool(message) => new.take_result(message, waiting, &mut open)?,
                _ => {}
            }
        }
        let says = !words.is_empty();
        new.check_complete(waiting, says, knows_interrupts)?;
        if says {
            // Models want an answer to every call before anything else is said, and the user went on without.
            for (id, name) in open {
                let said = json!({"error": UNANSWERED}).as_object().cloned().unwrap_or_default();
                let response = FunctionResponse::new(Some(id.clone()), name.clone(), said);
                new.message_ids.push((format_smolstr!("unanswered-{id}"), 1));
                new.message.push(Part::response(response));
            }
        }
        new.message.extend(words);
        new.message_ids.extend(word_ids);
        Ok(new)
    }

    /// Whether it answers a call of the front end's, be it by saying that there is no answer.
    pub fn answers(&self, call: &CallId) -> bool {
        self.message.iter().filter_map(Part::as_response).any(|given| given.id.as_ref() == Some(call))
    }

    /// Whether nothing is new.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.message.is_empty()
    }

    fn take_resume(
        &mut self,
        resume: &[ResumeEntry],
        waiting: &Waiting,
        was_asked: impl Fn(&str) -> bool,
    ) -> Result<(), ResumeError> {
        for entry in resume {
            let id = &entry.interrupt_id;
            let Some(asked) = waiting.questions.iter().find(|asked| asked.id == id.as_str()) else {
                if was_asked(id) {
                    // Answered before: the same request came twice.
                    continue;
                }
                return Err(ResumeError::UnknownInterrupt(id.clone()));
            };
            if self.is_answered(&asked.id) {
                continue;
            }
            let answer = answer_of(entry, asked);
            let answer = answer.map_err(|message| ResumeError::InvalidAnswer(id.clone(), message))?;
            self.answers.push(Part::response(asked.response(&answer)));
        }
        Ok(())
    }

    /// A result of one of the front end's calls. It may be the answer to a question, if that was shown as a call; one
    /// that nobody waits for is dropped.
    fn take_result(
        &mut self,
        message: &ToolMessage,
        waiting: &Waiting,
        open: &mut Vec<&(CallId, SmolStr)>,
    ) -> Result<(), ResumeError> {
        let id = message.tool_call_id.as_str();
        if let Some(asked) = waiting.questions.iter().find(|asked| asked.id == *id) {
            if self.is_answered(&asked.id) {
                return Ok(());
            }
            let text = text_of(&message.content);
            let read = serde_json::from_str(&text).ok();
            // What looks like JSON may be the secret itself, unless it decides.
            let decides = |read: &Value| {
                ["approved", "confirmed"].iter().any(|key| read.get(key).is_some_and(Value::is_boolean))
            };
            let read = read.filter(|read| asked.credential().is_none() || decides(read));
            let said = read.unwrap_or(Value::String(text));
            let answer = answer_from(&said, asked)
                .map_err(|error| ResumeError::InvalidAnswer(message.tool_call_id.clone(), error))?;
            self.answer_ids.push((message.id.clone(), 1));
            self.answers.push(Part::response(asked.response(&answer)));
            return Ok(());
        }
        let Some(place) = open.iter().position(|(call, _)| *call == *id) else { return Ok(()) };
        let (call, name) = open.remove(place);
        self.message_ids.push((message.id.clone(), 1));
        self.message.push(Part::response(response_of(message, call, name)));
        Ok(())
    }

    fn is_answered(&self, question: &CallId) -> bool {
        self.answers.iter().filter_map(Part::as_response).any(|given| given.id.as_ref() == Some(question))
    }

    /// The protocol wants all questions answered at once, and before anything else is said.
    fn check_complete(
        &mut self,
        waiting: &Waiting,
        says: bool,
        knows_interrupts: bool,
    ) -> Result<(), ResumeError> {
        // One answer does for all questions for the same credential.
        let is_given = |wanted: &str| {
            let mut same = waiting.questions.iter().filter(|asked| asked.credential() == Some(wanted));
            same.any(|asked| self.is_answered(&asked.id))
        };
        let left = waiting
            .questions
            .iter()
            .filter(|asked| !self.is_answered(&asked.id) && !asked.credential().is_some_and(is_given));
        let left: Vec<&Interrupt> = left.collect();
        if left.is_empty() {
            return Ok(());
        }
        if !knows_interrupts {
            // It cannot tell a question from a call: whoever goes on without answering has said no.
            if says {
                let no = umbel_core::Answer::reject_because(UNANSWERED);
                self.answers.extend(left.iter().map(|asked| Part::response(asked.response(&no))));
            }
            return Ok(());
        }
        let questions = left.iter().map(|asked| (asked.id.as_str().into(), asked.message.clone()));
        if self.answers.is_empty() {
            let nothing_else = !says && self.message.is_empty();
            let required = ResumeError::ResumeRequired(questions.collect());
            return if nothing_else { Ok(()) } else { Err(required) };
        }
        Err(ResumeError::ResumeIncomplete(questions.collect()))
    }
}

/// A result of the front end's as a response. Text that is JSON counts as what it says.
fn response_of(message: &ToolMessage, call: &CallId, name: &SmolStr) -> FunctionResponse {
    let mut media = Vec::new();
    let said = match &message.content {
        MessageContent::Text(text) => text.clone(),
        MessageContent::Parts(_) => {
            media = parts_of(&message.content).into_iter().filter(|part| part.as_text().is_none()).collect();
            text_of(&message.content)
        }
    };
    let said = match shallow(&said) {
        Some(Value::Object(object)) => object,
        Some(other) => Object::from_iter([("result".to_owned(), other)]),
        None => Object::from_iter([("result".to_owned(), Value::String(said))]),
    };
    let said = match &message.error {
        Some(error) => Object::from_iter([("error".to_owned(), json!(error))]),
        None => said,
    };
    let mut response = FunctionResponse::new(Some(call.clone()), name.clone(), said);
    if !media.is_empty()
        && let Ok(parts) = serde_json::to_value(&media)
    {
        response.unknown.insert("parts".to_owned(), parts);
    }
    response
}

/// Text as the JSON that it is, unless that is nested so deep that the log could not keep it.
fn shallow(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().filter(|value| is_within(value, MAX_DEPTH))
}

fn text_of(content: &MessageContent) -> String {
    match content {
        MessageContent::Text(text) => text.clone(),
        MessageContent::Parts(parts) => {
            let texts = parts.iter().filter_map(|part| match part {
                ContentPart::Text(part) => Some(part.text.as_str()),
                _ => None,
            });
            texts.collect()
        }
    }
}

/// The content of a message as parts of ours. A message without any says nothing, in one empty part.
fn parts_of(content: &MessageContent) -> Parts {
    let mut parts: Parts = match content {
        MessageContent::Text(text) => Parts::from_iter([Part::text(text.clone())]),
        MessageContent::Parts(parts) => parts.iter().map(media::from_wire).collect(),
    };
    if parts.is_empty() {
        parts.push(Part::text(""));
    }
    parts
}

/// A conversation that began elsewhere, as events. Assistant messages are put in the mouth of the agent at the top; calls
/// are kept if they have a result.
pub fn history(messages: &[Message], root: &SmolStr, run: &RunId, now: f64) -> Vec<Event> {
    let agent = std::sync::Arc::new(Source::new(root.clone()));
    let mut results: HashMap<&str, &ToolMessage> = HashMap::new();
    for message in messages {
        if let Message::Tool(message) = message {
            results.entry(&message.tool_call_id).or_insert(message);
        }
    }
    let mut events = Vec::new();
    let mut say = |id: &str, source: std::sync::Arc<Source>, role: Role, parts: Parts| {
        let mut event = Event::new(run.clone(), source).with_content(Content { role: Some(role), parts });
        event.id = EventId::from(id);
        event.timestamp = now;
        events.push(event);
    };
    for message in messages {
        match message {
            Message::User(message) => {
                say(&message.id, Source::user(), Role::User, parts_of(&message.content));
            }
            Message::Assistant(message) => {
                // What people gave as a credential elsewhere is not for the log.
                let is_kept = |call: &&ToolCall| {
                    call.function.name != REQUEST_CREDENTIAL && results.contains_key(call.id.as_str())
                };
                let calls: Vec<_> = message.tool_calls.iter().filter(is_kept).collect();
                let parts = assistant_parts(message, calls.iter().copied());
                if parts.is_empty() {
                    continue;
                }
                say(&message.id, agent.clone(), Role::Model, parts);
                for call in calls {
                    let Some(result) = results.get(call.id.as_str()) else { continue };
                    let response = response_of(result, &CallId::from(call.id.clone()), &call.function.name);
                    say(&result.id, agent.clone(), Role::User, Parts::from_iter([Part::response(response)]));
                }
            }
            _ => {}
        }
    }
    events
}

fn assistant_parts<'a>(message: &AssistantMessage, calls: impl Iterator<Item = &'a ToolCall>) -> Parts {
    let text = message.content.as_ref().filter(|text| !text.is_empty());
    let mut parts: Parts = text.map(|text| Part::text(text.clone())).into_iter().collect();
    parts.extend(calls.map(|call| {
        let args = shallow(&call.function.arguments).and_then(|args| args.as_object().cloned());
        let args = args.unwrap_or_default();
        Part::call(FunctionCall::new(call.function.name.clone(), args).with_id(call.id.clone()))
    }));
    parts
}
