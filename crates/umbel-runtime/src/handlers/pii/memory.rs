//! What a handler remembers of a run.

use std::sync::{Arc, Mutex, PoisonError};

use umbel_core::{CallId, History, Run, RunId, Source};

use super::redact::PiiBlocked;
use super::stream::StreamRedactor;

/// What a handler remembers of a run for one agent.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// The messages it looked at, as it left them.
    pub(super) seen: History,
    /// Words of the present answer that it let through: they are redacted.
    pub(super) passed: Vec<String>,
    /// What a tool gave and the run must stop for.
    pub(super) blocked: Option<PiiBlocked>,
    /// Arguments that stream in.
    pub(super) args: Vec<ArgStream>,
}

/// A string argument that streams in.
#[derive(Debug)]
pub(super) struct ArgStream {
    pub(super) call: Option<CallId>,
    pub(super) path: Option<String>,
    pub(super) redactor: StreamRedactor,
}

/// Whose memory: the handler's number, the run, and the agent's place in it.
type Key = (u64, RunId, Arc<Source>);

/// What all handlers remember of a run.
#[derive(Debug, Default)]
struct Memories(Mutex<Vec<(Key, Memory)>>);

/// Lets a handler use what it remembers.
pub(super) fn remember<T>(run: &Run, handler: u64, use_it: impl FnOnce(&mut Memory) -> T) -> T {
    let memories = run.values().get_or_insert_with(Memories::default);
    let mut memories = memories.0.lock().unwrap_or_else(PoisonError::into_inner);
    let is_ours = |(number, id, source): &Key| *number == handler && id == run.id() && source == run.source();
    if let Some((_, memory)) = memories.iter_mut().find(|(key, _)| is_ours(key)) {
        return use_it(memory);
    }
    let mut memory = Memory::default();
    let used = use_it(&mut memory);
    memories.push(((handler, run.id().clone(), run.source().clone()), memory));
    used
}
