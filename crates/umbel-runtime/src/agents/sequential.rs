//! One agent after the other.

use smol_str::SmolStr;
use umbel_core::{Result, Run};

use super::group::{Group, group_agent};
use super::run_child;

/// Runs its sub-agents one after the other, on the same branch. If a call of one of them waits for its answer, it stops
/// there.
#[derive(Clone)]
pub struct Sequential {
    group: Group,
}

group_agent!(Sequential, Sequential);

impl Sequential {
    /// A sequence without agents yet.
    pub fn new(name: impl Into<SmolStr>) -> Self {
        Self { group: Group::new(name.into()) }
    }

    async fn work(&self, run: &Run) -> Result<()> {
        for child in &run.node()?.children {
            run_child(&run.enter(*child)?).await?;
            if run.is_paused() {
                break;
            }
        }
        Ok(())
    }
}
