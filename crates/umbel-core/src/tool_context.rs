//! What a tool sees of the run it works for.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use smol_str::SmolStr;

use crate::actions::{Actions, Confirmation};
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind, Result};
use crate::id::CallId;
use crate::memory::MemoryEntry;
use crate::part::Part;
use crate::run::Run;

/// What a tool sees of the run it works for, and where it leaves what it did.
#[derive(Debug)]
pub struct ToolContext {
    run: Run,
    tool: SmolStr,
    call: Option<CallId>,
    confirmation: Option<Confirmation>,
    actions: Mutex<Actions>,
}

impl ToolContext {
    /// The context of one call.
    pub fn new(run: Run, tool: SmolStr, call: Option<CallId>, confirmation: Option<Confirmation>) -> Self {
        Self { run, tool, call, confirmation, actions: Mutex::default() }
    }

    /// The run.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// The tool's name.
    pub fn tool_name(&self) -> &str {
        &self.tool
    }

    /// The call's id; absent if the model gave none and the flow minted none.
    pub fn call_id(&self) -> Option<&CallId> {
        self.call.as_ref()
    }

    /// A state key: what this call wrote, else what the session has.
    pub fn state(&self, key: &str) -> Option<Value> {
        let mine = self.lock().state_delta.as_ref().and_then(|delta| delta.get(key).cloned());
        mine.or_else(|| self.run.state().get(key).cloned())
    }

    /// Sets a state key. Others see it when the call is done.
    pub fn set_state(&self, key: impl Into<String>, value: impl Into<Value>) {
        self.lock().set_state(key, value);
    }

    /// Makes the tool's answer the agent's answer: the model is not asked to put it in words.
    pub fn skip_summarization(&self) {
        self.lock().skip_summarization = Some(true);
    }

    /// Ends the enclosing loop.
    pub fn escalate(&self) {
        self.lock().escalate = Some(true);
    }

    /// Hands over to another agent.
    pub fn transfer_to_agent(&self, name: impl Into<SmolStr>) {
        self.lock().transfer_to_agent = Some(name.into());
    }

    /// Changes any action.
    pub fn actions(&self, change: impl FnOnce(&mut Actions)) {
        change(&mut self.lock());
    }

    /// What the call did so far, taken out.
    pub fn take_actions(&self) -> Actions {
        std::mem::take(&mut *self.lock())
    }

    /// What a person said to this call, if they were asked.
    pub fn confirmation(&self) -> Option<&Confirmation> {
        self.confirmation.as_ref()
    }

    /// Asks a person to agree. The tool should then return; it is called again with the answer.
    pub fn request_confirmation(&self, hint: impl Into<String>, payload: Option<Value>) -> Result<()> {
        let Some(call) = &self.call else {
            let message = "a call without an id cannot ask for a confirmation";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        };
        let asked = Confirmation { hint: Some(hint.into()), payload, ..Confirmation::default() };
        self.lock().requested_tool_confirmations.get_or_insert_default().insert(call.clone(), asked);
        Ok(())
    }

    /// Stores an artifact and notes its version in the event.
    pub async fn save_artifact(&self, name: &str, part: Part) -> Result<u64> {
        let version = self.run.artifacts()?.save(self.run.session_key(), name, part).await?;
        self.lock().artifact_delta.get_or_insert_default().insert(name.to_owned(), version);
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
            let message = format!("the tool needs a `{name}`: give it to the runner with `.dependency(…)`");
            Error::new(ErrorKind::Build, message)
        })
    }

    /// The token that tells the tool to stop.
    pub fn cancel_token(&self) -> &CancelToken {
        self.run.cancel_token()
    }

    fn lock(&self) -> MutexGuard<'_, Actions> {
        self.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
