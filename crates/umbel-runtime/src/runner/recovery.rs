//! Going on with runs that were cut short: by a crash, a cancellation or a failure.

use std::collections::HashSet;
use std::sync::Arc;

use futures::{StreamExt, stream};
use smallvec::smallvec;
use umbel_core::store::{Abandoned, Acquire, Acquired};
use umbel_core::{
    Continued, Error, ErrorKind, Interrupt, LogEntry, OtherBuilds, Outcome, Result, Run, RunId, RunParts,
    RunStep, SessionKey, SessionStore, Versions,
};

use super::Runner;
use super::drive::{Begins, Task, prepare};
use super::hot::{HotSession, Trail, changes_before};
use super::journal::Recorder;
use super::taking::{Patience, acquire};

/// How many runs are gone on with at once.
const AT_ONCE: usize = 16;

/// A run that was gone on with.
#[derive(Debug)]
pub struct Recovered {
    /// Its session.
    pub key: SessionKey,
    /// The run; without a name where its log could not be read.
    pub run: RunId,
    /// How it ended; an error if it could not be gone on with.
    pub outcome: Result<Outcome>,
}

impl Runner {
    /// Goes on with the runs of the app whose process has died: those whose lease ran out. Call it when a server starts,
    /// and now and then.
    ///
    /// Each is claimed by taking its lease, so that one process goes on with it and no other. What is done is not done
    /// again; see [`UnfinishedCalls`](umbel_core::UnfinishedCalls) for calls that were under way.
    pub async fn recover(&self) -> Result<Vec<Recovered>> {
        self.recover_app(self.app()).await
    }

    /// The same for another app, whose sessions this runner runs too: an app that serves several customers may give each
    /// a name of its own.
    pub async fn recover_app(&self, app: &str) -> Result<Vec<Recovered>> {
        self.recover_in(app, false).await
    }

    /// The same for an app whose sessions other runners run, too: only runs that these agents began, as they are now, are gone
    /// on with. Those of agents that were changed since wait until somebody comes back to their session.
    pub async fn recover_own(&self, app: &str) -> Result<Vec<Recovered>> {
        self.recover_in(app, true).await
    }

    async fn recover_in(&self, app: &str, only_own: bool) -> Result<Vec<Recovered>> {
        let abandoned = self.sessions().abandoned(app).await?;
        let keys: HashSet<SessionKey> = abandoned.iter().map(|one| one.key.clone()).collect();
        // Whoever goes on with a session sees to those that work for it.
        let left =
            abandoned.into_iter().filter(|one| one.parent.as_ref().is_none_or(|above| !keys.contains(above)));
        let work = stream::iter(left).map(|one| async move {
            let key = one.key.clone();
            match self.recover_abandoned(one, only_own).await {
                Ok(recovered) => recovered,
                // It was deleted meanwhile.
                Err(error) if error.kind() == ErrorKind::SessionNotFound => None,
                // It must not keep the others from being told of.
                Err(error) => Some(Recovered { key, run: RunId::default(), outcome: Err(error) }),
            }
        });
        let done: Vec<Option<Recovered>> = work.buffer_unordered(AT_ONCE).collect().await;
        Ok(done.into_iter().flatten().collect())
    }

    /// Goes on with the run that was cut short in a session, if there still is one.
    pub(super) async fn recover_session(&self, key: &SessionKey) -> Result<()> {
        let abandoned = self.sessions().abandoned(key.app()).await?;
        if let Some(one) = abandoned.into_iter().find(|one| one.key == *key) {
            self.recover_abandoned(one, false).await?;
        }
        Ok(())
    }

    /// Goes on with a run that was cut short, unless it works for another one that is under way: who goes on with that
    /// one sees to it.
    async fn recover_abandoned(&self, one: Abandoned, only_own: bool) -> Result<Option<Recovered>> {
        if let Some(parent) = &one.parent
            && is_running(&**self.sessions(), parent).await?
        {
            return Ok(None);
        }
        let is_orphan = one.parent.is_some();
        // What worked for a run that is over is only brought to its end, which every runner can do.
        self.recover_one(one.key, is_orphan, only_own && !is_orphan).await
    }

    /// Whether a run of this runner holds the session, be its lease expired or not.
    pub(super) async fn is_active(&self, key: &SessionKey) -> Result<bool> {
        let news = self.sessions().news(key, Versions::default()).await?;
        Ok(news.is_some_and(|news| self.shared.active.contains(news.versions.incarnation)))
    }

    /// Gives back a lease that ran out without a run.
    pub(super) async fn free_if_idle(&self, key: SessionKey) -> Result<()> {
        if is_running(&**self.sessions(), &key).await? { Ok(()) } else { self.free(key).await }
    }

    /// Gives back a lease that ran out. Someone else may have taken it.
    async fn free(&self, key: SessionKey) -> Result<()> {
        let (owner, ttl) = (self.shared.owner.clone(), self.shared.config.limits.lease);
        let (known, entries) = (Versions::default(), smallvec![]);
        let acquire = Acquire { known, entries, claims: true, ..Acquire::new(key, owner, ttl) };
        match self.sessions().acquire(acquire).await {
            Ok(taken) => self.sessions().release(&taken.lease, taken.versions, smallvec![]).await.map(drop),
            Err(error) if error.kind() == ErrorKind::SessionBusy => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Goes on with one run. `None` if there is none any more, or another process has it.
    async fn recover_one(
        &self,
        key: SessionKey,
        is_orphan: bool,
        only_own: bool,
    ) -> Result<Option<Recovered>> {
        let session = read(&**self.sessions(), &key).await?;
        if self.shared.active.contains(session.versions.incarnation) {
            // It is under way here: its thread was blocked, or the store was slow.
            return Ok(None);
        }
        let trail = session.last_run().filter(|trail| trail.running.is_some());
        if trail.is_some_and(|trail| only_own && trail.fingerprint != self.tree().fingerprint()) {
            return Ok(None);
        }
        let Some(id) = trail.and_then(|trail| trail.running.clone()) else {
            // A lease without a run: whoever took it wrote nothing. It is given back, so that nobody looks here again.
            self.free(key).await?;
            return Ok(None);
        };
        let begins = if is_orphan { Begins::Orphaned } else { Begins::Recovered };
        let mut stream = self.begin(&key, id.clone(), begins, self.shared.config.clone());
        let mut failure = None;
        while let Some(event) = stream.next().await {
            if let Err(error) = event {
                failure = Some(error);
            }
        }
        let claimed_by_other = |error: &Error| {
            matches!(
                error.kind(),
                ErrorKind::SessionBusy | ErrorKind::StaleSession | ErrorKind::SessionNotFound
            )
        };
        let outcome = match (stream.outcome().cloned(), failure) {
            (_, Some(error)) if claimed_by_other(&error) => return Ok(None),
            (Some(outcome), _) => Ok(outcome),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(Outcome::Finished),
        };
        Ok(Some(Recovered { key, run: id, outcome }))
    }
}

pub(super) fn no_session(key: &SessionKey) -> Error {
    Error::new(ErrorKind::SessionNotFound, format!("there is no session {key}: create it first"))
}

/// A session as it stands in the store.
async fn read(store: &dyn SessionStore, key: &SessionKey) -> Result<HotSession> {
    let news = store.news(key, Versions::default()).await?.ok_or_else(|| no_session(key))?;
    let mut session = HotSession::default();
    session.take_in(news);
    Ok(session)
}

/// The run of a session that has not ended.
async fn running(store: &dyn SessionStore, key: &SessionKey) -> Result<Option<RunId>> {
    Ok(read(store, key).await?.last_run().and_then(|trail| trail.running.clone()))
}

async fn is_running(store: &dyn SessionStore, key: &SessionKey) -> Result<bool> {
    match running(store, key).await {
        Ok(run) => Ok(run.is_some()),
        Err(error) if error.kind() == ErrorKind::SessionNotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes the session of a run that goes on.
///
/// It is looked at only when it is taken: before, another process might finish the run, or the one that began it might
/// turn out to be alive.
pub(super) async fn start_again(task: Task) -> Result<Run> {
    let recorder = task.recorder.clone();
    let (mut parts, begins) = prepare(task)?;
    let (shared, store) = (&recorder.shared, &recorder.shared.services.sessions);
    let acquired = claim(&recorder, &parts, &begins).await?;
    let mut acquired = changes_before(&**store, acquired).await?;
    recorder.take_in(std::mem::take(&mut acquired.news));
    let trail = match to_go_on_with(&recorder, &parts, &begins) {
        Ok(trail) => trail,
        Err(error) => {
            // If another run is under way, the lease must run out, so that whoever looks for such runs finds it.
            if recorder.session(|hot| hot.last_run().is_none_or(|trail| trail.running.is_none())) {
                store.release(&acquired.lease, acquired.versions, smallvec![]).await?;
            }
            return Err(error);
        }
    };
    if let Some(error) = unrecoverable(&recorder, &parts, &trail, &begins) {
        recorder.give_up(error);
    }
    let step = Arc::new(match begins {
        Begins::Again => {
            let fingerprint = shared.team.tree.fingerprint();
            let continued = Continued { run: parts.id.clone(), fingerprint };
            RunStep::Continued { continued: Box::new(continued) }
        }
        _ => RunStep::Recovered,
    });
    let entries = smallvec![LogEntry::Record(step.clone())];
    let versions = store.append(&acquired.lease, acquired.versions, entries).await?;
    recorder.begin_again(acquired.lease, versions, &step);
    parts.input = recorder.session(|hot| {
        let mut said = hot.live().iter_from(trail.from).rev().filter(|event| event.is_user());
        // What is said to nobody is not the message.
        said.find_map(|event| event.content.clone())
    });
    Run::new(parts, shared.team.tree.root())
}

/// What the run goes on with. An error if there is nothing, or not any more.
fn to_go_on_with(recorder: &Recorder, parts: &RunParts, begins: &Begins) -> Result<Trail> {
    let trail = recorder.session(|hot| hot.last_run().cloned());
    let trail = trail.filter(|trail| match begins {
        Begins::Again => trail.running.is_none() && trail.can_go_on,
        _ => trail.running.as_ref() == Some(&parts.id),
    });
    trail.ok_or_else(|| match begins {
        Begins::Again => {
            let message = format!("there is nothing to go on with in {}: send a message", parts.key);
            Error::new(ErrorKind::InvalidInput, message)
        }
        _ => stale(&parts.key),
    })
}

/// Takes the lease of a session. Nothing is written with it: another process may have ended the run, and the log must not
/// say that it went on.
async fn claim(recorder: &Recorder, parts: &RunParts, begins: &Begins) -> Result<Acquired> {
    let mut patience = Patience::new(parts);
    let claims = !matches!(begins, Begins::Again);
    loop {
        let acquire = Acquire { claims, ..acquire(recorder, parts, smallvec![]) };
        match recorder.shared.services.sessions.acquire(acquire).await {
            Err(error) => patience.wait(recorder, parts, error).await?,
            acquired => return acquired,
        }
    }
}

fn stale(key: &SessionKey) -> Error {
    Error::new(
        ErrorKind::StaleSession,
        format!("session {key} moved on: another process goes on with its run"),
    )
}

/// Why a run cannot go on, if it cannot.
fn unrecoverable(recorder: &Recorder, parts: &RunParts, trail: &Trail, begins: &Begins) -> Option<Error> {
    let refuse = |message: String| Some(Error::new(ErrorKind::Unrecoverable, message));
    if matches!(begins, Begins::Orphaned) {
        return Some(Error::new(ErrorKind::Cancelled, "the call that this run worked for is over"));
    }
    let tried = trail.records.iter().filter(|(_, step)| matches!(**step, RunStep::Recovered)).count();
    let limit = parts.config.limits.recoveries;
    if u32::try_from(tried).unwrap_or(u32::MAX) >= limit {
        return refuse(format!(
            "the run was cut short {} times, and {limit} are allowed: see what ends its process",
            tried + 1
        ));
    }
    let other = trail.fingerprint != recorder.shared.team.tree.fingerprint();
    if other && parts.config.other_builds == OtherBuilds::Refuse {
        return refuse(
            "the run was begun by another build of the agents, which may not go on with it".to_owned(),
        );
    }
    None
}

/// What became of the session of a call that was made before.
pub(crate) enum ChildRun {
    /// There is none.
    None,
    /// It has no run yet.
    Empty,
    /// It was cut short.
    CutShort(RunId),
    /// It waits for people.
    Waits(Vec<Interrupt>),
    /// It was cancelled.
    Cancelled,
    /// It is done.
    Done,
}

/// What became of the session of a call that was made before, and where it stands.
pub(crate) async fn find_child(store: &dyn SessionStore, key: &SessionKey) -> Result<(ChildRun, Versions)> {
    let session = match read(store, key).await {
        Ok(session) => session,
        Err(error) if error.kind() == ErrorKind::SessionNotFound => {
            return Ok((ChildRun::None, Versions::default()));
        }
        Err(error) => return Err(error),
    };
    let found = match session.last_run() {
        None if session.live().is_empty() => ChildRun::Empty,
        None => ChildRun::Done,
        Some(trail) => match &trail.running {
            Some(run) => ChildRun::CutShort(run.clone()),
            None if !trail.open.is_empty() => ChildRun::Waits(trail.open.clone()),
            None if trail.can_go_on => ChildRun::Cancelled,
            None => ChildRun::Done,
        },
    };
    Ok((found, session.versions))
}
