//! Making the calls that a model asks for: all at once, each guarded, results in call order.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use smol_str::SmolStr;
use tracing::Instrument;
use umbel_core::json::{MAX_DEPTH, is_within};
use umbel_core::{
    Actions, Address, Answer, Asker, CallFinished, CallId, CallMade, Confirm, Content, DecisionKind, Error,
    ErrorKind, Event, EventId, FunctionCall, FunctionResponse, Handler, Interrupt, NextTool, Object, Part,
    Parts, Payload, Question, Raised, Response, Result, Role, Run, RunStep, SpanContent, ToolCall,
    ToolContext, ToolEnd, ToolError, ToolItem, ToolMeta, ToolOutput, ToolResult, ToolSet, ToolValue,
    UnfinishedCalls, Work,
};

use super::questions::{self, emit_with_questions};
use super::{Turn, code, direct};
use crate::adk_stage::fails_the_run;
use crate::detailed::detailed;
use crate::runner::digest;
use crate::team::Team;
use crate::{spans, text};

/// Asks for tools that need a confirmation. Handlers have no such name.
pub(crate) const CONFIRM_LAYER: &str = "_confirm";
/// Says in a result's metadata that it was given in the tool's place, and is to come before those of calls that were made.
pub(crate) const INJECTED: &str = "injected";
/// Asks about calls that were cut short.
const RECOVERY_LAYER: &str = "_recovery";

/// Calls to be made together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The calls, in order.
    pub calls: Vec<FunctionCall>,
    /// The event by which the model asked for them.
    pub event: Option<EventId>,
    /// What people said to those that asked for it.
    pub confirmations: BTreeMap<CallId, Answer>,
    /// Calls that are answered already and not made. Their results come first.
    pub answers: Vec<(CallId, ToolValue)>,
    /// Results from before the run was cut short.
    pub finished: Vec<CallFinished>,
    /// The calls were made before: people were asked, or the run was cut short.
    pub again: Again,
    /// All calls that the model asked for with that event, if they are more than these.
    pub together: Option<Arc<[FunctionCall]>>,
    /// The tools that the model called where people put others in their place.
    pub renamed: BTreeMap<CallId, SmolStr>,
    /// It is one call: to run the code that the model wrote. What it gives is told as a result of code.
    pub is_code: bool,
}

/// Whether calls were made before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Again {
    /// They were not.
    #[default]
    No,
    /// They asked people, and have their answer.
    Answered,
    /// They were cut short. Nobody knows what came of them, unless they have a result.
    CutShort,
}

impl Batch {
    /// The calls of an event, or the code in it that is to be run.
    pub fn of_event(event: &Event) -> Self {
        let event_id = Some(event.id.clone()).filter(|id| !id.is_empty());
        let is_code = event.code_id().is_some();
        let calls =
            if is_code { calls_of(event).collect() } else { event.calls().cloned().collect::<Vec<_>>() };
        Self { calls, event: event_id, is_code, ..Self::default() }
    }
}

/// The calls that an event asks for. Code that is to be run is one.
pub(crate) fn calls_of(event: &Event) -> impl Iterator<Item = FunctionCall> {
    event.calls().cloned().chain(event.code_call())
}

impl Batch {
    /// Whether a call is answered already.
    pub(super) fn is_answered(&self, call: &FunctionCall) -> bool {
        self.answers.iter().any(|(id, _)| call.id.as_ref() == Some(id))
    }

    /// The answer that a call has already.
    fn answered(&self, call: &FunctionCall) -> Option<Done> {
        let (_, value) = self.answers.iter().find(|(id, _)| call.id.as_ref() == Some(id))?;
        Some(Done { part: Some(response_part(call, value.clone())), is_first: true, ..Done::default() })
    }

    /// What a call gave before the run was cut short.
    fn finished(&self, call: &FunctionCall) -> Option<Done> {
        let finished = self.finished.iter().find(|finished| Some(&finished.call) == call.id.as_ref())?;
        let CallFinished { response, words, actions, .. } = finished.clone();
        Some(Done { part: response, words, actions, ..Done::default() })
    }
}

/// Answers that calls have already, as records of their end.
pub(super) fn answered_steps(answers: &[(CallId, ToolValue)], event: &Event) -> Vec<RunStep> {
    let finished = |(id, value): &(CallId, ToolValue)| {
        let call = calls_of(event).find(|call| call.id.as_ref() == Some(id))?;
        let response = Some(response_part(&call, value.clone()));
        let finished = CallFinished { call: id.clone(), response, words: None, actions: None };
        Some(RunStep::CallFinished { finished: Box::new(finished) })
    };
    answers.iter().filter_map(finished).collect()
}

/// What one call gave.
#[derive(Default)]
struct Done {
    /// Absent if the answer comes later.
    part: Option<Part>,
    /// The same in words, if nobody sums it up.
    words: Option<Part>,
    actions: Option<Box<Actions>>,
    /// What it asks people.
    asks: Vec<Interrupt>,
    /// It waits for people, and has no result yet.
    waits: Option<CallId>,
    /// The result was given in the tool's place, and comes before those of calls that were made.
    is_first: bool,
}

impl Done {
    /// Whether the tool said that its result is the answer. While it waits it has none.
    fn skips(&self) -> bool {
        let skips = |actions: &Actions| actions.skip_summarization == Some(true);
        self.waits.is_none() && self.actions.as_deref().is_some_and(skips)
    }

    /// Whether it waits, and asks nobody itself.
    fn is_held(&self) -> bool {
        self.waits.is_some() && self.asks.is_empty()
    }
}

/// What calls gave together.
#[derive(Default)]
pub(crate) struct Executed {
    /// Their results, not yet emitted.
    pub(crate) event: Option<Event>,
    /// What they ask people.
    pub(super) asks: Vec<Interrupt>,
    /// Those that wait for people.
    pub(super) waiting: Vec<CallId>,
    /// Those whose tools said that their result is the answer.
    pub(super) skips: Vec<CallId>,
}

/// Makes the calls, emits what they gave, and sees to what that asks for. Gives the last event.
pub(super) async fn follow(
    turn: &mut Turn<'_>,
    tools: &Arc<ToolSet>,
    batch: &Batch,
) -> Result<Option<Arc<Event>>> {
    let run = turn.run;
    let team = turn.team.clone();
    let layers = &team.place(run.node_id())?.onion.wrap_tool;
    let layers = turn.layers.as_ref().unwrap_or(layers);
    let detailed = detailed(layers);
    let layers = detailed.as_deref().unwrap_or(layers);
    let tools = code::tools_of(turn.agent, batch).unwrap_or(tools);
    let mut made = execute(run, layers, tools, batch).await?;
    if batch.is_code {
        code::as_result(turn.agent, run, &mut made);
    }
    direct::mark(tools, batch, &mut made);
    let Some(event) = &mut made.event else { return Ok(None) };
    if made.asks.is_empty() {
        turn.answer.save(turn.agent, event)?;
    }
    let actions = event.actions.as_deref();
    let (answer, transfer) = actions.map_or((None, None), |actions| {
        (actions.set_model_response.clone(), actions.transfer_to_agent.clone())
    });
    let Some(mut last) = emit_with_questions(run, made).await? else { return Ok(None) };
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

/// Makes the calls and merges what they gave into one event, not yet emitted.
///
/// If one fails and the policy is to fail the run, the results of the others are emitted first.
pub(crate) async fn execute(
    run: &Run,
    layers: &[Arc<dyn Handler>],
    tools: &Arc<ToolSet>,
    batch: &Batch,
) -> Result<Executed> {
    let several = || (batch.calls.len() > 1).then(|| Arc::from(batch.calls.as_slice()));
    let several = batch.together.clone().or_else(several);
    let turns = exclusive(batch, tools);
    let mut caller = Caller { run, layers, tools, batch, several, turns, releases: false };
    let mut done: Vec<Done> = batch.calls.iter().filter_map(|call| batch.answered(call)).collect();
    let results = match batch.calls.as_slice() {
        [only] if done.is_empty() => vec![caller.make(only).await],
        several => {
            let open: Vec<&FunctionCall> = several.iter().filter(|call| !batch.is_answered(call)).collect();
            Box::pin(caller.make_all(&open)).await
        }
    };
    let waits = |result: &Result<Done>| result.as_ref().is_ok_and(|done| done.waits.is_some());
    // Boxed and seldom: few calls wait for people.
    let results = if results.iter().any(waits) { Box::pin(caller.release(results)).await } else { results };
    let mut failure = None;
    for result in results {
        match result {
            Ok(one) => done.push(one),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    done.sort_by_key(|one| !one.is_first);
    let Some(error) = failure else { return Ok(merge(run, done)) };
    done.retain(|one| one.actions.as_ref().is_none_or(|actions| actions.is_plain()));
    if let Some(event) = merge(run, done).event.filter(|_| !error.is_control()) {
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
fn merge(run: &Run, done: Vec<Done>) -> Executed {
    let mut parts = Parts::new();
    let mut actions: Option<Box<Actions>> = None;
    let (mut asks, mut waiting, mut skips) = (Vec::new(), Vec::new(), Vec::new());
    for one in done {
        if one.skips() {
            let response = one.part.as_ref().and_then(Part::as_response);
            skips.extend(response.and_then(|response| response.id.clone()));
        }
        asks.extend(one.asks);
        waiting.extend(one.waits);
        parts.extend(one.part);
        parts.extend(one.words);
        match (&mut actions, one.actions) {
            (Some(all), Some(more)) => all.merge(*more),
            (None, more) => actions = more,
            (Some(_), None) => {}
        }
    }
    if parts.is_empty() && actions.is_none() {
        return Executed::default();
    }
    let mut event = run.event();
    event.actions = actions;
    // Without a part there is no answer yet, but what the calls did counts.
    event.content = (!parts.is_empty()).then(|| Arc::new(Content { role: Some(Role::User), parts }));
    Executed { event: Some(event), asks, waiting, skips }
}

struct Caller<'a> {
    run: &'a Run,
    /// Around each call, outermost first.
    layers: &'a [Arc<dyn Handler>],
    tools: &'a Arc<ToolSet>,
    batch: &'a Batch,
    /// The calls, if there are several.
    several: Option<Arc<[FunctionCall]>>,
    turns: Option<tokio::sync::RwLock<()>>,
    /// Calls that waited with others need not any more.
    releases: bool,
}

impl Caller<'_> {
    /// Makes several calls at once, so many and no more. Results are in call order.
    ///
    /// Once one has failed nobody waits for the others: those that are done are kept, the rest are stopped.
    async fn make_all(&self, calls: &[&FunctionCall]) -> Vec<Result<Done>> {
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
            // Who stopped where it was asked to does no harm to the others.
            let stops = |error: &Error| !error.is_control() || self.run.cancel_token().is_cancelled();
            let failed = result.1.as_ref().is_err_and(stops);
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

    /// Makes calls that wait with others, if nobody is asked about any of them.
    async fn release(&mut self, mut results: Vec<Result<Done>>) -> Vec<Result<Done>> {
        let is_held = |result: &Result<Done>| matches!(result, Ok(done) if done.is_held());
        let failed = results.iter().any(Result::is_err);
        if failed || !results.iter().any(is_held) || self.is_asking(&results) {
            return results;
        }
        self.releases = true;
        for result in results.iter_mut().filter(|result| is_held(result)) {
            let Ok(Done { waits: Some(id), .. }) = result else { continue };
            if let Some(call) = self.batch.calls.iter().find(|call| call.id.as_ref() == Some(id)) {
                *result = self.make_one_of_several(0, call).await.1;
            }
        }
        results
    }

    /// Whether people are asked about a call of this batch.
    fn is_asking(&self, results: &[Result<Done>]) -> bool {
        let asks = |result: &Result<Done>| matches!(result, Ok(done) if !done.asks.is_empty());
        let here = |asked: &Interrupt| {
            asked.address.is_of(self.run.source()) && asked.address.event == self.batch.event
        };
        results.iter().any(asks) || self.run.open_questions().iter().any(here)
    }

    /// Makes a call and notes its result, so that it is not made again should its siblings be cut short.
    async fn make_one_of_several(&self, index: usize, call: &FunctionCall) -> (usize, Result<Done>) {
        if let Some(done) = self.batch.finished(call) {
            return (index, Ok(done));
        }
        let mut result = self.make(call).await;
        if let (Ok(done), Some(call)) = (&result, call.id.clone())
            && done.waits.is_none()
        {
            let (response, words) = (done.part.clone(), done.words.clone());
            let finished = Box::new(CallFinished { call, response, words, actions: done.actions.clone() });
            if let Err(error) = self.run.record(vec![RunStep::CallFinished { finished }]).await {
                result = Err(error);
            }
        }
        (index, result)
    }

    /// Makes one call, callbacks and all.
    async fn make(&self, call: &FunctionCall) -> Result<Done> {
        let meta = self.tools.get(&call.name);
        let span = spans::tool_call(self.run, call, meta.map(|meta| meta.tool.spec()));
        let confirmation =
            call.id.as_ref().and_then(|id| self.batch.confirmations.get(id)).cloned().map(Box::new);
        let (event, batch) = (self.batch.event.clone(), self.several.clone());
        let made = CallMade {
            event,
            confirmation,
            again: self.batch.again != Again::No,
            tools: batch.is_some().then(|| self.tools.clone()),
            batch,
            released: self.releases,
            instead_of: call.id.as_ref().and_then(|id| self.batch.renamed.get(id)).cloned(),
        };
        let cx = ToolContext::new(self.run.clone(), call.name.clone(), call.id.clone(), made);
        let mut asks = None;
        let value = async {
            let value = self.value(&cx, call, meta, &mut asks).await;
            match &value {
                Err(error) => spans::record_error(error.kind().code()),
                Ok(value) => spans::said(SpanContent::Result(value)),
            }
            value
        };
        let mut value = pin!(value.instrument(span.clone())).await?;
        if !is_within(&value.value, MAX_DEPTH) {
            *value = error_value(&text::deep_result(&call.name));
        }
        let spec = meta.map(|meta| meta.tool.spec());
        let later = spec.is_some_and(|spec| spec.long_running);
        let actions = cx.take_actions();
        let asks = asks.or_else(|| self.asked_in_actions(&cx, call, actions.as_deref()));
        if asks.is_none() {
            self.run.values().settle(&cx.address());
            if value.is_error {
                spans::record_error_in(&span, ErrorKind::Tool.code());
            }
        }
        let waits = call.id.clone().filter(|_| asks.is_some());
        let skips = actions.as_ref().is_some_and(|actions| actions.skip_summarization == Some(true));
        let words = spec.filter(|spec| skips && spec.answers).and_then(|_| in_words(&value.value));
        let is_first = value.metadata.get(INJECTED) == Some(&Value::Bool(true));
        let part = (!(later && is_nothing(&value.value))).then(|| response_part(call, *value));
        Ok(Done { part, words, actions, asks: asks.unwrap_or_default(), waits, is_first })
    }

    /// The question of a tool that asks for a confirmation in google-adk's way, beside its result.
    fn asked_in_actions(
        &self,
        cx: &ToolContext,
        call: &FunctionCall,
        actions: Option<&Actions>,
    ) -> Option<Vec<Interrupt>> {
        let asked = actions?.requested_tool_confirmations.as_ref()?.get(call.id.as_ref()?)?;
        let question = Question {
            message: asked.hint.clone().unwrap_or_default(),
            payload: asked.payload.clone(),
            ..Question::confirm("").decisions(DecisionKind::ALL)
        };
        let address = Address { layer: Some(CONFIRM_LAYER.into()), ..cx.address() };
        Some(vec![self.interrupt(cx, call, address, question)])
    }

    /// A question about a call, with the arguments that it had where it is asked. One that is open keeps its name.
    fn interrupt(
        &self,
        cx: &ToolContext,
        call: &FunctionCall,
        address: Address,
        question: Question,
    ) -> Interrupt {
        let services = self.run.services();
        let args = cx.shown().or_else(|| call.args.clone());
        let shown = FunctionCall { args, ..call.clone() };
        let open = self.run.open_questions().into_iter();
        let same = |asked: &Interrupt| {
            asked.address == address && asked.call.as_ref().is_some_and(|call| *call == shown)
        };
        if let Some(open) = open.into_iter().find(same) {
            return open;
        }
        let asked = Interrupt::new(services.ids.call(), address, question, services.clock.now());
        Interrupt { digest: Some(digest(&shown)), call: Some(shown), ..asked }
    }

    /// What is to be asked before a call can be made. The call is answered for the time being, so that the log holds
    /// what models can be sent.
    fn asked(&self, cx: &ToolContext, call: &FunctionCall, error: &Error) -> Result<Vec<Interrupt>> {
        let asks = match error.raised().cloned() {
            Some(Raised::Question { question, by, nth }) => {
                let layer = match by {
                    Some(Asker::Layer(layer)) => Some(layer),
                    _ => None,
                };
                vec![self.interrupt(cx, call, Address { layer, nth, ..cx.address() }, *question)]
            }
            Some(Raised::Inner(inside)) => {
                let outside = |asked: Interrupt| {
                    let inner = Some(Box::new(asked.address));
                    Interrupt { address: Address { inner, ..cx.address() }, ..asked }
                };
                inside.into_iter().map(outside).collect()
            }
            Some(Raised::Held) => Vec::new(),
            None => vec![self.interrupt(cx, call, cx.address(), Question::confirm(error.message()))],
        };
        questions::note(cx, &asks)?;
        cx.skip_summarization();
        Ok(asks)
    }

    /// What becomes of a call that was begun before, and has no result. `None` if it is to be made.
    fn cut_short(
        &self,
        cx: &ToolContext,
        meta: Option<&ToolMeta>,
        args: &Object,
    ) -> Result<Option<ToolValue>> {
        let safe = meta.is_none_or(|meta| {
            let spec = meta.tool.spec();
            spec.read_only || spec.idempotent || spec.resumes || self.was_kept_back(cx, meta, args)
        });
        let layer = || Some(RECOVERY_LAYER.into());
        let is_ours = |(asked, _): &(Interrupt, Answer)| {
            let address = Address { layer: layer(), ..cx.address() };
            asked.address.is_place(&address)
        };
        let answered = self.run.values().answers(self.run.source()).iter().filter(|one| is_ours(one)).count();
        let report = || Ok(Some(error_value(text::UNKNOWN_OUTCOME)));
        let questions = match self.batch.again {
            Again::CutShort if safe => 0,
            Again::CutShort if self.run.config().unfinished_calls == UnfinishedCalls::Report => {
                return report();
            }
            // What people said before led to the attempt that was cut short.
            Again::CutShort => answered + 1,
            Again::Answered | Again::No => answered,
        };
        let mut last = None;
        for _ in 0..questions {
            let question = Question::new("unfinished", text::unfinished_call(cx.tool_name()));
            let question =
                question.decisions([DecisionKind::Approve, DecisionKind::Reject, DecisionKind::Respond]);
            last = Some(cx.ask(layer(), question)?);
        }
        match last.as_ref().map(Answer::decision) {
            Some(DecisionKind::Respond) => {
                Ok(Some(last.and_then(|answer| answer.answer).unwrap_or_default().into()))
            }
            Some(DecisionKind::Reject) => report(),
            _ => Ok(None),
        }
    }

    /// Whether a call that was begun cannot have come to its tool, since nobody agreed to it.
    fn was_kept_back(&self, cx: &ToolContext, meta: &ToolMeta, args: &Object) -> bool {
        let is_needed = match &meta.tool.spec().confirm {
            Confirm::Always => true,
            // A layer may have changed the arguments.
            confirm => self.layers.is_empty() && confirm.needed(args),
        };
        let agreed = |answer: &Answer| answer.confirmed && answer.answer.is_none();
        is_needed && !cx.confirmation().is_some_and(agreed)
    }

    /// The result of a call, through all layers.
    async fn value(
        &self,
        cx: &ToolContext,
        call: &FunctionCall,
        meta: Option<&ToolMeta>,
        asks: &mut Option<Vec<Interrupt>>,
    ) -> Result<Box<ToolValue>> {
        let args = call.args.clone().unwrap_or_default();
        let _turn = match &self.turns {
            None => None,
            Some(turns) if meta.is_some_and(|meta| meta.tool.spec().exclusive) => {
                Some((Some(turns.write().await), None))
            }
            Some(turns) => Some((None, Some(turns.read().await))),
        };
        let before = if self.batch.again == Again::No { Ok(None) } else { self.cut_short(cx, meta, &args) };
        let given = if !matches!(before, Ok(None)) {
            before.map(|value| Box::new(value.unwrap_or_default()))
        } else if call.unreadable_args().is_some() {
            return Ok(Box::new(error_value(text::UNREADABLE_ARGS)));
        } else if self.layers.is_empty() {
            match meta {
                Some(meta) => self.known(cx, meta, args).await,
                None => Err(self.unknown(cx.tool_name())),
            }
        } else {
            Box::pin(self.layered(cx, meta, args)).await
        };
        let error = match given {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if error.kind() == ErrorKind::Interrupted {
            // A layer or the tool asks a person; the call is made again with the answer.
            let asked = self.asked(cx, call, &error)?;
            let waits = questions::waits_for(&asked, &error);
            *asks = Some(asked);
            return Ok(Box::new(error_value(waits)));
        }
        // A run that was told to stop stops, be it for its deadline: nobody may take that for a tool's failure.
        if let Some(reason) = self.run.cancel_token().reason().filter(|_| !error.is_control()) {
            return Err(reason.error());
        }
        // An unknown tool is the model's mistake, which it can correct.
        let mistake = meta.is_none() && error.kind() == ErrorKind::Tool;
        if error.is_control() || (!mistake && fails_the_run(self.run, &error)) {
            return Err(error);
        }
        if error.is_panic() {
            // What it fell over is nothing for a model, nor for whoever reads along.
            tracing::error!(tool = cx.tool_name(), "{error}");
            return Ok(Box::new(error_value(&text::tool_panicked(cx.tool_name()))));
        }
        Ok(Box::new(error_value(error.message())))
    }

    /// A tool that nothing stands around.
    async fn known(&self, cx: &ToolContext, meta: &ToolMeta, args: Arc<Object>) -> Result<Box<ToolValue>> {
        match self.gate(cx, meta, args)? {
            Gate::Shut(answer) => Ok(answer),
            Gate::Open(args) => {
                spans::said(SpanContent::Arguments(&args));
                self.guarded(cx, meta, args).await
            }
        }
    }

    /// A call through the layers around it. What comes out may be streamed still.
    async fn layered(
        &self,
        cx: &ToolContext,
        meta: Option<&ToolMeta>,
        args: Arc<Object>,
    ) -> Result<Box<ToolValue>> {
        let end = Centre { caller: self, meta };
        let call = ToolCall::new(cx, meta.map(|meta| &meta.tool), args);
        let made = NextTool::new(self.layers, &end).call(call);
        let output = self.run.cancel_token().guard(made).await?.map_err(ToolError::into_error)?;
        match output {
            ToolOutput::Value(value) => Ok(value),
            ToolOutput::Stream(items) => {
                let limit = meta.and_then(|meta| meta.tool.spec().timeout);
                self.within(cx.tool_name(), limit, self.read(cx, items)).await
            }
        }
    }

    fn unknown(&self, name: &str) -> Error {
        let known: Vec<&str> = self.tools.specs().map(|spec| spec.name.as_str()).collect();
        Error::new(ErrorKind::Tool, text::tool_not_found(name, &known))
    }

    /// Stops a call that a person must agree to. If they want it otherwise, it is made with their arguments.
    fn gate(&self, cx: &ToolContext, meta: &ToolMeta, args: Arc<Object>) -> Result<Gate> {
        let spec = meta.tool.spec();
        let needed = spec.confirm.needed(&args) && !cx.looks_at_file();
        if !needed && cx.confirmation().is_none() {
            return Ok(Gate::Open(args));
        }
        let shut = |value: ToolValue| Ok(Gate::Shut(Box::new(value)));
        match self.confirmed(cx, &args) {
            Some(Answer { confirmed: true, args: Some(edited), answer: None, .. }) => {
                let edited = Arc::new(edited);
                cx.show(&edited);
                Ok(Gate::Open(edited))
            }
            _ if !needed => Ok(Gate::Open(args)),
            Some(Answer { answer: Some(value), .. }) => shut(value.into()),
            Some(answer) if answer.confirmed => Ok(Gate::Open(args)),
            Some(Answer { reason: Some(reason), .. }) => shut(error_value(&text::rejected_because(&reason))),
            Some(_) => shut(error_value(text::REJECTED)),
            None => {
                cx.request_confirmation(text::confirm_hint(&spec.name), None)?;
                cx.skip_summarization();
                shut(error_value(text::NEEDS_CONFIRMATION))
            }
        }
    }

    /// What a person said to the call of the tool with these arguments. What they said to questions of the tool itself,
    /// or about other arguments, is something else.
    fn confirmed(&self, cx: &ToolContext, args: &Object) -> Option<Answer> {
        let here = cx.address();
        let mut answers = self.run.values().answers(self.run.source());
        let is_ours = |asked: &Address| {
            asked.inner.is_none()
                && asked.call == here.call
                && asked.event.as_ref().is_none_or(|event| Some(event) == here.event.as_ref())
        };
        answers.retain(|(asked, _)| is_ours(&asked.address));
        if answers.is_empty() {
            // Whoever makes the calls says so.
            return cx.confirmation().cloned();
        }
        let empty = Arc::default();
        let (_, answer) = answers.into_iter().find(|(asked, _)| {
            let shown = asked.call.as_ref().and_then(|call| call.args.as_ref()).unwrap_or(&empty);
            asked.address.layer.as_deref() == Some(CONFIRM_LAYER) && **shown == *args
        })?;
        Some(answer)
    }

    /// Calls the tool so that neither a panic nor endless work does harm.
    async fn guarded(&self, cx: &ToolContext, meta: &ToolMeta, args: Arc<Object>) -> Result<Box<ToolValue>> {
        let spec = meta.tool.spec();
        // Called inside the guard: a tool may panic before there is a future.
        let work = async {
            let given = match self.given(cx, meta, &args)? {
                Some(given) => given,
                None => {
                    if let Some(auth) = &spec.auth {
                        Box::pin(cx.credential(auth)).await?;
                    }
                    meta.tool.call(cx, args).await
                }
            };
            self.finish(cx, given).await
        };
        self.within(&spec.name, spec.timeout, work).await.map_err(|error| error.asked_by(|| Asker::Itself))
    }

    /// What is given in the place of the tool, if someone stands in for it.
    fn given(&self, cx: &ToolContext, meta: &ToolMeta, args: &Arc<Object>) -> Result<Option<ToolResult>> {
        let team = Team::of(self.run)?;
        Ok(team.extras.stand_in.as_ref().and_then(|stand_in| stand_in.call(cx, &meta.tool, args)))
    }

    /// The work of a tool within its time; a panic in it is an error.
    async fn within<T>(
        &self,
        tool: &str,
        limit: Option<std::time::Duration>,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = limit.unwrap_or(self.run.config().limits.tool_time);
        let timed = pin!(tokio::time::timeout(limit, AssertUnwindSafe(work).catch_unwind()));
        match self.run.cancel_token().guard(timed).await? {
            Err(_) => {
                let message =
                    format!("tool `{tool}` took longer than {} s and was stopped", limit.as_secs_f64());
                Err(Error::new(ErrorKind::Timeout, message))
            }
            Ok(Err(panic)) => Err(Error::from_panic(&format!("tool `{tool}`"), panic.as_ref())),
            Ok(Ok(result)) => result,
        }
    }

    /// The result, once there is one.
    async fn finish(
        &self,
        cx: &ToolContext,
        output: Result<ToolOutput, umbel_core::ToolError>,
    ) -> Result<Box<ToolValue>> {
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
    ) -> Result<Box<ToolValue>> {
        while let Some(item) = items.next().await {
            match item.map_err(umbel_core::ToolError::into_error)? {
                ToolItem::Done(value) => return Ok(Box::new(value)),
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
}

/// What a tool that people must agree to does with a call.
enum Gate {
    /// It is made, with these arguments.
    Open(Arc<Object>),
    /// It is answered without being made.
    Shut(Box<ToolValue>),
}

/// The centre of the layers around a tool call.
struct Centre<'a> {
    caller: &'a Caller<'a>,
    meta: Option<&'a ToolMeta>,
}

impl ToolEnd for Centre<'_> {
    fn call<'a>(&'a self, call: ToolCall<'a>) -> Work<'a, ToolResult> {
        let Some(meta) = self.meta else {
            return Work::done(Err(self.caller.unknown(call.name()).into()));
        };
        Work::later(async move {
            call.cx.show(&call.args);
            let args = match self.caller.gate(call.cx, meta, call.args)? {
                Gate::Shut(answer) => return Ok(ToolOutput::Value(answer)),
                Gate::Open(args) => args,
            };
            spans::said(SpanContent::Arguments(&args));
            let spec = meta.tool.spec();
            let work = async {
                let given = match self.caller.given(call.cx, meta, &args)? {
                    Some(given) => given,
                    None => {
                        if let Some(auth) = &spec.auth {
                            Box::pin(call.cx.credential(auth)).await?;
                        }
                        meta.tool.call(call.cx, args).await
                    }
                };
                given.map_err(ToolError::into_error)
            };
            let made = self.caller.within(&spec.name, spec.timeout, work).await;
            Ok(made.map_err(|error| error.asked_by(|| Asker::Itself))?)
        })
    }
}

/// Gives calls without an id one, and those whose id is that of a call which waits for people: an answer belongs to one call.
pub(super) fn mint_ids(run: &Run, response: &mut Response) {
    if let Some(content) = &mut response.content {
        mint(run, content);
    }
}

fn mint(run: &Run, content: &mut Arc<Content>) {
    let needs_id = |call: &FunctionCall| {
        call.id.as_ref().is_none_or(|id| id.is_empty() || run.journal().is_asked_about(id))
    };
    if !content.calls().any(needs_id) {
        return;
    }
    for part in &mut Arc::make_mut(content).parts {
        if let Payload::Call(call) = &mut part.payload
            && needs_id(call)
        {
            call.id = Some(run.services().ids.call());
        }
    }
}

/// Gives calls without an id one, and says which of them are answered later. `None` if there are no calls.
pub(super) fn name_calls(run: &Run, tools: &ToolSet, event: &mut Event) -> Option<Vec<CallId>> {
    if let Some(id) = event.code_id() {
        return Some(vec![id.clone()]);
    }
    let content = event.content.as_mut().filter(|content| content.has_calls())?;
    mint(run, content);
    if content.calls().any(is_deep) {
        for part in &mut Arc::make_mut(content).parts {
            if let Payload::Call(call) = &mut part.payload
                && is_deep(call)
            {
                let text = serde_json::to_string(&call.args).unwrap_or_default();
                **call = std::mem::take(&mut **call).with_unreadable_args(text);
            }
        }
    }
    let later = |name: &str| tools.get(name).is_some_and(|meta| meta.tool.spec().long_running);
    let waiting = content.calls().filter(|call| later(&call.name)).filter_map(|call| call.id.clone());
    let mut waiting: Vec<CallId> = waiting.collect();
    waiting.sort();
    waiting.dedup();
    let ids = content.calls().filter_map(|call| call.id.clone()).collect();
    event.long_running_tool_ids = Some(Box::new(waiting));
    Some(ids)
}

/// Whether a log could not keep the arguments of a call.
fn is_deep(call: &FunctionCall) -> bool {
    call.args.iter().flat_map(|args| args.values()).any(|value| !is_within(value, MAX_DEPTH))
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

pub(crate) fn error_value(message: &str) -> ToolValue {
    ToolValue { value: json!({"error": message}), is_error: true, ..ToolValue::default() }
}

/// A result as the object that a response must be.
pub(crate) fn as_object(value: Value) -> Object {
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
