//! A pause with a question that anyone may answer later, in any process.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use smol_str::SmolStr;

use crate::content::Content;
use crate::deadline::finite;
use crate::event::Source;
use crate::id::{CallId, EventId};
use crate::json::Object;
use crate::part::{FunctionCall, FunctionResponse, Part};

/// Name of the call by which the flow asks whether a tool may run.
pub const REQUEST_CONFIRMATION: &str = "adk_request_confirmation";
/// Name of the call by which a model asks a person for something.
pub const REQUEST_INPUT: &str = "adk_request_input";
/// Name of the call by which a credential is asked for.
pub const REQUEST_CREDENTIAL: &str = "adk_request_credential";

/// What the log says, for the time being, in the place of the result of a call that waits for people. Models read it too.
pub const NEEDS_CONFIRMATION: &str = "This call waits for a person to approve or reject it.";

/// The same for a call that waits for a credential.
pub const NEEDS_CREDENTIAL: &str = "This call waits for a person to give the credential that it needs.";

/// What a person is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// What names it, if that must be known before it is asked.
    pub id: Option<CallId>,
    /// Why, as a name: [`Question::CONFIRMATION`], [`Question::INPUT`], [`Question::CREDENTIAL`], or one of your own.
    pub reason: SmolStr,
    /// The question, for people.
    pub message: String,
    /// What an answer must look like.
    pub response_schema: Option<Value>,
    /// How long it may be answered; for ever unless said.
    pub expires_in: Option<Duration>,
    /// Anything that whoever shows the question should know.
    pub payload: Option<Value>,
    /// What a person may do about a call; approve and reject if empty.
    pub decisions: Vec<DecisionKind>,
    /// Whether another tool may be called in the place of the one that is shown.
    pub any_tool: bool,
    /// Whether it is answered together with all others about the same batch of calls that say so, or not at all.
    pub together: bool,
}

impl Question {
    /// The reason of a question whether a call may be made.
    pub const CONFIRMATION: &'static str = "confirmation";
    /// The reason of a question for something that only a person knows.
    pub const INPUT: &'static str = "input";
    /// The reason of a question for a credential.
    pub const CREDENTIAL: &'static str = "credential";

    /// A question with yes and no.
    pub fn confirm(message: impl Into<String>) -> Self {
        Self::new(Self::CONFIRMATION, message)
    }

    /// A question for something that only a person knows.
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(Self::INPUT, message)
    }

    /// A question with a reason of its own.
    pub fn new(reason: impl Into<SmolStr>, message: impl Into<String>) -> Self {
        Self {
            id: None,
            reason: reason.into(),
            message: message.into(),
            response_schema: None,
            expires_in: None,
            payload: None,
            decisions: Vec::new(),
            any_tool: false,
            together: false,
        }
    }

    /// The same, with what an answer must look like. An answer that does not is refused.
    pub fn schema(mut self, schema: Value) -> Self {
        self.response_schema = Some(schema);
        self
    }

    /// The same, to be answered within that time.
    pub fn expires_in(mut self, time: Duration) -> Self {
        self.expires_in = Some(time);
        self
    }

    /// The same, with anything that whoever shows it should know.
    pub fn payload(mut self, payload: Value) -> Self {
        self.payload = Some(payload);
        self
    }

    /// The same, where only these may be decided.
    pub fn decisions(mut self, decisions: impl IntoIterator<Item = DecisionKind>) -> Self {
        self.decisions = decisions.into_iter().collect();
        self
    }
}

/// A question with yes and no.
impl<S: Into<String>> From<S> for Question {
    fn from(message: S) -> Self {
        Self::confirm(message)
    }
}

/// What a person may do about a call that waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecisionKind {
    /// Let it be made as it is.
    Approve,
    /// Let it be made otherwise.
    Edit,
    /// Forbid it.
    Reject,
    /// Answer in the tool's place.
    Respond,
}

impl DecisionKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Approve, Self::Edit, Self::Reject, Self::Respond];
}

/// What a person says to a question.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Whether the call may go ahead.
    #[serde(default)]
    pub confirmed: bool,
    /// Anything that the asker wants to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// The arguments that the call is to be made with, in the place of those that were shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Object>,
    /// The tool that is to be called in the place of the one that was shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<SmolStr>,
    /// Why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What the call gives, without being made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// The [`Interrupt::digest`] of what was shown. An answer to something else is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Keys this version does not know.
    #[serde(flatten)]
    pub unknown: Object,
}

impl Answer {
    /// Yes.
    pub fn approve() -> Self {
        Self { confirmed: true, ..Self::default() }
    }

    /// Yes, with other arguments.
    pub fn edit(args: Object) -> Self {
        Self { args: Some(args), ..Self::approve() }
    }

    /// No.
    pub fn reject() -> Self {
        Self::default()
    }

    /// No, and why.
    pub fn reject_because(reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..Self::reject() }
    }

    /// The call's result, without making it.
    pub fn respond(value: impl Into<Value>) -> Self {
        Self { answer: Some(value.into()), ..Self::reject() }
    }

    /// What a question for input asked for.
    pub fn input(value: impl Into<Value>) -> Self {
        Self { payload: Some(value.into()), ..Self::approve() }
    }

    /// The same, said of something that was shown.
    pub fn digest(mut self, digest: impl Into<String>) -> Self {
        self.digest = Some(digest.into());
        self
    }

    /// What it does about a call.
    pub fn decision(&self) -> DecisionKind {
        match self {
            Self { answer: Some(_), .. } => DecisionKind::Respond,
            Self { confirmed: false, .. } => DecisionKind::Reject,
            Self { args: None, tool: None, .. } => DecisionKind::Approve,
            _ => DecisionKind::Edit,
        }
    }

    /// Reads an answer to a question with that reason from the response to the call that asked: the answer itself, or its
    /// JSON text under `response`. To a question that is not whether a call may be made, anything is an answer.
    pub fn from_response(reason: &str, response: &Object) -> Result<Self, serde_json::Error> {
        let value = match response.get("response") {
            Some(Value::String(text)) if response.len() == 1 => serde_json::from_str(text)?,
            _ => Value::Object(response.clone()),
        };
        let is_answer = value.get("confirmed").is_some_and(Value::is_boolean);
        if is_answer || reason == Question::CONFIRMATION {
            return serde_json::from_value(value);
        }
        let only =
            value.as_object().filter(|object| object.len() == 1).and_then(|object| object.get("result"));
        Ok(Self::input(only.unwrap_or(&value).clone()))
    }
}

/// A question that a run waits for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interrupt {
    /// Names the question; the answer carries it. In the log it is the id of the asking call.
    pub id: CallId,
    /// Who asks.
    pub address: Address,
    /// Why, as a name: `confirmation`, `credential`, `input`.
    pub reason: SmolStr,
    /// The question, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What an answer must look like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_schema: Option<Value>,
    /// When it is too late, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<f64>,
    /// The call it is about, as people are shown it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<FunctionCall>,
    /// A digest of that call, by which an answer can say what it is an answer to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Anything that whoever shows it should know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// What a person may do about the call; approve and reject if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<DecisionKind>,
    /// Whether another tool may be called in its place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any_tool: bool,
    /// Whether it is answered together with all others about the same batch of calls that say so, or not at all.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub together: bool,
}

/// The most characters of a question's message in an error.
const SHOWN_CHARS: usize = 200;
/// The most questions in an error.
const SHOWN_QUESTIONS: usize = 10;

/// Open questions in words, for errors: their ids and what people are asked, such as `` `q1` (May I send it?)``.
pub fn questions_in_words<'a>(open: impl IntoIterator<Item = (&'a str, Option<&'a str>)>) -> String {
    let mut open = open.into_iter();
    let in_words = |(id, message): (&str, Option<&str>)| {
        let message = message.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        let cut = message.char_indices().nth(SHOWN_CHARS).map(|(at, _)| at);
        match cut.and_then(|cut| message.get(..cut)) {
            Some(begin) => format!("`{id}` ({begin}…)"),
            None if message.is_empty() => format!("`{id}`"),
            None => format!("`{id}` ({message})"),
        }
    };
    let shown: Vec<String> = open.by_ref().take(SHOWN_QUESTIONS).map(in_words).collect();
    let shown = shown.join(", ");
    match open.count() {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl Interrupt {
    /// Its id, and what people are asked.
    pub fn asks(&self) -> (&str, Option<&str>) {
        (self.id.as_str(), self.message.as_deref())
    }

    /// A question, asked from somewhere at some time. It has that id unless it names its own.
    pub fn new(id: CallId, address: Address, question: Question, now: f64) -> Self {
        Self {
            id: question.id.unwrap_or(id),
            address,
            reason: question.reason,
            message: Some(question.message),
            response_schema: question.response_schema,
            expires_at: question.expires_in.and_then(finite).map(|time| now + time.as_secs_f64()),
            call: None,
            digest: None,
            payload: question.payload,
            decisions: question.decisions,
            any_tool: question.any_tool,
            together: question.together,
        }
    }

    /// The name of the credential that it asks for, if it does.
    pub fn credential(&self) -> Option<&str> {
        let is_credential = self.reason == Question::CREDENTIAL;
        self.payload.as_ref().filter(|_| is_credential)?.get("credentialKey")?.as_str()
    }

    /// The message by which a person approves or rejects the call that asked for a confirmation.
    pub fn answer(&self, confirmed: bool) -> Content {
        self.answer_with(&Answer { confirmed, ..Answer::default() })
    }

    /// The message by which a person answers.
    pub fn answer_with(&self, answer: &Answer) -> Content {
        Content::user(Part::response(self.response(answer)))
    }

    /// An answer as the response to the call that asked.
    pub fn response(&self, answer: &Answer) -> FunctionResponse {
        let answer = serde_json::to_value(answer).ok();
        let answer = answer.and_then(|answer| answer.as_object().cloned()).unwrap_or_default();
        FunctionResponse::new(Some(self.id.clone()), self.call_name(), answer)
    }

    /// The name of the call that asks. A model may ask with a call of its own.
    pub fn call_name(&self) -> &'static str {
        match self.reason.as_str() {
            Question::CREDENTIAL => REQUEST_CREDENTIAL,
            Question::INPUT if self.address.call.as_ref() == Some(&self.id) => REQUEST_INPUT,
            _ => REQUEST_CONFIRMATION,
        }
    }
}

/// Where in a run a question was raised. Each layer around a tool has an address of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Address {
    /// The agent.
    pub agent: SmolStr,
    /// Its branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<SmolStr>,
    /// The call it works under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation_scope: Option<SmolStr>,
    /// The call it is about, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    /// The event by which the model asked for that call: ids of calls may repeat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<EventId>,
    /// The handler or layer that asks, and for hooks which; absent if the tool or the agent itself does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<SmolStr>,
    /// How many questions were asked from there before.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub nth: u32,
    /// Where inside the agent that this call works with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inner: Option<Box<Address>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Address {
    /// The place of an agent, or of one of its calls.
    pub fn new(source: &Source, call: Option<CallId>) -> Self {
        let Source { author, branch, isolation_scope } = source.clone();
        Self { agent: author, branch, isolation_scope, call, ..Self::default() }
    }

    /// Whether that agent asks.
    pub fn is_of(&self, source: &Source) -> bool {
        self.agent == source.author
            && self.branch == source.branch
            && self.isolation_scope == source.isolation_scope
    }

    /// Whether it is about a call of the same batch: one that a model asked for with the same event.
    pub fn is_same_batch(&self, other: &Self) -> bool {
        let batch = |address: &Self| Self { call: None, layer: None, nth: 0, ..address.clone() };
        match (&self.inner, &other.inner) {
            (Some(one), Some(two)) => self.call == other.call && one.is_same_batch(two),
            (None, None) => batch(self) == batch(other),
            _ => false,
        }
    }

    /// Whether it is the same asker, whichever question it is.
    pub fn is_place(&self, other: &Self) -> bool {
        let place = |address: &Self| Self { nth: 0, ..address.clone() };
        place(self) == place(other)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.agent)?;
        for part in [self.call.as_ref().map(CallId::as_str), self.layer.as_deref()].into_iter().flatten() {
            write!(f, "/{part}")?;
        }
        self.inner.as_ref().map_or(Ok(()), |inner| write!(f, "/{inner}"))
    }
}

impl FunctionResponse {
    /// Whether it only says that its call waits for people.
    pub fn is_waiting(&self) -> bool {
        let said = self.response.as_ref().and_then(|response| response.get("error"));
        said.and_then(Value::as_str)
            .is_some_and(|said| [NEEDS_CONFIRMATION, NEEDS_CREDENTIAL].contains(&said))
    }
}

/// What an [`ErrorKind::Interrupted`](crate::ErrorKind::Interrupted) error carries on its way up.
#[derive(Clone, Debug)]
pub enum Raised {
    /// A question of someone in this run.
    Question {
        /// What is asked.
        question: Box<Question>,
        /// Who asks; nobody said so yet if absent.
        by: Option<Asker>,
        /// How many questions the asker asked before.
        nth: u32,
    },
    /// Questions of a run that works for a call of this one.
    Inner(Vec<Interrupt>),
    /// Nothing: the call waits for the answer to a question about another one of its batch.
    Held,
}

/// Who asks a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The tool or the agent itself.
    Itself,
    /// A handler or layer.
    Layer(SmolStr),
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Question { question, .. } => f.write_str(&question.message),
            Self::Inner(interrupts) => write!(f, "{} questions", interrupts.len()),
            Self::Held => f.write_str("waits for another call"),
        }
    }
}

impl std::error::Error for Raised {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_questions_are_named_with_what_they_ask_and_long_ones_are_cut() {
        let words = |open: &[(&str, Option<&str>)]| questions_in_words(open.iter().copied());
        assert_eq!(words(&[]), "");
        assert_eq!(words(&[("q1", None), ("q2", Some(" "))]), "`q1`, `q2`");
        assert_eq!(words(&[("q1", Some("May I\n  send it?"))]), "`q1` (May I send it?)");
        let long = "ü".repeat(SHOWN_CHARS + 1);
        assert_eq!(words(&[("q1", Some(&long))]), format!("`q1` ({}…)", "ü".repeat(SHOWN_CHARS)));
        let many = words(&[("q", None); 13]);
        assert!(many.ends_with("`q`, `q` and 3 more"), "{many}");
    }

    #[test]
    fn a_question_that_may_be_answered_for_ever_does_not_expire() {
        let asked = |time| {
            let question = Question::confirm("May I?").expires_in(time);
            Interrupt::new("q".into(), Address::new(&Source::new("a"), None), question, 100.0).expires_at
        };
        assert_eq!(asked(Duration::ZERO), Some(100.0));
        assert_eq!(asked(Duration::from_secs(5)), Some(105.0));
        assert_eq!(asked(Duration::MAX), None);
    }
}
