//! Whole runs.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::Value;
use umbel::{
    BoxError, Content, CountingIds, Error, ErrorKind, Event, EventFilter, Handler, LlmAgent, RunConfig,
    Runner, RunnerBuilder, SessionKey, Source, State, ToolErrors,
};

use super::message::{content, of_events};
use crate::vectors::case::{Case, Checked};
use crate::vectors::script::text;

/// An agent with its runner, and what became of its sessions.
pub(super) struct Play {
    runner: Runner,
}

/// What one run brought about.
pub(super) struct Played {
    pub(super) error: Option<Error>,
    /// What it added to the session.
    pub(super) messages: Vec<Value>,
    /// The session's state after it.
    pub(super) state: State,
}

impl Play {
    /// The oracle fails a run whose tool fails.
    pub(super) fn new(agent: LlmAgent, streaming: bool) -> umbel::Result<Self> {
        Self::with_handlers(agent, Vec::new(), streaming)
    }

    /// The same with handlers of the runner.
    pub(super) fn with_handlers(
        agent: LlmAgent,
        handlers: Vec<Arc<dyn Handler>>,
        streaming: bool,
    ) -> umbel::Result<Self> {
        let config = RunConfig { streaming, tool_errors: ToolErrors::Fail, ..RunConfig::default() };
        let builder = Runner::builder("app", agent).ids(CountingIds::default()).config(config);
        let builder = handlers.into_iter().fold(builder, RunnerBuilder::handler);
        Ok(Self { runner: builder.build()? })
    }

    /// Runs on a session, which is made if there is none of that name. The run begins with the last message if that is
    /// the user's; what comes before it was said earlier.
    pub(super) async fn run(&self, session: &str, messages: &[Value]) -> Result<Played, BoxError> {
        let key = SessionKey::new("app", "user", session)?;
        if self.runner.sessions().get(&key, EventFilter::default()).await?.is_none() {
            self.runner.create_session_with("user", session, umbel::Object::new()).await?;
        }
        let before = self.events(&key).await?.0.len();
        let (message, earlier) = match messages.split_last() {
            Some((last, earlier)) if text(last, "role") == Some("user") => (Some(content(last)?), earlier),
            _ => (None, messages),
        };
        self.say_earlier(&key, earlier).await?;
        // A run of ours begins with a message. One that no vector knows is not shown.
        let start = self.events(&key).await?.0.len();
        let opens = message.is_none();
        let mut stream = self.runner.run(&key, message.unwrap_or_else(|| Content::user("…")));
        let mut error = None;
        while let Some(item) = stream.next().await {
            error = item.err();
        }
        let (mut events, state) = self.events(&key).await?;
        if opens && start < events.len() {
            events.remove(start);
        }
        let added = events.get(before..).unwrap_or_default();
        Ok(Played { error, messages: of_events(added), state })
    }

    async fn say_earlier(&self, key: &SessionKey, messages: &[Value]) -> Result<(), BoxError> {
        let store = self.runner.sessions();
        let session = store.get(key, EventFilter::default()).await?;
        let mut session = session.ok_or("the session is gone")?;
        for message in messages {
            let author = if text(message, "role") == Some("user") { "user" } else { "agent" };
            let mut event = Event::new("earlier".into(), Arc::new(Source::new(author)));
            event.id = format!("earlier-{}", session.events.len()).as_str().into();
            event = event.with_content(content(message)?);
            session.append(store.as_ref(), event).await?;
        }
        Ok(())
    }

    async fn events(&self, key: &SessionKey) -> Result<(Vec<Arc<Event>>, State), BoxError> {
        let session = self.runner.sessions().get(key, EventFilter::default()).await?;
        let session = session.ok_or("the session is gone")?;
        Ok((session.events.iter().cloned().collect(), session.state))
    }
}

/// What was put together, unless its settings were refused.
pub(super) fn built<T>(made: umbel::Result<T>) -> umbel::Result<Option<T>> {
    match made {
        Ok(made) => Ok(Some(made)),
        Err(error) if error.kind() == ErrorKind::Build => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks a case twice, with and without previews: the answer must be the same.
pub(super) async fn both_ways(
    case: &Case,
    check: impl AsyncFn(&Case, bool) -> Result<Checked, BoxError>,
) -> Result<Checked, BoxError> {
    let plain = check(case, false).await?;
    if plain.differs() {
        return Ok(plain);
    }
    check(case, true).await
}
