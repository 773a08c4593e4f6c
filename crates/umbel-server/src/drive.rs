//! One run of a client, from its first frame to its last.

use std::borrow::Cow;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use umbel_agui::{Ending, EventKind, InputMark, Message, PROTOCOL_VERSION, Translator, messages};
use umbel_core::{Error, Event, Outcome};
use umbel_runtime::{RunStream, Said};

use crate::app::Offered;
use crate::emitter::Emitter;
use crate::endpoint::AgentEndpoint;
use crate::live::LiveRun;
use crate::metrics::Counted;
use crate::place::{Of, Part};
use crate::plan::{Plan, create};
use crate::problem::Problem;
use crate::runs::Ticket;
use crate::state::tell_conflicts;

/// Does what was planned, whatever comes. Its last frame is a terminal event.
pub(crate) async fn drive(offered: &Offered, ticket: Ticket, plan: Plan) {
    let metrics = &offered.app.metrics;
    metrics.count(Counted::Started);
    let mut emitter = Emitter::new(ticket.live.clone());
    let work = AssertUnwindSafe(run(&offered.endpoint, &ticket, plan, &mut emitter)).catch_unwind();
    let ended = work.await;
    if let Ok(outcome) = &ended {
        metrics.count(match outcome {
            Outcome::Interrupted { .. } => Counted::Interrupted,
            Outcome::Cancelled => Counted::Cancelled,
            Outcome::Failed { .. } => Counted::Failed,
            _ => Counted::Finished,
        });
    }
    if let Err(panic) = ended {
        metrics.count(Counted::Failed);
        let error = Error::from_panic("a run of the server", panic.as_ref());
        let problem = Problem::from(&error);
        let (message, code) = (Cow::Owned(problem.text()), Some(Cow::Borrowed(problem.code.as_str())));
        emitter.finish(&EventKind::RunError { message, code, usage: Vec::new() }.into());
    }
    emitter.close();
}

/// Tells that a run cannot begin, in a stream that has.
pub(crate) fn refuse(live: &Arc<LiveRun>, problem: &Problem) {
    let mut emitter = Emitter::new(live.clone());
    let started = EventKind::RunStarted {
        thread_id: Cow::Borrowed(live.key.id()),
        run_id: Cow::Borrowed(&live.run),
        protocol_version: Some(Cow::Borrowed(PROTOCOL_VERSION)),
        parent_run_id: None,
        input: None,
    };
    emitter.say(&started.into());
    let (message, code) = (Cow::Owned(problem.text()), Some(Cow::Borrowed(problem.code.as_str())));
    emitter.finish(&EventKind::RunError { message, code, usage: Vec::new() }.into());
    emitter.close();
}

async fn run(endpoint: &AgentEndpoint, ticket: &Ticket, plan: Plan, emitter: &mut Emitter) -> Outcome {
    let live = &ticket.live;
    let Plan { mut turns, history, theirs, ours, conflicts, pending, open, parent, knows_interrupts, round } =
        plan;
    emitter.round(round);
    let mut translator = Translator::new(endpoint.cast.clone(), live.key.id(), &live.run, knows_interrupts);
    translator.begin(parent.as_deref(), theirs.as_ref(), ours, pending, &mut |event| emitter.say(&event));
    tell_conflicts(&conflicts, &mut |event| emitter.say(event));
    emitter.told();
    let mut outcome = match open.is_empty() {
        true => Outcome::Finished,
        false => Outcome::Interrupted { interrupts: Box::new(open) },
    };
    let mut failure = None;
    if let Some(history) = &history {
        // Boxed: most sessions are there, or made by their run.
        let mut making = Box::pin(create(endpoint, &live.key, history));
        if let Err(error) = handing_on(emitter, |cx| making.as_mut().poll(cx)).await {
            outcome = Outcome::from_error(&error);
            failure = Some(error);
            turns.clear();
        }
    }
    for (content, config) in turns {
        let mut stream = endpoint.runner.run_with(&live.key, content, config);
        live.hold(&stream.cancel_token());
        failure = follow(endpoint, live, &mut stream, &mut translator, emitter).await;
        outcome = stream.outcome().cloned().unwrap_or(Outcome::Finished);
        if failure.is_some() || outcome != Outcome::Finished {
            break;
        }
    }
    let failed = matches!(outcome, Outcome::Failed { .. });
    let problem = failure.as_ref().filter(|_| failed).map(Problem::from);
    if let Outcome::Interrupted { .. } = outcome {
        live.asks();
    }
    end(endpoint, live, outcome.clone(), problem, &mut translator, emitter).await;
    outcome
}

/// Waits for something. What is ready is handed on when there is nothing more at the moment.
fn handing_on<T>(
    emitter: &mut Emitter,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> impl Future<Output = T> {
    poll_fn(move |cx| {
        let next = poll(cx);
        if next.is_pending() {
            emitter.flush();
        }
        next
    })
}

/// Tells all that a run says. Gives the error it ended with.
async fn follow(
    endpoint: &AgentEndpoint,
    live: &LiveRun,
    stream: &mut RunStream,
    translator: &mut Translator,
    emitter: &mut Emitter,
) -> Option<Error> {
    let mut failure = None;
    loop {
        match handing_on(emitter, |cx| stream.poll_said(cx)).await {
            None => return failure,
            Some(Err(error)) => failure = Some(error),
            Some(Ok(Said::Event(event))) => follow_event(endpoint, live, &event, translator, emitter).await,
            Some(Ok(Said::Piece(piece))) if emitter.goes_on(&piece) && translator.goes_on(&piece) => {
                emitter.say_more(&piece);
            }
            Some(Ok(Said::Piece(piece))) => {
                let event = stream.preview(piece.clone());
                follow_event(endpoint, live, &event, translator, emitter).await;
                if let Some(event) = translator.last_words(&piece) {
                    emitter.expect_more(&piece, &event);
                }
            }
        }
        if emitter.was_full() {
            // Viewers have their turn, even if the run never waits.
            tokio::task::yield_now().await;
        }
    }
}

async fn follow_event(
    endpoint: &AgentEndpoint,
    live: &LiveRun,
    event: &Event,
    translator: &mut Translator,
    emitter: &mut Emitter,
) {
    if translator.may_void(event) {
        emitter.begin(None, Part::Void);
        translator.make_void(event, &mut |event| emitter.say(&event));
    }
    // Boxed: few runs say anything that the log does not have.
    if translator.owes_messages() {
        Box::pin(correct(endpoint, live, translator, emitter)).await;
    }
    tell(event, translator, emitter);
    if translator.owes_messages() {
        Box::pin(correct(endpoint, live, translator, emitter)).await;
    }
}

/// Tells an event.
pub(crate) fn tell(event: &Event, translator: &mut Translator, emitter: &mut Emitter) {
    let part = if event.is_partial() { Part::Preview } else { Part::Whole };
    emitter.begin(Some(Of::new(event, translator.root())), part);
    translator.event(event, &mut |event| emitter.say(&event));
    if part == Part::Whole {
        emitter.mixed(translator.is_mixed());
        emitter.told();
    }
}

/// Tells the conversation as the log has it, as far as it was told. If it cannot be read, the client keeps what it has.
pub(crate) async fn correct(
    endpoint: &AgentEndpoint,
    live: &LiveRun,
    translator: &mut Translator,
    emitter: &mut Emitter,
) {
    emitter.begin(None, Part::Aside);
    match conversation(endpoint, live, translator).await {
        Ok(messages) => {
            translator.messages(&messages, &mut |event| emitter.say(&event));
            emitter.corrected();
        }
        Err(problem) => {
            tracing::warn!(code = %problem.code, "the conversation could not be told anew");
            translator.messages_unknown();
        }
    }
}

async fn conversation(
    endpoint: &AgentEndpoint,
    live: &LiveRun,
    translator: &Translator,
) -> Result<Vec<Message>, Problem> {
    let view = endpoint.runner.session(&live.key).await?.ok_or_else(|| Problem::not_found("thread"))?;
    // The run may be ahead of what was told of it.
    let is_last = |event: &Event| match translator.told() {
        Some(told) => event.id == *told,
        None => event.is_user() && InputMark::of(event).is_some_and(|mark| mark.run == live.run),
    };
    let mut told = view.events.clone();
    let last = told.iter().rev().position(|event| is_last(event));
    told.truncate(told.len() - last.unwrap_or(0));
    let seen = endpoint.runner.as_seen(&live.key, &told).await?;
    Ok(messages(&endpoint.cast, seen.iter(), translator.knows_interrupts()))
}

/// Tells how a run ended.
pub(crate) async fn end(
    endpoint: &AgentEndpoint,
    live: &LiveRun,
    outcome: Outcome,
    problem: Option<Problem>,
    translator: &mut Translator,
    emitter: &mut Emitter,
) {
    let ending = match (&outcome, &problem) {
        (Outcome::Interrupted { interrupts }, _) => Ending::Interrupted(interrupts),
        (Outcome::Cancelled, _) => Ending::Cancelled,
        (_, Some(problem)) => {
            Ending::Failed { message: Cow::Owned(problem.text()), code: Cow::Borrowed(&problem.code) }
        }
        _ => Ending::Finished,
    };
    emitter.begin(None, Part::Void);
    translator.make_all_void(&mut |event| emitter.say(&event));
    emitter.begin(None, Part::Whole);
    translator.wind_up(&ending, &mut |event| emitter.say(&event));
    if translator.owes_messages() || translator.is_mixed() || matches!(ending, Ending::Interrupted(_)) {
        Box::pin(correct(endpoint, live, translator, emitter)).await;
    }
    emitter.begin(None, Part::Whole);
    translator.end(&ending, &mut |event| emitter.finish(&event));
}
