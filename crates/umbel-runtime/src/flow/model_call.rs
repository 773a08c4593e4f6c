//! Asking the model, and what follows from its answer.

use std::sync::Arc;

use futures::StreamExt;
use tracing::Instrument;
use umbel_core::{
    CallId, Chunk, Context, Emit, Error, ErrorKind, Event, EventId, ModelRequest, Part, Payload, Response,
    Result, RunStep,
};

use super::Turn;
use super::function_calls::{self, Batch};
use super::step::Step;
use crate::aggregator::Aggregator;
use crate::{spans, text};

/// The error code of a model that ended its turn without an answer.
const NO_CONTENT: &str = "MODEL_RETURNED_NO_CONTENT";

/// One answer in the making.
struct Call<'t, 'a> {
    turn: &'t mut Turn<'a>,
    request: &'t mut ModelRequest,
    /// Made only if someone is called back.
    cx: Option<Context>,
    /// Shared by the pieces of one answer, once there is one.
    event_id: Option<EventId>,
    last: Option<Arc<Event>>,
    /// Calls to be made once the answer was read to its end: they are no part of the model's work.
    batches: Vec<Batch>,
}

/// Asks the model and acts on its answer. Gives the last event.
pub(super) async fn call_model(turn: &mut Turn<'_>, step: &mut Step<'_>) -> Result<Option<Arc<Event>>> {
    let model = step.model.clone();
    let has_callbacks = turn.has_model_callbacks();
    let mut call = Call {
        cx: has_callbacks.then(|| Context::new(turn.run.clone())),
        event_id: None,
        request: &mut step.request,
        last: None,
        batches: Vec::new(),
        turn,
    };
    if let Some(response) = call.before_model().await? {
        if response.partial == Some(true) {
            call.preview(response).await?;
        } else {
            call.act(response).await?;
        }
        call.follow().await?;
        return Ok(call.last);
    }
    call.turn.run.count_model_call()?;
    let span = spans::model_call(call.turn.run, call.request);
    let chunks = model.generate(call.request);
    let read =
        async { call.read(chunks).await.inspect_err(|error| spans::record_error(error.kind().code())) };
    // Boxed, since a future that is handed through several layers is copied by each of them.
    Box::pin(read.instrument(span)).await?;
    call.follow().await?;
    Ok(call.last)
}

impl<'a> Call<'_, 'a> {
    /// Reads the answer piece by piece: shows the pieces, folds them, and acts on the whole.
    async fn read(&mut self, mut chunks: umbel_core::BoxStream<'static, Result<Chunk>>) -> Result<()> {
        let run = self.turn.run;
        let mut fold: Option<Aggregator> = None;
        let mut cut = false;
        loop {
            // A model that always has the next piece ready never waits, so it is asked here too.
            run.cancel_token().check()?;
            let chunk = run.cancel_token().guard(chunks.next()).await?;
            if chunk.is_some() && !self.batches.is_empty() {
                // The answer goes on behind its calls: what comes now came after their results.
                self.follow().await?;
                if run.is_ended() {
                    return Ok(());
                }
            }
            match chunk {
                None => break,
                Some(Ok(chunk @ (Chunk::Text(_) | Chunk::Thought(_) | Chunk::Delta(_)))) => {
                    let ids = run.services().ids.as_ref();
                    let piece = fold.get_or_insert_default().fold_chunk(chunk, ids, run.config().streaming);
                    match piece {
                        Some(piece) if self.cx.is_some() => self.show(piece).await?,
                        Some(piece) => {
                            if let Some(shown) = self.begin_preview(piece) {
                                self.last = Some(shown.await?);
                            }
                        }
                        None => {}
                    }
                }
                Some(Ok(Chunk::Complete(whole))) => {
                    fold = None;
                    cut = whole.partial == Some(true);
                    self.answer(whole).await?;
                }
                Some(Ok(Chunk::Restart)) => {
                    fold = None;
                    self.event_id = None;
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    let response = self.on_model_error(error).await?;
                    return self.answer(response).await;
                }
            }
        }
        match fold.and_then(|mut fold| fold.close()) {
            Some(whole) => self.answer(whole).await,
            None if cut => {
                let error = Error::new(ErrorKind::StreamCut, text::STREAM_CUT);
                let response = self.on_model_error(error).await?;
                self.answer(response).await
            }
            None => Ok(()),
        }
    }

    /// Shows a piece of an answer. It is never stored and never acted on.
    async fn show(&mut self, piece: Response) -> Result<()> {
        let piece = if self.cx.is_some() { self.after_model(piece).await? } else { piece };
        self.preview(piece).await
    }

    async fn preview(&mut self, piece: Response) -> Result<()> {
        if let Some(shown) = self.begin_preview(piece) {
            self.last = Some(shown.await?);
        }
        Ok(())
    }

    fn begin_preview(&mut self, piece: Response) -> Option<Emit<'a>> {
        if is_nothing(&piece) {
            return None;
        }
        let mut event = self.event(piece);
        self.name_calls(&mut event);
        Some(self.turn.run.emit(event))
    }

    /// Acts on a whole answer of the model.
    async fn answer(&mut self, response: Response) -> Result<()> {
        if response.partial == Some(true) {
            return self.show(response).await;
        }
        let response = if self.cx.is_some() { self.after_model(response).await? } else { response };
        self.act(response).await
    }

    async fn act(&mut self, mut response: Response) -> Result<()> {
        spans::record_response(&response);
        self.mark_empty(&mut response);
        let run = self.turn.run;
        for processor in self.turn.agent.processors.response() {
            processor.process(self.turn.agent, run, &mut response).await?;
        }
        if is_nothing(&response) {
            return Ok(());
        }
        let mut event = self.event(response);
        if let Some(actions) = self.cx.as_ref().and_then(|cx| cx.take_actions()) {
            event.actions_mut().merge(*actions);
        }
        let calls = self.name_calls(&mut event);
        self.turn.answer.save(self.turn.agent, &mut event)?;
        let Some(calls) = calls else {
            self.last = Some(run.emit(event).await?);
            return Ok(());
        };
        let steps = vec![RunStep::CallsStarted { calls: Box::new(calls) }];
        let event = run.emit_with(event, steps).await?;
        self.last = Some(event.clone());
        self.batches.push(Batch::of_event(&event));
        Ok(())
    }

    /// Makes the calls that the answer asked for so far.
    async fn follow(&mut self) -> Result<()> {
        for batch in std::mem::take(&mut self.batches) {
            // Boxed, so that a turn without calls does not carry their state around.
            let follow = Box::pin(function_calls::follow(self.turn, &self.request.tools, &batch));
            if let Some(last) = follow.await? {
                self.last = Some(last);
            }
        }
        Ok(())
    }

    /// An event of this response. Its pieces share the id, and the whole has it last.
    fn event(&mut self, response: Response) -> Event {
        let mint = || self.turn.run.services().ids.event();
        let id = self.event_id.take().unwrap_or_else(mint);
        if response.partial == Some(true) {
            self.event_id = Some(id.clone());
        }
        self.turn.run.event_of(id, response)
    }

    /// Gives calls without an id one, and says which of them are answered later. `None` if there are no calls.
    fn name_calls(&self, event: &mut Event) -> Option<Vec<CallId>> {
        let content = event.content.as_mut().filter(|content| content.has_calls())?;
        let nameless =
            |part: &Part| part.as_call().is_some_and(|call| call.id.as_ref().is_none_or(CallId::is_empty));
        if content.parts.iter().any(nameless) {
            for part in &mut Arc::make_mut(content).parts {
                if let Payload::Call(call) = &mut part.payload
                    && call.id.as_ref().is_none_or(CallId::is_empty)
                {
                    call.id = Some(self.turn.run.services().ids.call());
                }
            }
        }
        let tools = &self.request.tools;
        let later = |name: &str| tools.get(name).is_some_and(|meta| meta.tool.spec().long_running);
        let waiting = content.calls().filter(|call| later(&call.name)).filter_map(|call| call.id.clone());
        let mut waiting: Vec<CallId> = waiting.collect();
        waiting.sort();
        waiting.dedup();
        let ids = content.calls().filter_map(|call| call.id.clone()).collect();
        event.long_running_tool_ids = Some(Box::new(waiting));
        Some(ids)
    }

    /// A model that stops as it should but says nothing has failed: an answer is due.
    fn mark_empty(&self, response: &mut Response) {
        let stopped = response.finish_reason() == Some("STOP") && response.error_code().is_none();
        if !stopped || response.partial == Some(true) || has_substance(response) {
            return;
        }
        let has_parts = response.content.as_ref().is_some_and(|content| !content.parts.is_empty());
        if self.turn.run.config().streaming && !has_parts {
            // The end mark of a stream whose message came before.
            return;
        }
        let meta = response.meta_mut();
        meta.error_code = Some(NO_CONTENT.into());
        meta.error_message.get_or_insert_with(|| text::NO_CONTENT.to_owned());
    }

    async fn before_model(&mut self) -> Result<Option<Response>> {
        let Some(cx) = &self.cx else { return Ok(None) };
        for plugin in &self.turn.team.extras.plugins {
            for callback in &plugin.callbacks.before_model {
                let given = callback(cx, self.request).await;
                if let Some(response) = given.map_err(|e| plugin.named("before_model", e))? {
                    return Ok(Some(response));
                }
            }
        }
        for callback in &self.turn.agent.callbacks.before_model {
            if let Some(response) = callback(cx, self.request).await? {
                return Ok(Some(response));
            }
        }
        Ok(None)
    }

    async fn after_model(&self, response: Response) -> Result<Response> {
        let Some(cx) = &self.cx else { return Ok(response) };
        for plugin in &self.turn.team.extras.plugins {
            for callback in &plugin.callbacks.after_model {
                let given = callback(cx, &response).await;
                if let Some(given) = given.map_err(|e| plugin.named("after_model", e))? {
                    return Ok(inherit(given, &response));
                }
            }
        }
        for callback in &self.turn.agent.callbacks.after_model {
            if let Some(given) = callback(cx, &response).await? {
                return Ok(inherit(given, &response));
            }
        }
        Ok(response)
    }

    async fn on_model_error(&self, error: Error) -> Result<Response> {
        let Some(cx) = self.cx.as_ref().filter(|_| !error.is_control()) else { return Err(error) };
        for plugin in &self.turn.team.extras.plugins {
            for callback in &plugin.callbacks.on_model_error {
                let given = callback(cx, self.request, &error).await;
                if let Some(response) = given.map_err(|e| plugin.named("on_model_error", e))? {
                    return Ok(response);
                }
            }
        }
        for callback in &self.turn.agent.callbacks.on_model_error {
            if let Some(response) = callback(cx, self.request, &error).await? {
                return Ok(response);
            }
        }
        Err(error)
    }
}

impl Turn<'_> {
    fn has_model_callbacks(&self) -> bool {
        let any = |callbacks: &crate::callbacks::Callbacks| {
            !callbacks.before_model.is_empty()
                || !callbacks.after_model.is_empty()
                || !callbacks.on_model_error.is_empty()
        };
        any(&self.agent.callbacks) || self.team.extras.plugins.iter().any(|plugin| any(&plugin.callbacks))
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

/// Whether there is nothing to make an event of.
fn is_nothing(response: &Response) -> bool {
    let told = response.meta.as_ref().is_some_and(|meta| {
        meta.error_code.is_some() || meta.interrupted == Some(true) || meta.grounding_metadata.is_some()
    });
    response.content.is_none() && !told
}

/// Whether a response has anything but thoughts and white space.
fn has_substance(response: &Response) -> bool {
    response.content.as_ref().is_some_and(|content| {
        content.parts.iter().any(|part| match &part.payload {
            Payload::Text(text) => !part.is_thought() && !text.trim().is_empty(),
            Payload::Empty => false,
            _ => true,
        })
    })
}
