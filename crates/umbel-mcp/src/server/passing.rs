//! Sessions of calls of tools, of which nothing is to stay behind.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use umbel_core::SessionKey;
use umbel_runtime::{RunStream, Runner};

use super::offer::{Kind, Offered};

/// The session of a call. That of a tool passes with its call, however this ends; that of an agent stays.
pub(super) struct Passing {
    runner: Runner,
    pub(super) key: SessionKey,
    stays: bool,
    /// The run under way.
    pub(super) stream: Option<RunStream>,
}

impl Passing {
    /// The session of a call that begins.
    pub(super) fn new(offer: &Offered, key: SessionKey) -> Self {
        let stays = !matches!(offer.kind, Kind::Tool);
        Self { runner: offer.runner.clone(), key, stays, stream: None }
    }

    /// A session that waited for answers. If this process knows nothing of it, another one may be at it: then it stays
    /// until it is [`ours`](Self::ours).
    pub(super) fn come_back(offer: &Offered, key: SessionKey, waiting: &Waiting) -> Self {
        let is_known = waiting.take(&key);
        let mut session = Self::new(offer, key);
        session.stays |= !is_known;
        session
    }

    /// Says that a run of ours has gone on with it, so that nobody else is at it.
    pub(super) fn ours(&mut self, offer: &Offered) {
        self.stays = !matches!(offer.kind, Kind::Tool);
    }

    /// Lets it pass now, and waits until it has.
    pub(super) async fn end(mut self) {
        if !std::mem::replace(&mut self.stays, true) {
            let work = pass(self.runner.clone(), self.key.clone(), self.stream.take());
            // On a task of its own: it is done even if nobody waits for it any more.
            let _ = tokio::spawn(work).await;
        }
    }

    /// Lets it wait that long for somebody to come again with answers.
    pub(super) fn wait(mut self, waiting: &Arc<Waiting>, time: Duration) {
        if !std::mem::replace(&mut self.stays, true) {
            waiting.add(self.runner.clone(), self.key.clone(), time);
        }
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        let work = pass(self.runner.clone(), self.key.clone(), self.stream.take());
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(work);
        }
    }
}

/// Lets a session pass, once its run has ended.
async fn pass(runner: Runner, key: SessionKey, stream: Option<RunStream>) {
    if let Some(mut stream) = stream {
        stream.cancel();
        while stream.said().await.is_some() {}
    }
    if let Err(error) = runner.delete_session(&key).await {
        tracing::debug!("the session of a call could not be deleted: {error}");
    }
}

/// Sessions that wait for somebody to come again with answers, and who sees to it that they do not wait for ever.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<BTreeMap<SessionKey, AbortHandle>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionKey, AbortHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>, runner: Runner, key: SessionKey, time: Duration) {
        // Held until it is noted, so that it cannot be over before.
        let mut all = self.lock();
        let (waiting, late) = (self.clone(), key.clone());
        let work = tokio::spawn(async move {
            tokio::time::sleep(time).await;
            waiting.lock().remove(&late);
            // Where several processes share a store, another one may have been told the answers.
            if runner.open_questions(&late).await.is_ok_and(|open| !open.is_empty()) {
                pass(runner, late, None).await;
            }
        });
        all.insert(key, work.abort_handle());
    }

    /// Takes one out, if it is there.
    fn take(&self, key: &SessionKey) -> bool {
        let known = self.lock().remove(key);
        known.inspect(AbortHandle::abort).is_some()
    }
}
