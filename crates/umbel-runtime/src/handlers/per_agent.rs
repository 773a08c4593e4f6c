//! What a handler remembers of each agent while a run lasts, in memory only.

use std::sync::{Arc, Mutex, PoisonError};

use umbel_core::{Run, Source};

/// Values of one type in a run: by handler, and by the place that an agent speaks from.
struct PerAgent<T>(Mutex<Vec<(usize, Arc<Source>, T)>>);

/// Works on what this handler remembers of the run's agent. What it remembers first is the default.
pub(crate) fn with<T, R>(run: &Run, handler: usize, act: impl FnOnce(&mut T) -> R) -> R
where
    T: Default + Send + 'static,
{
    let values = run.values().get_or_insert_with(|| PerAgent::<T>(Mutex::default()));
    let mut values = values.0.lock().unwrap_or_else(PoisonError::into_inner);
    let source = run.source();
    match values.iter_mut().find(|(of, from, _)| *of == handler && from == source) {
        Some((_, _, value)) => act(value),
        None => {
            let mut value = T::default();
            let result = act(&mut value);
            values.push((handler, source.clone(), value));
            result
        }
    }
}

/// By what a handler is told from others while it lives.
pub(crate) fn identity<H>(handler: &H) -> usize {
    std::ptr::from_ref(handler).addr()
}
