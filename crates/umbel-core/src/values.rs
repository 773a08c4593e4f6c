//! What a run carries along: values by type, values that survive it, and its handlers' changes to the conversation.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::Value;
use smol_str::SmolStr;

use crate::error::{Error, Result};
use crate::event::Source;
use crate::extensions::Extensions;
use crate::handler::Handler;
use crate::id::CallId;
use crate::interrupt::{Address, Answer, Asker, Interrupt, Question};
use crate::json::Object;
use crate::log::{AgentDone, RunStep};
use crate::transcript::{Edit, Transcript};

/// What a run carries along. Shared by all its agents.
#[derive(Default)]
pub struct RunValues {
    /// Whether there is anything: most runs carry nothing, and then nobody waits for the lock.
    used: AtomicBool,
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
    /// What people said, to whom.
    answers: Vec<(Interrupt, Answer)>,
    /// Questions whose answers were used, and are forgotten.
    settled: Vec<Interrupt>,
    /// How many questions each asker asked so far.
    asked: Vec<(Address, u32)>,
    /// What happened before this run went on.
    replay: Option<Arc<Replay>>,
    /// Up to which of its records each agent came to its turns since then.
    visits: Vec<(Arc<Source>, usize)>,
    /// The same for agents whose turns belong to one of another agent that was done.
    passed: Vec<(SmolStr, usize)>,
    /// Agents that took up their turn where it was cut short.
    resumed: Vec<Arc<Source>>,
}

/// What happened before a run went on: after an answer, a cancellation or a crash.
#[derive(Debug, Default)]
pub struct Replay {
    /// Where in the log the first of the runs begins that this one goes on with.
    pub from: usize,
    /// The records of those runs, each with how many events stood before it in the log.
    pub records: Vec<(usize, Arc<RunStep>)>,
}

impl Replay {
    /// Where in the log the present turn of an agent began: behind its last one.
    pub fn turn_of(&self, source: &Source) -> usize {
        self.done(source).last().map_or(self.from, |(at, _)| at)
    }

    /// The turns of an agent that are done.
    fn done<'a>(&'a self, source: &'a Source) -> impl Iterator<Item = (usize, &'a AgentDone)> {
        self.records.iter().filter_map(|(at, record)| match &**record {
            RunStep::AgentDone { done } if done.is_of(source) => Some((*at, &**done)),
            _ => None,
        })
    }
}

/// Whether a question is the asker's so many-th, about a call with these arguments.
fn is_about(asked: &Interrupt, place: &Address, nth: u32, args: Option<&Object>) -> bool {
    let empty = Object::new();
    let shown = || asked.call.as_ref().and_then(|call| call.args.as_deref()).unwrap_or(&empty);
    asked.address.nth == nth && asked.address.is_place(place) && args.is_none_or(|args| args == shown())
}

impl RunValues {
    /// A value by type.
    pub fn extension<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        self.used()?.as_ref()?.extensions.get::<T>()
    }

    /// Puts a value in by its type.
    pub fn insert<T: Send + Sync + 'static>(&self, value: Arc<T>) {
        let old = self.make().get_or_insert_default().extensions.replace(TypeId::of::<T>(), value);
        // Dropped without the lock: whoever is dropped may look at the run.
        drop(old);
    }

    /// What a handler keeps for itself in this run, by a type of its own; made if there is none yet. Runs that this one
    /// starts do not see it.
    ///
    /// `make` may look at the run. If two make one at the same time, both get the one that was there first.
    pub fn get_or_insert_with<T: Send + Sync + 'static>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let known = || self.used()?.as_ref()?.own.get::<T>();
        if let Some(value) = known() {
            return value;
        }
        let value = Arc::new(make());
        let mut inner = self.make();
        let own = &mut inner.get_or_insert_default().own;
        if let Some(first) = own.get::<T>() {
            return first;
        }
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
            let old = self.make().get_or_insert_default().extensions.replace_all(extensions);
            drop(old);
        }
    }

    /// A value that survives an interrupt and a crash.
    pub fn kept(&self, key: &str) -> Option<Value> {
        self.lock().as_ref()?.kept.get(key).cloned()
    }

    /// Sets such a value; `null` drops it.
    pub fn keep(&self, key: SmolStr, value: Value) {
        let mut inner = self.make();
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
        let Some(mut inner) = self.used() else { return (None, Vec::new()) };
        let Some(inner) = inner.as_mut() else { return (None, Vec::new()) };
        let place = inner.transcripts.iter().position(|(of, _)| of == source);
        let transcript = place.map(|place| inner.transcripts.swap_remove(place).1);
        let place = inner.edits.iter().position(|(of, _)| of == source);
        let edits = place.map(|place| inner.edits.swap_remove(place).1).unwrap_or_default();
        (transcript, edits)
    }

    /// Whether handlers changed the conversation of an agent earlier in this run.
    pub fn has_edits(&self, source: &Arc<Source>) -> bool {
        self.used().is_some_and(|inner| {
            let Some(inner) = inner.as_ref() else { return false };
            inner.transcripts.iter().any(|(of, _)| of == source)
                || inner.edits.iter().any(|(of, _)| of == source)
        })
    }

    /// Puts it back, for the agent's next turn in this run.
    pub fn put_transcript(&self, source: Arc<Source>, transcript: Transcript) {
        if transcript.is_edited() {
            self.make().get_or_insert_default().transcripts.push((source, transcript));
        }
    }

    /// Takes in changes that were made before an interrupt.
    pub fn restore_edits(&self, source: Arc<Source>, edits: Vec<Edit>) {
        let mut inner = self.make();
        let all = &mut inner.get_or_insert_default().edits;
        match all.iter_mut().find(|(of, _)| *of == source) {
            Some((_, known)) => known.extend(edits),
            None => all.push((source, edits)),
        }
    }

    /// Takes in what happened before this run went on.
    pub fn set_replay(&self, replay: Replay) {
        self.make().get_or_insert_default().replay = Some(Arc::new(replay));
    }

    /// What happened before this run went on, if it does go on with something.
    pub fn replay(&self) -> Option<Arc<Replay>> {
        self.used()?.as_ref()?.replay.clone()
    }

    /// What happened before this run went on, for an agent that takes up its turn where it was cut short. It does so once:
    /// what it does later in this run is new.
    pub fn take_up(&self, source: &Arc<Source>) -> Option<Arc<Replay>> {
        let mut inner = self.used()?;
        let inner = inner.as_mut()?;
        let replay = inner.replay.clone()?;
        if inner.resumed.contains(source) {
            return None;
        }
        inner.resumed.push(source.clone());
        Some(replay)
    }

    /// Whether this run goes on with something.
    pub fn has_replay(&self) -> bool {
        self.used().is_some_and(|inner| inner.as_ref().is_some_and(|inner| inner.replay.is_some()))
    }

    /// Notes that an agent comes to its turn. Gives how that turn ended, if it was done before this run went on: then the
    /// turns of those `below` it that belong to it are done, too.
    pub fn visit(&self, source: &Arc<Source>, below: impl FnOnce() -> Vec<SmolStr>) -> Option<AgentDone> {
        let (index, done) = self.visited(source)?;
        let below = below();
        let mut inner = self.used()?;
        let inner = inner.as_mut()?;
        inner.passed.retain(|(of, _)| !below.contains(of));
        inner.passed.extend(below.into_iter().map(|name| (name, index + 1)));
        Some(done)
    }

    /// The turn of an agent that comes next, and the place of its record.
    fn visited(&self, source: &Arc<Source>) -> Option<(usize, AgentDone)> {
        let mut inner = self.used()?;
        let inner = inner.as_mut()?;
        let replay = inner.replay.clone()?;
        let own = inner.visits.iter().filter(|(of, _)| of == source).map(|(_, next)| *next);
        let passed = inner.passed.iter().filter(|(of, _)| *of == source.author).map(|(_, next)| *next);
        let from = own.chain(passed).max().unwrap_or(0);
        let mut records = replay.records.iter().enumerate().skip(from);
        let (index, done) = records.find_map(|(index, (_, step))| match &**step {
            RunStep::AgentDone { done } if done.is_of(source) => Some((index, done)),
            _ => None,
        })?;
        inner.visits.retain(|(of, _)| of != source);
        inner.visits.push((source.clone(), index + 1));
        Some((index, (**done).clone()))
    }

    /// Takes in what people said.
    pub fn give_answers(&self, answers: Vec<(Interrupt, Answer)>) {
        if !answers.is_empty() {
            self.make().get_or_insert_default().answers.extend(answers);
        }
    }

    /// Takes in questions that were answered, where the answers have had their effect.
    pub fn give_settled(&self, questions: Vec<Interrupt>) {
        if !questions.is_empty() {
            self.make().get_or_insert_default().settled.extend(questions);
        }
    }

    /// Whether that question was answered in this run or the ones it goes on with.
    pub fn is_answered(&self, question: &CallId) -> bool {
        self.lock().as_ref().is_some_and(|inner| {
            let answered = inner.answers.iter().map(|(asked, _)| asked);
            answered.chain(&inner.settled).any(|asked| asked.id == *question)
        })
    }

    /// What people said to questions of an agent, be it about its calls.
    pub fn answers(&self, source: &Source) -> Vec<(Interrupt, Answer)> {
        let inner = self.lock();
        let answers = inner.iter().flat_map(|inner| inner.answers.iter());
        answers.filter(|(interrupt, _)| interrupt.address.is_of(source)).cloned().collect()
    }

    /// The answer to a question of an asker, if it was given about a call with these arguments.
    pub fn answer(&self, place: &Address, nth: u32, args: Option<&Object>) -> Option<Answer> {
        let inner = self.lock();
        let mut answers = inner.iter().flat_map(|inner| inner.answers.iter());
        answers.find(|(asked, _)| is_about(asked, place, nth, args)).map(|(_, answer)| answer.clone())
    }

    /// Whether the layer at that place asked about a call of the same batch, and was answered.
    pub fn is_batch_answered(&self, place: &Address) -> bool {
        let is_ours = |address: &Address| address.layer == place.layer && address.is_same_batch(place);
        self.lock().as_ref().is_some_and(|inner| {
            let answered = inner.answers.iter().map(|(asked, _)| asked);
            answered.chain(&inner.settled).any(|asked| is_ours(&asked.address))
        })
    }

    /// The answer to the asker's next question. An error by which it is asked, if there is none. An answer that was given
    /// about other arguments is none.
    pub fn ask(&self, place: Address, question: Question, args: Option<&Object>) -> Result<Answer> {
        let mut inner = self.make();
        let inner = inner.get_or_insert_default();
        let known = inner.asked.iter().position(|(asker, _)| *asker == place);
        let known = known.unwrap_or_else(|| {
            inner.asked.push((place.clone(), 0));
            inner.asked.len() - 1
        });
        let nth = inner.asked.get_mut(known).map_or(0, |(_, asked)| {
            *asked += 1;
            *asked - 1
        });
        let given = inner.answers.iter().find(|(asked, _)| is_about(asked, &place, nth, args));
        if let Some((_, answer)) = given {
            return Ok(answer.clone());
        }
        let by = place.layer.map_or(Asker::Itself, Asker::Layer);
        Err(Error::asked(question, Some(by), nth))
    }

    /// Forgets what was asked and said about a call, or by hooks of an agent: it is done. What is asked next from there is
    /// another matter.
    pub fn settle(&self, place: &Address) {
        let Some(mut inner) = self.used() else { return };
        let Some(inner) = inner.as_mut() else { return };
        let place = Address { layer: None, inner: None, nth: 0, ..place.clone() };
        let other = |address: &Address| {
            // What older sessions ask does not say by which event.
            let event = address.event.clone().or_else(|| place.event.clone());
            place != Address { layer: None, inner: None, nth: 0, event, ..address.clone() }
        };
        inner.asked.retain(|(asker, _)| other(asker));
        let used = inner.answers.extract_if(.., |(interrupt, _)| !other(&interrupt.address));
        inner.settled.extend(used.map(|(interrupt, _)| interrupt));
    }

    /// The handler of this run with that number, made if there is none yet. `make` may look at the run. If two make one at
    /// the same time, both get the one that was there first.
    pub fn handler(&self, number: u64, make: impl FnOnce() -> Arc<dyn Handler>) -> &dyn Handler {
        let mut place = &self.handlers;
        let (mut make, mut made) = (Some(make), None);
        loop {
            match place.get() {
                Some(known) if known.number == number => return &*known.handler,
                Some(known) => place = &known.next,
                None => {
                    made = made.or_else(|| {
                        let handler = make.take()?();
                        Some(Box::new(Made { number, handler, next: OnceLock::new() }))
                    });
                    // Others may have been made meanwhile, here too.
                    made = made.and_then(|made| place.set(made).err());
                }
            }
        }
    }

    /// What there is, if there is anything.
    fn used(&self) -> Option<MutexGuard<'_, Option<Box<Inner>>>> {
        self.used.load(Ordering::Acquire).then(|| self.lock())
    }

    /// What there is, to put something in.
    fn make(&self) -> MutexGuard<'_, Option<Box<Inner>>> {
        let inner = self.lock();
        self.used.store(true, Ordering::Release);
        inner
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Barrier, Weak, mpsc};
    use std::time::Duration;

    use super::*;

    /// Does something on another thread, and fails if that is blocked.
    fn unblocked<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, wait) = mpsc::channel();
        std::thread::spawn(move || done.send(act()));
        wait.recv_timeout(Duration::from_secs(20)).expect("nobody is blocked, and nobody panics")
    }

    #[test]
    fn a_value_may_be_made_of_others_of_the_run() {
        let (kept, made, own) = unblocked(|| {
            let values = RunValues::default();
            values.keep("n".into(), 7.into());
            values.insert(Arc::new(1_u8));
            let made = values.get_or_insert_with(|| {
                let inner = values.get_or_insert_with(|| 2_u16);
                let kept = values.kept("n").and_then(|n| n.as_u64()).unwrap();
                let given = values.extension::<u8>().unwrap();
                values.keep("m".into(), 8.into());
                kept + u64::from(*given) + u64::from(*inner)
            });
            (values.kept("m"), *made, *values.get_or_insert_with(|| 0_u64))
        });
        assert_eq!((kept, made, own), (Some(8.into()), 10, 10));
    }

    #[test]
    fn of_values_that_are_made_within_each_other_or_at_once_the_first_that_is_there_counts() {
        let (inner, outer) = unblocked(|| {
            let values = RunValues::default();
            let mut inner = None;
            let outer = values.get_or_insert_with(|| {
                inner = Some(values.get_or_insert_with(|| 1_u8));
                2_u8
            });
            (inner.unwrap(), outer)
        });
        assert!(Arc::ptr_eq(&inner, &outer));
        let (values, both) = (Arc::new(RunValues::default()), Arc::new(Barrier::new(2)));
        let make = |number: usize| {
            let (values, both) = (values.clone(), both.clone());
            move || {
                values.get_or_insert_with(|| {
                    // Both are at it before one is done.
                    both.wait();
                    number
                })
            }
        };
        let (first, second) = (make(1), make(2));
        let (first, second) = unblocked(move || {
            let other = std::thread::spawn(first);
            let second = second();
            (other.join().unwrap(), second)
        });
        assert!(Arc::ptr_eq(&first, &second));
    }

    /// Looks at the run when it is dropped.
    struct Looks(Weak<RunValues>, Arc<AtomicUsize>);

    impl Drop for Looks {
        fn drop(&mut self) {
            if let Some(values) = self.0.upgrade() {
                values.keep("dropped".into(), true.into());
                self.1.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    #[test]
    fn a_value_may_look_at_the_run_when_another_takes_its_place() {
        let dropped = Arc::new(AtomicUsize::new(0));
        let count = dropped.clone();
        let kept = unblocked(move || {
            let values = Arc::new(RunValues::default());
            let looks = || Looks(Arc::downgrade(&values), count.clone());
            values.insert(Arc::new(looks()));
            values.insert(Arc::new(looks()));
            let mut handed_down = Extensions::new();
            handed_down.insert(looks());
            values.inherit(&handed_down);
            // One that was made for nothing.
            values.get_or_insert_with(|| {
                values.get_or_insert_with(looks);
                looks()
            });
            values.kept("dropped")
        });
        assert_eq!((kept, dropped.load(Ordering::SeqCst)), (Some(true.into()), 3));
    }

    struct Plain(&'static str);

    impl Handler for Plain {
        fn name(&self) -> &str {
            self.0
        }
    }

    #[test]
    fn a_handler_of_a_run_may_be_made_with_others_of_the_run() {
        let names = unblocked(|| {
            let values = RunValues::default();
            let outer = values.handler(1, || {
                // Another one, which is there first, and itself once more.
                values.handler(2, || Arc::new(Plain("second")));
                values.handler(1, || Arc::new(Plain("within")));
                Arc::new(Plain("outer"))
            });
            let again = values.handler(1, || Arc::new(Plain("again")));
            let second = values.handler(2, || Arc::new(Plain("again")));
            [outer, again, second].map(|handler| handler.name().to_owned())
        });
        assert_eq!(names, ["within", "within", "second"]);
    }

    #[test]
    fn who_is_below_an_agent_may_be_asked_of_the_run() {
        let passed = unblocked(|| {
            let values = RunValues::default();
            let source = Arc::new(Source::new("a"));
            let done = serde_json::from_value(serde_json::json!({"agent": "a"})).unwrap();
            let records = vec![(1, Arc::new(RunStep::AgentDone { done: Box::new(done) }))];
            values.set_replay(Replay { from: 0, records });
            let visited = values.visit(&source, || {
                assert!(values.has_replay());
                vec!["b".into()]
            });
            visited.is_some() && values.visit(&source, Vec::new).is_none()
        });
        assert!(passed);
    }
}
