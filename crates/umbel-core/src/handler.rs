//! What extends agents and runs: one trait, each hook optional.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};
use std::sync::Arc;

use crate::content::Content;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::log::Outcome;
use crate::onion::{ChunkStream, ModelCall, NextModel, NextTool, ToolCall, ToolResult};
use crate::plan::{AgentPlan, AgentTurn};
use crate::run::Run;
use crate::turn::ModelTurn;
use crate::work::Work;

/// Extends an agent, or all agents of a runner. Every hook is optional.
///
/// `#[handler]` lets hooks be written as `async fn` or plain `fn` and says which of them are there, so that those that
/// are not cost nothing. Handlers may serve several runs at once.
///
/// Pipelines run in the order handlers were added; the wraps are an onion whose first layer is outermost. The first
/// error ends the run and names the handler and the hook.
#[allow(unused_variables)]
pub trait Handler: Send + Sync {
    /// Its name, for messages and [`explain`](crate::handler).
    fn name(&self) -> &str;

    /// The hooks it has. A handler that does not say is asked for all.
    fn hooks(&self) -> Hooks {
        Hooks::ALL
    }

    /// An error if its options cannot work together. It is asked when a runner is built, wherever the handler stands: on the
    /// runner, on an agent, or around one tool.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Once, when the runner is built: what the agent is told and which tools it has. An error fails the build.
    fn configure(&self, plan: &mut AgentPlan) -> Result<()> {
        Ok(())
    }

    /// Sees what the user said, before it is stored, and may give something else in its place. Runner-wide.
    fn on_input<'a>(&'a self, run: &'a Run, input: Arc<Content>) -> Work<'a, Result<Arc<Content>>> {
        Work::done(Ok(input))
    }

    /// May answer in the place of all agents. The first answer counts. Runner-wide.
    fn before_run<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Option<Content>>> {
        Work::done(Ok(None))
    }

    /// Before each turn of an agent, also when it is resumed: instruction, tools, input, options.
    fn before_agent<'a>(&'a self, turn: &'a mut AgentTurn<'_>) -> Work<'a, Result<Step>> {
        Work::done(Ok(Step::Continue))
    }

    /// Before each model call: what it leaves of the history is the run's state, and goes to the model.
    fn before_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        Work::done(Ok(Step::Continue))
    }

    /// After each model call: sees the history and the response behind it, and may change both.
    fn after_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        Work::done(Ok(Step::Continue))
    }

    /// Around each model call: may change the request, map the chunks, ask again, or not at all.
    fn wrap_model<'a>(
        &'a self,
        call: ModelCall<'a>,
        next: NextModel<'a>,
    ) -> Work<'a, Result<ChunkStream<'a>>> {
        Work::later(next.call(call))
    }

    /// Around each tool call, streamed ones and those of unknown tools too.
    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        Work::later(next.call(call))
    }

    /// Sees each event before it is stored, previews too, and may change it. Ids, calls and control actions must stay.
    fn on_event<'a>(&'a self, run: &'a Run, event: Event) -> Work<'a, Result<Event>> {
        Work::done(Ok(event))
    }

    /// Changes what readers of the stream see of an event; the log keeps what it has. `None` hides it.
    fn on_output<'a>(&'a self, run: &'a Run, event: Arc<Event>) -> Work<'a, Result<Option<Arc<Event>>>> {
        Work::done(Ok(Some(event)))
    }

    /// The agent failed. A content answers in its place; the first one counts. Never asked about a cancelled run.
    fn on_error<'a>(&'a self, run: &'a Run, error: &'a Error) -> Work<'a, Result<Option<Content>>> {
        Work::done(Ok(None))
    }

    /// The agent's turn is over, however it ended.
    fn after_agent<'a>(&'a self, run: &'a Run, outcome: &'a Outcome) -> Work<'a, Result<()>> {
        Work::done(Ok(()))
    }

    /// The run is over, however it ended. Runner-wide.
    fn after_run<'a>(&'a self, run: &'a Run, outcome: &'a Outcome) -> Work<'a, Result<()>> {
        Work::done(Ok(()))
    }

    /// The runner is closed. Runner-wide.
    fn close(&self) -> Work<'_, Result<()>> {
        Work::done(Ok(()))
    }
}

/// What a hook wants to happen next.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// Nothing special.
    #[default]
    Continue,
    /// This is the answer: it is said in the place of the model's, or of the whole agent's. Calls in it are made.
    Respond(Content),
    /// Go on elsewhere; handlers that would have come next are not asked.
    Jump(Jump),
}

/// Where to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Jump {
    /// To the next model call, `before_model` first, though nothing calls for it.
    Model,
    /// To the calls of the last message that have no answer yet, without asking the model.
    Tools,
    /// To the end of the agent's turn.
    End,
}

/// A set of hooks.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Hooks(u16);

macro_rules! hooks {
    ($($name:ident = $text:literal),* $(,)?) => {
        hooks!(@consts 0u16, $($name = $text),*);

        impl Hooks {
            /// The hooks with their names, in the order in which they come in a run.
            pub const NAMED: &'static [(Self, &'static str)] = &[$((Self::$name, $text)),*];
        }
    };
    (@consts $bit:expr, $name:ident = $text:literal $(, $($rest:tt)*)?) => {
        impl Hooks {
            #[doc = concat!("`", $text, "`.")]
            pub const $name: Self = Self(1 << ($bit));
        }
        $(hooks!(@consts $bit + 1u16, $($rest)*);)?
    };
}

hooks! {
    CONFIGURE = "configure",
    ON_INPUT = "on_input",
    BEFORE_RUN = "before_run",
    BEFORE_AGENT = "before_agent",
    BEFORE_MODEL = "before_model",
    WRAP_MODEL = "wrap_model",
    AFTER_MODEL = "after_model",
    WRAP_TOOL = "wrap_tool",
    ON_EVENT = "on_event",
    ON_OUTPUT = "on_output",
    ON_ERROR = "on_error",
    AFTER_AGENT = "after_agent",
    AFTER_RUN = "after_run",
    CLOSE = "close"
}

impl Hooks {
    /// No hook.
    pub const NONE: Self = Self(0);
    /// Every hook.
    pub const ALL: Self = Self((1 << Self::NAMED.len()) - 1);
    /// The hooks that surround a whole run. They act only for a handler of a runner.
    pub const RUNNER_WIDE: Self =
        Self(Self::ON_INPUT.0 | Self::BEFORE_RUN.0 | Self::AFTER_RUN.0 | Self::CLOSE.0);

    /// Whether all of `other` are in it.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in it.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Those of both.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The names of the hooks in it.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMED.iter().filter(move |(hook, _)| self.contains(*hook)).map(|(_, name)| *name)
    }
}

impl BitOr for Hooks {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl BitOrAssign for Hooks {
    fn bitor_assign(&mut self, other: Self) {
        *self = self.union(other);
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// A shared handler is a handler.
impl<H: Handler + ?Sized> Handler for Arc<H> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn hooks(&self) -> Hooks {
        (**self).hooks()
    }

    fn check(&self) -> Result<()> {
        (**self).check()
    }

    fn configure(&self, plan: &mut AgentPlan) -> Result<()> {
        (**self).configure(plan)
    }

    fn on_input<'a>(&'a self, run: &'a Run, input: Arc<Content>) -> Work<'a, Result<Arc<Content>>> {
        (**self).on_input(run, input)
    }

    fn before_run<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Option<Content>>> {
        (**self).before_run(run)
    }

    fn before_agent<'a>(&'a self, turn: &'a mut AgentTurn<'_>) -> Work<'a, Result<Step>> {
        (**self).before_agent(turn)
    }

    fn before_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        (**self).before_model(turn)
    }

    fn after_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        (**self).after_model(turn)
    }

    fn wrap_model<'a>(
        &'a self,
        call: ModelCall<'a>,
        next: NextModel<'a>,
    ) -> Work<'a, Result<ChunkStream<'a>>> {
        (**self).wrap_model(call, next)
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        (**self).wrap_tool(call, next)
    }

    fn on_event<'a>(&'a self, run: &'a Run, event: Event) -> Work<'a, Result<Event>> {
        (**self).on_event(run, event)
    }

    fn on_output<'a>(&'a self, run: &'a Run, event: Arc<Event>) -> Work<'a, Result<Option<Arc<Event>>>> {
        (**self).on_output(run, event)
    }

    fn on_error<'a>(&'a self, run: &'a Run, error: &'a Error) -> Work<'a, Result<Option<Content>>> {
        (**self).on_error(run, error)
    }

    fn after_agent<'a>(&'a self, run: &'a Run, outcome: &'a Outcome) -> Work<'a, Result<()>> {
        (**self).after_agent(run, outcome)
    }

    fn after_run<'a>(&'a self, run: &'a Run, outcome: &'a Outcome) -> Work<'a, Result<()>> {
        (**self).after_run(run, outcome)
    }

    fn close(&self) -> Work<'_, Result<()>> {
        (**self).close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_are_a_set_with_names() {
        let some = Hooks::BEFORE_MODEL | Hooks::WRAP_TOOL;
        assert!(some.contains(Hooks::WRAP_TOOL) && !some.contains(Hooks::WRAP_TOOL | Hooks::CLOSE));
        assert_eq!(some.names().collect::<Vec<_>>(), ["before_model", "wrap_tool"]);
        assert_eq!(Hooks::ALL.names().count(), 14);
        assert!(Hooks::ALL.contains(Hooks::RUNNER_WIDE) && !some.intersects(Hooks::RUNNER_WIDE));
    }
}
