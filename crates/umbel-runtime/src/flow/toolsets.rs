//! What toolsets give for one model call: tools, and words for the model.

use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::{AuthConfig, Result, Run, Tool, ToolSet, Toolset};

use crate::layers::is_control;
use crate::layers::user_tools::UserTools;
use crate::text;

/// What the toolsets of an agent gave for one model call.
#[derive(Clone)]
pub(crate) struct ToolListing {
    /// The agent's tools, and those that the toolsets found.
    pub(crate) tools: Arc<ToolSet>,
    /// The names of those that the toolsets found.
    pub(crate) found: Vec<SmolStr>,
    /// What the toolsets tell the model, by their names.
    pub(crate) notes: Vec<(SmolStr, Arc<str>)>,
}

/// How toolsets are asked.
#[derive(Clone, Copy)]
pub(crate) struct ListingOptions {
    /// Whether people are asked for credentials that are missing. Toolsets that need one are left out otherwise.
    pub(crate) asks: bool,
    /// Whether the tools are wanted, and not the words alone.
    pub(crate) lists: bool,
}

impl ToolListing {
    /// Asks each toolset once.
    pub(crate) async fn new(
        run: &Run,
        toolsets: &[Arc<dyn Toolset>],
        tools: Arc<ToolSet>,
        how: ListingOptions,
    ) -> Result<Self> {
        let mut listing = Self { tools, found: Vec::new(), notes: Vec::new() };
        for toolset in toolsets {
            // Boxed: few toolsets need a credential.
            if let Some(auth) = toolset.auth()
                && !Box::pin(listing.unlock(run, toolset.name(), auth, how.asks)).await?
            {
                continue;
            }
            if how.lists {
                let tools = run.cancel_token().guard(toolset.tools(run)).await??;
                UserTools::note(run, &**toolset, &tools);
                listing.add(toolset.name(), tools);
            }
            listing.notes.extend(toolset.instruction(run).map(|text| (toolset.name().into(), text)));
        }
        Ok(listing)
    }

    /// Whether the credential of a toolset is there. Who does not get it goes on without the toolset.
    async fn unlock(&mut self, run: &Run, toolset: &str, auth: &AuthConfig, asks: bool) -> Result<bool> {
        if !asks {
            let (services, key) = (run.services(), run.session_key());
            let whose = (key.app(), key.user());
            return Ok(services.credentials.look(whose, auth, services.clock.now()).await?.is_some());
        }
        match run.credential(auth).await {
            Ok(_) => Ok(true),
            Err(error) if is_control(run, &error) => Err(error),
            // Be it that a service cannot be reached: the agent has more than these tools.
            Err(error) => {
                tracing::warn!(toolset, "{error}");
                self.notes.push((toolset.into(), text::toolset_locked(toolset, error.message()).into()));
                Ok(false)
            }
        }
    }

    /// Adds what a toolset found. It takes the place of nothing that is there: whoever answers a toolset, be it a server
    /// elsewhere, could else have the calls that are meant for others.
    fn add(&mut self, toolset: &str, found: Vec<Arc<dyn Tool>>) {
        for tool in found {
            let name = tool.spec().name.clone();
            if self.tools.get(&name).is_some() {
                tracing::warn!(
                    toolset,
                    tool = name.as_str(),
                    "the tool is left out: there is another one of that name"
                );
            } else {
                Arc::make_mut(&mut self.tools).add(tool);
                self.found.push(name);
            }
        }
    }
}
