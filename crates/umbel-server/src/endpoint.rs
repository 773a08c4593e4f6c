//! An agent as the server offers it.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use smol_str::SmolStr;
use umbel_agui::{AgentCapabilities, Cast, ContextItem, Member, Prediction, RunAgentInput};
use umbel_core::{AgentTree, Object, RunConfig, SessionKey};
use umbel_runtime::Runner;

use crate::apps::Apps;
use crate::auth::Principal;
use crate::live::Disconnect;
use crate::problem::Problem;

/// What happens to a request for a thread that has a run under way.
///
/// A run that nobody looks at any more is ended in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameThread {
    /// It waits its turn; only one may wait, the next is refused.
    #[default]
    Queue,
    /// It is refused.
    Refuse,
    /// The run under way is cancelled at once.
    Supersede,
    /// The run under way ends where nothing is half done, and the new one goes on from there.
    Steer,
}

/// What a client sent along for one run. Tools and handlers find it with `run.extension::<ClientInput>()`; instructions
/// find the same in the state of the run, as `temp:agui_context` and `temp:agui_forwarded_props`.
#[derive(Clone, Debug, Default)]
pub struct ClientInput {
    /// What the agent should know besides the conversation.
    pub context: Vec<ContextItem>,
    /// Whatever the application handed through.
    pub forwarded_props: Option<serde_json::Value>,
}

type ToConfig = dyn Fn(&RunAgentInput<'_>, &Principal, RunConfig) -> Result<RunConfig, Problem> + Send + Sync;
type ToState = dyn Fn(&Parts, &Principal) -> Result<Object, Problem> + Send + Sync;
type ToName = dyn Fn(&Parts, &Principal) -> Result<String, Problem> + Send + Sync;

/// An agent as the server offers it: the runner, and how its clients are dealt with.
#[derive(Clone)]
pub struct AgentEndpoint {
    pub(crate) runner: Runner,
    pub(crate) cast: Arc<Cast>,
    pub(crate) disconnect: Disconnect,
    pub(crate) same_thread: SameThread,
    pub(crate) client_tools: bool,
    pub(crate) system_messages: bool,
    pub(crate) import_history: bool,
    pub(crate) capabilities: Option<Arc<AgentCapabilities>>,
    pub(crate) config: Option<Arc<ToConfig>>,
    pub(crate) state: Option<Arc<ToState>>,
    pub(crate) user: Option<Arc<ToName>>,
    pub(crate) suggestions: Vec<String>,
    app: Option<Arc<ToName>>,
    /// The apps that requests were about, besides the runner's.
    apps: Arc<Apps>,
}

impl AgentEndpoint {
    /// What runs the agent.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// An agent with the usual settings.
    pub fn new(runner: Runner) -> Self {
        let cast = Arc::new(cast_of(runner.tree()));
        Self {
            runner,
            cast,
            disconnect: Disconnect::CancelAfter(Duration::from_secs(30)),
            same_thread: SameThread::default(),
            client_tools: true,
            system_messages: true,
            import_history: true,
            capabilities: None,
            config: None,
            state: None,
            user: None,
            suggestions: Vec::new(),
            app: None,
            apps: Arc::default(),
        }
    }

    /// What becomes of a run that nobody looks at any more; cancelled after 30 seconds unless said otherwise.
    pub fn on_disconnect(mut self, policy: Disconnect) -> Self {
        self.disconnect = policy;
        self
    }

    /// What happens to a request for a thread that has a run under way.
    pub fn same_thread(mut self, policy: SameThread) -> Self {
        self.same_thread = policy;
        self
    }

    /// Whether clients may bring tools, which they do unless said otherwise.
    pub fn client_tools(mut self, allowed: bool) -> Self {
        self.client_tools = allowed;
        self
    }

    /// Whether system and developer messages of clients instruct the agents, which they do unless said otherwise.
    pub fn system_messages(mut self, allowed: bool) -> Self {
        self.system_messages = allowed;
        self
    }

    /// Whether a conversation that began elsewhere is taken over by a thread's first run, which it is unless said
    /// otherwise.
    pub fn import_history(mut self, allowed: bool) -> Self {
        self.import_history = allowed;
        self
    }

    /// Shows an argument of a tool as state while the model is still writing it.
    pub fn predict_state(mut self, state_key: &str, tool: &str, argument: &str) -> Self {
        let prediction =
            Prediction { state_key: state_key.into(), tool: tool.into(), argument: argument.into() };
        Arc::make_mut(&mut self.cast).predictions.push(prediction);
        self
    }

    /// Shows clients the keys `user:` and `app:` of the state, and lets them write these. What is in `app:` is shared by
    /// all users.
    pub fn scoped_state(mut self, shown: bool) -> Self {
        Arc::make_mut(&mut self.cast).scoped_state = shown;
        self
    }

    /// Capabilities in the place of those that follow from the agents.
    pub fn capabilities(mut self, capabilities: AgentCapabilities) -> Self {
        self.capabilities = Some(Arc::new(capabilities));
        self
    }

    /// Changes how a run is done, by what the client sent and who it is.
    pub fn run_config(
        mut self,
        make: impl Fn(&RunAgentInput<'_>, &Principal, RunConfig) -> Result<RunConfig, Problem>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.config = Some(Arc::new(make));
        self
    }

    /// State that follows from the request, such as a tenant in a header. It counts more than what the client sent as
    /// state; keys may have any scope.
    pub fn request_state(
        mut self,
        make: impl Fn(&Parts, &Principal) -> Result<Object, Problem> + Send + Sync + 'static,
    ) -> Self {
        self.state = Some(Arc::new(make));
        self
    }

    /// Whose sessions a request is about; those of the principal unless said otherwise.
    pub fn user(
        mut self,
        make: impl Fn(&Parts, &Principal) -> Result<String, Problem> + Send + Sync + 'static,
    ) -> Self {
        self.user = Some(Arc::new(make));
        self
    }

    /// The app whose sessions a request is about, such as a tenant's; the runner's unless said otherwise. Nothing of one
    /// app can be reached from another, so what this makes of a request must be known to be true.
    pub fn app(
        mut self,
        make: impl Fn(&Parts, &Principal) -> Result<String, Problem> + Send + Sync + 'static,
    ) -> Self {
        self.app = Some(Arc::new(make));
        self
    }

    /// What people may say to it first. Front ends offer it.
    pub fn suggestions<S: Into<String>>(mut self, suggestions: impl IntoIterator<Item = S>) -> Self {
        self.suggestions = suggestions.into_iter().map(Into::into).collect();
        self
    }

    /// The session of a thread, which is the caller's by construction.
    pub(crate) fn key(
        &self,
        head: &Parts,
        principal: &Principal,
        thread: &str,
    ) -> Result<SessionKey, Problem> {
        let user = match &self.user {
            Some(make) => SmolStr::from(make(head, principal)?),
            None => principal.id.clone(),
        };
        let Some(make) = &self.app else { return Ok(SessionKey::new(self.runner.app(), user, thread)?) };
        let key = SessionKey::new(make(head, principal)?, user, thread)?;
        self.apps.note(key.app());
        Ok(key)
    }

    /// Tells of apps that requests were about before.
    pub(crate) fn know_apps(&self, apps: &BTreeSet<SmolStr>) {
        apps.iter().for_each(|app| self.apps.note(app));
    }

    /// Whether it may have sessions in that app.
    pub(crate) fn has_app(&self, name: &str) -> bool {
        self.runner.app() == name || self.apps.contains(name)
    }

    /// The apps whose sessions are to be seen to.
    pub(crate) fn apps(&self) -> BTreeSet<SmolStr> {
        let mut apps = self.apps.all();
        apps.insert(self.runner.app().into());
        apps
    }
}

/// Who takes part, as front ends are told.
fn cast_of(tree: &AgentTree) -> Cast {
    let mut cast = Cast::default();
    for id in tree.ids() {
        let Ok(node) = tree.node(id) else { continue };
        if id == tree.root() {
            cast.root = node.source.author.clone();
            cast.is_silent = node.agent.output_schema().is_some();
            continue;
        }
        let parent = node.parent.and_then(|parent| tree.node(parent).ok());
        cast.others.push(Member {
            name: node.source.author.clone(),
            description: node.agent.description().into(),
            is_step: parent.is_some_and(|parent| !parent.agent.transfer().by_model),
            is_silent: node.agent.output_schema().is_some(),
        });
    }
    cast
}

impl fmt::Debug for AgentEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentEndpoint({:?})", self.runner)
    }
}
