//! What a callback sees of a run, and where it leaves what it did.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::actions::Actions;
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::MemoryEntry;
use crate::part::Part;
use crate::run::Run;

/// A run, and the actions of the event that is being made.
#[derive(Debug)]
pub struct Context {
    run: Run,
    /// Most calls do nothing besides answering, so there are none until one is set.
    actions: Mutex<Option<Box<Actions>>>,
}

impl Context {
    /// A context with nothing done yet.
    pub fn new(run: Run) -> Self {
        Self { run, actions: Mutex::default() }
    }

    /// The run.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// A state key: what was written here, else what the session has.
    pub fn state(&self, key: &str) -> Option<Value> {
        let mine = self.lock().as_ref().and_then(|actions| actions.state_delta.as_ref()?.get(key).cloned());
        mine.or_else(|| self.run.state().get(key).cloned())
    }

    /// Sets a state key. Others see it with the event.
    pub fn set_state(&self, key: impl Into<String>, value: impl Into<Value>) {
        let (key, value): (String, Value) = (key.into(), value.into());
        self.change(|actions| actions.set_state(key, value));
    }

    /// Changes any action. `change` may use the context: what is done there meanwhile counts, too, unless `change` does the
    /// same otherwise.
    pub fn actions(&self, change: impl FnOnce(&mut Actions)) {
        let before = self.lock().clone();
        let mut after = before.clone().unwrap_or_default();
        change(&mut after);
        let mut kept = self.lock();
        if *kept == before {
            *kept = Some(after);
        } else {
            kept.get_or_insert_default().merge(after.since(&before.unwrap_or_default()));
        }
    }

    /// Changes any action, while nobody else can. For what calls no code but ours.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Actions)) {
        change(self.lock().get_or_insert_default());
    }

    /// What was done so far, taken out. `None` if nothing was.
    pub fn take_actions(&self) -> Option<Box<Actions>> {
        self.lock().take().filter(|actions| !actions.is_empty())
    }

    /// Stores an artifact and notes its version in the event.
    pub async fn save_artifact(&self, name: &str, part: Part) -> Result<u64> {
        let version = self.run.artifacts()?.save(self.run.session_key(), name, part).await?;
        self.change(|actions| {
            actions.artifact_delta.get_or_insert_default().insert(name.to_owned(), version);
        });
        Ok(version)
    }

    /// The newest version of an artifact.
    pub async fn load_artifact(&self, name: &str) -> Result<Option<Arc<Part>>> {
        self.run.artifacts()?.load(self.run.session_key(), name, None).await
    }

    /// What is remembered of the user that fits the query.
    pub async fn search_memory(&self, query: &str) -> Result<Vec<MemoryEntry>> {
        let key = self.run.session_key();
        self.run.memory()?.search(key.app(), key.user(), query).await
    }

    /// A value that the runner was given for its tools, by type.
    pub fn dependency<T: Send + Sync + 'static>(&self) -> Result<Arc<T>> {
        self.run.services().dependencies.get::<T>().ok_or_else(|| {
            let name = std::any::type_name::<T>();
            let message = format!("a `{name}` is needed: give it to the runner with `.dependency(…)`");
            Error::new(ErrorKind::Build, message)
        })
    }

    /// The token that tells the run to stop.
    pub fn cancel_token(&self) -> &CancelToken {
        self.run.cancel_token()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<Actions>>> {
        self.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
