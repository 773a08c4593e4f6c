//! Which agents there are, and what they are made of.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::app::App;
use crate::endpoint::AgentEndpoint;
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
pub(crate) async fn listed(State(app): State<Arc<App>>) -> Response {
    let body = json!({"agents": app.listed, "version": env!("CARGO_PKG_VERSION")});
    answer(StatusCode::OK, &body)
}
