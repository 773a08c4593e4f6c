//! A tool of an MCP server.

use std::sync::{Arc, OnceLock, Weak};
use std::task::Poll;
use std::time::Duration;

use jsonschema::{PatternOptions, Validator};
use rmcp::model::{CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, ServerResult};
use serde_json::Value;
use tokio::sync::mpsc;
use umbel_core::json_schema::{is_recursive, nodes, unfolded};
use umbel_core::{
    BoxFuture, Confirm, Error, ErrorKind, Object, Result, Tool, ToolContext, ToolError, ToolItem, ToolOutput,
    ToolSpec, ToolValue,
};

use super::asking::{Asked, Asking};
use super::listed::Listed;
use super::result;
use super::toolset::{Inner, Options};

/// How much news of a call may wait to be shown.
const NEWS: usize = 16;
/// How big a schema of results may be to be held against them.
const OUTPUT: u64 = 5_000;
/// How much work that may be: the size of the schema times that of the result.
const CHECKS: u64 = 20_000_000;

/// A tool of an MCP server.
pub(crate) struct McpTool {
    spec: ToolSpec,
    work: Arc<Work>,
}

/// What a call needs.
struct Work {
    toolset: Weak<Inner>,
    listed: Listed,
    is_safe_twice: bool,
    output: OnceLock<Option<OutputCheck>>,
}

impl McpTool {
    pub(crate) fn new(inner: &Arc<Inner>, listed: Listed, confirm: Confirm) -> Self {
        let tool = &listed.tool;
        let description = tool.description.as_deref().or(tool.title.as_deref()).unwrap_or_default();
        let schema = Value::Object((*tool.input_schema).clone());
        let mut spec = ToolSpec::new(listed.name.clone(), description, schema);
        let hints = tool.annotations.clone().filter(|_| inner.options.trust_hints).unwrap_or_default();
        spec.read_only = hints.read_only_hint == Some(true);
        spec.idempotent = hints.is_idempotent();
        spec.confirm = confirm;
        // The limits of the server come first, and say more.
        spec.timeout = Some(inner.options.limits.call.saturating_add(Duration::from_secs(5)));
        let is_safe_twice = spec.read_only || spec.idempotent;
        let work = Work { toolset: Arc::downgrade(inner), listed, is_safe_twice, output: OnceLock::new() };
        Self { spec, work: Arc::new(work) }
    }
}

impl Tool for McpTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        let (news, mut coming) = mpsc::channel(NEWS);
        let (work, cx) = (self.work.clone(), cx.clone());
        let mut work: Option<BoxFuture<'static, Result<ToolValue>>> =
            Some(Box::pin(async move { work.call(&cx, &args, news).await }));
        let mut done = None;
        let items = futures::stream::poll_fn(move |task| {
            if let Some(Poll::Ready(result)) = work.as_mut().map(|work| work.as_mut().poll(task)) {
                // What it has not shown yet is shown first: with it goes what the news come by.
                (work, done) = (None, Some(result));
            }
            match coming.poll_recv(task) {
                Poll::Ready(Some(news)) => Poll::Ready(Some(Ok(ToolItem::Progress(news)))),
                Poll::Ready(None) => {
                    Poll::Ready(done.take().map(|done| done.map(ToolItem::Done).map_err(ToolError::from)))
                }
                Poll::Pending => Poll::Pending,
            }
        });
        Box::pin(std::future::ready(Ok(ToolOutput::Stream(Box::pin(items)))))
    }
}

impl Work {
    async fn call(&self, cx: &ToolContext, args: &Object, news: mpsc::Sender<Value>) -> Result<ToolValue> {
        let inner = Inner::of(&self.toolset)?;
        let (name, server) = (self.listed.tool.name.clone(), &inner.options.name);
        let mut asking = Asking::new(&inner, cx, self.is_safe_twice);
        asking.news = Some(news);
        let request = |more: &Asked| {
            let mut params = CallToolRequestParams::new(name.clone()).with_arguments(args.clone());
            params.input_responses.clone_from(&more.responses);
            params.request_state.clone_from(&more.state);
            ClientRequest::CallToolRequest(CallToolRequest::new(params))
        };
        match asking.ask(request).await {
            Ok(ServerResult::CallToolResult(result)) => Ok(self.value(&inner, result)),
            Err(failure) => result::failed(server, failure),
            Ok(_) => {
                let message = format!("what the MCP server `{server}` answers is no result of a tool");
                Err(Error::new(ErrorKind::Tool, message))
            }
        }
    }

    /// The result, if it is what the server said it would be.
    fn value(&self, inner: &Inner, result: CallToolResult) -> ToolValue {
        let Options { name, limits, .. } = &inner.options;
        if result.is_error != Some(true)
            && let Some(check) = self.output.get_or_init(|| output_check(&self.listed))
        {
            let found = result.structured_content.as_ref().unwrap_or(&Value::Null);
            if check.schema_size.saturating_mul(nodes(found)) > CHECKS {
                let words =
                    format!("the MCP server `{name}` gave a result that is too big for its own schema");
                return result::error_of(name, &words);
            }
            if let Err(error) = check.validator.validate(found) {
                // Names of fields are the server's words, too.
                let place = error.instance_path().to_string();
                let place = result::short(&place);
                let words = format!(
                    "the MCP server `{name}` gave a result that does not fit its own schema (at `{place}`)"
                );
                return result::error_of(name, &words);
            }
        }
        result::value(name, result, limits.result_bytes)
    }
}

/// What holds results against the schema that the server gave for them.
pub(super) struct OutputCheck {
    pub(super) validator: Validator,
    /// With all that it refers to.
    schema_size: u64,
}

/// None for schemas that could take for ever: those that refer to themselves, or are too big.
pub(super) fn output_check(listed: &Listed) -> Option<OutputCheck> {
    let schema = Value::Object((**listed.tool.output_schema.as_ref()?).clone());
    let schema_size = unfolded(&schema).filter(|size| *size <= OUTPUT && !is_recursive(&schema))?;
    let validator =
        jsonschema::options().with_pattern_options(PatternOptions::regex()).build(&schema).ok()?;
    Some(OutputCheck { validator, schema_size })
}
