//! What happened outside the logs: effects of tools, what readers were shown, what models were asked, how often each feature was
//! exercised. It outlives simulated processes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use umbel::{Error, EventId, Outcome, RunId, SessionKey};

/// A check of the oracle that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    /// Which check; a world is shrunk as long as the same one fails.
    pub(super) check: &'static str,
    pub(super) detail: String,
}

/// The effects of one call.
#[derive(Clone, Debug, Default)]
pub(super) struct EffectCount {
    pub(super) tool: String,
    pub(super) idempotent: bool,
    pub(super) count: u32,
    /// How often a handler called the tool again.
    pub(super) retries: u32,
}

/// What an emit of a closure returned.
#[derive(Clone, Debug)]
pub(super) struct EmitNote {
    pub(super) key: SessionKey,
    pub(super) run: RunId,
    pub(super) event: EventId,
    /// It may be stored later than `emit` returned.
    pub(super) is_held: bool,
}

/// What the reader of a run got.
#[derive(Clone, Debug)]
pub(super) struct ReaderNote {
    pub(super) key: SessionKey,
    pub(super) run: RunId,
    /// Whole events, in order.
    pub(super) shown: Vec<EventId>,
    pub(super) error: Option<Arc<Error>>,
    /// Set once the stream ended.
    pub(super) outcome: Option<Outcome>,
    /// Whether the log had this outcome when the stream ended.
    pub(super) is_logged: bool,
    /// Its session was deleted: nothing of it can be checked any more.
    pub(super) is_past: bool,
}

/// The ledger of one simulation. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Arc<Mutex<LedgerState>>);

/// What the ledger holds.
#[derive(Debug, Default)]
pub(super) struct LedgerState {
    pub(super) effects: BTreeMap<String, EffectCount>,
    pub(super) emits: Vec<EmitNote>,
    pub(super) readers: Vec<ReaderNote>,
    /// Digests of model requests, in order, with the agent.
    pub(super) requests: Vec<(String, u64)>,
    /// Requests that failed once.
    pub(super) failed_requests: BTreeSet<u64>,
    /// All sessions that were created, child sessions included.
    pub(super) sessions: BTreeSet<(String, String)>,
    pub(super) deleted: BTreeSet<(String, String)>,
    pub(super) counts: BTreeMap<&'static str, u64>,
    pub(super) violations: Vec<Violation>,
    /// Messages that people sent.
    pub(super) messages: u32,
    /// What people do just now: the number of a message, or nothing of the kind.
    pub(super) acts: Vec<Option<u32>>,
    /// An operation hung for ever that a run waits for.
    pub(super) hangs: bool,
    /// The lines of the trace, if it is kept.
    pub(super) lines: Option<Vec<String>>,
    digest: DefaultHasher,
}

impl Ledger {
    /// An empty one.
    pub(super) fn new(keeps_lines: bool) -> Self {
        let state = LedgerState { lines: keeps_lines.then(Vec::new), ..LedgerState::default() };
        Self(Arc::new(Mutex::new(state)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LedgerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a feature or a fault that happened.
    pub(super) fn count(&self, what: &'static str) {
        *self.lock().counts.entry(what).or_default() += 1;
    }

    /// Adds to the trace.
    pub(super) fn trace(&self, at: Duration, what: &str, value: impl FnOnce() -> String) {
        let mut state = self.lock();
        let value = value();
        (at, what, &value).hash(&mut state.digest);
        if let Some(lines) = &mut state.lines {
            lines.push(format!("{:>9.3} {what} {value}", at.as_secs_f64()));
        }
    }

    /// The digest of the trace so far.
    pub(super) fn digest(&self) -> u64 {
        self.lock().digest.finish()
    }

    /// Notes that a person sends a message, until the guard is dropped.
    pub(super) fn sent(&self, number: u32) -> SentGuard<'_> {
        let mut state = self.lock();
        state.acts.push(Some(number));
        SentGuard { ledger: self, place: state.acts.len() - 1 }
    }

    /// Notes an effect of a call.
    pub(super) fn affect(&self, key: &str, tool: &str, idempotent: bool) {
        let mut state = self.lock();
        let effect = state.effects.entry(key.to_owned()).or_default();
        tool.clone_into(&mut effect.tool);
        effect.idempotent = idempotent;
        effect.count += 1;
    }

    /// Notes that a handler calls a tool again.
    pub(super) fn retry(&self, key: &str) {
        self.lock().effects.entry(key.to_owned()).or_default().retries += 1;
    }

    /// Reports a failed check, the first time.
    pub(super) fn violate(&self, check: &'static str, detail: String) {
        let mut state = self.lock();
        if state.violations.iter().all(|known| known.check != check) {
            state.violations.push(Violation { check, detail });
        }
    }

    /// Begins the note of a reader.
    pub(super) fn reader(&self, key: &SessionKey, run: &RunId) -> usize {
        let mut state = self.lock();
        state.readers.push(ReaderNote {
            key: key.clone(),
            run: run.clone(),
            shown: Vec::new(),
            error: None,
            outcome: None,
            is_logged: false,
            is_past: false,
        });
        state.readers.len() - 1
    }

    /// Changes the note of a reader.
    pub(super) fn note_reader(&self, place: usize, change: impl FnOnce(&mut ReaderNote)) {
        if let Some(note) = self.lock().readers.get_mut(place) {
            change(note);
        }
    }

    /// Notes that a session may exist.
    pub(super) fn created(&self, key: &SessionKey) {
        let mut state = self.lock();
        let key = (key.user().to_owned(), key.id().to_owned());
        state.deleted.remove(&key);
        state.sessions.insert(key);
    }

    /// Notes that a session and those that work for it may be gone.
    pub(super) fn deleted(&self, key: &SessionKey) {
        let mut state = self.lock();
        let below = format!("{}/", key.id());
        let is_gone = |user: &str, id: &str| user == key.user() && (id == key.id() || id.starts_with(&below));
        let gone: Vec<_> = state.sessions.iter().filter(|(user, id)| is_gone(user, id)).cloned().collect();
        state.deleted.extend(gone);
        // A later session under this key has nothing to do with what was noted before.
        let is_below = |other: &SessionKey| {
            other.user() == key.user() && (other.id() == key.id() || other.id().starts_with(&below))
        };
        state.readers.iter_mut().filter(|note| is_below(&note.key)).for_each(|note| note.is_past = true);
        state.emits.retain(|note| !is_below(&note.key));
    }
}

/// A message whose sender reads the answer.
#[derive(Debug)]
pub(super) struct SentGuard<'a> {
    ledger: &'a Ledger,
    place: usize,
}

impl Drop for SentGuard<'_> {
    fn drop(&mut self) {
        if let Some(act) = self.ledger.lock().acts.get_mut(self.place) {
            *act = None;
        }
    }
}

/// A digest of anything that can be hashed; the same in every process.
pub(super) fn digest_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
