//! How a run is to be done.

use std::sync::Arc;
use std::time::Duration;

use crate::content::Content;
use crate::extensions::Extensions;
use crate::json::Object;
use crate::tool::ToolSet;

/// How a run is to be done.
#[derive(Clone, Debug, Default)]
pub struct RunConfig {
    /// Whether previews are given while the model speaks.
    pub streaming: bool,
    /// What it may use up.
    pub limits: RunLimits,
    /// What a failing tool does.
    pub tool_errors: ToolErrors,
    /// What becomes of calls that were cut short by a crash or a cancellation.
    pub unfinished_calls: UnfinishedCalls,
    /// What becomes of runs that another build of the agents began.
    pub other_builds: OtherBuilds,
    /// How long to wait for a session that another run holds, before it is refused.
    pub wait_for_session: Duration,
    /// A session that is not there is made with the user's message, in one write.
    pub create_session: bool,
    /// Files in the user's message are stored as artifacts and named in their place.
    pub save_input_blobs: bool,
    /// State to set with the user's message, scope prefixes included.
    pub state_delta: Object,
    /// Attached to every event of the run.
    pub custom_metadata: Object,
    /// Labels for the provider's bill.
    pub labels: Object,
    /// Messages that go before the user's message in each request, and nowhere else.
    pub model_input_context: Vec<Arc<Content>>,
    /// Whether agents read each other's thoughts.
    pub include_thoughts_from_other_agents: bool,
    /// Tools that every agent of the run has besides its own, such as those of whoever asks. An agent's own tool of the
    /// same name counts, and agents that are called as tools have none of these.
    pub tools: Option<Arc<ToolSet>>,
    /// What every agent of the run is told besides its own instruction.
    pub instruction: Option<Arc<str>>,
    /// Values that tools and handlers of the run find by their type, with [`Run::extension`](crate::Run::extension).
    pub extensions: Extensions,
    /// Attached to the user's message, and to nothing else: a run's own settings do not have it any more.
    pub input_metadata: Object,
}

/// What a run may use up. All limits are on unless raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Model calls of the whole run, sub-agents included; 0 is no limit.
    pub model_calls: u32,
    /// How deep agents may call agents.
    pub depth: u32,
    /// Calls of one batch that run at once.
    pub calls_at_once: usize,
    /// How long the run may take.
    pub run_time: Duration,
    /// How long a tool may take.
    pub tool_time: Duration,
    /// How long a cancelled run may take to unwind.
    pub grace: Duration,
    /// How long a run holds its session without a sign of life. After that another process may go on with it.
    pub lease: Duration,
    /// How often a run may be gone on with after a crash. One that was gone on with more often has failed.
    pub recoveries: u32,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            model_calls: 500,
            depth: 8,
            calls_at_once: 16,
            run_time: Duration::from_secs(600),
            tool_time: Duration::from_secs(300),
            grace: Duration::from_secs(5),
            lease: Duration::from_secs(30),
            recoveries: 5,
        }
    }
}

/// What a failing tool does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolErrors {
    /// The model is told, and may try again or something else.
    #[default]
    ToModel,
    /// The run fails. Siblings that are done keep their results, the others are stopped.
    Fail,
}

/// What becomes of a call that was begun and has no result, since the run was cut short. Calls of tools that are read-only
/// or idempotent, or that know how far they came, are simply made again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnfinishedCalls {
    /// The model is told that its outcome is unknown.
    #[default]
    Report,
    /// A person is asked: whether it is to be made again, or what came of it.
    Ask,
}

/// What becomes of a run that was cut short or interrupted, when another build of the agents is to go on with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherBuilds {
    /// It goes on as far as the agents are still there.
    #[default]
    Continue,
    /// It has failed.
    Refuse,
}
