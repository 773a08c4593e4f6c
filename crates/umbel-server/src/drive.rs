//! One run of a client, from its first frame to its last.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use futures::{FutureExt, Stream};
use umbel_agui::{Ending, EventKind, Message, PROTOCOL_VERSION, Translator, messages};
use umbel_core::{Error, Event, Outcome, SessionKey};
use umbel_runtime::RunStream;

use crate::app::Offered;
use crate::emitter::Emitter;
use crate::endpoint::AgentEndpoint;
use crate::live::LiveRun;
use crate::metrics::Counted;
use crate::plan::Plan;
use crate::problem::Problem;
use crate::runs::Ticket;

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
    let Plan { turns, theirs, ours, pending, open, parent, knows_interrupts } = plan;
    let mut translator = Translator::new(endpoint.cast.clone(), live.key.id(), &live.run, knows_interrupts);
    translator.begin(parent.as_deref(), theirs.as_ref(), ours, pending, &mut |event| emitter.say(&event));
    emitter.told();
    let mut outcome = match open.is_empty() {
        true => Outcome::Finished,
        false => Outcome::Interrupted { interrupts: Box::new(open) },
    };
    let mut failure = None;
    for (content, config) in turns {
        let mut stream = endpoint.runner.run_with(&live.key, content, config);
        live.hold(&stream.cancel_token());
        failure = follow(endpoint, &live.key, &mut stream, &mut translator, emitter).await;
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
    end(endpoint, &live.key, outcome.clone(), problem, &mut translator, emitter).await;
    outcome
}

/// What polling a run gives.
enum Step {
    Over(Option<Error>),
    /// Something was shown that the log does not have.
    Void,
}

/// Tells all that a run says. Gives the error it ended with.
async fn follow(
    endpoint: &AgentEndpoint,
    key: &SessionKey,
    stream: &mut RunStream,
    translator: &mut Translator,
    emitter: &mut Emitter,
) -> Option<Error> {
    let mut failure = None;
    loop {
        let step = std::future::poll_fn(|cx| {
            loop {
                match Pin::new(&mut *stream).poll_next(cx) {
                    Poll::Ready(Some(Ok(event))) => {
                        tell(&event, translator, emitter);
                        if translator.is_void() {
                            return Poll::Ready(Step::Void);
                        }
                        if emitter.was_full() {
                            // Viewers have their turn, even if the run never waits.
                            cx.waker().wake_by_ref();
                            return Poll::Pending;
                        }
                    }
                    Poll::Ready(Some(Err(error))) => failure = Some(error),
                    Poll::Ready(None) => return Poll::Ready(Step::Over(failure.take())),
                    Poll::Pending => {
                        emitter.flush();
                        return Poll::Pending;
                    }
                }
            }
        });
        match step.await {
            Step::Over(failure) => return failure,
            Step::Void => correct(endpoint, key, translator, emitter).await,
        }
    }
}

/// Tells an event.
pub(crate) fn tell(event: &Event, translator: &mut Translator, emitter: &mut Emitter) {
    let whole = !event.is_partial();
    emitter.begin(Some(&event.id), whole);
    translator.event(event, &mut |event| emitter.say(&event));
    if whole {
        emitter.told();
    }
}

/// Tells the conversation as the log has it. If it cannot be read, the client keeps what it has.
async fn correct(
    endpoint: &AgentEndpoint,
    key: &SessionKey,
    translator: &mut Translator,
    emitter: &mut Emitter,
) {
    emitter.begin(None, true);
    match conversation(endpoint, key, translator.knows_interrupts()).await {
        Ok(messages) => translator.messages(&messages, &mut |event| emitter.say(&event)),
        Err(problem) => {
            tracing::warn!(code = %problem.code, "the conversation could not be told anew");
            translator.messages_unknown();
        }
    }
}

/// The conversation of a thread as its client sees it.
pub(crate) async fn conversation(
    endpoint: &AgentEndpoint,
    key: &SessionKey,
    knows_interrupts: bool,
) -> Result<Vec<Message>, Problem> {
    let view = endpoint.runner.session(key).await?.ok_or_else(|| Problem::not_found("thread"))?;
    let seen = endpoint.runner.as_seen(key, &view.events).await?;
    Ok(messages(&endpoint.cast, seen.iter(), knows_interrupts))
}

/// Tells how a run ended.
pub(crate) async fn end(
    endpoint: &AgentEndpoint,
    key: &SessionKey,
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
    emitter.begin(None, true);
    translator.wind_up(&ending, &mut |event| emitter.say(&event));
    if translator.is_void() || matches!(ending, Ending::Interrupted(_)) {
        correct(endpoint, key, translator, emitter).await;
    }
    translator.end(&ending, &mut |event| emitter.finish(&event));
}
