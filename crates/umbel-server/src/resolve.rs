//! One path for several agents: which of them a request is for.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use smol_str::SmolStr;
use umbel_agui::RunAgentInput;

use crate::app::Offered;
use crate::auth::Principal;
use crate::endpoint::AgentEndpoint;
use crate::problem::Problem;

/// What is known of a request when an agent is chosen for it.
#[derive(Clone, Copy, Debug)]
pub struct Asking<'a> {
    /// Its head: address and headers.
    pub head: &'a Parts,
    /// Who sent it.
    pub principal: &'a Principal,
    /// What a run is to be begun with. Requests about runs and threads have none.
    pub input: Option<&'a RunAgentInput<'a>>,
}

type Choose = dyn Fn(&Asking<'_>) -> Result<Option<SmolStr>, Problem> + Send + Sync;

/// The agents that a path may stand for.
pub(crate) struct Choice {
    pub(crate) agents: Vec<(SmolStr, Arc<AgentEndpoint>)>,
    pub(crate) choose: Arc<Choose>,
}

impl Offered {
    /// The agent that a request is for, where its path stands for several. If nobody can tell, it is the one that the
    /// thread has; if none has, the first.
    pub(crate) async fn choose(
        &self,
        asking: &Asking<'_>,
        thread: Option<&str>,
    ) -> Result<Option<Self>, Problem> {
        let Some(choice) = &self.choice else { return Ok(None) };
        let endpoint = match (choice.choose)(asking)? {
            Some(name) => {
                let named = choice.agents.iter().find(|(known, _)| *known == name);
                Some(named.ok_or_else(|| Problem::not_found("agent"))?.1.clone())
            }
            None => match thread {
                Some(thread) => choice.agent_of(asking, thread).await?,
                None => None,
            },
        };
        Ok(endpoint.map(|endpoint| Self { endpoint, ..self.clone() }))
    }

    /// The agents that a request may be for: the one that was chosen, or all.
    pub(crate) fn candidates(&self, asking: &Asking<'_>) -> Result<Vec<Self>, Problem> {
        let Some(choice) = &self.choice else { return Ok(vec![self.clone()]) };
        let name = (choice.choose)(asking)?;
        let fit = choice.agents.iter().filter(|(known, _)| name.as_ref().is_none_or(|name| name == known));
        let fit: Vec<Self> =
            fit.map(|(_, endpoint)| Self { endpoint: endpoint.clone(), ..self.clone() }).collect();
        if fit.is_empty() { Err(Problem::not_found("agent")) } else { Ok(fit) }
    }
}

impl Choice {
    /// The agent that a thread has: whose app it is of, and if several share that, who spoke last.
    async fn agent_of(
        &self,
        asking: &Asking<'_>,
        thread: &str,
    ) -> Result<Option<Arc<AgentEndpoint>>, Problem> {
        let mut first = None;
        for (_, endpoint) in &self.agents {
            let key = endpoint.key(asking.head, asking.principal, thread)?;
            let Some(view) = endpoint.runner.session(&key).await? else { continue };
            let last = view.events.iter().rev().find(|event| !event.is_user());
            let is_its = last.is_none_or(|event| endpoint.runner.tree().find(event.author()).is_some());
            if is_its {
                return Ok(Some(endpoint.clone()));
            }
            first.get_or_insert(endpoint);
        }
        Ok(first.cloned())
    }
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.agents.iter().map(|(name, _)| name)).finish()
    }
}
