//! Taking a session, and what comes before that: another run may have it, or one was cut short in it.

use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;
use umbel_core::store::{Acquire, Entries};
use umbel_core::{Error, ErrorKind, Result, RunParts};

use super::Runner;
use super::journal::Recorder;

/// How long to wait before a session is asked for again that another run has.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What a run asks for when it takes its session.
pub(super) fn acquire(recorder: &Recorder, parts: &RunParts, entries: Entries) -> Acquire {
    let (key, owner) = (parts.key.clone(), recorder.shared.owner.clone());
    let (ttl, known) = (parts.config.limits.lease, recorder.versions());
    let creates = parts.config.create_session;
    Acquire { known, entries, creates, ..Acquire::new(key, owner, ttl) }
}

/// How long a run tries to take its session.
pub(super) struct Patience {
    /// `None` if it never gives up.
    until: Option<Instant>,
    /// A run that was cut short in the session has been gone on with.
    recovered: bool,
}

impl Patience {
    pub(super) fn new(parts: &RunParts) -> Self {
        Self { until: Instant::now().checked_add(parts.config.wait_for_session), recovered: false }
    }

    /// Makes it likely that the session can be taken which was refused with this error: waits a moment for the run that
    /// has it, or goes on with the one that was cut short in it. The error itself if there is nothing more to be done.
    pub(super) async fn wait(&mut self, recorder: &Recorder, parts: &RunParts, error: Error) -> Result<()> {
        let in_time = self.until.is_none_or(|until| Instant::now() < until);
        match error.kind() {
            ErrorKind::SessionBusy if in_time => {
                parts.cancel.guard(pin!(tokio::time::sleep(LOOK_AGAIN))).await
            }
            ErrorKind::SessionAbandoned if in_time || !self.recovered => {
                let runner = Runner { shared: recorder.shared.clone() };
                if !runner.is_active(&parts.key).await? {
                    self.recovered = true;
                    return clear(runner, parts).await;
                }
                // Its lease ran out, but it is under way: its thread was blocked, or the store was slow.
                if !in_time {
                    let message = format!("session {} is held by another run: wait for it to end", parts.key);
                    return Err(Error::new(ErrorKind::SessionBusy, message));
                }
                parts.cancel.guard(pin!(tokio::time::sleep(LOOK_AGAIN))).await
            }
            _ => Err(error),
        }
    }
}

/// Sees to the run that was cut short in a session, so that another can begin.
async fn clear(runner: Runner, parts: &RunParts) -> Result<()> {
    let (key, works_for_call) = (parts.key.clone(), parts.depth > 0);
    // In a task of its own: it is not cancelled with who waits for it.
    let cleared = tokio::spawn(async move {
        if works_for_call { runner.free_if_idle(key).await } else { runner.recover_session(&key).await }
    });
    let cleared = parts.cancel.guard(pin!(cleared)).await?;
    cleared.unwrap_or_else(|stopped| {
        let message = "the run that was cut short before could not be gone on with";
        Err(Error::new(ErrorKind::Other, message).with_source(stopped))
    })
}
