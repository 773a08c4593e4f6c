//! Tools that a run has by a credential of its user.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use smol_str::SmolStr;
use umbel_core::Run;

/// The names of the tools that came from toolsets for which a user's credential was needed: what they answer is that user's.
#[derive(Default)]
pub(crate) struct UserTools(Mutex<BTreeSet<SmolStr>>);

impl UserTools {
    pub(crate) fn of(run: &Run) -> Arc<Self> {
        run.values().get_or_insert_with(Self::default)
    }

    pub(crate) fn add(&self, name: &SmolStr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone());
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }
}
