//! A session as it stands, without a run.

use std::sync::Arc;

use umbel_core::{
    CancelToken, Event, Interrupt, List, NodeId, Result, Run, RunId, RunParts, SessionKey, State, Versions,
};

use super::drive::{Begins, Task, parts_of};
use super::hot::changes;
use super::journal::Recorder;
use super::{Runner, recovery};
use crate::onion;

/// A session as it stands. It shares what the runner keeps at hand, and does not follow what others write.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// Its events, those that a rewind made void too.
    pub events: List<Arc<Event>>,
    /// Its state, with the keys of its user and app.
    pub state: State,
    /// The questions that nobody answered yet.
    pub open: Vec<Interrupt>,
    /// The run that began and has not ended: it is under way, or was cut short.
    pub running: Option<RunId>,
    /// What the reading was based on.
    pub versions: Versions,
}

impl Runner {
    /// A session as it stands; `None` if there is none. Only what is newer than what is kept at hand is read.
    pub async fn session(&self, key: &SessionKey) -> Result<Option<SessionView>> {
        let kept = self.shared.hot.take(key);
        let known = kept.as_ref().map(|session| session.versions).unwrap_or_default();
        let Some(news) = changes(&**self.sessions(), key, known).await? else { return Ok(None) };
        let mut session = kept.unwrap_or_default();
        session.take_in(news);
        let view = SessionView {
            events: session.all_events().clone(),
            state: session.state.clone(),
            open: session.open().to_vec(),
            running: session.last_run().and_then(|trail| trail.running.clone()),
            versions: session.versions,
        };
        self.shared.hot.put(key, session);
        Ok(Some(view))
    }

    /// The questions of a session that nobody answered yet.
    pub async fn open_questions(&self, key: &SessionKey) -> Result<Vec<Interrupt>> {
        let session = self.session(key).await?;
        session.map(|session| session.open).ok_or_else(|| recovery::no_session(key))
    }

    /// Events of a session as readers of its runs were given them: what handlers leave of them with `on_output`.
    pub async fn as_seen(&self, key: &SessionKey, events: &List<Arc<Event>>) -> Result<List<Arc<Event>>> {
        match self.shows_all() {
            true => Ok(events.clone()),
            false => Ok(self.each_as_seen(key, events).await?.into_iter().flatten().collect()),
        }
    }

    /// Whether no handler has a say in what readers see.
    fn shows_all(&self) -> bool {
        let team = &self.shared.team;
        let hides = |id: NodeId| team.place(id).is_ok_and(|place| !place.onion.on_output.is_empty());
        !team.tree.ids().any(hides)
    }

    /// The same with each event in its place: `None` where nothing is left of it.
    pub async fn each_as_seen(
        &self,
        key: &SessionKey,
        events: &List<Arc<Event>>,
    ) -> Result<Vec<Option<Arc<Event>>>> {
        if self.shows_all() {
            return Ok(events.iter().cloned().map(Some).collect());
        }
        let team = &self.shared.team;
        let recorder = Recorder::new(self.shared.clone(), self.shared.config.clone(), None);
        let task = Task {
            key: key.clone(),
            id: RunId::default(),
            begins: Begins::Again,
            recorder: Arc::new(recorder),
            cancel: CancelToken::new(),
            depth: 0,
        };
        let (parts, _) = parts_of(task);
        let mut seen = Vec::with_capacity(events.len());
        for event in events.iter() {
            if event.is_user() {
                seen.push(Some(event.clone()));
                continue;
            }
            // An agent that has another name by now, or is of another team, had handlers too: those of all agents still
            // hold.
            let node = team.tree.find(event.author()).unwrap_or(team.tree.root());
            let run = Run::new(RunParts { id: event.run.clone(), ..parts.clone() }, node)?;
            let onion = &team.place(node)?.onion;
            seen.push(onion::on_output_again(&onion.on_output, &run, event.clone()).await?);
        }
        Ok(seen)
    }
}
