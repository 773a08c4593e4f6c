//! What a tool sees of the run it works for.

use std::ops::Deref;
use std::sync::Arc;

use serde_json::Value;
use smol_str::SmolStr;

use crate::actions::Confirmation;
use crate::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::extensions::Extensions;
use crate::id::CallId;
use crate::run::Run;

/// What a tool sees of the run it works for, and where it leaves what it did. Clones belong to the same call.
#[derive(Clone, Debug)]
pub struct ToolContext {
    shared: Arc<Shared>,
    /// What layers further out put in.
    extensions: Extensions,
}

#[derive(Debug)]
struct Shared {
    context: Context,
    tool: SmolStr,
    call: Option<CallId>,
    confirmation: Option<Confirmation>,
}

impl ToolContext {
    /// The context of one call.
    pub fn new(run: Run, tool: SmolStr, call: Option<CallId>, confirmation: Option<Confirmation>) -> Self {
        let shared = Shared { context: Context::new(run), tool, call, confirmation };
        Self { shared: Arc::new(shared), extensions: Extensions::new() }
    }

    /// The same context with a value for those further in: the layers inside this one, and the tool.
    pub fn with<T: Send + Sync + 'static>(&self, value: T) -> Self {
        let mut inner = self.clone();
        inner.extensions.insert(value);
        inner
    }

    /// A value that a layer further out put in, or that the run has.
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.extensions.get::<T>().or_else(|| self.run().extension::<T>())
    }

    /// All values that layers put in.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// The tool's name.
    pub fn tool_name(&self) -> &str {
        &self.shared.tool
    }

    /// The call's id; absent if the model gave none and the flow minted none.
    pub fn call_id(&self) -> Option<&CallId> {
        self.shared.call.as_ref()
    }

    /// Makes the tool's answer the agent's answer: the model is not asked to put it in words.
    pub fn skip_summarization(&self) {
        self.actions(|actions| actions.skip_summarization = Some(true));
    }

    /// Ends the enclosing loop.
    pub fn escalate(&self) {
        self.actions(|actions| actions.escalate = Some(true));
    }

    /// Hands over to another agent.
    pub fn transfer_to_agent(&self, name: impl Into<SmolStr>) {
        self.actions(|actions| actions.transfer_to_agent = Some(name.into()));
    }

    /// What a person said to this call, if they were asked.
    pub fn confirmation(&self) -> Option<&Confirmation> {
        self.shared.confirmation.as_ref()
    }

    /// Asks a person to agree. The tool should then return; it is called again with the answer.
    pub fn request_confirmation(&self, hint: impl Into<String>, payload: Option<Value>) -> Result<()> {
        let Some(call) = self.shared.call.clone() else {
            let message = "a call without an id cannot ask for a confirmation";
            return Err(Error::new(ErrorKind::InvalidInput, message));
        };
        let asked = Confirmation { hint: Some(hint.into()), payload, ..Confirmation::default() };
        self.actions(|actions| {
            actions.requested_tool_confirmations.get_or_insert_default().insert(call, asked);
        });
        Ok(())
    }
}

impl Deref for ToolContext {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.shared.context
    }
}
