//! What all routes share.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;
use smol_str::SmolStr;
use umbel_core::SessionKey;
use umbel_runtime::Prices;

use crate::apps::Apps;
use crate::auth::{Auth, INSPECT, METRICS, Principal};
use crate::endpoint::AgentEndpoint;
use crate::gate::Gate;
use crate::metrics::Metrics;
use crate::mount::ToCaller;
use crate::problem::Problem;
use crate::protected::Published;
use crate::quotas::Reserved;
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
    /// The apps that requests for mounted services were about.
    pub(crate) caller_apps: Apps,
    /// What those are told who are turned away.
    pub(crate) protected: Option<Published>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) agents: Vec<Arc<AgentEndpoint>>,
    /// What is told of them.
    pub(crate) listed: Value,
    /// The paths of agents and mounted services, each with its name as a scope; longer ones first.
    pub(crate) scoped: Vec<(String, String)>,
    /// Where the figures are.
    pub(crate) metrics_at: String,
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
    /// The apps whose sessions an agent may have: its own, those that its requests were about, and those of mounted services,
    /// which offer agents of the server, too.
    pub(crate) fn apps_of(&self, endpoint: &AgentEndpoint) -> BTreeSet<SmolStr> {
        let mut apps = endpoint.apps();
        apps.extend(self.caller_apps.all());
        apps
    }

    /// Whether other agents may have sessions in that app, besides those that the endpoint's runner runs.
    pub(crate) fn is_shared(&self, name: &str, endpoint: &AgentEndpoint) -> bool {
        // Mounted services may have agents that nobody knows here.
        if self.caller_apps.contains(name) {
            return true;
        }
        let own = endpoint.runner.tree().fingerprint();
        let is_other = |other: &AgentEndpoint| other.runner.tree().fingerprint() != own;
        name != endpoint.runner.app()
            && self.agents.iter().any(|other| other.has_app(name) && is_other(other))
    }

    /// The user whose quotas a request counts for. Without auth there is one principal, without quotas.
    pub(crate) fn quota_user<'a>(&self, principal: &'a Principal) -> Option<&'a SmolStr> {
        self.auth.as_ref().map(|_| &principal.id)
    }

    /// Whether somebody may look into agents and their work.
    pub(crate) fn may_inspect(&self, principal: &Principal) -> bool {
        self.inspect || principal.has_scope(INSPECT)
    }

    /// A problem unless they may.
    pub(crate) fn check_inspect(&self, principal: &Principal) -> Result<(), Problem> {
        if self.may_inspect(principal) {
            return Ok(());
        }
        let message = "this server does not let its clients look into agents and their work: see `inspect`";
        Err(Problem::new(StatusCode::NOT_FOUND, "INSPECTION_OFF", message))
    }

    /// A problem if somebody may not ask for that path.
    pub(crate) fn check_scope(&self, principal: &Principal, path: &str) -> Result<(), Problem> {
        if path == self.metrics_at {
            return match principal.has_scope(METRICS) {
                true => Ok(()),
                false => Err(Problem::lacks_scope(METRICS)),
            };
        }
        if principal.scopes.is_none() {
            return Ok(());
        }
        let is_at =
            |at: &str| path.strip_prefix(at).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match self.scoped.iter().find(|(at, _)| is_at(at)) {
            Some((_, scope)) if !principal.may_use(scope) => Err(Problem::lacks_scope(scope)),
            _ => Ok(()),
        }
    }
}

impl Offered {
    /// Reserves memory for a request that reads a thread.
    pub(crate) async fn reserve(&self, principal: &Principal, key: &SessionKey) -> Result<Reserved, Problem> {
        let (runs, user) = (&self.app.runs, self.app.quota_user(principal));
        let store = self.endpoint.runner.sessions();
        runs.quotas.reserve_log(user, &**store, key, runs.limits()).await
    }

    /// Checks whether a user may store so many more bytes in a thread; `is_copy` says that it is new in any case.
    pub(crate) async fn check_stored(
        &self,
        key: &SessionKey,
        bytes: u64,
        is_copy: bool,
    ) -> Result<(), Problem> {
        if self.app.auth.is_none() {
            return Ok(());
        }
        let (runs, store) = (&self.app.runs, self.endpoint.runner.sessions());
        runs.quotas.check_stored(&**store, key, (bytes, is_copy), runs.limits()).await
    }

    /// Work that goes on by itself, with its CPU time charged to a user.
    pub(crate) fn spawn(&self, user: &str, work: impl Future<Output = ()> + Send + 'static) {
        if self.app.auth.is_none() {
            tokio::spawn(work);
            return;
        }
        let (runs, user) = (self.app.runs.clone(), SmolStr::new(user));
        tokio::spawn(async move { runs.quotas.metered(user, work).await });
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
