//! Where a scenario is played: a folder, a store and the scenario itself, the same for all processes of a lane.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::{Answer, BoxError, Content, Interrupt, Outcome, Runner, SessionKey, SessionStore, Versions};

use super::audit::{Log, UNFINISHED};
use super::files::{self, Effect};
use super::killer::{Killer, Point};
use super::scenario::{DONE, SCENARIOS, Scenario, Tools};
use super::store::Watched;

/// How long a lease holds: short, so that a run whose process died is taken over soon.
pub(super) const LEASE: Duration = Duration::from_millis(300);

/// Sessions of one process at once.
pub(super) const SESSIONS: usize = 3;

/// The hidden command that makes a process a child of the harness.
pub(crate) const CHILD: &str = "crash-child";

#[derive(Clone)]
pub(super) struct Place {
    pub(super) folder: PathBuf,
    pub(super) url: String,
    pub(super) scenario: &'static Scenario,
}

/// A process's way to a place.
pub(super) struct Opened {
    pub(super) place: Place,
    pub(super) runner: Runner,
}

impl Place {
    /// The place that the arguments of a child name.
    pub(super) fn from_args(args: &mut impl Iterator<Item = String>) -> Result<Self, BoxError> {
        let (folder, url) = (args.next().ok_or("no folder")?, args.next().ok_or("no address")?);
        let name = args.next().ok_or("no scenario")?;
        let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name).ok_or("no such scenario")?;
        Ok(Self { folder: folder.into(), url, scenario })
    }

    /// Starts a process at this place.
    pub(super) fn spawn(&self, task: &str, more: &[String]) -> Result<Child, BoxError> {
        // Not by its name: another build may have taken its place meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.args([CHILD, task]).arg(&self.folder).args([&self.url, self.scenario.name]).args(more);
        Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
    }

    /// The name of the app. Each place has its own, so that several can share a server.
    fn app(&self) -> String {
        self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(super) fn key(&self, session: &str) -> Result<SessionKey, BoxError> {
        Ok(SessionKey::new(self.app(), "ann", session)?)
    }

    /// The sessions of a batch.
    pub(super) fn sessions(&self, batch: &str) -> Result<Vec<SessionKey>, BoxError> {
        (0..SESSIONS).map(|number| self.key(&format!("{batch}-{number}"))).collect()
    }

    /// Opens the store and makes the runner.
    pub(super) async fn open(self, killer: Arc<Killer>) -> Result<Opened, BoxError> {
        let inner = umbel_stores::open(&self.url).await?.sessions;
        let children = files::children(&self.folder);
        let store = Watched { inner, killer: killer.clone(), children };
        let agent = (self.scenario.agent)(&Tools { folder: self.folder.clone(), killer });
        let runner = Runner::builder(self.app(), agent).sessions(store).lease(LEASE);
        let runner = runner.unfinished_calls(self.scenario.unfinished).build()?;
        Ok(Opened { place: self, runner })
    }
}

impl Opened {
    pub(super) fn folder(&self) -> &Path {
        &self.place.folder
    }

    pub(super) fn store(&self) -> &Arc<dyn SessionStore> {
        self.runner.sessions()
    }

    /// Says something, and notes each event before the next one is asked for.
    pub(super) async fn say(
        &self,
        batch: &str,
        key: &SessionKey,
        message: impl Into<Content>,
    ) -> Result<Outcome, BoxError> {
        let mut stream = self.runner.run(key, message);
        while let Some(event) = stream.next().await {
            let event = event?;
            if !event.is_partial() {
                files::append(&files::seen(self.folder(), batch), &json!(event.id.as_str()))?;
            }
        }
        Ok(stream.outcome().cloned().ok_or("a run without an outcome")?)
    }

    /// Answers whatever a run asked. `None` if it asked nothing.
    pub(super) async fn answer(
        &self,
        batch: &str,
        key: &SessionKey,
        outcome: &Outcome,
    ) -> Result<Option<Outcome>, BoxError> {
        let Outcome::Interrupted { interrupts } = outcome else { return Ok(None) };
        let mut last = None;
        for interrupt in interrupts.iter() {
            let answer = interrupt.answer_with(&self.find_answer(interrupt)?);
            last = Some(self.say(batch, key, answer).await?);
        }
        Ok(last)
    }

    /// What a person says: yes. Of a call that was cut short they find out whether it happened; if so, it is not to be made
    /// again.
    fn find_answer(&self, interrupt: &Interrupt) -> Result<Answer, BoxError> {
        if interrupt.reason != UNFINISHED {
            return Ok(Answer::approve());
        }
        let call =
            interrupt.call.as_ref().and_then(|call| call.id.as_ref()).ok_or("a question about no call")?;
        let happened = !Effect::of_call(self.folder(), call.as_str())?.is_empty();
        Ok(if happened { Answer::respond(json!({DONE: call.as_str()})) } else { Answer::approve() })
    }

    /// The logs of a batch, and of the sessions that work for its own. Sessions in which nothing happened are left out.
    pub(super) async fn logs(&self, batch: &str) -> Result<Vec<Log>, BoxError> {
        let mut keys = self.place.sessions(batch)?;
        let noted = files::read(&files::children(self.folder()))?;
        let text =
            |line: &Value, key: &str| line.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        // Parents are noted before their children are.
        for line in &noted {
            let (parent, id) = (text(line, "parent"), text(line, "id"));
            if keys.iter().any(|key| key.id() == parent) && keys.iter().all(|key| key.id() != id) {
                keys.push(self.place.key(&id)?);
            }
        }
        let mut logs = Vec::new();
        for key in keys {
            let news = self.store().news(&key, Versions::default()).await?;
            if let Some(news) = news.filter(|news| news.versions.session > 0) {
                let session = key.id().to_owned();
                logs.push(Log { session, version: news.versions.session, entries: news.entries });
            }
        }
        Ok(logs)
    }
}

/// The n-th point of a child's arguments.
pub(super) fn point(arg: Option<String>) -> Result<Option<Point>, BoxError> {
    arg.map(|point| point.parse()).transpose()
}
