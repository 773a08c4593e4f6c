//! A session as it stands, without a run.

use std::sync::Arc;

use umbel_core::{Event, Interrupt, List, Result, RunId, SessionKey, State, Versions};

use super::{Runner, recovery};

/// A session as it stands. It shares what the runner keeps at hand, and does not follow what others write.
#[derive(Clone, Debug)]
pub struct SessionView {
    /// Its events.
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
        let Some(news) = self.sessions().news(key, known).await? else { return Ok(None) };
        let mut session = kept.unwrap_or_default();
        session.take_in(news);
        let view = SessionView {
            events: session.events.clone(),
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
}
