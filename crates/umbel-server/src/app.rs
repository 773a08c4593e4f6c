//! What all routes share.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;
use smol_str::SmolStr;
use umbel_runtime::Prices;

use crate::auth::Auth;
use crate::endpoint::AgentEndpoint;
use crate::gate::Gate;
use crate::metrics::Metrics;
use crate::mount::ToCaller;
use crate::problem::Problem;
use crate::protected::Published;
use crate::resolve::Choice;
use crate::runs::Runs;
use crate::sweep::Sweep;
use crate::trace::Traces;

/// What all routes share.
pub(crate) struct App {
    pub(crate) runs: Arc<Runs>,
    pub(crate) gate: Gate,
    pub(crate) auth: Option<Arc<dyn Auth>>,
    /// Who requests for mounted services come from, if not simply from their principal.
    pub(crate) caller: Option<Arc<ToCaller>>,
    /// What those are told who are turned away.
    pub(crate) protected: Option<Published>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) agents: Vec<Arc<AgentEndpoint>>,
    /// What is told of them.
    pub(crate) listed: Value,
    /// Whether clients may look into agents and their work.
    pub(crate) inspect: bool,
    /// Where the time of runs went, if that is recorded.
    pub(crate) traces: Option<Traces>,
    /// Whether requests are part of the trace that they name.
    pub(crate) trusts_traces: bool,
    /// Whether what `tracestate` says is taken with it.
    pub(crate) takes_tracestate: bool,
    /// What models cost.
    pub(crate) prices: Prices,
    /// When idle sessions are deleted, if somebody said so.
    pub(crate) sweep: Option<Option<Sweep>>,
}

impl App {
    /// A problem unless clients may look into agents and their work.
    pub(crate) fn check_inspect(&self) -> Result<(), Problem> {
        if self.inspect {
            return Ok(());
        }
        let message = "this server does not let its clients look into agents and their work: see `inspect`";
        Err(Problem::new(StatusCode::NOT_FOUND, "INSPECTION_OFF", message))
    }
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "App({} agents)", self.agents.len())
    }
}

/// What the routes of one agent share.
#[derive(Clone, Debug)]
pub(crate) struct Offered {
    pub(crate) app: Arc<App>,
    pub(crate) endpoint: Arc<AgentEndpoint>,
    /// Other agents that the same path may stand for.
    pub(crate) choice: Option<Arc<Choice>>,
    /// Its path, as clients see it.
    pub(crate) path: SmolStr,
}
