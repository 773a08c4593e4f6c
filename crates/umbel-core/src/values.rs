//! What a run carries along: values by type, values that survive it, and its handlers' changes to the conversation.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::Value;
use smol_str::SmolStr;

use crate::event::Source;
use crate::extensions::Extensions;
use crate::handler::Handler;
use crate::transcript::{Edit, Transcript};

/// What a run carries along. Shared by all its agents.
#[derive(Default)]
pub struct RunValues {
    inner: Mutex<Option<Box<Inner>>>,
    /// Handlers that were made for this run. They stay where they are until it ends, so they can be borrowed.
    handlers: OnceLock<Box<Made>>,
}

/// A handler that was made for a run, and those that were made later.
struct Made {
    number: u64,
    handler: Arc<dyn Handler>,
    next: OnceLock<Box<Made>>,
}

/// Most runs carry nothing, so this is made when it is needed.
#[derive(Debug, Default)]
struct Inner {
    extensions: Extensions,
    /// What handlers keep for themselves; runs further in do not see it.
    own: Extensions,
    kept: BTreeMap<SmolStr, Value>,
    transcripts: Vec<(Arc<Source>, Transcript)>,
    /// Changes that were made before an interrupt, by who made them.
    edits: Vec<(Arc<Source>, Vec<Edit>)>,
}

impl RunValues {
    /// A value by type.
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.lock().as_ref()?.extensions.get::<T>()
    }

    /// Puts a value in by its type.
    pub fn insert<T: Send + Sync + 'static>(&self, value: Arc<T>) {
        self.lock().get_or_insert_default().extensions.insert_arc(value);
    }

    /// What a handler keeps for itself in this run, by a type of its own; made if there is none yet. Runs that this one
    /// starts do not see it.
    pub fn get_or_insert_with<T: Send + Sync + 'static>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut inner = self.lock();
        let own = &mut inner.get_or_insert_default().own;
        if let Some(value) = own.get::<T>() {
            return value;
        }
        let value = Arc::new(make());
        own.insert_arc(value.clone());
        value
    }

    /// All values by type, as they are now.
    pub fn extensions(&self) -> Extensions {
        self.lock().as_ref().map(|inner| inner.extensions.clone()).unwrap_or_default()
    }

    /// Puts values in that another run hands down.
    pub fn inherit(&self, extensions: &Extensions) {
        if !extensions.is_empty() {
            self.lock().get_or_insert_default().extensions.extend(extensions);
        }
    }

    /// A value that survives an interrupt and a crash.
    pub fn kept(&self, key: &str) -> Option<Value> {
        self.lock().as_ref()?.kept.get(key).cloned()
    }

    /// Sets such a value; `null` drops it.
    pub fn keep(&self, key: SmolStr, value: Value) {
        let mut inner = self.lock();
        let kept = &mut inner.get_or_insert_default().kept;
        if value.is_null() {
            kept.remove(&key);
        } else {
            kept.insert(key, value);
        }
    }

    /// The conversation of an agent as its handlers left it, taken out. Gives the changes it had before an interrupt, if
    /// it was not asked for since.
    pub fn take_transcript(&self, source: &Arc<Source>) -> (Option<Transcript>, Vec<Edit>) {
        let mut inner = self.lock();
        let Some(inner) = inner.as_mut() else { return (None, Vec::new()) };
        let place = inner.transcripts.iter().position(|(of, _)| of == source);
        let transcript = place.map(|place| inner.transcripts.swap_remove(place).1);
        let place = inner.edits.iter().position(|(of, _)| of == source);
        let edits = place.map(|place| inner.edits.swap_remove(place).1).unwrap_or_default();
        (transcript, edits)
    }

    /// Whether handlers changed the conversation of an agent earlier in this run.
    pub fn has_edits(&self, source: &Arc<Source>) -> bool {
        self.lock().as_ref().is_some_and(|inner| {
            inner.transcripts.iter().any(|(of, _)| of == source)
                || inner.edits.iter().any(|(of, _)| of == source)
        })
    }

    /// Puts it back, for the agent's next turn in this run.
    pub fn put_transcript(&self, source: Arc<Source>, transcript: Transcript) {
        if transcript.is_edited() {
            self.lock().get_or_insert_default().transcripts.push((source, transcript));
        }
    }

    /// Takes in changes that were made before an interrupt.
    pub fn restore_edits(&self, source: Arc<Source>, edits: Vec<Edit>) {
        let mut inner = self.lock();
        let all = &mut inner.get_or_insert_default().edits;
        match all.iter_mut().find(|(of, _)| *of == source) {
            Some((_, known)) => known.extend(edits),
            None => all.push((source, edits)),
        }
    }

    /// The handler of this run with that number, made if there is none yet.
    pub fn handler(&self, number: u64, make: impl Fn() -> Arc<dyn Handler>) -> &dyn Handler {
        let mut place = &self.handlers;
        loop {
            let made =
                place.get_or_init(|| Box::new(Made { number, handler: make(), next: OnceLock::new() }));
            if made.number == number {
                return &*made.handler;
            }
            place = &made.next;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<Inner>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RunValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RunValues").field(&*self.lock()).finish()
    }
}
