//! What a handler remembers of each agent while a run lasts, in memory only.

use std::sync::{Arc, Mutex, PoisonError};

use umbel_core::{Run, Source};

/// Values of one type in a run: by handler, and by the place that an agent speaks from.
struct PerAgent<T>(Mutex<Vec<(usize, Arc<Source>, T)>>);

/// Works on what this handler remembers of the run's agent. What it remembers first is the default.
///
/// Nobody is locked out meanwhile, since `act` may call code of others that looks at the run. An agent does one thing at a time;
/// should two act at once all the same, the one who ends last is remembered.
pub(crate) fn with<T, R>(run: &Run, handler: usize, act: impl FnOnce(&mut T) -> R) -> R
where
    T: Default + Send + 'static,
{
    let values = run.values().get_or_insert_with(|| PerAgent::<T>(Mutex::default()));
    let source = run.source();
    let mut value = values.take(handler, source).unwrap_or_default();
    let result = act(&mut value);
    values.put(handler, source, value);
    result
}

impl<T> PerAgent<T> {
    fn take(&self, handler: usize, source: &Arc<Source>) -> Option<T> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = values.iter().position(|(of, from, _)| *of == handler && from == source)?;
        Some(values.swap_remove(place).2)
    }

    fn put(&self, handler: usize, source: &Arc<Source>, value: T) {
        let old = self.take(handler, source);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((handler, source.clone(), value));
        drop(old);
    }
}

/// By what a handler is told from others while it lives.
pub(crate) fn identity<H>(handler: &H) -> usize {
    std::ptr::from_ref(handler).addr()
}
