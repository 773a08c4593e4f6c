//! The same agents again and again.

use smol_str::SmolStr;
use umbel_core::{Result, Run};

use super::group::{Group, group_agent};
use super::run_child;

/// Runs its sub-agents one after the other, again and again, until one of them escalates. If a call of one of them
/// waits for its answer, it stops there.
#[derive(Clone)]
pub struct LoopAgent {
    group: Group,
    rounds: Option<u32>,
}

group_agent!(LoopAgent, Loop);

impl LoopAgent {
    /// A loop without agents yet.
    pub fn new(name: impl Into<SmolStr>) -> Self {
        Self { group: Group::new(name.into()), rounds: None }
    }

    /// How many rounds it makes at most; without a limit it goes on until someone escalates or the run's own limits end
    /// it.
    pub fn max_iterations(mut self, rounds: u32) -> Self {
        self.rounds = Some(rounds);
        self
    }

    async fn work(&self, run: &Run) -> Result<()> {
        let children = &run.node()?.children;
        let mut rounds = 0;
        while !children.is_empty() && self.rounds.is_none_or(|limit| rounds < limit) {
            for child in children {
                run.cancel_token().check()?;
                run_child(&run.enter(*child)?).await?;
                if run.is_escalated() || run.is_paused() {
                    return Ok(());
                }
            }
            rounds += 1;
            // Agents may have nothing to wait for: the run's own limits hold all the same.
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}
