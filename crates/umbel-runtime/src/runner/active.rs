//! The sessions that runs of this runner hold.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The sessions that runs of this runner hold, by their incarnation. A lease may expire while its run is alive, since a tool
/// blocks its thread or the store is slow: such a run is not recovered where it is still under way.
#[derive(Debug, Default)]
pub(crate) struct ActiveRuns(Mutex<Slots>);

#[derive(Debug, Default)]
struct Slots {
    incarnations: Vec<Option<u64>>,
    free: Vec<usize>,
}

impl ActiveRuns {
    /// Registers a run. Gives the slot by which it is removed.
    pub(crate) fn insert(&self, incarnation: u64) -> usize {
        let slots = &mut *self.lock();
        if let Some(slot) = slots.free.pop()
            && let Some(place) = slots.incarnations.get_mut(slot)
        {
            *place = Some(incarnation);
            return slot;
        }
        slots.incarnations.push(Some(incarnation));
        slots.incarnations.len() - 1
    }

    pub(crate) fn remove(&self, slot: usize) {
        let slots = &mut *self.lock();
        if slots.incarnations.get_mut(slot).and_then(Option::take).is_some() {
            slots.free.push(slot);
        }
    }

    /// Whether a run of this runner holds that session.
    pub(crate) fn contains(&self, incarnation: u64) -> bool {
        self.lock().incarnations.contains(&Some(incarnation))
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
