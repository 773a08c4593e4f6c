//! Values by key that live as long as someone holds them.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Values by key. Whoever asks for a key shares its value with all who hold it; the last one who lets go drops it.
pub(super) struct Holdings<K, T>(Mutex<HashMap<K, Arc<T>>>);

impl<K: Hash + Eq + Clone, T> Holdings<K, T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default()))
    }

    /// The value of that key, made if nobody holds it.
    pub(super) fn hold(self: &Arc<Self>, key: K, make: impl FnOnce() -> T) -> Held<K, T> {
        let value = self.lock().entry(key.clone()).or_insert_with(|| Arc::new(make())).clone();
        Held { value, key, of: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K, T> fmt::Debug for Holdings<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Holdings")
    }
}

/// A value that is held.
pub(super) struct Held<K: Hash + Eq + Clone, T> {
    value: Arc<T>,
    key: K,
    of: Arc<Holdings<K, T>>,
}

impl<K: Hash + Eq + Clone, T> Deref for Held<K, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<K: Hash + Eq + Clone, T> Drop for Held<K, T> {
    fn drop(&mut self) {
        let mut all = self.of.lock();
        // The map has one, and this is the other. Nobody can take a third while the map is locked.
        if Arc::strong_count(&self.value) <= 2 {
            all.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_shared_while_it_is_held_and_made_anew_after() {
        let all: Arc<Holdings<&str, u32>> = Holdings::new();
        let (first, second) = (all.hold("a", || 1), all.hold("a", || 2));
        assert_eq!((*first, *second), (1, 1));
        drop(first);
        assert_eq!(*all.hold("a", || 3), 1);
        drop(second);
        assert!(all.lock().is_empty());
        assert_eq!(*all.hold("a", || 4), 4);
    }
}
