//! Which agents there are, and what they are made of.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::{AgentTree, Confirm};
use umbel_runtime::Explanation;

use crate::app::{App, Offered};
use crate::endpoint::AgentEndpoint;
use crate::post::principal;
use crate::problem::Problem;
use crate::resolve::Asking;
use crate::routes::answer;

/// What is told of the agents of a server, each with its path.
pub(crate) fn list<'a>(agents: impl Iterator<Item = (&'a SmolStr, &'a AgentEndpoint)>) -> Value {
    let agents = agents.map(|(path, endpoint)| {
        let tree = endpoint.runner.tree();
        let description = tree.node(tree.root()).map(|root| root.agent.description());
        json!({
            "path": path,
            "name": endpoint.cast.root,
            "description": description.unwrap_or_default(),
            "suggestions": endpoint.suggestions,
        })
    });
    agents.collect()
}

/// `GET /agents`.
pub(crate) async fn listed(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let principal = principal(&head)?;
    let is_theirs = |agent: &&Value| {
        let path = agent.get("path").and_then(Value::as_str).unwrap_or_default();
        app.check_scope(&principal, path.trim_end_matches('/')).is_ok()
    };
    let agents: Vec<&Value> = app.listed.as_array().into_iter().flatten().filter(is_theirs).collect();
    let inspect = app.may_inspect(&principal);
    let body = json!({"agents": agents, "version": env!("CARGO_PKG_VERSION"), "inspect": inspect});
    Ok(answer(StatusCode::OK, &body))
}

/// `GET {agent}/graph`: the agents of a tree, parents before children.
pub(crate) async fn graph(State(offered): State<Offered>, request: Request) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let principal = principal(&head)?;
    offered.app.check_inspect(&principal)?;
    let asking = Asking { head: &head, principal: &principal, input: None };
    let chosen = offered.choose(&asking, None).await?;
    let endpoint = &chosen.as_ref().unwrap_or(&offered).endpoint;
    let explained = endpoint.runner.explain()?;
    let agents: Vec<Value> = explained.iter().map(|agent| form(endpoint.runner.tree(), agent)).collect();
    Ok(answer(StatusCode::OK, &json!({"root": endpoint.cast.root, "agents": agents})))
}

/// An agent and all that extends it.
fn form(tree: &AgentTree, agent: &Explanation) -> Value {
    let instruction = agent.instruction.iter().map(|(source, text)| json!({"source": source, "text": text}));
    let hooks = agent.hooks.iter().map(|(hook, handlers)| json!({"hook": hook, "handlers": handlers}));
    let tools = agent.plan.tools.iter().zip(&agent.tools).map(|(meta, (_, source))| {
        let spec = meta.tool.spec();
        json!({
            "name": spec.name,
            "description": spec.description,
            "source": source,
            "parameters": spec.parameters,
            "needsConfirmation": !matches!(spec.confirm, Confirm::Never),
            "longRunning": spec.long_running,
            "agent": meta.tool.agent().map(|agent| agent.name()),
        })
    });
    let node = tree.find(&agent.agent).and_then(|id| tree.node(id).ok());
    let mut notes = agent.notes.clone();
    if node.is_some_and(|node| !node.agent.toolsets().is_empty()) {
        notes.push("it has toolsets: which tools these give is known when it runs".to_owned());
    }
    json!({
        "name": agent.agent,
        "kind": agent.kind,
        "parent": agent.parent,
        "description": agent.description,
        "model": agent.model,
        "instruction": instruction.collect::<Vec<_>>(),
        "tools": tools.collect::<Vec<_>>(),
        "hooks": hooks.collect::<Vec<_>>(),
        "transfersTo": agent.transfers_to,
        "notes": notes,
    })
}
