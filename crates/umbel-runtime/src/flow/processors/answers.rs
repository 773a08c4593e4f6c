//! Takes in what people said to calls that wait for them, and makes those calls.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use umbel_core::{
    Address, Answer, CallFinished, CallId, Error, ErrorKind, Event, EventId, FunctionCall, Interrupt, List,
    Object, Result, RunStep, Work,
};

use super::RequestProcessor;
use crate::contents::visible::{REQUEST_CONFIRMATION, REQUEST_CREDENTIAL};
use crate::flow::function_calls::{self, Again, Batch, CONFIRM_LAYER, calls_of};
use crate::flow::questions::emit_with_questions;
use crate::flow::{Draft, code, direct, save_answer};

/// Takes in answers to one kind of questions.
pub(super) struct Answers {
    name: &'static str,
    /// The name of the call that asks.
    asks: &'static str,
}

/// Answers to questions for credentials: the calls that wait for one are made with it.
pub(super) const AUTH: Answers = Answers { name: "auth", asks: REQUEST_CREDENTIAL };
/// Answers to all other questions.
pub(super) const CONFIRMATION: Answers = Answers { name: "confirmation", asks: REQUEST_CONFIRMATION };

impl RequestProcessor for Answers {
    fn name(&self) -> &str {
        self.name
    }

    fn acts(&self) -> bool {
        true
    }

    fn process<'a>(&'a self, draft: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        // What people say comes as the message of a run.
        if !draft.run.input().is_some_and(|input| input.has_responses()) {
            return Work::done(Ok(()));
        }
        let events = draft.run.events();
        match given(&events, self.asks) {
            None => Work::done(Ok(())),
            Some(given) => Work::later(take_in(draft, events, given)),
        }
    }
}

/// Which questions of that kind the last message of the user answers, and where that message stands.
fn given(events: &List<Arc<Event>>, asks: &str) -> Option<Given> {
    let back = events.iter().rev().position(|event| event.is_user())?;
    let at = events.len() - 1 - back;
    let (mut questions, mut others) = (BTreeSet::new(), false);
    for response in events.get(at)?.responses() {
        match &response.id {
            Some(id) if response.name == asks => _ = questions.insert(id.clone()),
            _ => others = true,
        }
    }
    (!questions.is_empty()).then_some(Given { at, questions, others })
}

/// What the last message of the user answers.
struct Given {
    /// Where that message stands.
    at: usize,
    /// The ids of the questions.
    questions: BTreeSet<CallId>,
    /// Whether it answers other calls too.
    others: bool,
}

async fn take_in(draft: &mut Draft<'_>, events: List<Arc<Event>>, given: Given) -> Result<()> {
    let values = draft.run.values();
    if !given.others && !given.questions.iter().any(|question| values.is_answered(question)) {
        // It was taken in before: earlier in this run, or in another one. Then it came again, and there is nothing new to
        // say.
        if events.iter_from(given.at + 1).next().is_none() {
            draft.run.end();
        }
        return Ok(());
    }
    let all = values.answers(draft.run.source());
    let is_new =
        |asked: &Interrupt| given.questions.contains(&asked.id) && !is_used(&events, given.at, asked);
    let answers: Vec<_> = all.iter().filter(|(asked, _)| is_new(asked)).collect();
    for batch in batches(draft, &events, &answers, &all)? {
        for batch in begin(draft, &events, (&all, given.at), batch).await? {
            make(draft, &batch).await?;
        }
    }
    Ok(())
}

/// Makes calls before the model is asked.
pub(super) async fn make(draft: &mut Draft<'_>, batch: &Batch) -> Result<()> {
    let layers = &draft.team.place(draft.run.node_id())?.onion.wrap_tool;
    let tools = code::tools_of(draft.agent, batch).unwrap_or(&draft.tools);
    let mut made = function_calls::execute(draft.run, layers, tools, batch).await?;
    if batch.is_code {
        code::as_result(draft.agent, draft.run, &mut made);
    }
    direct::mark(&draft.tools, batch, &mut made);
    let Some(event) = &mut made.event else { return Ok(()) };
    if made.asks.is_empty() {
        save_answer(draft.agent, event)?;
    }
    let transfer = event.actions.as_ref().and_then(|actions| actions.transfer_to_agent.clone());
    // A call may ask again.
    if let Some(last) = emit_with_questions(draft.run, made).await? {
        draft.emitted(last);
    }
    if let Some(name) = transfer {
        draft.run.transfer_to(name);
        draft.run.end();
    }
    if waits_on(draft, batch) {
        draft.run.pause();
        draft.run.end();
    }
    Ok(())
}

/// Notes that the calls are made now, so that they are not made again should the run be cut short. Those that were begun
/// since their answer came, and have said nothing since, were cut short, and are apart.
///
/// That is told by where an answer stands first: the same answer may come again. It may also be of an earlier message than
/// the last one, for a call that waits with the others.
async fn begin(
    draft: &Draft<'_>,
    events: &List<Arc<Event>>,
    (all, at): (&[(Interrupt, Answer)], usize),
    batch: Batch,
) -> Result<Vec<Batch>> {
    let source = draft.run.source();
    let gives = |event: &Event, question: &CallId| {
        event.is_user() && event.responses().any(|response| response.id.as_ref() == Some(question))
    };
    let is_about = |asked: &Address, call: &CallId| {
        asked.call.as_ref() == Some(call) && (asked.event.is_none() || asked.event == batch.event)
    };
    let answered_at = |call: &CallId| {
        let about = all.iter().filter(|(asked, _)| is_about(&asked.address, call));
        let given = about.filter_map(|(asked, _)| events.iter().position(|event| gives(event, &asked.id)));
        given.max().unwrap_or(at)
    };
    let speaks_since = |call: &CallId, place: usize| {
        let mut since = events.iter_from(place).filter(|event| event.source == *source);
        since.any(|event| event.responses().any(|response| response.id.as_ref() == Some(call)))
    };
    let is_current = |call: &CallId, place: usize| place > answered_at(call) && !speaks_since(call, place);
    let replay = draft.run.values().replay();
    let records = || replay.iter().flat_map(|replay| &replay.records);
    let was_begun = |call: &CallId| {
        let begins = |step: &RunStep| matches!(step, RunStep::CallsStarted { calls } if calls.contains(call));
        records().any(|(place, step)| begins(step) && is_current(call, *place))
    };
    let begun = draft.run.values().get_or_insert_with(BegunCalls::default);
    let is_again = |call: &FunctionCall| {
        let id = call.id.as_ref();
        id.is_some_and(|id| !begun.insert(batch.event.as_ref(), id) || was_begun(id))
    };
    let (again, new): (Vec<_>, Vec<_>) = batch.calls.iter().cloned().partition(is_again);
    let mut parts = Vec::new();
    if !again.is_empty() {
        let done = records().filter_map(|(place, step)| finished(step).map(|done| (*place, done)));
        let done = done.filter(|(place, done)| is_current(&done.call, *place)).map(|(_, done)| done);
        let finished = done.collect();
        parts.push(Batch { calls: again, again: Again::CutShort, finished, ..batch.clone() });
    }
    if !new.is_empty() {
        let ids = new.iter().filter_map(|call| call.id.clone()).collect();
        draft.run.record(vec![RunStep::CallsStarted { calls: Box::new(ids) }]).await?;
        parts.push(Batch { calls: new, ..batch });
    }
    Ok(parts)
}

/// The answered calls that this run has begun. Their agent may be dropped in the middle, by a timeout around it, and be run
/// again in the same run.
#[derive(Debug, Default)]
struct BegunCalls(Mutex<Vec<(Option<EventId>, CallId)>>);

impl BegunCalls {
    /// Notes that a call of an event begins. False if it did before.
    fn insert(&self, event: Option<&EventId>, call: &CallId) -> bool {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !begun.iter().any(|(of, id)| of.as_ref() == event && id == call);
        if is_new {
            begun.push((event.cloned(), call.clone()));
        }
        is_new
    }
}

fn finished(step: &RunStep) -> Option<CallFinished> {
    match step {
        RunStep::CallFinished { finished } => Some((**finished).clone()),
        _ => None,
    }
}

/// Whether others of the calls that the model asked for wait for people still. The model is asked when all have their
/// answer, except for questions of google-adk's kind, after which it is asked as it is there.
fn waits_on(draft: &Draft<'_>, batch: &Batch) -> bool {
    let waits = |asked: &Interrupt| {
        asked.address.is_of(draft.run.source())
            && asked.address.event.is_some()
            && asked.address.event == batch.event
            && asked.address.layer.as_deref() != Some(CONFIRM_LAYER)
    };
    draft.run.open_questions().iter().any(waits)
}

/// Whether the call of an answered question was made since.
fn is_used(events: &List<Arc<Event>>, at: usize, asked: &Interrupt) -> bool {
    let Some(call) = &asked.address.call else { return true };
    let mut since = events.iter_from(at + 1).filter(|event| asked.address.is_of(&event.source));
    since.any(|event| event.answered().any(|answered| answered == call))
}

/// The calls that were answered, with those that waited with them: a batch for each event by which a model asked.
fn batches(
    draft: &Draft<'_>,
    events: &List<Arc<Event>>,
    answers: &[&(Interrupt, Answer)],
    all: &[(Interrupt, Answer)],
) -> Result<Vec<Batch>> {
    let mut asking: Vec<(Arc<Event>, BTreeSet<CallId>)> = Vec::new();
    for (asked, _) in answers {
        let Some((event, call)) = check(draft, events, asked)? else { continue };
        let place = asking.iter().position(|(known, _)| known.id == event.id).unwrap_or_else(|| {
            asking.push((event, BTreeSet::new()));
            asking.len() - 1
        });
        if let Some((_, calls)) = asking.get_mut(place) {
            calls.extend(call.id);
        }
    }
    Ok(asking.iter().map(|(event, answered)| batch(draft, events, event, answered, all)).collect())
}

/// The calls of an event that were answered, as people want them, and those that wait and ask nobody.
fn batch(
    draft: &Draft<'_>,
    events: &List<Arc<Event>>,
    event: &Event,
    answered: &BTreeSet<CallId>,
    all: &[(Interrupt, Answer)],
) -> Batch {
    let several = (event.calls().count() > 1).then(|| event.calls().cloned().collect());
    let mut batch = Batch { again: Again::Answered, together: several, ..Batch::of_event(event) };
    let open = draft.run.open_questions();
    let asks = |id: &CallId| {
        open.iter().any(|asked| {
            asked.address.call.as_ref() == Some(id) && asked.address.event.as_ref() == Some(&event.id)
        })
    };
    let is_made = |call: &FunctionCall| {
        call.id.as_ref().is_some_and(|id| answered.contains(id) || (!asks(id) && waits(events, event, id)))
    };
    batch.calls.retain(is_made);
    for call in &mut batch.calls {
        let Some(id) = &call.id else { continue };
        let is_ours = |asked: &Address| {
            asked.inner.is_none()
                && asked.call.as_ref() == Some(id)
                && asked.event.as_ref().is_none_or(|asking| *asking == event.id)
        };
        for (asked, answer) in all.iter().filter(|(asked, _)| is_ours(&asked.address)) {
            if let Some(tool) = &answer.tool {
                let before = std::mem::replace(&mut call.name, tool.clone());
                batch.renamed.entry(id.clone()).or_insert(before);
            }
            // A layer's question is the layer's own matter.
            if asked.address.layer.as_ref().is_none_or(|layer| layer == CONFIRM_LAYER) {
                batch.confirmations.insert(id.clone(), answer.clone());
            }
        }
    }
    batch
}

/// Whether a call has no result yet but that it waits for people.
fn waits(events: &List<Arc<Event>>, event: &Event, id: &CallId) -> bool {
    // Others may have calls of the same id, and so may the agent itself, later, once this one is done.
    let ours = |later: &&Arc<Event>| later.source == event.source;
    let behind = events.iter().rev().take_while(|later| later.id != event.id).filter(ours);
    let behind: Vec<&Arc<Event>> = behind.collect();
    let calls_it = |later: &&&Arc<Event>| !later.calls().any(|call| call.id.as_ref() == Some(id));
    let results = behind.iter().rev().take_while(calls_it).flat_map(|later| later.responses());
    results.filter(|one| one.id.as_ref() == Some(id)).last().is_some_and(|response| response.is_waiting())
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::InvalidConfirmation, message)
}

/// The call that a question is about, as it stands in the log, if it really waits for a person.
fn check(
    draft: &Draft<'_>,
    events: &List<Arc<Event>>,
    asked: &Interrupt,
) -> Result<Option<(Arc<Event>, FunctionCall)>> {
    let Some(id) = &asked.address.call else { return Ok(None) };
    if asked.call.as_ref().is_some_and(|shown| shown.id.as_ref().is_none_or(CallId::is_empty)) {
        return Err(refused("the question shows a call without an id".to_owned()));
    }
    let made = events.iter().rev().find_map(|event| {
        let call = calls_of(event).find(|call| call.id.as_ref() == Some(id) && !asks(call))?;
        let same = asked.address.event.as_ref().is_none_or(|asking| *asking == event.id);
        same.then(|| (event.clone(), call))
    });
    let Some((event, made)) = made else {
        return Err(refused(format!("the question is about call `{id}`, which was never made")));
    };
    if event.author() != draft.run.agent_name().as_str() {
        return Ok(None);
    }
    let Some(shown) = asked.call.as_ref().filter(|_| asked.address.inner.is_none()) else {
        return Ok(Some((event, made)));
    };
    let code = code::tools_of(draft.agent, &Batch::of_event(&event));
    let tool = code
        .map_or_else(|| draft.tool(&shown.name), |tools| tools.get(&shown.name))
        .ok_or_else(|| refused(format!("there is no tool `{}` any more", shown.name)))?;
    let empty = Arc::new(Object::new());
    let args = |call: &FunctionCall| call.args.clone().unwrap_or_else(|| empty.clone());
    if asked.address.event.is_some() {
        // The run wrote down itself what it asked, and with which arguments the call had come there.
        return Ok(Some((event, made)));
    }
    let is_gate = asked.address.layer.as_deref() == Some(CONFIRM_LAYER);
    if is_gate && !tool.tool.spec().confirm.needed(&args(shown)) && !asked_by_tool(events, id) {
        return Err(refused(format!("a call of `{}` needs no confirmation", shown.name)));
    }
    if made.name != shown.name || args(&made) != args(shown) {
        return Err(refused(format!("the question shows call `{id}` otherwise than it was made")));
    }
    Ok(Some((event, made)))
}

/// Whether a call is a question to people.
fn asks(call: &FunctionCall) -> bool {
    [REQUEST_CONFIRMATION, REQUEST_CREDENTIAL].contains(&call.name.as_str())
}

/// Whether the tool itself asked for a confirmation of this call.
fn asked_by_tool(events: &List<Arc<Event>>, id: &CallId) -> bool {
    events.iter().any(|event| {
        let asked = event.actions.as_ref().and_then(|actions| actions.requested_tool_confirmations.as_ref());
        asked.is_some_and(|asked| asked.contains_key(id))
            && event.responses().any(|response| response.id.as_ref() == Some(id))
    })
}
