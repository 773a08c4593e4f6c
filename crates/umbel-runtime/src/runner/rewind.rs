//! Taking back what was said.

use std::sync::Arc;

use serde_json::Value;
use umbel_core::store::{Acquire, News};
use umbel_core::{
    Actions, Error, ErrorKind, Event, Lease, LogEntry, Object, Outcome, Result, RunId, RunStep, SessionKey,
    Source, SpawnOnDrop, StateScope, Versions,
};

use super::Runner;
use super::hot::HotSession;

impl Runner {
    /// Makes a run and everything after it void: models do not see it any more, and the session's state and artifacts
    /// are as they were before it. The log keeps what was said.
    ///
    /// Keys of user and app are shared with other sessions and stay. So does what the session has used of its models.
    pub async fn rewind(&self, key: &SessionKey, before: &RunId) -> Result<Arc<Event>> {
        let (runner, key, before) = (self.clone(), key.clone(), before.clone());
        // It changes artifacts and the log: whoever stops waiting for it does not leave it half done.
        SpawnOnDrop::boxed(async move { runner.rewind_now(&key, &before).await }).await
    }

    async fn rewind_now(&self, key: &SessionKey, before: &RunId) -> Result<Arc<Event>> {
        let Some(log) = self.sessions().news(key, Versions::default()).await? else {
            return Err(Error::new(ErrorKind::SessionNotFound, format!("there is no session {key}")));
        };
        let events: Vec<Arc<Event>> = log.entries.iter().filter_map(LogEntry::event).cloned().collect();
        let Some(start) = events.iter().position(|event| event.run == *before) else {
            let message = format!("session {key} has no run {before}: look for its id in the events");
            return Err(Error::new(ErrorKind::InvalidInput, message));
        };
        let lease = self.lease_for_rewind(key, log.versions).await?;
        let rewound = self.rewind_leased(key, before, &log, events.split_at(start)).await;
        // A run that was cut short ends here, for whoever takes back the rewind itself.
        let ended = is_cut_short(log.clone()).then(|| RunStep::Ended { outcome: Outcome::Cancelled }.into());
        let entries = ended.into_iter().chain(rewound.iter().cloned().map(LogEntry::Event)).collect();
        // What is kept of it is of before the rewind.
        self.shared.hot.take(key);
        self.sessions().release(&lease, log.versions, entries).await?;
        rewound
    }

    /// Takes the session, if it is as it was read and no live run holds it. One that was cut short does not count.
    async fn lease_for_rewind(&self, key: &SessionKey, versions: Versions) -> Result<Lease> {
        if self.shared.active.contains(versions.incarnation) {
            let message = format!("session {key} is held by another run: wait for it to end, or cancel it");
            return Err(Error::new(ErrorKind::SessionBusy, message));
        }
        let (owner, ttl) = (self.shared.owner.clone(), self.shared.config.limits.lease);
        let acquire = Acquire {
            known: versions,
            claims: true,
            expected: Some(versions),
            ..Acquire::new(key.clone(), owner, ttl)
        };
        Ok(self.sessions().acquire(acquire).await?.lease)
    }

    /// Puts artifacts back, and makes the event that takes back the rest.
    async fn rewind_leased(
        &self,
        key: &SessionKey,
        before: &RunId,
        log: &News,
        (kept, void): (&[Arc<Event>], &[Arc<Event>]),
    ) -> Result<Arc<Event>> {
        let none = Object::new();
        let first = log.session_state.as_deref().unwrap_or(&none);
        let mut actions = Actions { rewind_before_invocation_id: Some(before.clone()), ..Actions::default() };
        actions.state_delta = Some(restored_state(first, kept, void));
        actions.artifact_delta = self.restore_artifacts(key, kept, void).await?;
        let services = &self.shared.services;
        let mut event = Event::new(services.ids.run(), Source::user()).with_actions(actions);
        event.id = services.ids.event();
        event.timestamp = services.clock.now();
        Ok(Arc::new(event))
    }

    /// Stores the version from before as the newest, for each artifact that was written since.
    async fn restore_artifacts(
        &self,
        key: &SessionKey,
        kept: &[Arc<Event>],
        void: &[Arc<Event>],
    ) -> Result<Option<std::collections::BTreeMap<String, u64>>> {
        let deltas = |events: &[Arc<Event>]| {
            let mut all = std::collections::BTreeMap::new();
            for delta in events.iter().filter_map(|event| event.actions.as_ref()?.artifact_delta.clone()) {
                all.extend(delta);
            }
            all
        };
        let (before, since) = (deltas(kept), deltas(void));
        let Some(store) = self.shared.services.artifacts.as_ref().filter(|_| !since.is_empty()) else {
            return Ok(None);
        };
        let mut restored = std::collections::BTreeMap::new();
        for name in since.keys().filter(|name| !name.starts_with("user:")) {
            // One that did not exist then becomes an empty file: versions are never taken back.
            let old = match before.get(name) {
                Some(version) => store.load(key, name, Some(*version)).await?,
                None => None,
            };
            let part = old.map_or_else(|| umbel_core::Part::text(""), Arc::unwrap_or_clone);
            restored.insert(name.clone(), store.save(key, name, part).await?);
        }
        Ok((!restored.is_empty()).then_some(restored))
    }
}

/// Whether a log ends with a run that has no outcome.
fn is_cut_short(log: News) -> bool {
    let mut session = HotSession::default();
    session.take_in(log);
    session.last_run().is_some_and(|trail| trail.running.is_some())
}

/// The keys to set so that the session's state is as it was. What was not set then becomes null.
fn restored_state(first: &Object, kept: &[Arc<Event>], void: &[Arc<Event>]) -> Object {
    // What was used stays used.
    let of_session =
        |key: &str| StateScope::split(key).0 == StateScope::Session && key != crate::usage::book::KEY;
    let mut before = first.clone();
    for delta in kept.iter().filter_map(|event| event.state_delta()) {
        before.extend(delta.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    let mut restored = Object::new();
    for delta in void.iter().filter_map(|event| event.state_delta()) {
        for key in delta.keys().filter(|key| of_session(key)) {
            let value = before.get(key).cloned().unwrap_or(Value::Null);
            restored.insert(key.clone(), value);
        }
    }
    restored
}
