//! Tools that a run has by a credential of its user.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use smol_str::SmolStr;
use umbel_core::{Run, Tool, Toolset};

/// The names of the tools that came from toolsets for which a user's credential was needed: what they answer is that user's.
#[derive(Default)]
pub(crate) struct UserTools(Mutex<BTreeSet<SmolStr>>);

impl UserTools {
    pub(super) fn of(run: &Run) -> Arc<Self> {
        run.values().get_or_insert_with(Self::default)
    }

    /// Notes what a toolset gave, if a user's credential was needed for it.
    pub(crate) fn note(run: &Run, toolset: &dyn Toolset, tools: &[Arc<dyn Tool>]) {
        if toolset.auth().is_some_and(|auth| auth.method.fixed().is_none()) {
            let names: Vec<SmolStr> = tools.iter().map(|tool| tool.spec().name.clone()).collect();
            Self::of(run).0.lock().unwrap_or_else(PoisonError::into_inner).extend(names);
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }
}
