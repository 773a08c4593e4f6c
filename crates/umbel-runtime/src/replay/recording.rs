//! A session that was recorded, and what can be found in its log.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use smol_str::SmolStr;
use umbel_core::credential_manager::TOOLSET_AUTH;
use umbel_core::interrupt::{
    NEEDS_CONFIRMATION, NEEDS_CREDENTIAL, REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT,
};
use umbel_core::tool_context::ABOUT;
use umbel_core::{
    Actions, Event, FunctionCall, FunctionResponse, Interrupt, LogEntry, Object, Outcome, Question, Response,
    Result, RunId, RunStep, SessionKey, SessionStore, StateScope, Versions,
};

use crate::flow::calls_of;

/// A session that was recorded, with those that worked for it.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Its address.
    pub key: SessionKey,
    /// The state that it began with, scope prefixes included.
    pub state: Object,
    /// Its log.
    pub entries: Vec<LogEntry>,
    /// The sessions of agents that were called as tools.
    pub children: Vec<Recording>,
}

impl Recording {
    /// Reads a session from a store; `None` if there is none.
    ///
    /// What the state of user and app was when it began is not in its log: what it never wrote there itself is taken as it
    /// is today.
    pub async fn read(store: &dyn SessionStore, key: &SessionKey) -> Result<Option<Self>> {
        let Some(news) = store.news(key, Versions::default()).await? else { return Ok(None) };
        let state = news.session_state.as_deref().cloned().unwrap_or_default();
        let mut children = Vec::new();
        for id in child_ids(key, &news.entries) {
            let child = SessionKey::new(key.app(), key.user(), id)?;
            children.extend(Box::pin(Self::read(store, &child)).await?);
        }
        let recording = Self { key: key.clone(), state, entries: news.entries, children };
        let shared =
            [news.user_state, news.app_state].map(|state| state.as_deref().cloned().unwrap_or_default());
        let [user, app] = &shared;
        Ok(Some(recording.shared_state(user, app)))
    }

    /// The same with the state of its user and of its app, as it is today. What the session wrote there itself is left out:
    /// what was there before is not known.
    pub fn shared_state(mut self, user: &Object, app: &Object) -> Self {
        for (scope, values) in [(StateScope::User, user), (StateScope::App, app)] {
            let values =
                values.iter().map(|(key, value)| (format!("{}{key}", scope.prefix()), value.clone()));
            self.state.extend(values);
        }
        let deltas = events(&self.entries).filter_map(|event| event.state_delta());
        for key in deltas.flat_map(|delta| delta.keys()) {
            if StateScope::split(key).0 != StateScope::Session {
                self.state.remove(key);
            }
        }
        self
    }

    /// Its events.
    pub fn events(&self) -> impl Iterator<Item = &Arc<Event>> {
        events(&self.entries)
    }

    /// It and all those that worked for it.
    pub(super) fn all(&self) -> Vec<&Self> {
        let mut all = vec![self];
        self.children.iter().for_each(|child| all.extend(child.all()));
        all
    }
}

fn events(entries: &[LogEntry]) -> impl Iterator<Item = &Arc<Event>> {
    entries.iter().filter_map(|entry| match entry {
        LogEntry::Event(event) => Some(event),
        LogEntry::Record(_) => None,
    })
}

/// The sessions that calls would have had, had their tools been agents: each is named after its call.
fn child_ids(key: &SessionKey, entries: &[LogEntry]) -> Vec<String> {
    let mut ids = Vec::new();
    for event in events(entries).filter(|event| !event.is_user()) {
        let calls = event.calls().filter_map(|call| call.id.as_ref());
        ids.extend(calls.map(|call| format!("{}/{}.{call}", key.id(), event.id)));
    }
    ids
}

/// The calls under which a session works, told by its name: none for the one that all began with. Names of events differ
/// from run to run, and those of calls do not.
pub(super) fn under(root: &str, session: &str) -> String {
    let below = session.strip_prefix(root).unwrap_or_default();
    let calls = below.split('/').filter(|part| !part.is_empty());
    calls.map(|part| part.split_once('.').map_or(part, |(_, call)| call)).collect::<Vec<_>>().join("/")
}

/// Who speaks: one agent, on its branch, under its call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Lane {
    pub(super) under: String,
    pub(super) agent: SmolStr,
    pub(super) branch: Option<SmolStr>,
}

impl Lane {
    pub(super) fn of(under: &str, event: &Event) -> Self {
        let (agent, branch) = (event.source.author.clone(), event.source.branch.clone());
        Self { under: under.to_owned(), agent, branch }
    }
}

/// What the model said with an event.
pub(super) fn response(event: &Event) -> Response {
    Response {
        content: event.content.clone(),
        partial: None,
        turn_complete: event.turn_complete,
        meta: event.meta.clone(),
    }
}

/// A call that was made, and what came of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Done {
    /// Who made it.
    pub(super) lane: Lane,
    pub(super) call: FunctionCall,
    /// Absent if the tool left the answer to others.
    pub(super) response: Option<Object>,
    pub(super) actions: Option<Box<Actions>>,
    /// What the tool itself asked people.
    pub(super) asked: Vec<Interrupt>,
}

/// The calls of a log with their results, in order. `under` is the calls that the session works under.
pub(super) fn calls(recording: &Recording, under: &str) -> Vec<Done> {
    let mut done: Vec<Done> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for entry in &recording.entries {
        match entry {
            LogEntry::Event(event) if event.is_user() => {}
            LogEntry::Event(event) => {
                for call in calls_of(event) {
                    places.extend(call.id.as_ref().map(|id| (id.to_string(), done.len())));
                    done.push(Done { lane: Lane::of(under, event), call, ..Done::default() });
                }
                let mut actions = event.actions.clone();
                for response in
                    event.responses_and_results().filter(|response| !is_for_the_time_being(response))
                {
                    let place = response.id.as_ref().and_then(|id| places.get(id.as_str()));
                    let Some(done) = place.and_then(|place| done.get_mut(*place)) else { continue };
                    done.response.clone_from(&response.response);
                    // What calls of a batch did is told of each; of one alone by its event.
                    if done.actions.is_none() {
                        done.actions = actions.take();
                    }
                }
            }
            LogEntry::Record(step) => match &**step {
                RunStep::CallFinished { finished } => {
                    let place = places.get(finished.call.as_str());
                    if let Some(done) = place.and_then(|place| done.get_mut(*place)) {
                        done.actions = Some(finished.actions.clone().unwrap_or_default());
                    }
                }
                RunStep::Asked { interrupts } => {
                    let of_tool = |asked: &&Interrupt| {
                        asked.address.layer.as_ref().is_none_or(|layer| layer.starts_with(ABOUT))
                            || asked.reason == Question::CREDENTIAL
                    };
                    for asked in interrupts.iter().filter(of_tool) {
                        let call = asked.address.call.as_ref().and_then(|id| places.get(id.as_str()));
                        if let Some(done) = call.and_then(|place| done.get_mut(*place)) {
                            done.asked.push(asked.clone());
                        }
                    }
                }
                _ => {}
            },
        }
    }
    done
}

/// Whether a result only says that the call waits.
fn is_for_the_time_being(response: &FunctionResponse) -> bool {
    let values = response.response.iter().flat_map(|object| object.values());
    values.filter_map(Value::as_str).any(|text| [NEEDS_CONFIRMATION, NEEDS_CREDENTIAL].contains(&text))
}

/// A run of the session.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordedRun {
    pub(super) id: RunId,
    /// What began it; absent if it went on with the one before.
    pub(super) said: Option<Arc<Event>>,
    /// State that was set from outside before it.
    pub(super) state: Object,
    /// How it ended; absent if it was cut short.
    pub(super) outcome: Option<Outcome>,
    /// What came from people while it went on.
    pub(super) said_later: usize,
}

/// The runs of a log, in order.
pub(super) fn runs(recording: &Recording) -> Vec<RecordedRun> {
    let mut runs: Vec<RecordedRun> = Vec::new();
    let mut last = RunId::default();
    let mut outside = Object::new();
    for entry in &recording.entries {
        match entry {
            LogEntry::Event(event) if event.is_user() && event.content.is_none() => {
                outside.extend(event.state_delta().cloned().unwrap_or_default());
            }
            LogEntry::Event(event) if event.run != last && event.is_user() => {
                last = event.run.clone();
                let state = std::mem::take(&mut outside);
                let (id, said) = (last.clone(), Some(event.clone()));
                runs.push(RecordedRun { id, said, state, ..RecordedRun::default() });
            }
            LogEntry::Event(event) if event.is_user() => {
                runs.last_mut().into_iter().for_each(|run| run.said_later += 1);
            }
            LogEntry::Event(_) => {}
            LogEntry::Record(step) => match &**step {
                RunStep::Continued { continued } => {
                    last = continued.run.clone();
                    let (id, state) = (last.clone(), std::mem::take(&mut outside));
                    runs.push(RecordedRun { id, state, ..RecordedRun::default() });
                }
                RunStep::Ended { outcome } => {
                    runs.last_mut().into_iter().for_each(|run| run.outcome = Some(outcome.clone()));
                }
                _ => {}
            },
        }
    }
    runs
}

/// A question that people were asked.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// Its name.
    pub(super) id: SmolStr,
    /// The call that it is about, or nothing.
    pub(super) about: SmolStr,
}

/// The questions of a log, in order.
pub(super) fn questions(recording: &Recording) -> Vec<Asked> {
    let names = [REQUEST_CONFIRMATION, REQUEST_CREDENTIAL, REQUEST_INPUT];
    let calls = recording.events().filter(|event| !event.is_user()).flat_map(|event| event.calls());
    let asks = calls.filter(|call| names.contains(&call.name.as_str()));
    let asked = asks.filter_map(|call| {
        let args = call.args.as_ref();
        let shown = args.and_then(|args| args.get("originalFunctionCall")?.get("id")?.as_str());
        let waits = || args.and_then(|args| args.get("functionCallId")?.as_str());
        let about = shown.or_else(|| waits().filter(|id| !id.starts_with(TOOLSET_AUTH)));
        Some(Asked { id: call.id.as_ref()?.as_str().into(), about: about.unwrap_or_default().into() })
    });
    asked.collect()
}
