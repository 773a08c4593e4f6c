//! A log as the oracle reads it: a second, plain implementation of what a log means.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use umbel::{CallId, Event, EventId, LogEntry, Outcome, RunId, RunStep};

/// A run of a log.
#[derive(Clone, Debug, Default)]
pub(super) struct LoggedRun {
    pub(super) outcomes: Vec<Outcome>,
    /// A later process went on with it.
    pub(super) recovered: bool,
    /// Events of the run, without those of the user.
    pub(super) events: Vec<Arc<Event>>,
}

/// What a log means.
#[derive(Clone, Debug, Default)]
pub(super) struct LogModel {
    pub(super) events: Vec<Arc<Event>>,
    pub(super) runs: BTreeMap<RunId, LoggedRun>,
    /// What must not be in a log, with the check that says so.
    pub(super) faults: Vec<(&'static str, String)>,
    ids: BTreeSet<EventId>,
    live: LiveState,
    /// All questions and calls, live or void.
    asked: BTreeSet<CallId>,
    called: BTreeSet<CallId>,
}

/// What follows from the part of a log that no rewind made void.
#[derive(Clone, Debug, Default)]
struct LiveState {
    asked: BTreeSet<CallId>,
    called: BTreeSet<CallId>,
    /// The runs that ended, and whether they can be continued if they are the last.
    ended: Vec<(RunId, bool)>,
    /// The run that has no outcome yet.
    current: Option<RunId>,
    last_run: RunId,
}

/// The run that a rewind goes back to.
fn rewinds_to(entry: &LogEntry) -> Option<&RunId> {
    let LogEntry::Event(event) = entry else { return None };
    event.actions.as_ref()?.rewind_before_invocation_id.as_ref()
}

/// The entries that no rewind made void, in order. A rewind that is void itself does nothing.
fn live_entries(entries: &[LogEntry]) -> Vec<&LogEntry> {
    let (mut live, mut end) = (Vec::new(), entries.len());
    while let Some(entry) = end.checked_sub(1).and_then(|place| entries.get(place)) {
        end -= 1;
        let Some(run) = rewinds_to(entry) else {
            live.push(entry);
            continue;
        };
        let is_first = |entry: &LogEntry| match entry {
            LogEntry::Event(event) => event.run == *run,
            LogEntry::Record(step) => {
                matches!(&**step, RunStep::Continued { continued } if continued.run == *run)
            }
        };
        end = entries.iter().position(is_first).unwrap_or(end).min(end);
    }
    live.reverse();
    live
}

impl LiveState {
    fn take(&mut self, entry: &LogEntry) {
        match entry {
            LogEntry::Event(event) => {
                self.last_run = event.run.clone();
                self.called.extend(event.calls().filter_map(|call| call.id.clone()));
            }
            LogEntry::Record(step) => self.take_step(step),
        }
    }

    fn take_step(&mut self, step: &RunStep) {
        match step {
            RunStep::Started { .. } => self.current = Some(self.last_run.clone()),
            RunStep::Continued { continued } => self.current = Some(continued.run.clone()),
            RunStep::Asked { interrupts } => {
                self.asked.extend(interrupts.iter().map(|asked| asked.id.clone()));
            }
            RunStep::Ended { outcome } => {
                if let Outcome::Interrupted { interrupts } = outcome {
                    self.asked.extend(interrupts.iter().map(|asked| asked.id.clone()));
                }
                let can_continue = matches!(outcome, Outcome::Cancelled | Outcome::Failed { .. });
                if let Some(run) = self.current.take() {
                    self.ended.push((run, can_continue));
                }
            }
            _ => {}
        }
    }
}

impl LogModel {
    pub(super) fn read(entries: &[LogEntry]) -> Self {
        let mut model = Self::default();
        for (place, entry) in entries.iter().enumerate() {
            match entry {
                LogEntry::Event(event) => model.take_event(event),
                LogEntry::Record(step) => model.check_step(step),
            }
            if rewinds_to(entry).is_some() {
                let before = entries.get(..=place).unwrap_or_default();
                model.live = LiveState::default();
                live_entries(before).into_iter().for_each(|entry| model.live.take(entry));
            } else {
                model.live.take(entry);
            }
            model.asked.extend(model.live.asked.iter().cloned());
        }
        model
    }

    fn fault(&mut self, check: &'static str, detail: String) {
        self.faults.push((check, detail));
    }

    fn take_event(&mut self, event: &Arc<Event>) {
        if !self.ids.insert(event.id.clone()) {
            self.fault("event-once", format!("event {} is in the log twice", event.id));
        }
        if event.is_user() {
            self.check_message(event);
        } else {
            self.runs.entry(event.run.clone()).or_default().events.push(event.clone());
        }
        self.called.extend(event.calls().filter_map(|call| call.id.clone()));
        self.events.push(event.clone());
    }

    fn check_message(&mut self, event: &Event) {
        if let Some(scope) = &event.source.isolation_scope
            && self.called.contains(scope.as_str())
            && !self.live.called.contains(scope.as_str())
        {
            self.fault("void-task", format!("message {} went to a task of a void run", event.id));
        }
        for id in event.responses().filter_map(|response| response.id.clone()) {
            if self.is_void_question(&id) {
                self.fault("void-answer", format!("event {} answers a question of a void run", event.id));
            }
        }
    }

    fn check_step(&mut self, step: &RunStep) {
        match step {
            RunStep::Started { .. } => {
                let run = self.live.last_run.clone();
                self.check_begin(run);
            }
            RunStep::Continued { continued } => {
                if !self.live.ended.last().is_some_and(|(_, can)| *can) {
                    let detail = format!("{} continues, and there is nothing to continue", continued.run);
                    self.fault("void-continued", detail);
                }
                self.check_begin(continued.run.clone());
            }
            RunStep::Recovered => match self.live.current.clone() {
                Some(run) => self.runs.entry(run).or_default().recovered = true,
                None => self.fault("one-run", "a run that ended was recovered".to_owned()),
            },
            RunStep::Ended { outcome } => match self.live.current.clone() {
                Some(run) => self.runs.entry(run).or_default().outcomes.push(outcome.clone()),
                None => self.fault("one-outcome", format!("an outcome without a run: {outcome:?}")),
            },
            _ => {}
        }
    }

    fn check_begin(&mut self, run: RunId) {
        if let Some(other) = self.live.current.clone() {
            self.fault("one-run", format!("{run} begins before {other} has an outcome"));
        }
        self.runs.entry(run).or_default();
    }

    /// Whether a question was asked, and a rewind made that void.
    pub(super) fn is_void_question(&self, id: &CallId) -> bool {
        self.asked.contains(id) && !self.live.asked.contains(id)
    }

    /// The run that has no outcome, if there is one.
    pub(super) fn unfinished(&self) -> Option<&RunId> {
        self.live.current.as_ref()
    }

    pub(super) fn has_event(&self, id: &EventId) -> bool {
        self.ids.contains(id)
    }
}
