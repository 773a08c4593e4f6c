//! Layers around tool calls.

mod caching;
mod circuit_breaker;
mod contract;
mod hooks;
mod limits;
mod logging;
mod retry;
mod runs;
mod tower;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use serde_json::Value;
use umbel::{
    CallId, FunctionTool, Object, Tool, ToolContext, ToolError, ToolItem, ToolOutput, ToolResult, ToolSpec,
    ToolValue,
};

use crate::support::object;

/// A tool that counts its calls and gives what the script says of each, the first one being 0.
#[derive(Clone)]
struct Scripted {
    calls: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Value>>>,
    tool: FunctionTool,
}

impl Scripted {
    fn new<F, Fut>(script: F) -> Self
    where
        F: Fn(usize, Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ToolResult> + Send + 'static,
    {
        Self::named("probe", script)
    }

    fn named<F, Fut>(name: &str, script: F) -> Self
    where
        F: Fn(usize, Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ToolResult> + Send + 'static,
    {
        let (calls, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::default()));
        let (count, noted): (_, Arc<Mutex<Vec<Value>>>) = (calls.clone(), seen.clone());
        let spec = ToolSpec::new(name, "Does what a test says.", serde_json::json!({"type": "object"}));
        let tool = FunctionTool::raw(spec, move |_, args| {
            let args = Value::Object((*args).clone());
            noted.lock().unwrap().push(args.clone());
            Box::pin(script(count.fetch_add(1, Ordering::SeqCst), args))
        });
        Self { calls, seen, tool: tool.read_only() }
    }

    /// Gives the number of each call.
    fn numbers() -> Self {
        Self::new(|n, _| async move { Ok(Value::from(n).into()) })
    }

    /// Fails so many times, and then gives the number of the call.
    fn failing(times: usize) -> Self {
        Self::new(move |n, _| async move {
            if n < times { Err(ToolError::new(format!("failure {n}"))) } else { Ok(Value::from(n).into()) }
        })
    }

    /// Takes so long.
    fn slow(time: Duration) -> Self {
        Self::new(move |n, _| async move {
            tokio::time::sleep(time).await;
            Ok(Value::from(n).into())
        })
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

/// The context of a call that no run makes.
fn context() -> ToolContext {
    ToolContext::detached("probe").unwrap()
}

async fn call(tool: &Arc<dyn Tool>, args: Value) -> ToolResult {
    call_in(tool, &context(), args).await
}

async fn call_in(tool: &Arc<dyn Tool>, cx: &ToolContext, args: Value) -> ToolResult {
    tool.call(cx, Arc::new(object(args))).await
}

/// A context of the same run with an id of its own.
fn context_of(cx: &ToolContext, id: &str) -> ToolContext {
    ToolContext::new(cx.run().clone(), "probe".into(), Some(CallId::from(id)), umbel::CallMade::default())
}

fn value(result: ToolResult) -> ToolValue {
    match result {
        Ok(ToolOutput::Value(value)) => *value,
        other => panic!("not a value: {other:?}"),
    }
}

fn error(result: ToolResult) -> umbel::Error {
    result.expect_err("an error").into_error()
}

/// A streamed result, read to its end.
async fn items(result: ToolResult) -> Vec<Result<ToolItem, String>> {
    let Ok(ToolOutput::Stream(items)) = result else { panic!("not a stream: {result:?}") };
    items.map(|item| item.map_err(|e| e.to_string())).collect().await
}

/// The last item of a streamed result.
async fn done(result: ToolResult) -> ToolValue {
    match items(result).await.pop() {
        Some(Ok(ToolItem::Done(value))) => value,
        other => panic!("not a result: {other:?}"),
    }
}

fn streamed(items: impl IntoIterator<Item = ToolItem> + Send + 'static) -> ToolResult {
    let items: Vec<_> = items.into_iter().map(Ok).collect();
    Ok(ToolOutput::Stream(Box::pin(futures::stream::iter(items))))
}

fn metadata(fields: &[(&str, bool)]) -> Object {
    fields.iter().map(|(name, flag)| ((*name).to_owned(), Value::Bool(*flag))).collect()
}
