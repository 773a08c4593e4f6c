//! The sessions that runs of this runner hold.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use umbel_core::SessionKey;

/// The sessions that runs of this runner hold. A lease may expire while its run is alive, since a tool blocks its thread
/// or the store is slow: such a run is not recovered where it is still under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActiveRuns(Arc<Mutex<Slots>>);

#[derive(Debug, Default)]
struct Slots {
    keys: Vec<Option<SessionKey>>,
    free: Vec<usize>,
}

impl ActiveRuns {
    /// Registers a run until the guard is dropped.
    pub(crate) fn insert(&self, key: SessionKey) -> ActiveRun {
        let mut slots = self.lock();
        let slot = match slots.free.pop() {
            Some(slot) => slot,
            None => {
                slots.keys.push(None);
                slots.keys.len() - 1
            }
        };
        if let Some(place) = slots.keys.get_mut(slot) {
            *place = Some(key);
        }
        ActiveRun { runs: self.clone(), slot }
    }

    /// Whether a run of this runner holds that session.
    pub(crate) fn contains(&self, key: &SessionKey) -> bool {
        self.lock().keys.iter().flatten().any(|active| active == key)
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run that holds its session.
#[derive(Debug)]
pub(crate) struct ActiveRun {
    runs: ActiveRuns,
    slot: usize,
}

impl Drop for ActiveRun {
    fn drop(&mut self) {
        let mut slots = self.runs.lock();
        let key = slots.keys.get_mut(self.slot).and_then(Option::take);
        slots.free.push(self.slot);
        drop(slots);
        drop(key);
    }
}
