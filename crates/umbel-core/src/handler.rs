//! What extends agents and runs.

use std::sync::Arc;

use crate::content::Content;
use crate::error::Result;
use crate::event::Event;
use crate::log::Outcome;
use crate::run::Run;
use crate::work::Work;

/// Extends every run of a runner. All hooks are optional; handlers are asked in the order they were added.
///
/// These are the hooks that surround a whole run. Those inside an agent (around model and tool calls) are the
/// callbacks of the agent and of plugins.
pub trait Handler: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Sees what the user said, before it is stored, and may give something else in its place.
    fn on_input<'a>(&'a self, _run: &'a Run, input: Arc<Content>) -> Work<'a, Result<Arc<Content>>> {
        Work::done(Ok(input))
    }

    /// May answer in the place of all agents. The first answer counts.
    fn before_run<'a>(&'a self, _run: &'a Run) -> Work<'a, Result<Option<Content>>> {
        Work::done(Ok(None))
    }

    /// Sees each event before it is stored, previews too, and may change it.
    fn on_event<'a>(&'a self, _run: &'a Run, event: Event) -> Work<'a, Result<Event>> {
        Work::done(Ok(event))
    }

    /// Sees how the run ended.
    fn after_run<'a>(&'a self, _run: &'a Run, _outcome: &'a Outcome) -> Work<'a, Result<()>> {
        Work::done(Ok(()))
    }

    /// The runner is closed.
    fn close(&self) -> Work<'_, Result<()>> {
        Work::done(Ok(()))
    }
}
