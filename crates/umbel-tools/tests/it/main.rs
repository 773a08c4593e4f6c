//! Tools that reach outside, called as agents call them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

#[cfg(target_os = "linux")]
mod abuse;
mod command;
mod documents;
mod http;
mod oauth;
mod oauth_runs;
mod oauth_server;
mod openapi;
mod openapi_security;
#[cfg(target_os = "linux")]
mod sandbox;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use umbel_core::{BoxFuture, Object, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};

/// What the model gets for a call, and all that was written down of the run.
async fn call_and_log(tool: Arc<dyn Tool>, args: Value) -> (Value, String) {
    let name = tool.spec().name.clone();
    let model = ScriptedModel::new("m").recorded().call(name, args).text("done");
    let runner = Runner::new("tests", LlmAgent::new("agent").model(model.clone()).tool(tool)).unwrap();
    let session = runner.create_session("ann").await.unwrap();
    let events = runner.run(&session.key, "go").collect_events().await.unwrap();
    let response = events[1].responses().next().unwrap().response.clone().unwrap();
    let log = format!("{}{:?}", serde_json::to_string(&events).unwrap(), model.requests());
    (Value::Object(response), log)
}

/// Notes whether its tool said that it failed.
struct Watched<T>(T, Arc<AtomicBool>);

impl<T: Tool> Tool for Watched<T> {
    fn spec(&self) -> &ToolSpec {
        self.0.spec()
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let output = self.0.call(cx, args).await?;
            if let ToolOutput::Value(value) = &output {
                self.1.store(value.is_error, Ordering::SeqCst);
            }
            Ok(output)
        })
    }
}

/// Whether a tool says of its result that it is a failure.
async fn fails(tool: impl Tool + 'static, args: Value) -> bool {
    let failed = Arc::new(AtomicBool::new(false));
    call(Watched(tool, failed.clone()), args).await;
    failed.load(Ordering::SeqCst)
}

/// What the model gets for a call.
async fn call(tool: impl Tool + 'static, args: Value) -> Value {
    call_and_log(Arc::new(tool), args).await.0
}

/// The words of an error.
fn error(response: &Value) -> &str {
    response["error"].as_str().unwrap_or_else(|| panic!("{response} is an error"))
}

fn text_argument(name: &str) -> Value {
    json!({"type": "object", "properties": {name: {"type": "string"}}})
}
