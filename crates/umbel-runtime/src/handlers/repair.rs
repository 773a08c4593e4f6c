//! Sees to it that every call has an answer right behind it, and every answer a call.

use std::sync::Arc;

use umbel_core::{
    Content, FunctionCall, FunctionResponse, Handler, History, ModelTurn, Object, Part, Result, Role, Step,
    Transcript,
};
use umbel_macros::handler;

use super::per_agent;
use crate::contents::pairing::answers;
use crate::text;

/// Repairs conversations that providers would refuse: calls without an answer, and answers without a call.
///
/// A call gets a placeholder for its answer if none stands in the messages right behind it. An answer without a call, or a
/// second one, becomes a text: what the tool said is not lost, and a model can take it in. Once the real answer comes, the
/// placeholder goes.
///
/// What was looked at once in a run is not looked at again. A repaired conversation is left alone. Put it behind handlers
/// that cut a conversation down.
///
/// ```
/// use umbel_runtime::handlers::RepairCalls;
/// use umbel_runtime::{LlmAgent, ScriptedModel};
///
/// let agent = LlmAgent::new("guide").model(ScriptedModel::new("demo")).handler(RepairCalls::new());
/// ```
#[derive(Clone, Debug)]
pub struct RepairCalls {
    placeholder: Arc<str>,
}

impl RepairCalls {
    /// Repairs calls.
    pub fn new() -> Self {
        Self { placeholder: text::NO_ANSWER.into() }
    }

    /// What a call is answered that has no answer.
    pub fn placeholder(mut self, words: impl Into<Arc<str>>) -> Self {
        self.placeholder = words.into();
        self
    }

    /// Repairs a whole conversation.
    pub fn repair(&self, transcript: &mut Transcript) {
        self.repair_from(transcript, 0);
    }

    /// Repairs what stands at `start` and behind it.
    fn repair_from(&self, transcript: &mut Transcript, start: usize) {
        let mut index = batch_start(transcript, start);
        while let Some(message) = transcript.get(index).cloned() {
            // A batch: a message with calls, if there is one, and all answers behind it.
            let calls: Vec<&FunctionCall> = message.calls().collect();
            let first = if calls.is_empty() && message.has_responses() { index } else { index + 1 };
            let given: Vec<Arc<Content>> =
                transcript.iter_from(first).take_while(|message| is_answer(message)).cloned().collect();
            let end = first + given.len();
            index = match self.repaired(&calls, &given) {
                None => end,
                Some(answers) => {
                    let next = first + answers.len();
                    transcript.splice(first..end, answers);
                    next
                }
            };
        }
    }

    /// The answers of a batch as they should be; `None` if they are.
    fn repaired(&self, calls: &[&FunctionCall], given: &[Arc<Content>]) -> Option<Vec<Arc<Content>>> {
        let all: Vec<&FunctionResponse> = given.iter().flat_map(|message| message.responses()).collect();
        // Which of them answer a call.
        let mut taken = vec![false; all.len()];
        let mut missing = Vec::new();
        for call in calls {
            // An answer of the tool goes before one that stands in for it.
            let mut find = |stand_in: bool| {
                let mut free = all.iter().zip(&mut taken).filter(|(_, taken)| !**taken);
                free.find(|(answer, _)| answers(answer, call) && self.is_placeholder(answer) == stand_in)
                    .map(|(_, taken)| *taken = true)
            };
            if find(false).or_else(|| find(true)).is_none() {
                missing.push(*call);
            }
        }
        if missing.is_empty() && taken.iter().all(|taken| *taken) {
            return None;
        }
        let mut taken = taken.into_iter();
        let (mut repaired, mut loose) = (Vec::new(), Vec::new());
        for message in given {
            let (mut parts, mut words) = (Vec::new(), Vec::new());
            for part in &message.parts {
                match part.as_response() {
                    Some(response) if taken.next() != Some(true) => {
                        words.extend((!self.is_placeholder(response)).then(|| in_words(response)));
                    }
                    _ => parts.push(part.clone()),
                }
            }
            // Nothing may stand between a call and its answers.
            if parts.iter().any(|part| part.as_response().is_some()) {
                repaired.push(Content { role: message.role.clone(), parts: parts.into() });
            } else {
                loose.append(&mut parts);
            }
            loose.append(&mut words);
        }
        let missing = missing.into_iter().map(|call| self.stand_in(call));
        match repaired.last_mut() {
            Some(last) => last.parts.extend(missing),
            None => repaired.push(Content::new(Role::User, missing)),
        }
        repaired.push(Content::new(Role::User, loose));
        let repaired =
            repaired.into_iter().filter(|content| !content.parts.is_empty()).map(Arc::new).collect();
        Some(repaired)
    }

    fn stand_in(&self, call: &FunctionCall) -> Part {
        let response = Object::from_iter([("error".to_owned(), (*self.placeholder).into())]);
        Part::response(FunctionResponse::new(call.id.clone(), call.name.clone(), response))
    }

    fn is_placeholder(&self, response: &FunctionResponse) -> bool {
        let said =
            response.response.as_ref().filter(|said| said.len() == 1).and_then(|said| said.get("error"));
        said.and_then(serde_json::Value::as_str) == Some(&*self.placeholder)
    }
}

impl Default for RepairCalls {
    fn default() -> Self {
        Self::new()
    }
}

/// How far a conversation was looked at.
#[derive(Default)]
struct Repaired(History);

#[handler(crate = umbel_core)]
impl Handler for RepairCalls {
    fn name(&self) -> &str {
        "repair-calls"
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let run = turn.run();
        per_agent::with(run, per_agent::identity(self), |Repaired(known)| {
            let same = known.common_prefix(turn.history);
            self.repair_from(turn.history, same);
            *known = turn.history.history().clone();
        });
        Ok(Step::Continue)
    }
}

/// Where the batch begins that the message at `start` belongs to, or the one before it.
fn batch_start(history: &History, start: usize) -> usize {
    let before = (0..start).rev().filter_map(|index| history.get(index));
    let answers = before.take_while(|message| is_answer(message)).count();
    start.saturating_sub(answers + 1)
}

/// Whether a message does nothing but answer calls, besides words.
fn is_answer(message: &Content) -> bool {
    message.has_responses() && !message.has_calls()
}

fn in_words(response: &FunctionResponse) -> Part {
    Part::text(text::returned("you", &response.name, response.response.as_ref()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn call(ids: &[&str]) -> Content {
        let call =
            |id: &&str| Part::call(FunctionCall { id: id_of(id), ..FunctionCall::new("f", Object::new()) });
        Content::new(Role::Model, ids.iter().map(call))
    }

    fn answer(ids: &[&str]) -> Content {
        let said = || Object::from_iter([("result".to_owned(), json!("ok"))]);
        Content::new(
            Role::User,
            ids.iter().map(|id| Part::response(FunctionResponse::new(id_of(id), "f", said()))),
        )
    }

    /// `-` stands for no id.
    fn id_of(id: &str) -> Option<umbel_core::CallId> {
        (id != "-").then(|| id.into())
    }

    /// Calls as `>id`, answers as `id`, placeholders as `id?`, words as they are up to their first line.
    fn shape(history: &History) -> Vec<String> {
        let repair = RepairCalls::new();
        let part = |part: &Part| match (part.as_call(), part.as_response()) {
            (Some(call), _) => format!(">{}", call.id.as_ref().map_or("-", |id| id.as_str())),
            (_, Some(response)) => {
                let id = response.id.as_ref().map_or("-", |id| id.as_str());
                format!("{id}{}", if repair.is_placeholder(response) { "?" } else { "" })
            }
            _ => part.as_text().unwrap_or_default().lines().next().unwrap_or_default().to_owned(),
        };
        history.iter().map(|content| content.parts.iter().map(part).collect::<Vec<_>>().join(" ")).collect()
    }

    fn repaired(messages: impl IntoIterator<Item = Content>) -> Vec<String> {
        let mut transcript = Transcript::new(messages.into_iter().map(Arc::new).collect());
        RepairCalls::new().repair(&mut transcript);
        let once = shape(&transcript);
        transcript.take_edits();
        RepairCalls::new().repair(&mut transcript);
        assert!(transcript.take_edits().is_empty(), "a second repair changes nothing");
        once
    }

    const LATE: &str = "The tool `f` answered you:";

    #[test]
    fn what_is_whole_is_left_alone() {
        let whole =
            [Content::user("q"), call(&["a", "b"]), answer(&["b"]), answer(&["a"]), Content::user("z")];
        let mut transcript = Transcript::new(whole.into_iter().map(Arc::new).collect());
        RepairCalls::new().repair(&mut transcript);
        assert!(!transcript.is_edited());
    }

    #[test]
    fn a_call_without_an_answer_gets_a_placeholder_right_behind_it() {
        let user = || Content::user("z");
        assert_eq!(repaired([call(&["a"]), user()]), [">a", "a?", "z"]);
        assert_eq!(repaired([user(), call(&["a"])]), ["z", ">a", "a?"]);
        assert_eq!(repaired([call(&["a", "b"]), answer(&["b"]), user()]), [">a >b", "b a?", "z"]);
        assert_eq!(repaired([call(&["a"]), call(&["b"]), answer(&["b"])]), [">a", "a?", ">b", "b"]);
    }

    #[test]
    fn an_answer_without_a_call_becomes_words_behind_the_answers() {
        assert_eq!(repaired([answer(&["a"]), Content::user("z")]), [LATE, "z"]);
        assert_eq!(repaired([call(&["a"]), answer(&["x"]), answer(&["a"])]), [">a", "a", LATE]);
        assert_eq!(repaired([call(&["a"]), answer(&["x", "a"])]), [">a", "a", LATE]);
        // One that comes late is taken for what it is: an answer without a call, beside a call without an answer.
        let late = [call(&["a"]), Content::user("wait"), answer(&["a"])];
        assert_eq!(repaired(late), [">a", "a?", "wait", LATE]);
        assert_eq!(repaired([call(&["a"]), answer(&["a"]), answer(&["a"])]), [">a", "a", LATE]);
    }

    #[test]
    fn words_beside_an_answer_without_a_call_stay() {
        let mut both = answer(&["x"]);
        both.parts.push("note".into());
        assert_eq!(repaired([call(&["a"]), both]), [">a", "a?", format!("note {LATE}").as_str()]);
    }

    #[test]
    fn calls_without_ids_find_their_answers_by_name() {
        assert_eq!(repaired([call(&["-", "-"]), answer(&["-"]), answer(&["-"])]), [">- >-", "-", "-"]);
        assert_eq!(repaired([call(&["-", "-"]), answer(&["-"])]), [">- >-", "- -?"]);
    }

    #[test]
    fn the_placeholder_goes_when_the_answer_comes() {
        let placeholder = || Content::user(RepairCalls::new().stand_in(call(&["a"]).calls().next().unwrap()));
        assert_eq!(repaired([call(&["a"]), placeholder(), answer(&["a"])]), [">a", "a"]);
        assert_eq!(repaired([call(&["a"]), answer(&["a"]), placeholder()]), [">a", "a"]);
        assert_eq!(repaired([call(&["a"]), placeholder()]), [">a", "a?"]);
        assert_eq!(repaired([placeholder(), Content::user("z")]), ["z"]);
    }

    fn message() -> impl Strategy<Value = Content> {
        let ids = || prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "-"]), 1..3);
        prop_oneof![
            Just(Content::user("u")),
            Just(Content::model("m")),
            ids().prop_map(|ids| call(&ids)),
            ids().prop_map(|ids| answer(&ids)),
        ]
    }

    proptest! {
        #[test]
        fn every_call_is_answered_right_behind_it_and_step_by_step_gives_the_same(
            messages in prop::collection::vec(message(), 0..14),
            pieces in prop::collection::vec(1..4usize, 14),
        ) {
            let repair = RepairCalls::new();
            let all: History = messages.iter().cloned().map(Arc::new).collect();
            let mut whole = Transcript::new(all.clone());
            repair.repair(&mut whole);
            let answered = |index: usize, call: &FunctionCall| {
                let behind = whole.iter_from(index + 1).take_while(|message| is_answer(message));
                behind.flat_map(|message| message.responses()).filter(|answer| answers(answer, call)).count()
            };
            for (index, message) in whole.iter().enumerate() {
                for call in message.calls() {
                    let same = message.calls().filter(|other| other.id == call.id).count();
                    prop_assert_eq!(answered(index, call), same);
                }
            }
            let responses = whole.iter().flat_map(|message| message.responses()).count();
            prop_assert_eq!(responses, whole.iter().flat_map(|message| message.calls()).count());
            // As a run does it: a little more each time, and only what is new is looked at.
            let (mut known, mut taken) = (History::new(), 0);
            let mut grown = Transcript::new(History::new());
            for piece in pieces {
                taken += piece;
                let base: History = all.iter().take(taken).cloned().collect();
                grown.sync(&base);
                let same = known.common_prefix(&grown);
                repair.repair_from(&mut grown, same);
                known = grown.history().clone();
                let mut again = grown.clone();
                again.take_edits();
                repair.repair(&mut again);
                prop_assert!(again.take_edits().is_empty(), "{:?}", shape(&grown));
            }
        }
    }
}
