//! The callbacks of an agent and of plugins around model and tool calls, as the innermost layer of the onion.
//!
//! They come in google-adk's own sequence: plugins first, then the agent; the first value wins; what comes after a call
//! comes also when a callback answered in its place. Its own exceptions are kept: a response that a callback gives in
//! the model's place is not seen by those after it, nor is an answer to an unknown tool.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::Value;
use umbel_core::{
    BoxStream, Callbacks, Chunk, ChunkStream, Context, Error, ErrorKind, Handler, Hooks, ModelCall,
    ModelRequest, NextModel, NextTool, Object, Response, Result, Run, Tool, ToolCall, ToolContext, ToolError,
    ToolItem, ToolOutput, ToolResult, ToolValue, Work,
};

use crate::aggregator::Aggregator;
use crate::flow::{as_object, error_value};
use crate::plugin::Plugin;
use crate::text;

/// The callbacks of one agent and of all plugins.
pub(crate) struct AdkStage(Arc<Stage>);

struct Stage {
    plugins: Vec<Arc<Plugin>>,
    own: Callbacks,
    hooks: Hooks,
}

impl AdkStage {
    /// The stage of an agent; `None` if there is nothing to call.
    pub(crate) fn of(plugins: &[Arc<Plugin>], own: &Callbacks) -> Option<Arc<dyn Handler>> {
        let all = || plugins.iter().map(|plugin| &plugin.callbacks).chain([own]);
        let mut hooks = Hooks::NONE;
        if all().any(Callbacks::around_models) {
            hooks |= Hooks::WRAP_MODEL;
        }
        if all().any(Callbacks::around_tools) {
            hooks |= Hooks::WRAP_TOOL;
        }
        let stage = Stage { plugins: plugins.to_vec(), own: own.clone(), hooks };
        (hooks != Hooks::NONE).then(|| Arc::new(Self(Arc::new(stage))) as Arc<dyn Handler>)
    }
}

impl Handler for AdkStage {
    fn name(&self) -> &str {
        "callbacks"
    }

    fn hooks(&self) -> Hooks {
        self.0.hooks
    }

    fn wrap_model<'a>(
        &'a self,
        mut call: ModelCall<'a>,
        next: NextModel<'a>,
    ) -> Work<'a, Result<ChunkStream<'a>>> {
        Work::later(async move {
            if let Some(response) = self.0.before_model(call.cx, &mut call.request).await? {
                let answer: ChunkStream<'a> =
                    Box::pin(futures::stream::iter([Ok(Chunk::Complete(response))]));
                return Ok(answer);
            }
            let (cx, request) = (call.cx, call.request.clone());
            match next.call(call).await {
                Ok(chunks) => Ok(self.0.clone().seen(cx, request, chunks)),
                Err(error) => {
                    let response = self.0.on_model_error(cx, &request, error).await?;
                    let response = self.0.after_model(cx, response).await?;
                    let answer: ChunkStream<'a> =
                        Box::pin(futures::stream::iter([Ok(Chunk::Complete(response))]));
                    Ok(answer)
                }
            }
        })
    }

    fn wrap_tool<'a>(&'a self, mut call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        Work::later(async move {
            let (cx, tool) = (call.cx, call.tool);
            if let Some(answer) = self.0.before_tool(cx, tool.map(|tool| &**tool), &mut call.args).await? {
                let value = self.0.after_tool(cx, &call.args, Value::Object(answer).into()).await?;
                return Ok(ToolOutput::from(value));
            }
            let args = call.args.clone();
            match next.call(call).await {
                Ok(ToolOutput::Value(value)) => {
                    Ok(ToolOutput::from(self.0.after_tool(cx, &args, *value).await?))
                }
                Ok(ToolOutput::Stream(items)) => Ok(ToolOutput::Stream(self.0.clone().last(cx, args, items))),
                Err(error) => self.0.failed(cx, tool.is_some(), &args, error.into_error()).await,
            }
        })
    }
}

/// The model's answer while callbacks look at it.
struct Reading<'a> {
    stage: Arc<Stage>,
    cx: &'a Context,
    request: ModelRequest,
    chunks: ChunkStream<'a>,
    fold: Option<Aggregator>,
    /// The last item was a piece of an answer whose rest did not come.
    cut: bool,
    done: bool,
}

impl Stage {
    /// The answer as callbacks leave it: each piece, and each whole, as a response.
    fn seen<'a>(
        self: Arc<Self>,
        cx: &'a Context,
        request: ModelRequest,
        chunks: ChunkStream<'a>,
    ) -> ChunkStream<'a> {
        let reading = Reading { stage: self, cx, request, chunks, fold: None, cut: false, done: false };
        Box::pin(futures::stream::unfold(reading, |mut reading| async move {
            let item = reading.next().await.transpose()?;
            reading.done |= item.is_err();
            Some((item, reading))
        }))
    }

    async fn before_model(&self, cx: &Context, request: &mut ModelRequest) -> Result<Option<Response>> {
        for plugin in &self.plugins {
            for callback in &plugin.callbacks.before_model {
                let given = callback(cx, request).await;
                if let Some(response) = given.map_err(|e| plugin.named("before_model", e))? {
                    return Ok(Some(response));
                }
            }
        }
        for callback in &self.own.before_model {
            if let Some(response) = callback(cx, request).await.map_err(of_callback)? {
                return Ok(Some(response));
            }
        }
        Ok(None)
    }

    async fn after_model(&self, cx: &Context, response: Response) -> Result<Response> {
        for plugin in &self.plugins {
            for callback in &plugin.callbacks.after_model {
                let given = callback(cx, &response).await;
                if let Some(given) = given.map_err(|e| plugin.named("after_model", e))? {
                    return Ok(inherit(given, &response));
                }
            }
        }
        for callback in &self.own.after_model {
            if let Some(given) = callback(cx, &response).await.map_err(of_callback)? {
                return Ok(inherit(given, &response));
            }
        }
        Ok(response)
    }

    async fn on_model_error(&self, cx: &Context, request: &ModelRequest, error: Error) -> Result<Response> {
        if error.is_control() || cx.cancel_token().is_cancelled() {
            return Err(error);
        }
        for plugin in &self.plugins {
            for callback in &plugin.callbacks.on_model_error {
                let given = callback(cx, request, &error).await;
                if let Some(response) = given.map_err(|e| plugin.named("on_model_error", e))? {
                    return Ok(response);
                }
            }
        }
        for callback in &self.own.on_model_error {
            if let Some(response) = callback(cx, request, &error).await.map_err(of_callback)? {
                return Ok(response);
            }
        }
        Err(error)
    }

    async fn before_tool(
        &self,
        cx: &ToolContext,
        tool: Option<&dyn Tool>,
        args: &mut Arc<Object>,
    ) -> Result<Option<Object>> {
        for plugin in &self.plugins {
            for callback in &plugin.callbacks.before_tool {
                let given = callback(cx, tool, Arc::make_mut(args)).await;
                if let Some(answer) = given.map_err(|e| plugin.named("before_tool", e))? {
                    return Ok(Some(answer));
                }
            }
        }
        for callback in &self.own.before_tool {
            if let Some(answer) = callback(cx, tool, Arc::make_mut(args)).await.map_err(own)? {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    async fn after_tool(&self, cx: &ToolContext, args: &Object, value: ToolValue) -> Result<ToolValue> {
        let replaced = self.replaced(cx, args, &value).await?;
        Ok(replaced.map_or(value, |answer| Value::Object(answer).into()))
    }

    /// What callbacks put in the place of a result.
    async fn replaced(&self, cx: &ToolContext, args: &Object, value: &ToolValue) -> Result<Option<Object>> {
        let all = || self.plugins.iter().map(|plugin| &plugin.callbacks).chain([&self.own]);
        if all().all(|callbacks| callbacks.after_tool.is_empty()) {
            return Ok(None);
        }
        let result = as_object(value.value.clone());
        for plugin in &self.plugins {
            for callback in &plugin.callbacks.after_tool {
                let given = callback(cx, args, &result).await;
                let given = given.map_err(|e| plugin.named("after_tool", e))?;
                if given.is_some() {
                    return Ok(given);
                }
            }
        }
        for callback in &self.own.after_tool {
            let given = callback(cx, args, &result).await.map_err(own)?;
            if given.is_some() {
                return Ok(given);
            }
        }
        Ok(None)
    }

    /// A tool that failed, or does not exist.
    async fn failed(&self, cx: &ToolContext, known: bool, args: &Object, error: Error) -> ToolResult {
        if error.is_control() || cx.cancel_token().is_cancelled() {
            return Err(error.into());
        }
        if let Some(answer) = self.on_tool_error(cx, args, &error).await? {
            let value = Value::Object(answer).into();
            let value = if known { self.after_tool(cx, args, value).await? } else { value };
            return Ok(ToolOutput::from(value));
        }
        if known && !fails_the_run(cx.run(), &error) {
            // The model will be told of the error; what it is told may be changed.
            let told = error_value(error.message());
            if let Some(answer) = self.replaced(cx, args, &told).await? {
                return Ok(Value::Object(answer).into());
            }
        }
        Err(error.into())
    }

    async fn on_tool_error(&self, cx: &ToolContext, args: &Object, error: &Error) -> Result<Option<Object>> {
        for plugin in &self.plugins {
            for callback in &plugin.callbacks.on_tool_error {
                let given = callback(cx, args, error).await;
                if let Some(answer) = given.map_err(|e| plugin.named("on_tool_error", e))? {
                    return Ok(Some(answer));
                }
            }
        }
        for callback in &self.own.on_tool_error {
            if let Some(answer) = callback(cx, args, error).await.map_err(own)? {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    /// A streamed result whose last item callbacks look at.
    fn last(
        self: Arc<Self>,
        cx: &ToolContext,
        args: Arc<Object>,
        items: BoxStream<'static, Result<ToolItem, ToolError>>,
    ) -> BoxStream<'static, Result<ToolItem, ToolError>> {
        let cx = cx.clone();
        Box::pin(items.then(move |item| {
            let (stage, cx, args) = (self.clone(), cx.clone(), args.clone());
            async move {
                match item {
                    Ok(ToolItem::Done(value)) => {
                        Ok(ToolItem::Done(stage.after_tool(&cx, &args, value).await?))
                    }
                    Err(error) => match stage.failed(&cx, true, &args, error.into_error()).await? {
                        ToolOutput::Value(value) => Ok(ToolItem::Done(*value)),
                        ToolOutput::Stream(_) => Err(ToolError::new(text::STREAM_IN_STREAM)),
                    },
                    progress => progress,
                }
            }
        }))
    }
}

impl Reading<'_> {
    async fn next(&mut self) -> Result<Option<Chunk>> {
        if self.done {
            return Ok(None);
        }
        let run = self.cx.run();
        while let Some(chunk) = self.chunks.next().await {
            match chunk {
                Ok(chunk @ (Chunk::Text(_) | Chunk::Thought(_) | Chunk::Delta(_))) => {
                    let ids = run.services().ids.as_ref();
                    let fold = self.fold.get_or_insert_default();
                    if let Some(piece) = fold.fold_chunk(chunk, ids, run.config().streaming) {
                        return self.whole(piece).await.map(Some);
                    }
                }
                Ok(Chunk::Complete(whole)) => {
                    self.fold = None;
                    self.cut = whole.partial == Some(true);
                    return self.whole(whole).await.map(Some);
                }
                Ok(Chunk::Restart) => {
                    self.fold = None;
                    return Ok(Some(Chunk::Restart));
                }
                Ok(other) => return Ok(Some(other)),
                Err(error) => {
                    self.done = true;
                    let response = self.stage.on_model_error(self.cx, &self.request, error).await?;
                    return self.whole(response).await.map(Some);
                }
            }
        }
        self.done = true;
        if let Some(whole) = self.fold.take().and_then(|mut fold| fold.close()) {
            return self.whole(whole).await.map(Some);
        }
        if self.cut {
            let error = Error::new(ErrorKind::StreamCut, text::STREAM_CUT);
            let response = self.stage.on_model_error(self.cx, &self.request, error).await?;
            return self.whole(response).await.map(Some);
        }
        Ok(None)
    }

    async fn whole(&mut self, response: Response) -> Result<Chunk> {
        Ok(Chunk::Complete(self.stage.after_model(self.cx, response).await?))
    }
}

/// An error of an agent's callback around a model. Its kind stays, unless it is none in particular.
fn of_callback(error: Error) -> Error {
    if error.kind() == ErrorKind::Other { own(error) } else { error }
}

/// An error of an agent's callback around a tool, which must not be taken for the tool's.
fn own(error: Error) -> Error {
    if error.is_control() {
        return error;
    }
    Error::new(ErrorKind::Handler, error.message()).with_source(error)
}

/// Whether an error of a call fails the run. Arguments that do not fit are the model's to correct, whatever the policy; a
/// handler that failed is nothing that a model can help.
pub(crate) fn fails_the_run(run: &Run, error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Handler => true,
        ErrorKind::InvalidInput => false,
        _ => run.config().tool_errors == umbel_core::ToolErrors::Fail,
    }
}

/// A response that takes the place of another keeps what only the other knows.
fn inherit(mut given: Response, replaced: &Response) -> Response {
    given.partial = given.partial.or(replaced.partial);
    given.turn_complete = given.turn_complete.or(replaced.turn_complete);
    if given.usage().is_none()
        && let Some(usage) = replaced.usage()
    {
        given.meta_mut().usage_metadata = Some(usage.clone());
    }
    given
}
