//! The runner: agents, stores and settings put together, ready to answer.

mod active;
mod answers;
mod batch;
mod credential_answers;
mod drive;
mod hot;
mod journal;
mod outlet;
mod pick;
mod rebuild;
mod recovery;
mod rewind;
mod stream;
mod taking;
mod view;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use smol_str::SmolStr;
use umbel_core::{
    Agent, AgentTree, Answer, ArtifactStore, AuthConfig, CancelToken, Clock, Content, CredentialManager,
    CredentialStore, Extensions, Handler, IdKind, Ids, InMemorySessions, Interrupt, MemoryStore, NewSession,
    Object, OtherBuilds, Part, Parts, RandomIds, Result, Role, Run, RunConfig, RunId, RunStep, Services,
    Session, SessionKey, SessionStore, SystemClock, UnfinishedCalls,
};

pub(crate) use self::answers::digest;
pub(crate) use self::drive::{Begins, caught};
pub use self::outlet::Said;
pub use self::recovery::Recovered;
pub(crate) use self::recovery::{ChildRun, find_child};
pub use self::stream::RunStream;
pub use self::view::SessionView;

use self::active::ActiveRuns;
use self::drive::Task;
use self::hot::HotSessions;
use self::journal::Recorder;
use crate::compaction::Compactor;
use crate::onion;
use crate::plugin::{Plugin, Plugins};
use crate::stand_in::StandIn;
use crate::team::{Extras, Team};

/// How many idle sessions a runner keeps at hand unless told otherwise.
const HOT_SESSIONS: usize = 1_024;

/// How many bytes they take unless told otherwise.
const HOT_SESSION_BYTES: usize = 256 << 20;

/// Runs agents on sessions. Cloning it is cheap.
#[derive(Clone)]
pub struct Runner {
    shared: Arc<Shared>,
}

/// What all runs of a runner share.
pub(crate) struct Shared {
    pub(crate) app: SmolStr,
    pub(crate) owner: SmolStr,
    pub(crate) team: Arc<Team>,
    pub(crate) services: Arc<Services>,
    pub(crate) config: Arc<RunConfig>,
    pub(crate) hot: HotSessions,
    pub(crate) active: ActiveRuns,
    /// The record by which all its runs begin.
    pub(crate) started: Arc<RunStep>,
    /// What runs carry along: the team.
    pub(crate) extensions: Arc<Extensions>,
}

impl Shared {
    /// What a runner of that team would share, with the stores and settings of a run.
    pub(crate) fn for_child(run: &Run, team: Arc<Team>) -> Self {
        // Sessions of calls are not come back to.
        let hot = HotSessions::new(0, None);
        let (app, owner) = (run.session_key().app().into(), run.id().as_str().into());
        let (started, extensions) = (started(&team), carrying(&team));
        let (services, config) = (run.services().clone(), run.config().clone());
        let active = ActiveRuns::default();
        Self { app, owner, team, services, config, hot, active, started, extensions }
    }
}

fn started(team: &Team) -> Arc<RunStep> {
    Arc::new(RunStep::Started { fingerprint: team.tree.fingerprint() })
}

fn carrying(team: &Arc<Team>) -> Arc<Extensions> {
    let mut extensions = Extensions::new();
    extensions.insert_arc(team.clone());
    Arc::new(extensions)
}

impl Runner {
    /// Begins a runner for an app with its root agent.
    pub fn builder(app: impl Into<SmolStr>, agent: impl Agent + 'static) -> RunnerBuilder {
        RunnerBuilder::new(app.into(), Arc::new(agent))
    }

    /// A runner with everything in memory.
    pub fn new(app: impl Into<SmolStr>, agent: impl Agent + 'static) -> Result<Self> {
        Self::builder(app, agent).build()
    }

    /// The app's name.
    pub fn app(&self) -> &str {
        &self.shared.app
    }

    pub(crate) fn team(&self) -> &Arc<Team> {
        &self.shared.team
    }

    /// The agents.
    pub fn tree(&self) -> &Arc<AgentTree> {
        &self.shared.team.tree
    }

    /// The store of its sessions.
    pub fn sessions(&self) -> &Arc<dyn SessionStore> {
        &self.shared.services.sessions
    }

    /// What its runs are lent.
    pub fn services(&self) -> &Arc<Services> {
        &self.shared.services
    }

    /// How its runs are done unless they say otherwise.
    pub fn config(&self) -> &Arc<RunConfig> {
        &self.shared.config
    }

    /// Makes a session for a user, with an id of its own.
    pub async fn create_session(&self, user: impl AsRef<str>) -> Result<Session> {
        let id = self.shared.services.ids.mint(IdKind::Session);
        let key = SessionKey::new(&self.shared.app, user, id)?;
        self.sessions().create(NewSession::new(key)).await
    }

    /// Makes a session with that id and state.
    pub async fn create_session_with(
        &self,
        user: impl AsRef<str>,
        id: impl AsRef<str>,
        state: Object,
    ) -> Result<Session> {
        let key = SessionKey::new(&self.shared.app, user, id)?;
        self.sessions().create(NewSession::new(key).state(state)).await
    }

    /// Deletes a session.
    pub async fn delete_session(&self, key: &SessionKey) -> Result<()> {
        self.shared.hot.take(key);
        self.sessions().delete(key).await
    }

    /// Answers a message. The run goes on as the stream is read.
    pub fn run(&self, key: &SessionKey, message: impl Into<Content>) -> RunStream {
        self.run_with(key, message, self.shared.config.clone())
    }

    /// Answers a message with settings of its own.
    pub fn run_with(
        &self,
        key: &SessionKey,
        message: impl Into<Content>,
        config: impl Into<Arc<RunConfig>>,
    ) -> RunStream {
        let mut config = config.into();
        let metadata = match config.input_metadata.is_empty() {
            true => Object::new(),
            // It goes with the message, and nobody else needs it.
            false => std::mem::take(&mut Arc::make_mut(&mut config).input_metadata),
        };
        let begins = Begins::Message(message.into(), metadata);
        self.begin(key, self.shared.services.ids.run(), begins, config)
    }

    fn begin(&self, key: &SessionKey, id: RunId, begins: Begins, config: Arc<RunConfig>) -> RunStream {
        let recorder = Arc::new(Recorder::new(self.shared.clone(), config, None));
        if !recorder.config.extensions.is_empty() {
            recorder.inherit(&recorder.config.extensions);
        }
        RunStream::new(Task { key: key.clone(), id, begins, recorder, cancel: CancelToken::new(), depth: 0 })
    }

    /// Goes on with a run that waits for people, with what they said: to all its questions, or to some. It is checked
    /// against what was asked; what does not fit is an error, and the question stays open.
    pub fn resume<'a>(
        &self,
        key: &SessionKey,
        answers: impl IntoIterator<Item = (&'a Interrupt, Answer)>,
    ) -> RunStream {
        let responses = answers.into_iter().map(|(asked, answer)| Part::response(asked.response(&answer)));
        self.run(key, Content::new(Role::User, responses.collect::<Parts>()))
    }

    /// Goes on with the last run of a session, if it was cancelled or has failed: what is done is not done again.
    pub fn continue_run(&self, key: &SessionKey) -> RunStream {
        self.begin(key, self.shared.services.ids.run(), Begins::Again, self.shared.config.clone())
    }

    /// Gives a user's credential up: its service is told, if the method can, and it is forgotten here, even if that fails.
    pub async fn revoke_credential(&self, user: impl AsRef<str>, auth: &AuthConfig) -> Result<()> {
        let services = &self.shared.services;
        let whose = (self.app(), user.as_ref());
        services.credentials.revoke(whose, auth, services.clock.now()).await
    }

    /// Closes the runner's handlers. Runs that are under way are not affected.
    pub async fn close(&self) -> Result<()> {
        onion::close(&self.shared.team.hooks.close).await
    }
}

/// Runs another tree of agents on a session of its own, for a run that waits for it.
pub(crate) async fn run_child(
    shared: Arc<Shared>,
    parent: &Run,
    (key, id, begins): (SessionKey, RunId, Begins),
    handed_down: &Extensions,
    mut read: impl FnMut(&umbel_core::Event),
) -> Result<umbel_core::Outcome> {
    let mut config = (**parent.config()).clone();
    (config.streaming, config.create_session) = (false, false);
    config.state_delta = Object::new();
    config.input_metadata = Object::new();
    // Whoever asks can answer calls of the run that they see, and see nothing of this one.
    (config.tools, config.instruction) = (None, None);
    let recorder = Recorder::new(shared, Arc::new(config), Some(parent.journal().clone()));
    recorder.inherit(&parent.values().extensions());
    recorder.inherit(handed_down);
    // Should the caller be stopped, this run goes on in a task of its own until it has unwound and has its outcome.
    let mut stream = RunStream::new(Task {
        key,
        id,
        begins,
        recorder: Arc::new(recorder),
        cancel: parent.cancel_token().below(),
        depth: parent.depth() + 1,
    });
    while let Some(event) = stream.next().await {
        read(&*event?);
    }
    Ok(stream.outcome().cloned().unwrap_or(umbel_core::Outcome::Finished))
}

/// Puts a [`Runner`] together.
pub struct RunnerBuilder {
    app: SmolStr,
    agent: Arc<dyn Agent>,
    services: Services,
    config: RunConfig,
    extras: Extras,
    /// Where the plugins stand among the handlers.
    plugins_at: Option<usize>,
    hot_sessions: usize,
    hot_session_bytes: usize,
}

impl RunnerBuilder {
    fn new(app: SmolStr, agent: Arc<dyn Agent>) -> Self {
        let services = Services {
            clock: Arc::new(SystemClock),
            ids: Arc::new(RandomIds),
            sessions: Arc::new(InMemorySessions::new()),
            artifacts: None,
            memory: None,
            credentials: Arc::default(),
            dependencies: Extensions::new(),
        };
        let (config, extras) = (RunConfig::default(), Extras::default());
        Self {
            app,
            agent,
            services,
            config,
            extras,
            plugins_at: None,
            hot_sessions: HOT_SESSIONS,
            hot_session_bytes: HOT_SESSION_BYTES,
        }
    }

    /// Where sessions are kept; in memory unless said otherwise.
    pub fn sessions(mut self, store: impl SessionStore + 'static) -> Self {
        self.services.sessions = Arc::new(store);
        self
    }

    /// Where artifacts are kept.
    pub fn artifacts(mut self, store: impl ArtifactStore + 'static) -> Self {
        self.services.artifacts = Some(Arc::new(store));
        self
    }

    /// Where memories are kept.
    pub fn memory(mut self, store: impl MemoryStore + 'static) -> Self {
        self.services.memory = Some(Arc::new(store));
        self
    }

    /// Where credentials are kept; in memory unless said otherwise.
    pub fn credentials(mut self, store: impl CredentialStore + 'static) -> Self {
        self.services.credentials = Arc::new(CredentialManager::new(Arc::new(store)));
        self
    }

    /// A value for tools that ask for its type.
    pub fn dependency<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.services.dependencies.insert(value);
        self
    }

    /// How runs are done unless they say otherwise.
    pub fn config(mut self, config: RunConfig) -> Self {
        self.config = config;
        self
    }

    /// Extends every run.
    pub fn handler(mut self, handler: impl Handler + 'static) -> Self {
        self.extras.handlers.push(Arc::new(handler));
        self
    }

    /// Calls back around every run, agent, model call and tool call.
    ///
    /// Of what several plugins give for the same thing, the first counts. To other handlers they are one, in the place
    /// of the first.
    pub fn plugin(mut self, plugin: Plugin) -> Self {
        self.plugins_at.get_or_insert(self.extras.handlers.len());
        self.extras.plugins.push(Arc::new(plugin));
        self
    }

    /// Sums up old turns.
    pub fn compaction(mut self, compactor: Compactor) -> Self {
        self.extras.compaction = Some(Arc::new(compactor));
        self
    }

    /// Who answers in the place of tools and models, so that nothing happens for real.
    pub fn stand_in(mut self, stand_in: impl StandIn + 'static) -> Self {
        self.extras.stand_in = Some(Arc::new(stand_in));
        self
    }

    /// Where the time comes from.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.services.clock = Arc::new(clock);
        self
    }

    /// Where ids come from.
    pub fn ids(mut self, ids: impl Ids + 'static) -> Self {
        self.services.ids = Arc::new(ids);
        self
    }

    /// How long a run holds its session without a sign of life; 30 seconds unless said otherwise.
    pub fn lease(mut self, time: Duration) -> Self {
        self.config.limits.lease = time;
        self
    }

    /// What becomes of calls that were cut short.
    pub fn unfinished_calls(mut self, policy: UnfinishedCalls) -> Self {
        self.config.unfinished_calls = policy;
        self
    }

    /// What becomes of runs that another build of the agents began.
    pub fn other_builds(mut self, policy: OtherBuilds) -> Self {
        self.config.other_builds = policy;
        self
    }

    /// How many sessions are cached while no run holds them; 1,024 unless told otherwise. With 0 each run reads its session
    /// from the store.
    pub fn hot_sessions(mut self, limit: usize) -> Self {
        self.hot_sessions = limit;
        self
    }

    /// How many bytes the cached sessions take on the heap, roughly; 256 MiB unless told otherwise. A larger session is not
    /// cached. It does not apply to a store in memory, which shares its events with the cache.
    pub fn hot_session_bytes(mut self, limit: usize) -> Self {
        self.hot_session_bytes = limit;
        self
    }

    /// Checks everything and makes the runner.
    pub fn build(mut self) -> Result<Runner> {
        if let Some(place) = self.plugins_at {
            let plugins = Plugins(self.extras.plugins.clone());
            self.extras.handlers.insert(place, Arc::new(plugins));
        }
        let tree = Arc::new(AgentTree::new(&self.agent)?);
        let team = Team::new(tree, Arc::new(self.extras))?;
        warn_of_mixing(&team);
        let owner = self.services.ids.mint(IdKind::Session);
        let hot_bytes = (!self.services.sessions.is_immediate()).then_some(self.hot_session_bytes);
        let shared = Shared {
            app: self.app,
            owner,
            services: Arc::new(self.services),
            config: Arc::new(self.config),
            hot: HotSessions::new(self.hot_sessions, hot_bytes),
            active: ActiveRuns::default(),
            started: started(&team),
            extensions: carrying(&team),
            team,
        };
        Ok(Runner { shared: Arc::new(shared) })
    }
}

/// Tells of agents that have middlewares of the old form beside handlers.
fn warn_of_mixing(team: &Team) {
    for node in team.tree.ids().filter_map(|id| team.tree.node(id).ok()) {
        let own = node.agent.handlers();
        if !own.legacy.is_empty() && !own.handlers.is_empty() {
            tracing::warn!(agent = node.agent.name(), "{}", crate::text::LEGACY_MIXED);
        }
    }
}

impl fmt::Debug for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runner({}, {:?})", self.shared.app, self.shared.team.tree)
    }
}

impl fmt::Debug for RunnerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunnerBuilder({})", self.app)
    }
}
