//! What all agents are told.

use umbel_core::{AgentTurn, BoxFuture, Handler, Result, Run, Step, Words, provided};
use umbel_macros::handler;

/// Tells all agents of a runner the same, before anything else that they are told.
///
/// Words are taken as they are; [`template`](umbel_core::template) makes holes of `{names}`.
///
/// ```
/// use umbel_core::template;
/// use umbel_runtime::handlers::GlobalInstruction;
///
/// let polite = GlobalInstruction::new("Answer in one paragraph.");
/// let named = GlobalInstruction::new(template("The user's name is {user_name?}."));
/// let dated = GlobalInstruction::from_fn(|run| {
///     Box::pin(async move { Ok(format!("Now it is {} s after 1970.", run.services().clock.now())) })
/// });
/// ```
#[derive(Clone, Debug)]
pub struct GlobalInstruction(Words);

impl GlobalInstruction {
    /// These words.
    pub fn new(words: impl Into<Words>) -> Self {
        Self(words.into())
    }

    /// Words that are made for each request.
    pub fn from_fn<F>(provider: F) -> Self
    where
        F: for<'a> Fn(&'a Run) -> BoxFuture<'a, Result<String>> + Send + Sync + 'static,
    {
        Self(provided(provider))
    }
}

#[handler(crate = umbel_core)]
impl Handler for GlobalInstruction {
    fn name(&self) -> &str {
        "global_instruction"
    }

    fn before_agent(&self, turn: &mut AgentTurn<'_>) -> Result<Step> {
        turn.plan.instruction.prepend(self.name(), self.0.clone());
        Ok(Step::Continue)
    }
}
