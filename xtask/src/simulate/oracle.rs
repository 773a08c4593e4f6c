//! What must be true of a simulated world, whatever went wrong in it.

use std::collections::BTreeSet;

use serde_json::json;
use umbel::store::IdleFilter;
use umbel::title::title_of_log;
use umbel::weight::json_bytes;
use umbel::{CallId, ErrorKind, EventId, LogEntry, Outcome, Runner, SessionKey, StateScope, Versions};

use super::fault_store::wait_now;
use super::ledger::{EmitNote, ReaderNote};
use super::log_model::{LogModel, LoggedRun};
use super::person::Person;
use super::simulation::{APP, SimProcess, Stage, take_panics};
use super::tools::DONE;
use super::world::{HandlerShape, PersonAct, ReaderStop, ToolAct};

/// More entries than any log of a world needs.
const LONGEST_LOG: usize = 2_000;

/// The checks of one simulation.
#[derive(Debug)]
pub(super) struct Oracle<'a> {
    pub(super) stage: &'a Stage,
}

/// An error of the store, or of who has the session: then a reader knows nothing of the outcome.
fn is_of_store(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Store
            | ErrorKind::Fenced
            | ErrorKind::StaleSession
            | ErrorKind::SessionBusy
            | ErrorKind::SessionAbandoned
            | ErrorKind::SessionNotFound
    )
}

impl Oracle<'_> {
    fn log(&self, key: &SessionKey) -> Option<Vec<LogEntry>> {
        let news = wait_now(self.stage.store.news(key, Versions::default()));
        news.ok().flatten().map(|news| news.entries)
    }

    fn violate(&self, check: &'static str, detail: String) {
        self.stage.ledger.violate(check, detail);
    }

    /// All sessions that exist, those of calls included.
    fn keys(&self) -> Vec<SessionKey> {
        let state = self.stage.ledger.lock();
        let alive = state.sessions.difference(&state.deleted);
        alive.filter_map(|(user, id)| SessionKey::new(APP, user, id).ok()).collect()
    }

    fn is_deleted(&self, key: &SessionKey) -> bool {
        let state = self.stage.ledger.lock();
        state.deleted.contains(&(key.user().to_owned(), key.id().to_owned()))
    }

    /// Checks that hold at every moment.
    pub(super) fn after_group(&self) {
        for panic in take_panics() {
            self.violate("no-panic", panic);
        }
        let models = self.models();
        for (key, model) in &models {
            if model.events.len() > LONGEST_LOG {
                self.violate("bounded", format!("the log of {key} has {} events", model.events.len()));
            }
            for (check, detail) in &model.faults {
                self.violate(check, format!("{key}: {detail}"));
            }
        }
        let readers = self.stage.ledger.lock().readers.clone();
        let empty = LogModel::default();
        for reader in readers.iter().filter(|reader| !reader.is_past) {
            self.shown_is_logged(reader, model_of(&models, &reader.key).unwrap_or(&empty));
        }
    }

    /// All logs, read.
    fn models(&self) -> Vec<(SessionKey, LogModel)> {
        let read = |key: SessionKey| Some((key.clone(), LogModel::read(&self.log(&key)?)));
        self.keys().into_iter().filter_map(read).collect()
    }

    /// What a reader was shown is in the log, in that order.
    fn shown_is_logged(&self, reader: &ReaderNote, model: &LogModel) {
        let mut logged = model.events.iter().map(|event| &event.id);
        for shown in &reader.shown {
            if !logged.any(|id| id == shown) {
                let what = if model.has_event(shown) { "in another order" } else { "not in the log" };
                self.violate("shown-is-logged", format!("{shown} of {} is {what}", reader.run));
                return;
            }
        }
    }

    /// Checks when all is quiet and recovered. Gives the logs as text.
    pub(super) async fn at_end(&self, process: &SimProcess) -> Vec<String> {
        self.after_group();
        self.leases();
        self.summaries();
        let readers = self.stage.ledger.lock().readers.clone();
        let emits = self.stage.ledger.lock().emits.clone();
        let (models, empty) = (self.models(), LogModel::default());
        for (key, model) in &models {
            if let Some(run) = model.unfinished() {
                self.violate("one-outcome", format!("{key}: {run} has no outcome"));
            }
            self.emitted_is_logged(key, model, &emits);
            self.calls_are_answered(key, model);
        }
        for reader in readers.iter().filter(|reader| !reader.is_past) {
            self.reader_was_told(reader, model_of(&models, &reader.key).unwrap_or(&empty));
        }
        self.effects(&models);
        self.hot_equals_cold(process).await;
        self.probe(process).await;
        self.after_group();
        self.logs()
    }

    /// The logs as text, for a comparison with another simulation.
    fn logs(&self) -> Vec<String> {
        let mut logs = Vec::new();
        for key in self.keys() {
            for entry in self.log(&key).unwrap_or_default() {
                let text = match entry {
                    LogEntry::Event(event) => {
                        // When it happened is part of the trace, and not of what must be the same without a cache.
                        let mut event = umbel::Event::clone(&event);
                        event.timestamp = 0.0;
                        if event.compaction().is_some()
                            && let Some(compaction) = &mut event.actions_mut().compaction
                        {
                            (compaction.start_timestamp, compaction.end_timestamp) = (None, None);
                        }
                        serde_json::to_string(&event).unwrap_or_default()
                    }
                    LogEntry::Record(step) => serde_json::to_string(&*step).unwrap_or_default(),
                };
                let at = self.stage.clock.elapsed();
                self.stage.ledger.trace(at, "log", || text.clone());
                logs.push(format!("{} {text}", key.id()));
            }
        }
        logs
    }

    /// No lease is held when nothing runs.
    fn leases(&self) {
        let idle = wait_now(self.stage.store.idle(APP, IdleFilter::before(f64::MAX))).unwrap_or_default();
        for one in idle {
            if one.held || one.abandoned {
                self.violate(
                    "no-lease",
                    format!("{} is held ({}) or abandoned ({})", one.key, one.held, one.abandoned),
                );
            }
        }
        let abandoned = wait_now(self.stage.store.abandoned(APP)).unwrap_or_default();
        if let Some(one) = abandoned.first() {
            self.violate("no-lease", format!("{} is abandoned", one.key));
        }
    }

    /// The title and the size that the store keeps beside a log are those of the log.
    fn summaries(&self) {
        for key in self.keys() {
            let found = wait_now(self.stage.store.summary(&key)).ok().flatten();
            let log = wait_now(self.stage.store.news(&key, Versions::default())).ok().flatten();
            let (Some(found), Some(log)) = (found, log) else { continue };
            let first = log.session_state.as_deref().map_or(0, json_bytes);
            let bytes = log.entries.iter().map(|entry| match entry {
                LogEntry::Event(event) => json_bytes(&**event),
                LogEntry::Record(step) => json_bytes(&**step),
            });
            let expected = (title_of_log(&log.entries), first + bytes.sum::<u64>());
            if (&found.title, found.bytes) != (&expected.0, expected.1) {
                let detail =
                    format!("{key} has {:?} and {} bytes, not {expected:?}", found.title, found.bytes);
                self.violate("index", detail);
            }
        }
    }

    /// What a reader was told is what the log says.
    fn reader_was_told(&self, reader: &ReaderNote, model: &LogModel) {
        let Some(outcome) = &reader.outcome else { return };
        if reader.error.as_ref().is_some_and(|error| is_of_store(error.kind())) {
            return;
        }
        let logged = model.runs.get(&reader.run).filter(|run| !run.outcomes.is_empty());
        let Some(run) = logged else {
            let began = model.events.iter().any(|event| event.run == reader.run);
            if began || matches!(outcome, Outcome::Finished | Outcome::Interrupted { .. }) {
                let detail = format!("{} was told {outcome:?}, and the log has no outcome", reader.run);
                self.violate("outcome-told", detail);
            }
            return;
        };
        if run.outcomes.last() != Some(outcome) {
            let check = if reader.is_logged { "outcome-told" } else { "outcome-unwritten" };
            let detail = format!("{} was told {outcome:?}, and the log says {:?}", reader.run, run.outcomes);
            self.violate(check, detail);
        }
        if *outcome == Outcome::Finished && !run.recovered {
            self.all_is_shown(reader, run);
        }
    }

    /// All events of a finished run were shown to the reader who read to its end.
    fn all_is_shown(&self, reader: &ReaderNote, run: &LoggedRun) {
        if self.stage.world.has_handler(HandlerShape::HidesOutput) {
            return;
        }
        let shown: BTreeSet<&EventId> = reader.shown.iter().collect();
        if let Some(missing) = run.events.iter().find(|event| !shown.contains(&event.id)) {
            let detail = format!("{} of {} was never shown: {}", missing.id, reader.run, missing.text());
            self.violate("logged-is-shown", detail);
        }
    }

    /// What `emit` said to be stored is stored.
    fn emitted_is_logged(&self, key: &SessionKey, model: &LogModel, emits: &[EmitNote]) {
        for note in emits.iter().filter(|note| note.key == *key) {
            if model.has_event(&note.event) {
                continue;
            }
            // The last word of a run is stored with its outcome, or not at all.
            let ended_well =
                |run: &LoggedRun| !run.recovered && run.outcomes.last() == Some(&Outcome::Finished);
            if !note.is_held || model.runs.get(&note.run).is_some_and(ended_well) {
                self.violate("emit-is-logged", format!("{} of {} is not in the log", note.event, note.run));
            }
        }
    }

    /// A call of a finished run has a response, unless an agent was cut short on purpose.
    fn calls_are_answered(&self, key: &SessionKey, model: &LogModel) {
        if self.stage.world.cuts_agents() {
            return;
        }
        for (id, run) in &model.runs {
            if run.outcomes.last() != Some(&Outcome::Finished) {
                continue;
            }
            // An agent below a call ends with the time limit of that call.
            for event in run.events.iter().filter(|event| event.source.isolation_scope.is_none()) {
                let waits = event.long_running();
                for call in event.calls().filter_map(|call| call.id.as_ref()).filter(|id| !waits.contains(id))
                {
                    let is_answered = model.events.iter().any(|other| other.answered().any(|id| id == call));
                    if !is_answered {
                        self.violate("call-answered", format!("{key}: call {call} of {id} has no response"));
                    }
                }
            }
        }
    }

    /// No effect twice, and none that is only claimed.
    fn effects(&self, models: &[(SessionKey, LogModel)]) {
        let effects = self.stage.ledger.lock().effects.clone();
        for (call, effect) in &effects {
            // A rewind takes back what was said, not what was done: a call that is approved again is made again.
            let asked = if self.stage.world.asks_unfinished { 9 } else { 0 };
            let allowed = 1 + effect.retries + asked + self.stage.world.rewinds();
            if !effect.idempotent && effect.count > allowed {
                self.violate(
                    "effect-once",
                    format!("{} of {call} happened {} times", effect.tool, effect.count),
                );
            }
        }
        for (key, model) in models {
            let responses = model.events.iter().flat_map(|event| event.responses());
            for response in responses.filter(|response| response.name.starts_with('t')) {
                let Some(done) = response.response.as_ref().and_then(|answer| answer.get(DONE)) else {
                    continue;
                };
                let call = done.as_str().unwrap_or_default();
                if effects.get(call).is_none_or(|effect| effect.count == 0) {
                    self.violate("effect-happened", format!("{key}: {call} says it is done"));
                }
            }
        }
    }

    /// What the runner keeps of a session is what a fresh one reads, and what the store's index says.
    async fn hot_equals_cold(&self, process: &SimProcess) {
        let Ok(cold) = self.stage.cold_runner() else { return };
        let index = wait_now(self.stage.store.open_questions(APP, None)).unwrap_or_default();
        for key in self.stage.all_sessions() {
            let cold = view(&cold, &key).await;
            for (name, runner) in [("first", &process.runner), ("second", &process.second)] {
                let hot = view(runner, &key).await;
                if hot != cold {
                    self.violate(
                        "hot-equals-cold",
                        format!("{key}, {name} runner: {hot:?}\nand cold: {cold:?}"),
                    );
                }
            }
            let Some(cold) = cold else { continue };
            if let Some(run) = &cold.running {
                self.violate("nothing-runs", format!("{key}: {run} is said to be under way"));
            }
            let open: BTreeSet<CallId> = cold.open.iter().cloned().collect();
            let in_index: BTreeSet<CallId> = index
                .iter()
                .filter(|question| question.key == key)
                .map(|question| question.interrupt.id.clone())
                .collect();
            if open != in_index {
                let detail = format!("{key}: the runner has {open:?} open, the index {in_index:?}");
                self.violate("index-equals-log", detail);
            }
            let model = LogModel::read(&self.log(&key).unwrap_or_default());
            if let Some(id) = open.iter().find(|id| model.is_void_question(id)) {
                self.violate("void-question", format!("{key}: {id} of a void run is open"));
            }
        }
    }

    /// A last message in each session: whatever happened, people can go on.
    async fn probe(&self, process: &SimProcess) {
        let sessions = self.stage.all_sessions();
        let can_go_on = self.stage.longest_run().is_some()
            && !self.stage.world.root.any(&|agent| {
                matches!(&agent.kind, super::world::KindShape::Llm { tools, .. }
                    if tools.iter().any(|tool| tool.act == ToolAct::WritesBadKey))
            });
        for (number, key) in sessions.iter().enumerate() {
            if self.is_deleted(key) || !can_go_on {
                continue;
            }
            let before = self.stage.ledger.lock().readers.len();
            let session = u8::try_from(number).unwrap_or_default();
            let person = Person { process, runner: &process.runner, session };
            person.act(&PersonAct::Message(ReaderStop::ReadsAll)).await;
            let state = self.stage.ledger.lock();
            let told = state.readers.get(before).and_then(|note| note.error.clone());
            drop(state);
            if let Some(error) = told.filter(|error| is_of_store(error.kind())) {
                self.violate("session-usable", format!("{key}: {error}"));
            }
        }
    }
}

fn model_of<'a>(models: &'a [(SessionKey, LogModel)], key: &SessionKey) -> Option<&'a LogModel> {
    models.iter().find(|(known, _)| known == key).map(|(_, model)| model)
}

/// A session as a runner sees it, without what a store does not keep.
#[derive(Clone, Debug, PartialEq)]
struct PlainView {
    events: Vec<EventId>,
    state: serde_json::Value,
    open: Vec<CallId>,
    running: Option<String>,
}

async fn view(runner: &Runner, key: &SessionKey) -> Option<PlainView> {
    let view = runner.session(key).await.ok().flatten()?;
    let scope = |scope| json!(*view.state.scope(scope));
    Some(PlainView {
        events: view.events.iter().map(|event| event.id.clone()).collect(),
        state: json!([scope(StateScope::Session), scope(StateScope::User), scope(StateScope::App)]),
        open: view.open.iter().map(|asked| asked.id.clone()).collect(),
        running: view.running.map(|run| run.to_string()),
    })
}
