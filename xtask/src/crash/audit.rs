//! What must be true of the logs when everything was recovered, whatever was killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::AddAssign;

use umbel::{CallId, Event, FunctionResponse, Interrupt, LogEntry, Outcome, Part, Payload, RunStep};

use super::files::Effect;
use super::scenario::{DONE, IDEMPOTENT, WITH_EFFECT};

/// One session as it is stored.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) session: String,
    /// What its store says how long it is.
    pub(super) version: u64,
    pub(super) entries: Vec<LogEntry>,
}

/// The reason of a question about a call that was cut short.
pub(super) const UNFINISHED: &str = "unfinished";

/// How a run should go: what each of its events is, and how often. Runs are told apart by how they begin.
pub(super) type Shapes = BTreeMap<String, BTreeMap<String, u32>>;

/// All there is to look at.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    pub(super) logs: Vec<Log>,
    /// Events that a reader saw.
    pub(super) seen: Vec<String>,
    /// What happened, by call.
    pub(super) effects: BTreeMap<String, Vec<Effect>>,
    /// How undisturbed runs went.
    pub(super) shapes: Shapes,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    pub(super) runs: u32,
    pub(super) finished: u32,
    pub(super) events_lost: u32,
    pub(super) events_doubled: u32,
    pub(super) effects_doubled: u32,
    pub(super) effects_missing: u32,
    /// Calls of which nobody knew what came of them: the model was told so, or a person was asked.
    pub(super) unknown: u32,
    pub(super) repeats: u32,
    /// Whatever should not be, the above included.
    pub(super) problems: Vec<String>,
}

impl AddAssign for Findings {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.finished += other.finished;
        self.events_lost += other.events_lost;
        self.events_doubled += other.events_doubled;
        self.effects_doubled += other.effects_doubled;
        self.effects_missing += other.effects_missing;
        self.unknown += other.unknown;
        self.repeats += other.repeats;
        self.problems.extend(other.problems);
    }
}

/// One call of a model, and all that the log has about it.
#[derive(Default)]
struct Call {
    tool: String,
    asked: u32,
    started: bool,
    /// A record says that it finished with an answer of the tool.
    recorded: bool,
    /// Answers of the tool itself.
    done: u32,
    /// Answers by which it waits for a person.
    waits: u32,
    /// How often people were asked what came of it.
    questions: u32,
    /// They were asked though nothing was in doubt.
    needless: bool,
    /// Other answers, as they are.
    others: Vec<String>,
}

/// A run of a log.
#[derive(Default)]
struct RunOf {
    first: String,
    events: BTreeMap<String, u32>,
    outcomes: Vec<Outcome>,
}

impl Evidence {
    pub(super) fn audit(&self) -> Findings {
        let mut findings = Findings::default();
        self.count_events(&mut findings);
        for log in &self.logs {
            if log.version != log.entries.len() as u64 {
                let (version, len) = (log.version, log.entries.len());
                findings
                    .problems
                    .push(format!("{}: {len} entries at version {version}: versions have gaps", log.session));
            }
            for (id, run) in runs(log) {
                findings.runs += 1;
                self.look_at_run(&format!("{} run {id}", log.session), &run, &mut findings);
            }
            for (id, call) in calls(log) {
                self.look_at_call(
                    &format!("{} call {id} of {}", log.session, call.tool),
                    &id,
                    &call,
                    &mut findings,
                );
            }
        }
        findings
    }

    /// Events that stand in the logs twice, and events that were seen and do not stand there.
    fn count_events(&self, findings: &mut Findings) {
        let mut stored = BTreeSet::new();
        for log in &self.logs {
            for event in events(log) {
                if !stored.insert(event.id.as_str()) {
                    findings.events_doubled += 1;
                    findings.problems.push(format!("{}: event {} stands there twice", log.session, event.id));
                }
            }
        }
        for id in self.seen.iter().filter(|id| !stored.contains(id.as_str())) {
            findings.events_lost += 1;
            findings.problems.push(format!("event {id} was seen and is in no log"));
        }
    }

    /// A run has one outcome, and went as a run goes that nobody disturbs.
    fn look_at_run(&self, name: &str, run: &RunOf, findings: &mut Findings) {
        // A run that waits for a person, or that was told to stop, ends and can be gone on with.
        let (last, before) = match run.outcomes.split_last() {
            Some((last, before)) => (Some(last), before),
            None => (None, [].as_slice()),
        };
        let waited =
            before.iter().all(|outcome| matches!(outcome, Outcome::Interrupted { .. } | Outcome::Cancelled));
        match last {
            Some(Outcome::Finished | Outcome::Interrupted { .. }) if waited => findings.finished += 1,
            Some(_) if !waited => {
                findings.problems.push(format!("{name} has {} outcomes", run.outcomes.len()));
            }
            Some(other) => findings.problems.push(format!("{name} ended as {other:?}")),
            None => findings.problems.push(format!("{name} has no outcome")),
        }
        let Some(shape) = self.shapes.get(&run.first) else {
            findings.problems.push(format!("{name} begins as none does: {}", run.first));
            return;
        };
        let count = |events: &BTreeMap<String, u32>, event: &str| events.get(event).copied().unwrap_or(0);
        let all: BTreeSet<&String> = shape.keys().chain(run.events.keys()).collect();
        for event in all {
            let (is, should) = (count(&run.events, event), count(shape, event));
            if is > should {
                findings.events_doubled += is - should;
                findings.problems.push(format!("{name} has `{event}` {is} times instead of {should}"));
            }
            if is < should {
                findings.events_lost += should - is;
                findings.problems.push(format!("{name} has `{event}` {is} times instead of {should}"));
            }
        }
    }

    /// A call has one answer, and what it did fits to what the log says about it.
    fn look_at_call(&self, name: &str, id: &str, call: &Call, findings: &mut Findings) {
        let answers = call.done + u32::try_from(call.others.len()).unwrap_or(u32::MAX);
        if call.asked != 1 || answers != 1 || call.waits > call.questions.max(1) {
            let (asked, waits) = (call.asked, call.waits);
            findings.problems.push(format!(
                "{name} was made {asked} times, waited {waits} times and has {answers} answers"
            ));
        }
        if !WITH_EFFECT.contains(&call.tool.as_str()) {
            return;
        }
        let lines = self.effects.get(id).map(Vec::as_slice).unwrap_or_default();
        if (call.done > 0 || call.recorded) && lines.is_empty() {
            findings.effects_missing += 1;
            findings.problems.push(format!("{name} is told to be done, and nothing happened"));
        }
        let more = u32::try_from(lines.len().saturating_sub(1)).unwrap_or(u32::MAX);
        let is_idempotent = IDEMPOTENT.contains(&call.tool.as_str());
        if is_idempotent {
            findings.repeats += more;
            let keys: BTreeSet<&str> = lines.iter().map(|line| line.key.as_str()).collect();
            if keys.len() > 1 || keys.contains("") {
                findings.problems.push(format!("{name} was repeated with other keys: {keys:?}"));
            }
        } else if more > 0 {
            findings.effects_doubled += more;
            findings.problems.push(format!("{name} happened {} times", lines.len()));
        }
        if !lines.is_empty() && !call.started {
            findings.problems.push(format!("{name} happened, and the log does not know that it was started"));
        }
        findings.unknown += call.questions;
        if call.needless {
            findings
                .problems
                .push(format!("{name} was asked about, though it was never started or had finished"));
        }
        for answer in &call.others {
            findings.unknown += 1;
            if is_idempotent || !call.started || call.recorded || !is_unknown(answer) {
                let told = if call.recorded { "recorded as finished" } else { "not recorded as finished" };
                let started = if call.started { "started" } else { "never started" };
                findings.problems.push(format!("{name} ({started}, {told}) has another answer: {answer}"));
            }
        }
    }

    /// What undisturbed runs look like: those of these logs. All that begin alike must be alike.
    pub(super) fn shapes(logs: &[Log]) -> Result<Shapes, String> {
        let mut shapes = Shapes::new();
        for log in logs {
            for (id, run) in runs(log) {
                let known = shapes.entry(run.first.clone()).or_insert_with(|| run.events.clone());
                if *known != run.events {
                    return Err(format!(
                        "{} run {id} is unlike another: {:?}, {known:?}",
                        log.session, run.events
                    ));
                }
            }
        }
        Ok(shapes)
    }
}

/// A line per entry and per effect, to find out what went wrong.
impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for log in &self.logs {
            writeln!(f, "{} at version {}", log.session, log.version)?;
            for (number, entry) in log.entries.iter().enumerate() {
                let json = match entry {
                    LogEntry::Event(event) => serde_json::to_string(event),
                    LogEntry::Record(record) => serde_json::to_string(record),
                };
                writeln!(f, "{number:>4} {}", json.unwrap_or_default())?;
            }
        }
        for effect in self.effects.values().flatten() {
            writeln!(f, "{effect:?}")?;
        }
        writeln!(f, "seen: {}", self.seen.join(" "))
    }
}

/// Whether an answer says that nobody knows what came of the call.
fn is_unknown(answer: &str) -> bool {
    answer.contains("unknown")
}

fn events(log: &Log) -> impl Iterator<Item = &Event> {
    log.entries.iter().filter_map(|entry| match entry {
        LogEntry::Event(event) => Some(&**event),
        LogEntry::Record(_) => None,
    })
}

/// The questions of a record about calls that were cut short.
fn questions(record: &RunStep) -> impl Iterator<Item = &Interrupt> {
    let asked = match record {
        RunStep::Asked { interrupts } => interrupts.as_slice(),
        _ => [].as_slice(),
    };
    asked.iter().filter(|asked| asked.reason == UNFINISHED)
}

/// The ids of all such questions of a log.
fn question_ids(log: &Log) -> BTreeSet<&CallId> {
    let records = log.entries.iter().filter_map(|entry| match entry {
        LogEntry::Record(record) => Some(&**record),
        LogEntry::Event(_) => None,
    });
    records.flat_map(questions).map(|asked| &asked.id).collect()
}

/// The runs of a log. A record belongs to the run of the event before it.
fn runs(log: &Log) -> BTreeMap<String, RunOf> {
    let mut runs: BTreeMap<String, RunOf> = BTreeMap::new();
    let (mut current, mut others) = (String::new(), BTreeMap::new());
    let asked = question_ids(log);
    let is_asked = |id: Option<&CallId>| id.is_some_and(|id| asked.contains(id));
    for entry in &log.entries {
        match entry {
            // What is asked and answered about calls that were cut short comes on top of what an undisturbed run has.
            LogEntry::Event(event) if event.calls().any(|call| is_asked(call.id.as_ref())) => {}
            LogEntry::Event(event) if event.responses().any(|answer| is_asked(answer.id.as_ref())) => {
                // It goes on under another id, so both are one.
                others.insert(event.run.as_str().to_owned(), current.clone());
            }
            LogEntry::Event(event) => {
                let id = event.run.as_str().to_owned();
                current = others.get(&id).cloned().unwrap_or(id);
                let run = runs.entry(current.clone()).or_default();
                let described = describe(event);
                if run.first.is_empty() {
                    run.first.clone_from(&described);
                }
                // An answer by which a call waits is for show: a run that was cut short between it and the question
                // waits without it.
                if !event.responses().any(|response| waits(event, response)) {
                    *run.events.entry(described).or_default() += 1;
                }
            }
            LogEntry::Record(record) => match &**record {
                RunStep::Ended { outcome } => {
                    runs.entry(current.clone()).or_default().outcomes.push(outcome.clone());
                }
                RunStep::Continued { continued } => {
                    others.insert(continued.run.as_str().to_owned(), current.clone());
                }
                _ => {}
            },
        }
    }
    runs
}

/// How the last run of a log ended; `None` if it is under way, or if there is none.
pub(super) fn last_outcome(log: &Log) -> Option<&Outcome> {
    match log.entries.last()? {
        LogEntry::Record(record) => match &**record {
            RunStep::Ended { outcome } => Some(outcome),
            _ => None,
        },
        LogEntry::Event(_) => None,
    }
}

/// The ids of the calls of a log.
pub(super) fn call_ids(log: &Log) -> impl Iterator<Item = &str> {
    events(log).flat_map(Event::calls).filter_map(|call| call.id.as_ref()).map(|id| id.as_str())
}

/// What an event is, whatever a tool answered.
fn describe(event: &Event) -> String {
    let mut words = vec![event.author().to_owned()];
    words.extend(event.branch().map(|branch| format!("on {branch}")));
    for part in event.content.iter().flat_map(|content| content.parts.iter()) {
        words.push(match &part.payload {
            Payload::Call(call) => format!("calls {}", call.name),
            Payload::Response(response) => format!("answers for {}", response.name),
            Payload::Text(text) => format!("says {text}"),
            _ => "something else".to_owned(),
        });
    }
    words.extend(event.error_code().map(|code| format!("fails with {code}")));
    words.join(", ")
}

fn calls(log: &Log) -> BTreeMap<String, Call> {
    let mut calls: BTreeMap<String, Call> = BTreeMap::new();
    for entry in &log.entries {
        match entry {
            LogEntry::Event(event) => {
                for call in event.calls() {
                    let id = call.id.as_ref().map_or("", |id| id.as_str());
                    let known = calls.entry(id.to_owned()).or_default();
                    known.tool = call.name.to_string();
                    known.asked += 1;
                }
                for response in event.responses() {
                    let id = response.id.as_ref().map_or("", |id| id.as_str());
                    take_answer(calls.entry(id.to_owned()).or_default(), event, response);
                }
            }
            LogEntry::Record(record) => match &**record {
                RunStep::CallsStarted { calls: started } => {
                    for id in started.iter() {
                        calls.entry(id.as_str().to_owned()).or_default().started = true;
                    }
                }
                RunStep::CallFinished { finished } => {
                    let known = calls.entry(finished.call.as_str().to_owned()).or_default();
                    known.recorded |= finished.response.as_ref().is_some_and(is_done);
                }
                step @ RunStep::Asked { .. } => {
                    for id in questions(step).filter_map(|asked| asked.address.call.as_ref()) {
                        let known = calls.entry(id.as_str().to_owned()).or_default();
                        known.questions += 1;
                        known.needless |= !known.started || known.recorded || known.done > 0;
                    }
                }
                _ => {}
            },
        }
    }
    calls
}

/// Whether a part is the answer of a tool itself.
fn is_done(part: &Part) -> bool {
    matches!(&part.payload, Payload::Response(response)
        if response.response.as_ref().is_some_and(|answer| answer.contains_key(DONE)))
}

/// Whether a call is answered for the time being, since it waits for a person.
fn waits(event: &Event, response: &FunctionResponse) -> bool {
    let asks = event.actions.as_ref().and_then(|actions| actions.requested_tool_confirmations.as_ref());
    asks.is_some_and(|asks| response.id.as_ref().is_some_and(|id| asks.contains_key(id)))
}

/// Takes in an answer to a call.
fn take_answer(call: &mut Call, event: &Event, response: &FunctionResponse) {
    let answer = response.response.as_ref();
    if waits(event, response) {
        call.waits += 1;
    } else if answer.is_some_and(|answer| answer.contains_key(DONE)) {
        call.done += 1;
    } else {
        call.others.push(answer.map(|answer| format!("{answer:?}")).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests;
