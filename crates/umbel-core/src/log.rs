//! The one log of a session: events, which are seen, and run records, which a run needs to go on.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use smol_str::SmolStr;

use crate::actions::Actions;
use crate::error::{Error, ErrorKind};
use crate::event::{Event, Source};
use crate::id::{CallId, RunId};
use crate::interrupt::Interrupt;
use crate::part::Part;
use crate::transcript::Edit;

/// One entry of a session's log. Its place in the log is its version.
#[derive(Clone, Debug, PartialEq)]
pub enum LogEntry {
    /// Seen by people and models.
    Event(Arc<Event>),
    /// Seen by the runtime only. It belongs to the run of the event before it: a log has one writer at a time.
    Record(Arc<RunStep>),
}

impl LogEntry {
    /// The event, if it is one.
    pub fn event(&self) -> Option<&Arc<Event>> {
        match self {
            Self::Event(event) => Some(event),
            Self::Record(_) => None,
        }
    }

    /// The run that begins with this entry, or goes on with it.
    fn run(&self) -> Option<&RunId> {
        match self {
            Self::Event(event) => Some(&event.run),
            Self::Record(step) => match &**step {
                RunStep::Continued { continued } => Some(&continued.run),
                _ => None,
            },
        }
    }
}

/// Which entries of a log are live: neither void since a rewind took them back, nor a rewind themselves. Whatever is
/// derived from a log, but for its state, is derived from its live entries. `None` if there is no rewind: all are live.
///
/// A rewind makes the first entry of its run and all that follow void, up to itself.
pub fn live_entries<'a>(entries: &'a [LogEntry]) -> Option<Vec<bool>> {
    let target = |entry: &'a LogEntry| entry.event()?.rewinds_to();
    if !entries.iter().any(|entry| target(entry).is_some()) {
        return None;
    }
    let mut firsts: HashMap<&RunId, usize> = HashMap::new();
    for (place, entry) in entries.iter().enumerate() {
        entry.run().map(|run| firsts.entry(run).or_insert(place));
    }
    let mut live = vec![true; entries.len()];
    let mut end = entries.len();
    while let Some((last, before)) = entries.get(..end).and_then(<[LogEntry]>::split_last) {
        end = before.len();
        let Some(run) = target(last) else { continue };
        let first = firsts.get(run).copied().filter(|first| *first < end).unwrap_or(end);
        live.iter_mut().skip(first).take(end + 1 - first).for_each(|live| *live = false);
        end = first;
    }
    Some(live)
}

impl From<Arc<Event>> for LogEntry {
    fn from(event: Arc<Event>) -> Self {
        Self::Event(event)
    }
}

impl From<RunStep> for LogEntry {
    fn from(step: RunStep) -> Self {
        // Nearly all runs end like this, so they share the record.
        static FINISHED: LazyLock<Arc<RunStep>> =
            LazyLock::new(|| Arc::new(RunStep::Ended { outcome: Outcome::Finished }));
        match step {
            RunStep::Ended { outcome: Outcome::Finished } => Self::Record(FINISHED.clone()),
            step => Self::Record(Arc::new(step)),
        }
    }
}

/// What happened in a run, as far as it is needed to go on in another process. Payloads are boxed: most records have
/// none, and a log holds many.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum RunStep {
    /// The run began.
    Started {
        /// A digest of the agent tree, so that another build can tell whether it knows this run.
        fingerprint: u64,
    },
    /// Calls are about to run.
    CallsStarted {
        /// Their ids, in call order.
        calls: Box<Vec<CallId>>,
    },
    /// A call has its result, before its siblings have theirs.
    CallFinished {
        /// Which, and what it gave.
        finished: Box<CallFinished>,
    },
    /// Handlers changed the conversation of an agent, for this run.
    Edited {
        /// Whose, and how.
        edited: Box<Edited>,
    },
    /// A handler keeps a value in the run's state.
    Kept {
        /// Which.
        kept: Box<Kept>,
    },
    /// People are asked.
    Asked {
        /// What.
        interrupts: Box<Vec<Interrupt>>,
    },
    /// An agent below another one has done its work.
    AgentDone {
        /// Which.
        done: Box<AgentDone>,
    },
    /// Another process, or the same one later, goes on with a run that stopped in the middle.
    Recovered,
    /// A run goes on with what the one before it left. It has no message of its own.
    Continued {
        /// That run, and what began it.
        continued: Box<Continued>,
    },
    /// The run ended.
    Ended {
        /// How.
        outcome: Outcome,
    },
}

/// The result of one call of a batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallFinished {
    /// Which.
    pub call: CallId,
    /// What it gave; absent if the answer comes later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Part>,
    /// The same in words, if nobody sums it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<Part>,
    /// What it did besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actions: Option<Box<Actions>>,
}

/// The end of an agent's work below another one, so that it is not done again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentDone {
    /// The agent.
    pub agent: SmolStr,
    /// Its branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<SmolStr>,
    /// The call it works under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation_scope: Option<SmolStr>,
    /// Whether it, or one below it, asked to end the enclosing loop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escalated: bool,
    /// Whether it did so itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escalates: bool,
}

impl AgentDone {
    /// Whether it is about the agent that speaks from there.
    pub fn is_of(&self, source: &Source) -> bool {
        self.agent == source.author
            && self.branch == source.branch
            && self.isolation_scope == source.isolation_scope
    }
}

/// The beginning of a run that goes on with what another left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continued {
    /// The run that begins.
    pub run: RunId,
    /// A digest of the agent tree.
    pub fingerprint: u64,
}

/// Changes to the conversation of one agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Edited {
    /// The agent.
    pub agent: SmolStr,
    /// Its branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<SmolStr>,
    /// The call it works under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation_scope: Option<SmolStr>,
    /// The changes, in order.
    pub edits: Vec<Edit>,
}

impl Edited {
    /// Changes to the conversation of the agent that speaks from there.
    pub fn new(source: &Source, edits: Vec<Edit>) -> Self {
        let Source { author, branch, isolation_scope } = source.clone();
        Self { agent: author, branch, isolation_scope, edits }
    }

    /// Where that agent speaks from.
    pub fn source(&self) -> Source {
        Source {
            author: self.agent.clone(),
            branch: self.branch.clone(),
            isolation_scope: self.isolation_scope.clone(),
        }
    }
}

/// A value in a run's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Its name.
    pub key: SmolStr,
    /// What it is; `null` drops it.
    pub value: Value,
}

/// How a run ended. Every run has exactly one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Outcome {
    /// The agent said its last word.
    Finished,
    /// A person is asked; the run goes on when the answers come.
    Interrupted {
        /// What is asked.
        interrupts: Box<Vec<Interrupt>>,
    },
    /// It was cancelled, or its reader went away.
    Cancelled,
    /// It failed.
    Failed {
        /// Why.
        failure: Box<Failure>,
    },
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of error, [`ErrorKind::code`](crate::ErrorKind::code).
    pub code: SmolStr,
    /// What happened, in words.
    pub message: String,
}

impl Outcome {
    /// Whether the run came to its end: it finished, or waits for people.
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Finished | Self::Interrupted { .. })
    }

    /// The outcome of a run that ended with this error.
    pub fn from_error(error: &Error) -> Self {
        if error.kind() == ErrorKind::Cancelled {
            Self::Cancelled
        } else {
            let failure = Failure { code: error.kind().code().into(), message: error.message().to_owned() };
            Self::Failed { failure: Box::new(failure) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn records_have_a_json_form_and_are_small() {
        let failure = Box::new(Failure { code: "X".into(), message: "m".into() });
        let step = RunStep::Ended { outcome: Outcome::Failed { failure } };
        let value = serde_json::to_value(&step).unwrap();
        let failed = json!({"kind": "failed", "failure": {"code": "X", "message": "m"}});
        assert_eq!(value, json!({"step": "ended", "outcome": failed}));
        assert_eq!(serde_json::from_value::<RunStep>(value).unwrap(), step);
        assert!(size_of::<RunStep>() <= 16, "{}", size_of::<RunStep>());
    }

    /// The plain way, for a log of events alone: a rewind cuts off what was live from the first event of its run on.
    fn live_plainly(entries: &[LogEntry]) -> Vec<bool> {
        let mut live = vec![false; entries.len()];
        let mut end = entries.len();
        while end > 0 {
            end -= 1;
            match entries[end].event().unwrap().rewinds_to() {
                None => live[end] = true,
                Some(run) => {
                    let first = entries[..end].iter().position(|entry| entry.event().unwrap().run == *run);
                    end = first.unwrap_or(end);
                }
            }
        }
        live
    }

    #[test]
    fn what_is_live_is_the_same_by_the_plain_way() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..500 {
            let entry = |run: u64, rewinds: Option<u64>| {
                let mut event = Event::new(RunId::from(format!("r{run}")), Source::user());
                if let Some(run) = rewinds {
                    event.actions_mut().rewind_before_invocation_id = Some(RunId::from(format!("r{run}")));
                }
                LogEntry::Event(Arc::new(event))
            };
            let length = random(20);
            let entries: Vec<LogEntry> =
                (0..length).map(|_| entry(random(6), (random(3) == 0).then(|| random(8)))).collect();
            let live = live_entries(&entries).unwrap_or_else(|| vec![true; entries.len()]);
            assert_eq!(live, live_plainly(&entries), "{entries:?}");
        }
    }
}
