//! Apps that requests were about, whose sessions are to be seen to.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use smol_str::SmolStr;

/// How many are kept. More are served, and not seen to after a crash until somebody comes back.
const MOST: usize = 10_000;

/// Apps that requests were about.
#[derive(Debug, Default)]
pub(crate) struct Apps(Mutex<BTreeSet<SmolStr>>);

impl Apps {
    /// Takes note of one.
    pub(crate) fn note(&self, app: &str) {
        let mut apps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if apps.len() < MOST && !apps.contains(app) {
            apps.insert(app.into());
        }
    }

    /// Whether that one is known.
    pub(crate) fn contains(&self, app: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(app)
    }

    /// Those that are known.
    pub(crate) fn all(&self) -> BTreeSet<SmolStr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
