//! Sessions that are run again: what was recorded, against what the code of today makes of it.
//!
//! Models answer as they did then, tools are not called but give what they gave, people say what they said. So whatever is
//! different comes from the code: an instruction, a tool, a handler, an agent.
//!
//! ```
//! use umbel_runtime::replay::{Part, Recording, Replay};
//! use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
//!
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let model = ScriptedModel::new("demo").text("Hello, Ann!");
//! let recorded = Runner::new("greeter", LlmAgent::new("greeter").model(model))?;
//! let session = recorded.create_session("ann").await?.key;
//! recorded.run(&session, "Hi, I am Ann").text().await?;
//!
//! let recording = Recording::read(recorded.sessions(), &session).await?.unwrap();
//! let replay = Replay::new(|| {
//!     let agent = LlmAgent::new("greeter").model(ScriptedModel::new("demo")).instruction("Be kind.");
//!     Ok(Runner::builder("greeter", agent))
//! });
//! let replayed = replay.run(&recording).await?;
//! assert!(replayed.is_same(), "{:?}", replayed.differences);
//! assert_eq!(replayed.requests[0].request["instruction"].as_str().unwrap().lines().next(), Some("Be kind."));
//! # Ok::<(), umbel_core::Error>(())
//! # }).unwrap();
//! ```
//!
//! The log has no instructions and no tools: what those were is known only to who kept the requests of an earlier replay,
//! [`Replayed::requests`], and compares with them by [`compare_requests`].
//!
//! # Layout
//! - `recording`: a session, and what its log tells; `answers`: answers from it
//! - `compare`: requests, part by part; `words`: logs in lines

mod answers;
mod compare;
mod recording;
mod words;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use serde::Serialize;
use smol_str::SmolStr;
use umbel_core::{
    Content, Event, Interrupt, List, LogEntry, NewSession, Object, Outcome, Part as ContentPart, Payload,
    Result, RunConfig, RunStep, SessionKey, Versions,
};

pub use self::answers::Sent;
pub use self::compare::compare_requests;
pub use self::recording::Recording;

use self::answers::Answers;
use self::recording::{Asked, Lane, RecordedRun, questions, runs};
use crate::runner::{Runner, RunnerBuilder};

type Make = Arc<dyn Fn() -> Result<RunnerBuilder> + Send + Sync>;
type Configure = Arc<dyn Fn(&Runner, &List<Arc<Event>>, &Event) -> RunConfig + Send + Sync>;

/// Runs recorded sessions again.
#[derive(Clone)]
pub struct Replay {
    make: Make,
    live_tools: bool,
    configure: Option<Configure>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Replayed {
    /// Whatever is different.
    pub differences: Vec<Difference>,
    /// What cannot be known from the log.
    pub unknown: Vec<String>,
    /// What cannot be known from it of the requests of then. Who kept those knows it: see [`compare_requests`].
    pub unknown_requests: Vec<String>,
    /// What models were asked, exactly.
    pub requests: Vec<Sent>,
}

impl Replayed {
    /// Whether nothing is different.
    pub fn is_same(&self) -> bool {
        self.differences.is_empty()
    }
}

/// Something that is different.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// What.
    pub part: Part,
    /// Where.
    pub place: String,
    /// What is to be said about it, if there is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// As it was, in lines.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub then: String,
    /// As it is, in lines.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub now: String,
}

/// What can be different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Part {
    /// What stands in the log.
    Events,
    /// The conversation that a model is sent.
    Messages,
    /// The instruction that a model is sent.
    Instruction,
    /// The tools that a model is sent.
    Tools,
    /// How a model is to generate.
    Config,
    /// What a model's answer must look like.
    OutputSchema,
    /// The model that is asked.
    Model,
    /// A request that is made in one of them only.
    Request,
    /// A model is asked more often than the recording has answers.
    Answer,
    /// A tool is called that the recording has no result of.
    Result,
    /// A question that was asked in one of them only.
    Question,
}

impl Part {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Events => "events",
            Self::Messages => "messages",
            Self::Instruction => "instruction",
            Self::Tools => "tools",
            Self::Config => "config",
            Self::OutputSchema => "output schema",
            Self::Model => "model",
            Self::Request => "request",
            Self::Answer => "answer",
            Self::Result => "result",
            Self::Question => "question",
        }
    }
}

impl Replay {
    /// Runs sessions again with what the closure makes. Sessions are kept in memory, whatever store it names; other stores
    /// are those that it gives, since instructions and handlers may read them. Give copies of those that handlers write to.
    pub fn new(make: impl Fn() -> Result<RunnerBuilder> + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), live_tools: false, configure: None }
    }

    /// Calls tools for real, instead of giving what they gave.
    pub fn live_tools(mut self) -> Self {
        self.live_tools = true;
        self
    }

    /// Says what a run had brought along, told by the events of the session and the one that began it.
    pub fn configure(
        mut self,
        configure: impl Fn(&Runner, &List<Arc<Event>>, &Event) -> RunConfig + Send + Sync + 'static,
    ) -> Self {
        self.configure = Some(Arc::new(configure));
        self
    }

    /// Runs a session again, and tells what is different.
    pub async fn run(&self, recording: &Recording) -> Result<Replayed> {
        let answers = Arc::new(Answers::new(recording, self.live_tools));
        let runner = self.make_in_memory()?.stand_in(answers.clone()).build()?;
        let key = SessionKey::new(runner.app(), recording.key.user(), recording.key.id())?;
        let then = self.recorded(recording, &key).await?;
        runner.sessions().create(NewSession::new(key.clone()).state(recording.state.clone())).await?;
        let mut again = Again {
            replay: self,
            runner: &runner,
            key: &key,
            events: recording.events().cloned().collect(),
            questions: questions(recording),
            replayed: Replayed::default(),
        };
        again.note_what_is_unknown(recording);
        for (index, run) in runs(recording).iter().enumerate() {
            answers.begin(index + 1, run.outcome.clone());
            again.run(index + 1, run).await?;
        }
        let mut replayed = again.replayed;
        let (requests, missing) = answers.take();
        replayed.requests = requests;
        replayed.differences.extend(missing);
        let now = entries(&runner, &key).await?;
        let (before, after) = (words::log(&recording.entries).join("\n"), words::log(&now).join("\n"));
        if before != after {
            let (place, note) = (key.id().to_owned(), String::new());
            let difference = Difference { part: Part::Events, place, note, then: before, now: after };
            replayed.differences.push(difference);
        }
        self.compare_messages((&then, &recording.entries), (&runner, &now), &key, &mut replayed).await;
        replayed.requests.sort_by_key(|sent| (sent.run, sent.under.clone(), sent.agent.clone(), sent.step));
        Ok(replayed)
    }

    /// What the closure makes, with sessions of its own: nothing is written where the real ones are.
    fn make_in_memory(&self) -> Result<RunnerBuilder> {
        Ok((self.make)()?.sessions(umbel_core::InMemorySessions::new()))
    }

    /// A runner whose store has the session as it was.
    async fn recorded(&self, recording: &Recording, key: &SessionKey) -> Result<Runner> {
        let runner = self.make_in_memory()?.build()?;
        runner.sessions().create(NewSession::new(key.clone()).state(recording.state.clone())).await?;
        runner.sessions().commit(key, None, recording.entries.iter().cloned().collect()).await?;
        Ok(runner)
    }

    fn config(&self, runner: &Runner, events: &List<Arc<Event>>, event: &Event) -> RunConfig {
        match &self.configure {
            Some(configure) => configure(runner, events, event),
            None => RunConfig::clone(runner.config()),
        }
    }

    /// Compares the messages that models were sent, made from both logs by the same rules.
    async fn compare_messages(
        &self,
        then: (&Runner, &[LogEntry]),
        now: (&Runner, &[LogEntry]),
        key: &SessionKey,
        replayed: &mut Replayed,
    ) {
        let (before, failed) = self.messages(then, key).await;
        replayed.unknown_requests.extend(failed);
        let (after, _) = self.messages(now, key).await;
        for ((lane, step), then) in &before {
            let Some(now) = after.get(&(lane.clone(), *step)) else { continue };
            if then != now {
                let branch = lane.branch.as_ref().map(|branch| format!(" on {branch}")).unwrap_or_default();
                let place = format!("{}{branch}, request {step}", lane.agent);
                let (then, now) = (then.join("\n"), now.join("\n"));
                let difference = Difference { part: Part::Messages, place, note: String::new(), then, now };
                replayed.differences.push(difference);
            }
        }
    }

    /// The messages to which models answered with the events of a log, and why some cannot be made.
    async fn messages(
        &self,
        (runner, entries): (&Runner, &[LogEntry]),
        key: &SessionKey,
    ) -> (BTreeMap<(Lane, usize), Vec<String>>, Vec<String>) {
        let (mut found, mut failed) = (BTreeMap::new(), Vec::new());
        let events = entries.iter().filter_map(|entry| match entry {
            LogEntry::Event(event) => Some(event.clone()),
            LogEntry::Record(_) => None,
        });
        let events: List<Arc<Event>> = events.collect();
        let mut steps: HashMap<Lane, usize> = HashMap::new();
        for event in events.iter().filter(|event| event.is_answer()) {
            let lane = Lane::of("", event);
            let step = steps.entry(lane.clone()).or_default();
            *step += 1;
            let config = self.config(runner, &events, event);
            match runner.request_before_with(key, &event.id, config).await {
                Ok(request) => {
                    let contents: Vec<_> = request.contents.iter().cloned().collect();
                    found.insert((lane, *step), words::messages(&contents));
                }
                Err(error) => {
                    let place = format!("{}, request {step}", lane.agent);
                    failed.push(format!("the messages of {place}: {}", error.message()));
                }
            }
        }
        (found, failed)
    }
}

/// What stands in a session's log.
async fn entries(runner: &Runner, key: &SessionKey) -> Result<Vec<LogEntry>> {
    let news = runner.sessions().news(key, Versions::default()).await?;
    Ok(news.map(|news| news.entries).unwrap_or_default())
}

/// A session that is run again.
struct Again<'a> {
    replay: &'a Replay,
    runner: &'a Runner,
    key: &'a SessionKey,
    /// As it was.
    events: List<Arc<Event>>,
    questions: Vec<Asked>,
    replayed: Replayed,
}

impl Again<'_> {
    fn note_what_is_unknown(&mut self, recording: &Recording) {
        let unknown = &mut self.replayed.unknown_requests;
        unknown.push("the instructions, tools and settings of then: they are not in a log".to_owned());
        let now = self.runner.tree().fingerprint();
        let before = recording.entries.iter().rev().find_map(|entry| match entry {
            LogEntry::Record(step) => match &**step {
                RunStep::Started { fingerprint } => Some(*fingerprint),
                _ => None,
            },
            LogEntry::Event(_) => None,
        });
        if before.is_some_and(|before| before != now) {
            unknown
                .push("what exactly was changed in the agents: they are not what they were then".to_owned());
        }
        let rewound = |event: &Event| {
            event.actions.as_ref().is_some_and(|actions| actions.rewind_before_invocation_id.is_some())
        };
        if recording.events().any(|event| rewound(event)) {
            self.replayed.unknown.push("what rewinding would do: it is not done again".to_owned());
        }
    }

    /// Does one run again.
    async fn run(&mut self, number: usize, recorded: &RecordedRun) -> Result<()> {
        if recorded.said_later > 0 {
            let message = format!("when messages came while run {number} went on: they are left out");
            self.replayed.unknown.push(message);
        }
        let Some(said) = &recorded.said else {
            return self.read(number, self.runner.continue_run(self.key)).await;
        };
        let Some(message) = self.message(number, said).await? else { return Ok(()) };
        let mut config = self.replay.config(self.runner, &self.events, said);
        config.state_delta = recorded.state.clone();
        config.state_delta.extend(said.state_delta().cloned().unwrap_or_default());
        let metadata = said.meta.as_ref().and_then(|meta| meta.custom_metadata.clone());
        config.input_metadata = metadata.unwrap_or_default();
        self.read(number, self.runner.run_with(self.key, message, config)).await
    }

    async fn read(&mut self, number: usize, mut run: crate::runner::RunStream) -> Result<()> {
        // How it ended stands in the log, errors too.
        while run.next().await.is_some() {}
        let asked = match run.outcome() {
            Some(Outcome::Interrupted { interrupts }) => (**interrupts).clone(),
            _ => Vec::new(),
        };
        let pairs = self.pairs(&asked);
        let paired: HashSet<&str> = pairs.values().map(|asked| asked.id.as_str()).collect();
        for asked in asked.iter().filter(|asked| !paired.contains(asked.id.as_str())) {
            let about = asked.call.as_ref().map(|call| format!(" about {}", call.name)).unwrap_or_default();
            let note = format!("is asked{about} now, and was not then");
            self.difference(Part::Question, format!("run {number}"), note);
        }
        Ok(())
    }

    fn difference(&mut self, part: Part, place: String, note: String) {
        let (then, now) = (String::new(), String::new());
        self.replayed.differences.push(Difference { part, place, note, then, now });
    }

    /// Questions of today by the names of those of then, told by the call that they are about.
    fn pairs<'q>(&self, open: &'q [Interrupt]) -> HashMap<SmolStr, &'q Interrupt> {
        let about = |asked: &Interrupt| {
            let call = asked.call.as_ref().and_then(|call| call.id.as_ref());
            call.map(|id| SmolStr::new(id.as_str())).unwrap_or_default()
        };
        let same = |before: &Asked| open.iter().find(|now| about(now) == before.about);
        self.questions.iter().filter_map(|before| Some((before.id.clone(), same(before)?))).collect()
    }

    /// What people said, with the names that questions have today. `None` if it was all about questions that are not asked
    /// any more.
    async fn message(&mut self, number: usize, said: &Event) -> Result<Option<Content>> {
        let Some(content) = &said.content else { return Ok(None) };
        let open = self.runner.open_questions(self.key).await?;
        let pairs = self.pairs(&open);
        let mut message = (**content).clone();
        let mut gone = Vec::new();
        let asked: HashSet<&str> = self.questions.iter().map(|asked| asked.id.as_str()).collect();
        message.parts.retain_mut(|part: &mut ContentPart| {
            let Payload::Response(response) = &mut part.payload else { return true };
            let id = response.id.as_ref().map(|id| id.as_str()).unwrap_or_default();
            match pairs.get(id) {
                Some(now) => {
                    response.id = Some(now.id.clone());
                    response.response.as_mut().map(|answer: &mut Object| answer.remove("digest"));
                    true
                }
                None if asked.contains(id) => {
                    gone.push(response.name.clone());
                    false
                }
                None => true,
            }
        });
        for name in gone {
            let note = format!("was asked then ({name}), and is not now");
            self.difference(Part::Question, format!("run {number}"), note);
        }
        Ok(Some(message).filter(|message| !message.parts.is_empty()))
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("live_tools", &self.live_tools).finish_non_exhaustive()
    }
}
