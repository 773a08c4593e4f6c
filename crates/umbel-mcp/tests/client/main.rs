//! MCP servers, good and bad, as agents meet them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod asking;
mod bad;
mod fake;
mod http;
mod pinning;
mod program;
mod tools;

use std::sync::Arc;

use futures::StreamExt;
use serde_json::Value;
use umbel_core::{Event, InMemorySessions, Outcome, SessionKey, SessionStore, Toolset};
use umbel_runtime::{LlmAgent, RunStream, Runner, ScriptedModel};

/// An agent with a toolset, and what it works with.
struct Desk {
    runner: Runner,
    key: SessionKey,
    model: ScriptedModel,
}

/// An agent that says what its script says.
async fn desk(tools: impl Toolset + 'static, model: ScriptedModel) -> Desk {
    desk_on(tools, model, Arc::new(InMemorySessions::new())).await
}

/// The same over a store that may have been used before.
async fn desk_on(tools: impl Toolset + 'static, model: ScriptedModel, store: Arc<dyn SessionStore>) -> Desk {
    desk_with(LlmAgent::new("agent").toolset(tools), model, store).await
}

/// The same with an agent that has more.
async fn desk_with(agent: LlmAgent, model: ScriptedModel, store: Arc<dyn SessionStore>) -> Desk {
    let model = model.recorded();
    let runner = Runner::builder("tests", agent.model(model.clone())).sessions(store).build().unwrap();
    let key = SessionKey::new("tests", "ann", "s1").unwrap();
    let _ = runner.create_session_with("ann", "s1", umbel_core::Object::new()).await;
    Desk { runner, key, model }
}

/// A run to its end: all events, and how it ended.
async fn finish(mut run: RunStream) -> (Vec<Arc<Event>>, Outcome) {
    let mut events = Vec::new();
    while let Some(event) = run.next().await {
        // What went wrong is in the outcome.
        events.extend(event.ok());
    }
    (events, run.outcome().unwrap().clone())
}

impl Desk {
    async fn say(&self, message: impl Into<umbel_core::Content>) -> (Vec<Arc<Event>>, Outcome) {
        finish(self.runner.run(&self.key, message)).await
    }

    /// What the model gets for the calls that its script makes.
    async fn results(&self) -> Vec<Value> {
        let (events, outcome) = self.say("go").await;
        assert_eq!(outcome, Outcome::Finished);
        responses(&events)
    }

    /// What the model gets for the one call that its script makes.
    async fn result(&self) -> Value {
        self.results().await.remove(0)
    }

    /// The names of the tools that the model was told of, each time it was asked.
    fn offered(&self) -> Vec<Vec<String>> {
        let names = |request: &umbel_core::ModelRequest| {
            request.tools.specs().map(|spec| spec.name.to_string()).collect()
        };
        self.model.requests().iter().map(names).collect()
    }
}

/// What calls gave, without what was shown on the way.
fn responses(events: &[Arc<Event>]) -> Vec<Value> {
    let whole = events.iter().filter(|event| !event.is_partial());
    whole
        .flat_map(|event| event.responses())
        .map(|response| Value::Object(response.response.clone().unwrap_or_default()))
        .collect()
}
