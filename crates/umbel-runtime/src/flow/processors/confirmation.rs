//! Takes in what people said to calls that wait for them, and makes those calls.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;
use umbel_core::{CallId, Confirmation, Error, ErrorKind, Event, FunctionCall, List, Object, Result, Work};

use super::RequestProcessor;
use crate::contents::visible::REQUEST_CONFIRMATION;
use crate::flow::Draft;
use crate::flow::function_calls::{self, Batch};

pub(super) struct Confirmations;

impl RequestProcessor for Confirmations {
    fn name(&self) -> &str {
        "confirmation"
    }

    fn process<'a>(&'a self, draft: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        // What people say comes as the message of a run.
        if !draft.run.input().is_some_and(|input| input.has_responses()) {
            return Work::done(Ok(()));
        }
        let events = draft.run.events();
        match given(&events) {
            None => Work::done(Ok(())),
            Some(given) => Work::later(take_in(draft, events, given)),
        }
    }
}

/// What the last message of the user answers.
struct Given {
    /// Where that message stands.
    at: usize,
    /// By the id of the question.
    answers: BTreeMap<CallId, Object>,
    /// Whether it answers other calls too.
    others: bool,
}

/// The answers in the last message of the user, if there are any.
fn given(events: &List<Arc<Event>>) -> Option<Given> {
    let back = events.iter().rev().position(|event| event.is_user())?;
    let at = events.len() - 1 - back;
    let (mut answers, mut others) = (BTreeMap::new(), false);
    for response in events.get(at)?.responses() {
        if response.name != REQUEST_CONFIRMATION {
            others = true;
        } else if let (Some(id), Some(answer)) = (&response.id, &response.response) {
            answers.insert(id.clone(), answer.clone());
        }
    }
    (!answers.is_empty()).then_some(Given { at, answers, others })
}

async fn take_in(draft: &mut Draft<'_>, events: List<Arc<Event>>, mut given: Given) -> Result<()> {
    let asked = asked(&events, &given);
    let (used, used_now) = used(&events, &given, &asked);
    given.answers.retain(|id, _| !used.contains(id));
    if given.answers.is_empty() {
        if !used_now && !given.others {
            // The same answer came again: its call was made long ago, and there is nothing new to say.
            draft.run.end();
        }
        return Ok(());
    }
    let mut batch = Batch::default();
    for (question, answer) in &given.answers {
        let Some((event, call)) = asked.get(question) else { continue };
        if event.author() != draft.run.agent_name().as_str() {
            continue;
        }
        let answer = Confirmation::from_response(answer)
            .map_err(|e| refused(format!("the answer to `{question}` is no confirmation: {e}")))?;
        if let Some(call) = check(draft, &events, call)? {
            let Some(id) = call.id.clone() else { continue };
            batch.calls.push(call);
            batch.confirmations.insert(id, answer);
        }
    }
    if batch.calls.is_empty() {
        return Ok(());
    }
    let layers = &draft.team.place(draft.run.node_id())?.onion.wrap_tool;
    let made = function_calls::execute(draft.run, layers, &draft.tools, &batch).await?;
    let Some(mut event) = made else { return Ok(()) };
    function_calls::mark_direct(&draft.tools, &batch, &mut event);
    let transfer = event.actions.as_ref().and_then(|actions| actions.transfer_to_agent.clone());
    // A call may ask again.
    let last = function_calls::emit_with_questions(draft.run, &batch.calls, event).await?;
    draft.emitted(last);
    if let Some(name) = transfer {
        draft.run.transfer_to(name);
        draft.run.end();
    }
    Ok(())
}

/// The questions, with the event that asked each and the call it is about.
fn asked(events: &List<Arc<Event>>, given: &Given) -> HashMap<CallId, (Arc<Event>, Value)> {
    let mut asked = HashMap::new();
    for event in events {
        for call in event.calls() {
            let Some(id) = call.id.as_ref().filter(|id| given.answers.contains_key(*id)) else { continue };
            let about = call.args.as_ref().and_then(|args| args.get("originalFunctionCall"));
            if let Some(about) = about.filter(|about| about.is_object() && call.name == REQUEST_CONFIRMATION)
            {
                asked.insert(id.clone(), (event.clone(), about.clone()));
            }
        }
    }
    asked
}

/// Answers whose call was made already, and whether that was in this turn.
fn used(
    events: &List<Arc<Event>>,
    given: &Given,
    asked: &HashMap<CallId, (Arc<Event>, Value)>,
) -> (HashSet<CallId>, bool) {
    let about = |value: &Value| value.get("id").and_then(Value::as_str).map(CallId::from);
    let questions: HashMap<CallId, &CallId> =
        asked.iter().filter_map(|(question, (_, call))| Some((about(call)?, question))).collect();
    let (mut answered, mut used, mut now) = (HashSet::new(), HashSet::new(), false);
    for (index, event) in events.iter().enumerate() {
        for id in event.responses().filter_map(|response| response.id.as_ref()) {
            if event.is_user() {
                answered.extend(given.answers.contains_key(id).then(|| id.clone()));
            } else if let Some(question) = questions.get(id).filter(|question| answered.contains(**question))
            {
                used.insert((*question).clone());
                now |= index > given.at;
            }
        }
    }
    (used, now)
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::InvalidConfirmation, message)
}

/// The call as it stands in the log, if it is this agent's and really waits for a person.
fn check(draft: &Draft<'_>, events: &List<Arc<Event>>, shown: &Value) -> Result<Option<FunctionCall>> {
    let shown: FunctionCall = serde_json::from_value(shown.clone())
        .map_err(|e| refused(format!("the question shows a call that cannot be read: {e}")))?;
    let Some(id) = shown.id.clone().filter(|id| !id.is_empty()) else {
        return Err(refused("the question shows a call without an id".to_owned()));
    };
    let made = events.iter().rev().find_map(|event| {
        let call =
            event.calls().find(|call| call.id.as_ref() == Some(&id) && call.name != REQUEST_CONFIRMATION)?;
        Some((event.clone(), call.clone()))
    });
    let Some((event, made)) = made else {
        return Err(refused(format!("the question is about call `{id}`, which was never made")));
    };
    if event.author() != draft.run.agent_name().as_str() {
        return Ok(None);
    }
    let tool = draft
        .tool(&shown.name)
        .ok_or_else(|| refused(format!("there is no tool `{}` any more", shown.name)))?;
    let empty = Arc::new(Object::new());
    let args = |call: &FunctionCall| call.args.clone().unwrap_or_else(|| empty.clone());
    if !tool.tool.spec().confirm.needed(&args(&shown)) && !asked_by_tool(events, &id) {
        return Err(refused(format!("a call of `{}` needs no confirmation", shown.name)));
    }
    if made.name != shown.name || args(&made) != args(&shown) {
        return Err(refused(format!("the question shows call `{id}` otherwise than it was made")));
    }
    Ok(Some(made))
}

/// Whether the tool itself asked for a confirmation of this call.
fn asked_by_tool(events: &List<Arc<Event>>, id: &CallId) -> bool {
    events.iter().any(|event| {
        let asked = event.actions.as_ref().and_then(|actions| actions.requested_tool_confirmations.as_ref());
        asked.is_some_and(|asked| asked.contains_key(id))
            && event.responses().any(|response| response.id.as_ref() == Some(id))
    })
}
