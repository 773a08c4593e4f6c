//! The handlers before and after a model call, and what they ask for.

use std::sync::Arc;

use smol_str::{SmolStr, format_smolstr};
use umbel_core::onion::named;
use umbel_core::{
    CallId, Content, Context, Edit, Edited, Error, ErrorKind, Event, FunctionCall, Handler, History, Jump,
    ModelTurn, Part, Response, Result, Role, Run, RunStep, Source, Step, ToolSet, ToolValue, Transcript,
};

use super::draft::Draft;
use super::function_calls::{self, Batch, calls_of};
use super::{After, Made, Turn, overflow};
use crate::onion::{self, Onion};
use crate::text;

/// Lets handlers work on the conversation before the model is asked. Gives the step if one of them made it another.
pub(super) async fn before_model(
    turn: &mut Turn<'_>,
    draft: &mut Draft<'_>,
    handlers: &[Arc<dyn Handler>],
    cx: &Context,
) -> Result<Option<Made>> {
    let (run, overflows) = (turn.run, overflow::times(turn));
    let transcript = transcript(turn, &draft.request.contents);
    transcript.sync(&draft.request.contents);
    if let Some(turn) = &draft.turn_plan {
        place_input(transcript, run.input(), turn.input.as_ref());
    }
    let placed = transcript.changes();
    let mut model_turn = ModelTurn::new(cx, transcript, &draft.request.tools).with_overflows(overflows);
    let passed = onion::before_model(handlers, &mut model_turn).await?;
    let shortens = model_turn.can_be_shortened();
    let edits = record(turn);
    turn.shortens = shortens;
    blame(turn, edits.iter().skip(placed), passed.changed_by, "before_model");
    match passed.step {
        Step::Continue => {
            turn.jumps = 0;
            let Some(transcript) = &mut turn.transcript else { return Ok(None) };
            check(transcript, &turn.changes)?;
            turn.changes.clear();
            transcript.mark_sent();
            draft.request.contents = transcript.history().clone();
            draft.place_turn();
            Ok(None)
        }
        Step::Respond(content) => respond(turn, &draft.request.tools, cx, content).await.map(Some),
        step => {
            let last = leave_actions(turn, cx).await?;
            match step {
                Step::Jump(Jump::Tools) => {
                    if let Some(last) = pending_calls(turn, &draft.request.tools).await? {
                        turn.jumps = 0;
                        return Ok(Some(Made { last: Some(last), after: After::Event }));
                    }
                }
                Step::Jump(Jump::Model) => {}
                _ => return Ok(Some(Made { last, after: After::End })),
            }
            count_jump(turn, passed.by.as_deref())?;
            Ok(Some(Made { last: None, after: After::Again }))
        }
    }
}

/// How often handlers may jump in a row before the model is asked or a call is made.
const JUMPS: u32 = 100;

/// An error if handlers jump for ever.
fn count_jump(turn: &mut Turn<'_>, by: Option<&dyn Handler>) -> Result<()> {
    turn.jumps += 1;
    if turn.jumps < JUMPS {
        return Ok(());
    }
    let error = Error::new(ErrorKind::Handler, text::ENDLESS_JUMPS);
    Err(by.into_iter().fold(error, |error, handler| named(handler, "before_model", error)))
}

/// A change to the conversation, and who made it in which hook.
pub(crate) struct Change {
    edit: Edit,
    by: Arc<dyn Handler>,
    hook: &'static str,
}

/// Keeps in mind who changed what, until the model is asked.
fn blame<'e>(
    turn: &mut Turn<'_>,
    edits: impl Iterator<Item = &'e Edit>,
    by: Vec<Arc<dyn Handler>>,
    hook: &'static str,
) {
    turn.changes.extend(edits.zip(by).map(|(edit, by)| Change { edit: edit.clone(), by, hook }));
}

/// What came of the handlers after a model call.
pub(super) struct Seen {
    pub(super) response: Response,
    /// Calls that were answered in the tool's place.
    pub(super) answers: Vec<(CallId, ToolValue)>,
    pub(super) step: Step,
}

/// Lets handlers work on the response, and on the conversation that it belongs to.
pub(super) async fn after_model(
    turn: &mut Turn<'_>,
    tools: &Arc<ToolSet>,
    onion: &Onion,
    cx: &Context,
    response: Response,
) -> Result<Seen> {
    let transcript = transcript(turn, &History::new());
    let said = response.content.clone();
    if let Some(content) = &said {
        let mut base = transcript.base().clone();
        base.push(content.clone());
        transcript.sync(&base);
    }
    let place = transcript.len().saturating_sub(1);
    let mut model_turn = ModelTurn::new(cx, transcript, tools).with_response(response);
    let passed = onion::after_model(&onion.after_model, &mut model_turn).await;
    let (response, mut answers) = model_turn.finish();
    let passed = passed.inspect_err(|error| {
        if error.kind() == ErrorKind::Interrupted {
            keep_response(
                turn.run,
                Response { content: said.clone(), ..response.clone().unwrap_or_default() },
            );
        }
    })?;
    let (mut response, step) = (response.unwrap_or_default(), passed.step);
    let edits = record(turn);
    blame(turn, edits.iter(), passed.changed_by, "after_model");
    let place = moved(place, &edits);
    let Some(transcript) = &mut turn.transcript else { return Ok(Seen { response, answers, step }) };
    let same = |a: &Option<Arc<Content>>, b: Option<&Arc<Content>>| match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    };
    if said.is_some() && same(&said, response.content.as_ref()) {
        // Whoever changed it as the last message of the conversation changed the response.
        let content = place.and_then(|place| transcript.get(place));
        if let Some(content) = content.filter(|content| content.role == Some(Role::Model)) {
            response.content = Some(content.clone());
        }
    }
    take_answers(transcript, place, &response, &mut answers);
    record(turn);
    Ok(Seen { response, answers, step })
}

/// Where a response is kept while people are asked about it, so that the model is not asked twice.
fn kept_response(run: &Run) -> SmolStr {
    let Source { author, branch, isolation_scope } = &**run.source();
    let place = [branch, isolation_scope].map(|part| part.as_deref().unwrap_or_default());
    format_smolstr!("response:{author}:{}", place.join(":"))
}

fn keep_response(run: &Run, response: Response) {
    // An event always has a JSON form.
    let _ = run.keep(kept_response(run), &run.event_of(umbel_core::EventId::default(), response));
}

/// The response that people were asked about, if that is why the run goes on now.
pub(super) fn take_response(run: &Run) -> Result<Option<Response>> {
    let key = kept_response(run);
    let Some(Event { content, turn_complete, meta, .. }) = run.kept::<Event>(&key)? else { return Ok(None) };
    run.keep(key, &serde_json::Value::Null)?;
    Ok(Some(Response { content, partial: None, turn_complete, meta }))
}

/// Where a message stands after some changes; `None` if it was taken out. One of the model's in its place is it.
fn moved(place: usize, edits: &[Edit]) -> Option<usize> {
    edits.iter().try_fold(place, |place, edit| {
        if place < edit.at {
            return Some(place);
        }
        if edit.at + edit.removed <= place {
            return Some(place - edit.removed + edit.added.len());
        }
        let said = edit.added.iter().rposition(|content| content.role == Some(Role::Model))?;
        Some(edit.at + said)
    })
}

/// Responses that a handler put behind the calls they answer are answers like any other. They are taken out, since the
/// log will have them.
fn take_answers(
    transcript: &mut Transcript,
    place: Option<usize>,
    response: &Response,
    answers: &mut Vec<(CallId, ToolValue)>,
) {
    let (Some(content), Some(place)) = (&response.content, place) else { return };
    let asked = |part: &Part| {
        let given = part.as_response()?;
        given.id.clone().filter(|_| content.calls().any(|call| call.id == given.id))
    };
    for index in (place.saturating_add(1)..transcript.len()).rev() {
        let Some(message) = transcript.get(index).cloned() else { continue };
        if message.parts.iter().all(|part| asked(part).is_none()) {
            continue;
        }
        for part in &message.parts {
            let (Some(id), Some(given)) = (asked(part), part.as_response()) else { continue };
            if answers.iter().all(|(answered, _)| *answered != id) {
                let value = serde_json::Value::Object(given.response.clone().unwrap_or_default());
                let is_error = value.get("error").is_some();
                answers.push((id, ToolValue { value, is_error, ..ToolValue::default() }));
            }
        }
        let mut rest = Arc::unwrap_or_clone(message);
        rest.parts.retain(|part| asked(part).is_none());
        let rest = (!rest.parts.is_empty()).then(|| Arc::new(rest));
        transcript.splice(index..=index, rest);
    }
}

/// The conversation of this turn's agent, with what was changed in it earlier in this run.
fn transcript<'t>(turn: &'t mut Turn<'_>, base: &History) -> &'t mut Transcript {
    let run = turn.run;
    turn.transcript.get_or_insert_with(|| {
        Box::new(match run.values().take_transcript(run.source()) {
            (Some(transcript), _) => transcript,
            (None, edits) if edits.is_empty() => Transcript::new(base.clone()),
            (None, edits) => Transcript::replay(base, &edits),
        })
    })
}

/// Writes down what handlers changed.
fn record(turn: &mut Turn<'_>) -> Vec<Edit> {
    let Some(transcript) = &mut turn.transcript else { return Vec::new() };
    let edits = transcript.take_edits();
    if !edits.is_empty() {
        let edited = Box::new(Edited::new(turn.run.source(), edits.clone()));
        turn.run.note_step(RunStep::Edited { edited });
    }
    edits
}

/// Puts what the agent is to see in the place of what the user said.
fn place_input(transcript: &mut Transcript, said: Option<&Arc<Content>>, seen: Option<&Arc<Content>>) {
    let (Some(said), Some(seen)) = (said, seen) else { return };
    let place = transcript.iter().rev().position(|content| content == said || content == seen);
    if let Some(place) = place.map(|back| transcript.len() - 1 - back)
        && transcript.get(place).is_some_and(|content| content == said)
    {
        transcript.replace(place, seen.clone());
    }
}

/// An error if handlers left what no model can be sent. Looks only at where they changed something.
fn check(transcript: &Transcript, changes: &[Change]) -> Result<()> {
    let blamed = |change: &Change, message: String| {
        Err(named(&*change.by, change.hook, Error::new(ErrorKind::Handler, message)))
    };
    if let Some(last) = changes.last().filter(|_| transcript.is_empty()) {
        return blamed(last, text::EMPTY_HISTORY.to_owned());
    }
    for (index, change) in changes.iter().enumerate() {
        let mut place = change.edit.at + change.edit.added.len();
        for Change { edit: later, .. } in changes.iter().skip(index + 1) {
            if later.at < place {
                place = (place + later.added.len()).saturating_sub(later.removed);
            }
        }
        if let Some(name) = orphan(transcript, place) {
            return blamed(change, text::orphaned_response(&name));
        }
    }
    Ok(())
}

/// The name of a tool whose response stands from `place` on without its call before it.
fn orphan(history: &History, place: usize) -> Option<smol_str::SmolStr> {
    let responses = history.iter_from(place).take_while(|content| content.has_responses());
    let responses: Vec<_> = responses.flat_map(|content| content.responses()).collect();
    if responses.is_empty() {
        return None;
    }
    let before = (0..place).rev().filter_map(|index| history.get(index));
    let mut calls: Vec<&FunctionCall> = Vec::new();
    for content in before {
        calls.extend(content.calls());
        if !content.has_responses() {
            break;
        }
    }
    let known = |response: &&umbel_core::FunctionResponse| {
        calls.iter().any(|call| match &response.id {
            Some(id) => call.id.as_ref() == Some(id),
            None => call.name == response.name,
        })
    };
    responses.iter().find(|response| !known(response)).map(|response| response.name.clone())
}

/// Says an answer that a handler gave in the model's place, and makes the calls in it.
pub(super) async fn respond(
    turn: &mut Turn<'_>,
    tools: &Arc<ToolSet>,
    cx: &Context,
    content: Content,
) -> Result<Made> {
    let run = turn.run;
    let mut event = run.event().with_content(content);
    event.actions = cx.take_actions();
    let calls = function_calls::name_calls(run, tools, &mut event);
    turn.answer.save(turn.agent, &mut event)?;
    let Some(calls) = calls else {
        let last = Some(run.emit(event).await?);
        return Ok(Made { last, after: After::Event });
    };
    let event = run.emit_with(event, vec![RunStep::CallsStarted { calls: Box::new(calls) }]).await?;
    let last = Box::pin(function_calls::follow(turn, tools, &Batch::of_event(&event))).await?;
    Ok(Made { last: last.or(Some(event)), after: After::Event })
}

/// Emits what handlers did, if there is no other event to carry it.
pub(super) async fn leave_actions(turn: &Turn<'_>, cx: &Context) -> Result<Option<Arc<Event>>> {
    let Some(actions) = cx.take_actions() else { return Ok(None) };
    let mut event = turn.run.event();
    event.actions = Some(actions);
    turn.run.emit(event).await.map(Some)
}

/// Makes the calls of the last message that have no answer yet.
pub(super) async fn pending_calls(turn: &mut Turn<'_>, tools: &Arc<ToolSet>) -> Result<Option<Arc<Event>>> {
    let events = turn.run.events();
    let mut answered: Vec<CallId> = Vec::new();
    let mut batch = Batch::default();
    for event in events.iter().rev() {
        answered.extend(event.answered().cloned());
        // Others see to their own calls.
        if event.source == *turn.run.source() && calls_of(event).next().is_some() {
            // What is answered later, by a person or by work elsewhere, is not made again.
            let waits = |id: &CallId| event.long_running().contains(id);
            let open =
                |call: &FunctionCall| call.id.as_ref().is_none_or(|id| !answered.contains(id) && !waits(id));
            batch = Batch { event: Some(event.id.clone()), ..Batch::of_event(event) };
            batch.calls.retain(open);
            break;
        }
    }
    if batch.calls.is_empty() {
        return Ok(None);
    }
    Box::pin(function_calls::follow(turn, tools, &batch)).await
}
