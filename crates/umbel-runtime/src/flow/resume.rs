//! Where an agent takes up its turn, when its run goes on with one that was cut short.

use std::sync::Arc;

use umbel_core::{CallFinished, CallId, Event, FunctionCall, List, Replay, Run, RunStep};

use super::Turn;
use super::function_calls::{Again, Batch, calls_of};
use crate::contents::visible::{REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT};

/// Brings the turn to where the model is to be asked next. Gives whether there is nothing more to do in it.
pub(super) fn is_over(turn: &mut Turn<'_>, replay: &Replay) -> bool {
    let run = turn.run;
    let events = run.events();
    let begin = replay.turn_of(run.source()).max(handed_over(&events, run));
    let said = last_said(&events, begin, run);
    let Some((at, last)) = said else { return false };
    if !run.values().answers(run.source()).is_empty() {
        // What people said is taken in before the model is asked.
        return false;
    }
    if waits(run, &events, begin) {
        run.pause();
        return true;
    }
    if let Some(name) = last.actions.as_ref().and_then(|actions| actions.transfer_to_agent.clone()) {
        run.transfer_to(name);
        return true;
    }
    let made = last_made(&events, begin, at, &last);
    turn.cut_short = made.and_then(|(at, made)| cut_short(&events, at, &made, replay)).map(Box::new);
    turn.cut_short.is_none()
        && !was_answered(run, &events, begin)
        && (last.is_final() || is_left(at, &last, replay))
}

/// Whether the agent's last word were calls that are answered later, and were: it does not wait any more. Then the model
/// has something to say to the answers. What such a tool did at once, such as to state, is no word.
fn was_answered(run: &Run, events: &List<Arc<Event>>, begin: usize) -> bool {
    let says = |event: &&Arc<Event>| {
        event.source == *run.source() && event.content.as_ref().is_some_and(|said| !said.parts.is_empty())
    };
    let Some(last) = events.iter_from(begin).rev().find(says) else { return false };
    let later = |call: &FunctionCall| call.id.as_ref().is_some_and(|id| last.long_running().contains(id));
    let asks = |call: &FunctionCall| {
        [REQUEST_CONFIRMATION, REQUEST_INPUT, REQUEST_CREDENTIAL].contains(&call.name.as_str())
    };
    last.calls().any(|call| later(call) && !asks(call) && run.tree().find(&call.name).is_none())
}

/// Whether the agent's last word was to make calls that a handler wanted none of.
fn is_left(at: usize, last: &Event, replay: &Replay) -> bool {
    calls_of(last).next().is_some() && started(at, replay).is_some_and(<[CallId]>::is_empty)
}

/// The calls that were begun behind an event.
fn started(at: usize, replay: &Replay) -> Option<&[CallId]> {
    let mut behind = replay.records.iter().filter(|(place, _)| *place == at + 1);
    behind.find_map(|(_, step)| match &**step {
        RunStep::CallsStarted { calls } => Some(calls.as_slice()),
        _ => None,
    })
}

/// Where in the log the agent was handed the conversation last. What it said before, such as that it hands it to another,
/// was in a turn that is over. Agents that work for a call hand it to each other under that call.
fn handed_over(events: &List<Arc<Event>>, run: &Run) -> usize {
    let to_us = |event: &Event| {
        let target = event.actions.as_ref().and_then(|actions| actions.transfer_to_agent.as_ref());
        let (from, to) = (&event.source, run.source());
        target == Some(run.agent_name())
            && from.branch == to.branch
            && from.isolation_scope == to.isolation_scope
    };
    let back = events.iter().rev().position(|event| to_us(event));
    back.map_or(0, |back| events.len() - back)
}

/// What the agent said last in its present turn. That it failed is nothing it said, nor is state that a handler set.
fn last_said(events: &List<Arc<Event>>, begin: usize, run: &Run) -> Option<(usize, Arc<Event>)> {
    let is_silent = |event: &Event| {
        let sets_state = event.actions.as_ref().is_some_and(|actions| actions.transfer_to_agent.is_none());
        event.content.is_none() && (event.error_code().is_some() || sets_state)
    };
    let is_ours = |event: &Event| event.source == *run.source() && !is_silent(event);
    let back = events.iter_from(begin).rev().position(|event| is_ours(event))?;
    let at = events.len() - 1 - back;
    Some((at, events.get(at)?.clone()))
}

/// The calls that the agent's last word made, or answered: if one of several fails the run, the results of the others stand
/// behind them.
fn last_made(
    events: &List<Arc<Event>>,
    begin: usize,
    at: usize,
    last: &Arc<Event>,
) -> Option<(usize, Arc<Event>)> {
    if last.answered().next().is_none() {
        return Some((at, last.clone()));
    }
    let ours = events.iter_from(begin).enumerate().take(at + 1 - begin);
    let mut made = ours.filter(|(_, event)| event.source == last.source && calls_of(event).next().is_some());
    made.next_back().map(|(behind, event)| (begin + behind, event.clone()))
}

/// Whether the agent waits for an answer that is not there: of people, or of work elsewhere.
fn waits(run: &Run, events: &List<Arc<Event>>, begin: usize) -> bool {
    if run.open_questions().iter().any(|asked| asked.address.is_of(run.source())) {
        return true;
    }
    let mut answered: Vec<&CallId> = Vec::new();
    events.iter_from(begin).rev().any(|event| {
        answered.extend(event.responses().filter_map(|response| response.id.as_ref()));
        let waits = |id: &&CallId| {
            !answered.contains(id)
                && event
                    .calls()
                    .any(|call| call.id.as_ref() == Some(id) && run.tree().find(&call.name).is_none())
        };
        event.source == *run.source() && event.long_running().iter().any(|id| waits(&id))
    })
}

/// Whether a call is answered later, by a person or by work elsewhere.
fn waits_later(event: &Event, call: &CallId) -> bool {
    let asks = |name: &str| [REQUEST_CONFIRMATION, REQUEST_CREDENTIAL].contains(&name);
    event.calls().any(|made| made.id.as_ref() == Some(call) && asks(&made.name))
}

/// The calls that were under way, or about to be, if the agent's last word was to make them.
fn cut_short(events: &List<Arc<Event>>, at: usize, last: &Event, replay: &Replay) -> Option<Batch> {
    let behind = replay.records.iter().filter(|(place, _)| *place > at).map(|(_, step)| &**step);
    let started = started(at, replay);
    let answered: Vec<&CallId> = events.iter_from(at + 1).flat_map(|event| event.answered()).collect();
    let is_open = |call: &FunctionCall| {
        let begun = |id: &CallId| started.is_none_or(|started| started.contains(id));
        call.id.as_ref().is_some_and(|id| begun(id) && !answered.contains(&id) && !waits_later(last, id))
    };
    let calls: Vec<FunctionCall> = calls_of(last).filter(is_open).collect();
    let finished = behind.filter_map(|step| match step {
        RunStep::CallFinished { finished } => Some(CallFinished::clone(finished)),
        _ => None,
    });
    let batch = Batch {
        event: Some(last.id.clone()),
        finished: finished
            .filter(|one| calls.iter().any(|call| call.id.as_ref() == Some(&one.call)))
            .collect(),
        again: if started.is_some() { Again::CutShort } else { Again::No },
        is_code: last.code_id().is_some(),
        calls,
        ..Batch::default()
    };
    (!batch.calls.is_empty()).then_some(batch)
}
