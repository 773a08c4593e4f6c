//! Making the calls that a model asks for: all at once, each guarded, results in call order.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use tracing::Instrument;
use umbel_core::{
    Actions, CallFinished, CallId, Confirmation, Content, Error, ErrorKind, Event, FunctionCall,
    FunctionResponse, Object, Part, Parts, Result, Role, Run, RunStep, ToolContext, ToolErrors, ToolItem,
    ToolMeta, ToolOutput, ToolSet, ToolValue,
};

use super::Turn;
use crate::agents::LlmAgent;
use crate::contents::visible::REQUEST_CONFIRMATION;
use crate::team::Team;
use crate::{spans, text};

/// Calls to be made together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The calls, in order.
    pub calls: Vec<FunctionCall>,
    /// What people said to those that asked for it.
    pub confirmations: BTreeMap<CallId, Confirmation>,
}

impl Batch {
    /// The calls of an event.
    pub fn of_event(event: &Event) -> Self {
        Self { calls: event.calls().cloned().collect(), confirmations: BTreeMap::new() }
    }
}

/// What one call gave.
struct Done {
    /// Absent if the answer comes later.
    part: Option<Part>,
    /// The same in words, if nobody sums it up.
    words: Option<Part>,
    actions: Option<Box<Actions>>,
}

/// Makes the calls, emits what they gave, and sees to what that asks for. Gives the last event.
pub(super) async fn follow(
    turn: &mut Turn<'_>,
    tools: &Arc<ToolSet>,
    batch: &Batch,
) -> Result<Option<Arc<Event>>> {
    let run = turn.run;
    let Some(mut event) = execute(turn.agent, run, &turn.team, tools, batch).await? else { return Ok(None) };
    let direct =
        batch.calls.iter().rev().find(|call| tools.get(&call.name).is_some_and(|meta| meta.return_directly));
    if direct.is_some() {
        event.actions_mut().skip_summarization = Some(true);
    }
    turn.answer.save(turn.agent, &mut event)?;
    let actions = event.actions.as_deref();
    let (answer, transfer) = actions.map_or((None, None), |actions| {
        (actions.set_model_response.clone(), actions.transfer_to_agent.clone())
    });
    let mut last = emit_with_questions(run, &batch.calls, event).await?;
    if let Some(value) = answer {
        let answer = Content::model(Part::text(value.to_string()));
        let mut event = run.event().with_content(answer);
        turn.answer.save(turn.agent, &mut event)?;
        last = run.emit(event).await?;
    }
    if let Some(name) = transfer {
        run.transfer_to(name);
        run.end();
    }
    Ok(Some(last))
}

/// Emits the responses, and the questions to people that some of them raise.
async fn emit_with_questions(run: &Run, calls: &[FunctionCall], mut event: Event) -> Result<Arc<Event>> {
    let asked = event.actions.as_ref().and_then(|actions| actions.requested_tool_confirmations.clone());
    let Some(asked) = asked.filter(|asked| !asked.is_empty()) else { return run.emit(event).await };
    let question = question(run, calls, &asked);
    let settled =
        event.responses().any(|response| response.id.as_ref().is_none_or(|id| !asked.contains_key(id)));
    if settled {
        // Some calls have their results: the model shall see those once the others have theirs too.
        event.actions_mut().skip_summarization = None;
        run.emit(event).await?;
        run.emit(question).await
    } else {
        run.emit(question).await?;
        run.emit(event).await
    }
}

/// The event that asks people about calls.
fn question(run: &Run, calls: &[FunctionCall], asked: &BTreeMap<CallId, Confirmation>) -> Event {
    let mut ids = Vec::new();
    let parts = calls.iter().filter_map(|call| {
        let confirmation = asked.get(call.id.as_ref()?)?;
        let args = json!({"originalFunctionCall": call, "toolConfirmation": confirmation});
        let id = run.services().ids.call();
        ids.push(id.clone());
        let args = args.as_object().cloned().unwrap_or_default();
        Some(Part::call(FunctionCall::new(REQUEST_CONFIRMATION, args).with_id(id)))
    });
    let content = Content::new(Role::Model, parts.collect::<Parts>());
    let mut event = run.event().with_content(content);
    ids.sort();
    event.long_running_tool_ids = Some(Box::new(ids));
    event
}

/// Makes the calls and merges what they gave into one event, not yet emitted.
///
/// If one fails and the policy is to fail the run, the results of the others are emitted first.
pub(crate) async fn execute(
    agent: &LlmAgent,
    run: &Run,
    team: &Team,
    tools: &ToolSet,
    batch: &Batch,
) -> Result<Option<Event>> {
    let caller = Caller { agent, run, team, tools, batch, turns: exclusive(batch, tools) };
    let results = match batch.calls.as_slice() {
        [only] => vec![caller.make(only).await],
        several => Box::pin(caller.make_all(several)).await,
    };
    let (mut done, mut failure) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(one) => done.push(one),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    let Some(error) = failure else { return Ok(merge(run, done)) };
    done.retain(|one| one.actions.as_ref().is_none_or(|actions| actions.is_plain()));
    if let Some(event) = merge(run, done).filter(|_| !error.is_control()) {
        run.emit(event).await?;
    }
    Err(error)
}

/// A lock by which a call that tolerates no other beside it waits its turn; `None` if no call is such.
fn exclusive(batch: &Batch, tools: &ToolSet) -> Option<tokio::sync::RwLock<()>> {
    let alone = |call: &FunctionCall| tools.get(&call.name).is_some_and(|meta| meta.tool.spec().exclusive);
    (batch.calls.len() > 1 && batch.calls.iter().any(alone)).then(tokio::sync::RwLock::default)
}

/// The results as one event: parts in call order, actions merged in call order.
fn merge(run: &Run, done: Vec<Done>) -> Option<Event> {
    let mut parts = Parts::new();
    let mut actions: Option<Box<Actions>> = None;
    for one in done {
        parts.extend(one.part);
        parts.extend(one.words);
        match (&mut actions, one.actions) {
            (Some(all), Some(more)) => all.merge(*more),
            (None, more) => actions = more,
            (Some(_), None) => {}
        }
    }
    if parts.is_empty() && actions.is_none() {
        return None;
    }
    let mut event = run.event();
    event.actions = actions;
    // Without a part there is no answer yet, but what the calls did counts.
    event.content = (!parts.is_empty()).then(|| Arc::new(Content { role: Some(Role::User), parts }));
    Some(event)
}

struct Caller<'a> {
    agent: &'a LlmAgent,
    run: &'a Run,
    team: &'a Team,
    tools: &'a ToolSet,
    batch: &'a Batch,
    turns: Option<tokio::sync::RwLock<()>>,
}

impl Caller<'_> {
    /// Makes several calls at once, so many and no more. Results are in call order.
    ///
    /// Once one has failed nobody waits for the others: those that are done are kept, the rest are stopped.
    async fn make_all(&self, calls: &[FunctionCall]) -> Vec<Result<Done>> {
        let limit = self.run.config().limits.calls_at_once.max(1);
        let mut waiting = calls.iter().enumerate();
        let mut running = FuturesUnordered::new();
        let mut results: Vec<(usize, Result<Done>)> = Vec::with_capacity(calls.len());
        loop {
            while running.len() < limit
                && let Some((index, call)) = waiting.next()
            {
                running.push(self.make_one_of_several(index, call));
            }
            let Some(result) = running.next().await else { break };
            let failed = result.1.is_err();
            results.push(result);
            if failed {
                while let Some(Some(result)) = running.next().now_or_never() {
                    results.extend(Some(result).filter(|(_, result)| result.is_ok()));
                }
                break;
            }
        }
        results.sort_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// Makes a call and notes its result, so that it is not made again should its siblings be cut short.
    async fn make_one_of_several(&self, index: usize, call: &FunctionCall) -> (usize, Result<Done>) {
        let mut result = self.make(call).await;
        if let (Ok(done), Some(call)) = (&result, call.id.clone()) {
            let response = done.part.as_ref().and_then(|part| serde_json::to_value(part).ok());
            let finished = Box::new(CallFinished { call, response });
            if let Err(error) = self.run.record(vec![RunStep::CallFinished { finished }]).await {
                result = Err(error);
            }
        }
        (index, result)
    }

    /// Makes one call, callbacks and all.
    async fn make(&self, call: &FunctionCall) -> Result<Done> {
        let span = spans::tool_call(call);
        let meta = self.tools.get(&call.name);
        let confirmation = call.id.as_ref().and_then(|id| self.batch.confirmations.get(id)).cloned();
        let cx = ToolContext::new(self.run.clone(), call.name.clone(), call.id.clone(), confirmation);
        let value = async {
            let value = self.value(&cx, call, meta).await;
            match &value {
                Err(error) => spans::record_error(error.kind().code()),
                Ok(value) if value.is_error => spans::record_error(ErrorKind::Tool.code()),
                Ok(_) => {}
            }
            value
        };
        let value = pin!(value.instrument(span)).await?;
        let spec = meta.map(|meta| meta.tool.spec());
        let later = spec.is_some_and(|spec| spec.long_running);
        let actions = cx.take_actions();
        let skips = actions.as_ref().is_some_and(|actions| actions.skip_summarization == Some(true));
        let words = spec.filter(|spec| skips && spec.answers).and_then(|_| in_words(&value.value));
        let part = (!(later && is_nothing(&value.value))).then(|| response_part(call, value));
        Ok(Done { part, words, actions })
    }

    async fn value(
        &self,
        cx: &ToolContext,
        call: &FunctionCall,
        meta: Option<&ToolMeta>,
    ) -> Result<ToolValue> {
        let mut args = call.args.clone().unwrap_or_default();
        if let Some(answer) = self.before_tool(cx, meta, &mut args).await? {
            return self.after_tool(cx, &args, Value::Object(answer).into()).await;
        }
        let Some(meta) = meta else {
            let error = self.unknown(call);
            return match self.on_tool_error(cx, &args, &error).await? {
                Some(answer) => Ok(Value::Object(answer).into()),
                None => Ok(error_value(error.message())),
            };
        };
        let given = match self.gate(cx, meta, &args)? {
            Some(answer) => Ok(answer),
            None => self.guarded(cx, meta, args.clone()).await,
        };
        let value = match given {
            Ok(value) => value,
            Err(error) if error.is_control() => return Err(error),
            // A run that was told to stop stops, be it for its deadline: nobody may take that for a tool's failure.
            Err(error) if self.run.cancel_token().is_cancelled() => {
                return Err(self.run.cancel_token().reason().map_or(error, umbel_core::CancelReason::error));
            }
            Err(error) => match self.on_tool_error(cx, &args, &error).await? {
                Some(answer) => Value::Object(answer).into(),
                None => self.by_policy(error)?,
            },
        };
        self.after_tool(cx, &args, value).await
    }

    /// What is left of an error that nobody took care of.
    fn by_policy(&self, error: Error) -> Result<ToolValue> {
        // Arguments that do not fit are the model's to correct, whatever the policy.
        let correctable = error.kind() == ErrorKind::InvalidInput;
        match self.run.config().tool_errors {
            ToolErrors::Fail if !correctable => Err(error),
            _ => Ok(error_value(error.message())),
        }
    }

    fn unknown(&self, call: &FunctionCall) -> Error {
        let known: Vec<&str> = self.tools.specs().map(|spec| spec.name.as_str()).collect();
        Error::new(ErrorKind::Tool, text::tool_not_found(&call.name, &known))
    }

    /// Stops a call that a person must agree to.
    fn gate(&self, cx: &ToolContext, meta: &ToolMeta, args: &Object) -> Result<Option<ToolValue>> {
        let spec = meta.tool.spec();
        if !spec.confirm.needed(args) {
            return Ok(None);
        }
        match cx.confirmation() {
            Some(answer) if answer.confirmed => Ok(None),
            Some(_) => Ok(Some(error_value(text::REJECTED))),
            None => {
                cx.request_confirmation(text::confirm_hint(&spec.name), None)?;
                cx.skip_summarization();
                Ok(Some(error_value(text::NEEDS_CONFIRMATION)))
            }
        }
    }

    /// Calls the tool so that neither a panic nor endless work does harm.
    async fn guarded(&self, cx: &ToolContext, meta: &ToolMeta, args: Arc<Object>) -> Result<ToolValue> {
        let spec = meta.tool.spec();
        let _turn = match &self.turns {
            None => None,
            Some(turns) if spec.exclusive => Some((Some(turns.write().await), None)),
            Some(turns) => Some((None, Some(turns.read().await))),
        };
        let limit = spec.timeout.unwrap_or(self.run.config().limits.tool_time);
        // Called inside the guard: a tool may panic before there is a future.
        let work = async { self.finish(cx, meta.tool.call(cx, args).await).await };
        let timed = pin!(tokio::time::timeout(limit, AssertUnwindSafe(work).catch_unwind()));
        match self.run.cancel_token().guard(timed).await? {
            Err(_) => {
                let message = format!(
                    "tool `{}` took longer than {} s and was stopped",
                    spec.name,
                    limit.as_secs_f64()
                );
                Err(Error::new(ErrorKind::Timeout, message))
            }
            Ok(Err(panic)) => Err(Error::from_panic(&format!("tool `{}`", spec.name), panic.as_ref())),
            Ok(Ok(result)) => result,
        }
    }

    /// The result, once there is one.
    async fn finish(
        &self,
        cx: &ToolContext,
        output: Result<ToolOutput, umbel_core::ToolError>,
    ) -> Result<ToolValue> {
        match output.map_err(umbel_core::ToolError::into_error)? {
            ToolOutput::Value(value) => Ok(value),
            // Boxed: most tools answer at once.
            ToolOutput::Stream(items) => Box::pin(self.read(cx, items)).await,
        }
    }

    /// Reads a streamed result. News on the way are shown as they come.
    async fn read(
        &self,
        cx: &ToolContext,
        mut items: umbel_core::BoxStream<'static, Result<ToolItem, umbel_core::ToolError>>,
    ) -> Result<ToolValue> {
        while let Some(item) = items.next().await {
            match item.map_err(umbel_core::ToolError::into_error)? {
                ToolItem::Done(value) => return Ok(value),
                ToolItem::Progress(value) => {
                    let response =
                        FunctionResponse::new(cx.call_id().cloned(), cx.tool_name(), as_object(value));
                    let content = Content::new(Role::User, [Part::response(response)]);
                    let mut event = self.run.event().with_content(content);
                    event.partial = Some(true);
                    self.run.emit(event).await?;
                }
            }
        }
        Err(Error::new(ErrorKind::Tool, format!("tool `{}` ended without a result", cx.tool_name())))
    }

    async fn before_tool(
        &self,
        cx: &ToolContext,
        meta: Option<&ToolMeta>,
        args: &mut Arc<Object>,
    ) -> Result<Option<Object>> {
        let tool = meta.map(|meta| meta.tool.as_ref());
        for plugin in &self.team.extras.plugins {
            for callback in &plugin.callbacks.before_tool {
                let given = callback(cx, tool, Arc::make_mut(args)).await;
                if let Some(answer) = given.map_err(|e| plugin.named("before_tool", e))? {
                    return Ok(Some(answer));
                }
            }
        }
        for callback in &self.agent.callbacks.before_tool {
            if let Some(answer) = callback(cx, tool, Arc::make_mut(args)).await? {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    async fn after_tool(&self, cx: &ToolContext, args: &Object, value: ToolValue) -> Result<ToolValue> {
        let plugins = &self.team.extras.plugins;
        let nobody = self.agent.callbacks.after_tool.is_empty()
            && plugins.iter().all(|plugin| plugin.callbacks.after_tool.is_empty());
        if nobody {
            return Ok(value);
        }
        let result = as_object(value.value.clone());
        for plugin in plugins {
            for callback in &plugin.callbacks.after_tool {
                let given = callback(cx, args, &result).await;
                if let Some(answer) = given.map_err(|e| plugin.named("after_tool", e))? {
                    return Ok(Value::Object(answer).into());
                }
            }
        }
        for callback in &self.agent.callbacks.after_tool {
            if let Some(answer) = callback(cx, args, &result).await? {
                return Ok(Value::Object(answer).into());
            }
        }
        Ok(value)
    }

    async fn on_tool_error(&self, cx: &ToolContext, args: &Object, error: &Error) -> Result<Option<Object>> {
        for plugin in &self.team.extras.plugins {
            for callback in &plugin.callbacks.on_tool_error {
                let given = callback(cx, args, error).await;
                if let Some(answer) = given.map_err(|e| plugin.named("on_tool_error", e))? {
                    return Ok(Some(answer));
                }
            }
        }
        for callback in &self.agent.callbacks.on_tool_error {
            if let Some(answer) = callback(cx, args, error).await? {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }
}

/// Whether a result is none, so that the answer is yet to come.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(object) => object.is_empty(),
    }
}

/// A result as it is said to people. An error is not.
fn in_words(value: &Value) -> Option<Part> {
    let silent = match value {
        Value::Object(object) => object.contains_key("error") || *value == json!({"result": null}),
        other => *other == Value::Null || *other == json!(""),
    };
    (!silent).then(|| Part::text(umbel_core::json::render(value)))
}

fn error_value(message: &str) -> ToolValue {
    ToolValue { value: json!({"error": message}), is_error: true, ..ToolValue::default() }
}

/// A result as the object that a response must be.
fn as_object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        other => Object::from_iter([("result".to_owned(), other)]),
    }
}

fn response_part(call: &FunctionCall, value: ToolValue) -> Part {
    let mut response = FunctionResponse::new(call.id.clone(), call.name.clone(), as_object(value.value));
    if !value.parts.is_empty()
        && let Ok(parts) = serde_json::to_value(&value.parts)
    {
        response.unknown.insert("parts".to_owned(), parts);
    }
    Part::response(response)
}
