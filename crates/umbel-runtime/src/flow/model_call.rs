//! Asking the model, and what follows from its answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as TaskContext, Poll};

use futures::StreamExt;
use umbel_core::{
    Address, CallId, Chunk, ChunkStream, Content, Context, Error, ErrorKind, Event, EventId, Extensions,
    Guarded, Jump, Model, ModelCall, ModelEnd, ModelRequest, NextModel, Payload, Response, Result, Run,
    RunStep, SafePoint, Step, ToolSet, ToolValue, Work,
};

use super::draft::Draft;
use super::function_calls::{self, Batch};
use super::processors::Answered;
use super::{After, Made, Turn, handlers, overflow};
use crate::aggregator::Aggregator;
use crate::detailed::detailed;
use crate::onion::Onion;
use crate::spans::{self, ModelSpan};
use crate::stand_in::StandIn;
use crate::text;
use crate::usage::book::metered;

/// The error code of a model that ended its turn without an answer.
const NO_CONTENT: &str = "MODEL_RETURNED_NO_CONTENT";

/// One answer in the making.
struct Call<'t, 'a> {
    turn: &'t mut Turn<'a>,
    tools: Arc<ToolSet>,
    onion: &'t Onion,
    /// Made only if someone is called back.
    cx: Option<&'t Context>,
    asked: &'t AskModel,
    /// Shared by the pieces of one answer, once there is one.
    event_id: Option<EventId>,
    last: Option<Arc<Event>>,
    /// Calls to be made once the answer was read to its end: they are no part of the model's work.
    batches: Vec<Batch>,
    /// What a handler says once the calls are made.
    said: Option<Content>,
    after: After,
}

/// Asks the model and acts on its answer.
pub(super) async fn call_model(turn: &mut Turn<'_>, draft: &mut Draft<'_>) -> Result<Made> {
    let (run, team) = (turn.run, turn.team.clone());
    let onion = &team.place(run.node_id())?.onion;
    let history = draft.has_worked_on_history(turn.transcript.is_some())?;
    let kept = if run.values().has_replay() { handlers::take_response(run)?.map(Box::new) } else { None };
    let before: &[_] = if kept.is_some() { &[] } else { &onion.before_model };
    let cx = (history || !onion.wrap_model.is_empty()).then(|| Context::new(run.clone()));
    if history
        && let Some(cx) = &cx
        && let Some(made) = Box::pin(handlers::before_model(turn, draft, before, cx)).await?
    {
        return Ok(made);
    }
    overflow::check(turn, &draft.request)?;
    let asked = AskModel { stand_in: team.extras.stand_in.clone(), span: Mutex::default() };
    let detailed = detailed(&onion.wrap_model);
    let mut call = Call {
        tools: draft.request.tools.clone(),
        onion,
        cx: cx.as_ref(),
        asked: &asked,
        event_id: None,
        last: None,
        batches: Vec::new(),
        said: None,
        after: After::Event,
        turn,
    };
    let answered = match (&cx, kept) {
        (_, Some(response)) => Box::pin(call.answer(*response)).await,
        (Some(cx), _) if !onion.wrap_model.is_empty() => {
            let request = ModelCall {
                cx,
                model: draft.model.clone(),
                request: draft.request.clone(),
                extensions: Extensions::new(),
            };
            let chunks =
                NextModel::new(detailed.as_deref().unwrap_or(&onion.wrap_model), &asked).call(request);
            Box::pin(call.read_wrapped(chunks)).await
        }
        _ => {
            run.count_model_call()?;
            let chunks = asked.ask(run, &*draft.model, &draft.request)?;
            // Boxed, since a future that is handed through several layers is copied by each of them.
            Box::pin(call.read(chunks)).await
        }
    };
    match answered {
        Ok(()) => call.turn.overflow = None,
        Err(error) if run.cancel_token().is_cancelled() => {
            asked.note(|span| span.record_error(error.kind().code()));
            return Err(error);
        }
        Err(error) => return Box::pin(call.failed(error, &draft.request)).await,
    }
    asked.end();
    call.follow().await?;
    if let (Some(cx), None) = (call.cx, &call.last) {
        call.last = handlers::leave_actions(call.turn, cx).await?;
    }
    Ok(Made { last: call.last, after: call.after })
}

/// The centre of the layers around a model call.
struct AskModel {
    /// Who answers in the model's place.
    stand_in: Option<Arc<dyn StandIn>>,
    /// The span of the last attempt.
    span: Mutex<Option<ModelSpan>>,
}

impl ModelEnd for AskModel {
    fn call<'a>(&'a self, call: ModelCall<'a>) -> Work<'a, Result<ChunkStream<'a>>> {
        if let Err(error) = call.run().count_model_call() {
            return Work::done(Err(error));
        }
        Work::done(self.ask(call.run(), &*call.model, &call.request))
    }
}

impl AskModel {
    /// Asks a model in a span of its own. It is entered while the answer is read, so that what follows from the answer is no
    /// part of it.
    fn ask(&self, run: &Run, model: &dyn Model, request: &ModelRequest) -> Result<ChunkStream<'static>> {
        let Some(span) = spans::model_call(run, model, request) else {
            return self.generate(run, model, request);
        };
        self.set_span(Some(span.clone()));
        let asked = span.within(|| self.generate(run, model, request));
        let mut chunks = asked.inspect_err(|error| span.record_error(error.kind().code()))?;
        let read = move |cx: &mut TaskContext<'_>| {
            let chunk = span.within(|| chunks.poll_next_unpin(cx));
            if let Poll::Ready(Some(Err(error))) = &chunk {
                span.record_error(error.kind().code());
            }
            chunk
        };
        Ok(Box::pin(futures::stream::poll_fn(read)))
    }

    /// Asks a model, or who stands in for it. One that panics has failed, and not whoever stands around it.
    fn generate(&self, run: &Run, model: &dyn Model, request: &ModelRequest) -> Result<ChunkStream<'static>> {
        let answers = || {
            let given = self.stand_in.as_ref().and_then(|stand_in| stand_in.generate(run, request));
            given.unwrap_or_else(|| model.generate(request))
        };
        catch_unwind(AssertUnwindSafe(answers))
            .map(|chunks| metered(run, model, chunks))
            .map_err(|panic| Error::from_panic(&format!("model `{}`", model.name()), panic.as_ref()))
    }

    /// Notes something in the span of the last attempt, if there is one.
    fn note(&self, record: impl FnOnce(&ModelSpan)) {
        if spans::is_heard()
            && let Some(span) = self.last_span()
        {
            record(&span);
        }
    }

    /// The last attempt is over: what comes now is no part of it.
    fn end(&self) {
        if spans::is_heard() {
            self.set_span(None);
        }
    }

    fn last_span(&self) -> Option<ModelSpan> {
        self.span.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The old one is closed without the lock: those who listen are others' code.
    fn set_span(&self, span: Option<ModelSpan>) {
        let old = std::mem::replace(&mut *self.span.lock().unwrap_or_else(PoisonError::into_inner), span);
        drop(old);
    }
}

impl<'a> Call<'_, 'a> {
    /// Reads an answer that comes through layers.
    async fn read_wrapped<'c>(&mut self, chunks: Guarded<'c, Result<ChunkStream<'c>>>) -> Result<()> {
        let chunks = self.turn.run.cancel_token().guard(chunks).await??;
        self.read(chunks).await
    }

    /// Reads the answer piece by piece: shows the pieces, folds them, and acts on the whole.
    async fn read(&mut self, mut chunks: ChunkStream<'_>) -> Result<()> {
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
                Some(Ok(Chunk::Text(text))) => {
                    self.note_piece(fold.is_none());
                    fold.get_or_insert_default().fold_text(&text, false);
                    self.show(text, false).await?;
                }
                Some(Ok(Chunk::Thought(text))) => {
                    self.note_piece(fold.is_none());
                    fold.get_or_insert_default().fold_text(&text, true);
                    self.show(text, true).await?;
                }
                Some(Ok(chunk @ Chunk::Delta(_))) => {
                    self.note_piece(fold.is_none());
                    let ids = run.services().ids.as_ref();
                    let piece = fold.get_or_insert_default().fold_chunk(chunk, ids, run.config().streaming);
                    if let Some(piece) = piece {
                        self.preview(piece).await?;
                    }
                }
                Some(Ok(Chunk::Complete(whole))) => {
                    fold = None;
                    cut = whole.partial == Some(true);
                    self.answer(whole).await?;
                }
                Some(Ok(Chunk::Restart)) => {
                    fold = None;
                    cut = false;
                    self.void().await?;
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
            }
        }
        match fold.and_then(|mut fold| fold.close()) {
            Some(whole) => self.answer(whole).await,
            None if cut => Err(Error::new(ErrorKind::StreamCut, text::STREAM_CUT)),
            None => Ok(()),
        }
    }

    /// Notes that a piece of the answer came, if anybody wants to know.
    fn note_piece(&self, is_first: bool) {
        self.asked.note(|span| span.record_piece(is_first));
    }

    /// Notes what the answer became, once all handlers had a say.
    fn note_said(&self, event: &Event) {
        self.asked.note(|span| {
            span.record_event(&event.id);
            if let Some(content) = &event.content {
                let finish_reason = event.meta.as_ref().and_then(|meta| meta.finish_reason.as_deref());
                span.take_answer(content, finish_reason);
            }
        });
    }

    /// The answer failed. A conversation that is too long is made shorter, if someone can, and the model is asked again.
    async fn failed(mut self, error: Error, request: &ModelRequest) -> Result<Made> {
        let has_acted = self.last.as_ref().is_some_and(|event| !event.is_partial());
        if has_acted || !overflow::is_curable(self.turn, &error) {
            return Err(error);
        }
        overflow::note(self.turn, request, error)?;
        self.void().await?;
        Ok(Made { last: None, after: After::Again })
    }

    /// Tells readers that what they saw of this answer is void. What comes next has another id.
    async fn void(&mut self) -> Result<()> {
        let Some(id) = self.event_id.take() else { return Ok(()) };
        let mut event = Event { id, partial: Some(true), ..self.turn.run.event() };
        event.meta_mut().error_code = Some(text::ATTEMPT_REJECTED.into());
        self.turn.run.emit(event).await?;
        Ok(())
    }

    /// Shows a piece of an answer. It is never stored and never acted on.
    async fn preview(&mut self, piece: Response) -> Result<()> {
        if is_nothing(&piece) {
            return Ok(());
        }
        let mut event = self.event(piece);
        function_calls::name_calls(self.turn.run, &self.tools, &mut event);
        self.last = Some(self.turn.run.emit(event).await?);
        Ok(())
    }

    /// Shows more words of the answer. They are never stored and never acted on.
    fn show(&mut self, text: String, is_thought: bool) -> Work<'a, Result<()>> {
        let run = self.turn.run;
        if text.is_empty() || !run.config().streaming {
            return Work::done(Ok(()));
        }
        let id = self.event_id.get_or_insert_with(|| run.services().ids.event());
        run.show(id.clone(), text, is_thought)
    }

    /// Acts on a whole answer of the model.
    async fn answer(&mut self, mut response: Response) -> Result<()> {
        if response.partial == Some(true) {
            return self.preview(response).await;
        }
        self.asked.note(|span| span.record_response(&response));
        self.mark_empty(&mut response);
        let (mut answers, mut step) = (Vec::new(), Step::Continue);
        if let Some(cx) = self.cx.filter(|_| !self.onion.after_model.is_empty()) {
            function_calls::mint_ids(self.turn.run, &mut response);
            // Boxed: most agents have no such handler.
            let seen = handlers::after_model(self.turn, &self.tools, self.onion, cx, response);
            let seen = Box::pin(seen).await?;
            (response, answers, step) = (seen.response, seen.answers, seen.step);
        }
        let (run, agent) = (self.turn.run, self.turn.agent);
        let mut answer = Answered { agent, run, response, actions: None };
        for processor in agent.processors.response() {
            processor.process(&mut answer).await?;
        }
        let Answered { response, actions, .. } = answer;
        self.go_on(&step, &response, &mut answers);
        // What handlers ask from now on is about another answer.
        run.values().settle(&Address::new(run.source(), None));
        if is_nothing(&response) {
            return Ok(());
        }
        let mut event = self.event(response);
        for actions in [actions, self.cx.and_then(|cx| cx.take_actions())].into_iter().flatten() {
            event.actions_mut().merge(*actions);
        }
        let calls = function_calls::name_calls(run, &self.tools, &mut event);
        self.turn.answer.save(self.turn.agent, &mut event)?;
        let Some(calls) = calls else {
            let event = run.emit(event).await?;
            self.note_said(&event);
            self.last = Some(event);
            return Ok(());
        };
        if step == Step::Jump(Jump::End) {
            // A handler wants none of them made.
            let none = RunStep::CallsStarted { calls: Box::default() };
            let event = run.emit_with(event, vec![none]).await?;
            self.note_said(&event);
            self.last = Some(event);
            return Ok(());
        }
        if run.cancel_token().check_at(SafePoint::AfterModel).is_err() {
            // Whoever goes on with the run begins them.
            self.note_said(&*run.emit(event).await?);
            return run.cancel_token().check_at(SafePoint::AfterModel);
        }
        let mut steps = vec![RunStep::CallsStarted { calls: Box::new(calls) }];
        if !answers.is_empty() {
            steps.extend(function_calls::answered_steps(&answers, &event));
        }
        let event = run.emit_with(event, steps).await?;
        self.note_said(&event);
        self.last = Some(event.clone());
        self.batches.push(Batch { answers, ..Batch::of_event(&event) });
        Ok(())
    }

    /// Sees to what handlers want to happen after the answer. Calls that are passed over are answered with that.
    fn go_on(&mut self, step: &Step, response: &Response, answers: &mut Vec<(CallId, ToolValue)>) {
        match step {
            Step::Jump(Jump::Model) => self.after = After::Again,
            Step::Jump(Jump::End) => self.after = After::End,
            Step::Respond(content) => self.said = Some(content.clone()),
            _ => return,
        }
        if *step == Step::Jump(Jump::End) {
            return;
        }
        let content = response.content.as_ref();
        let calls = content.iter().flat_map(|content| content.calls()).filter_map(|call| call.id.clone());
        let code = content.and_then(|content| content.code_id()).cloned();
        for id in calls.chain(code) {
            if answers.iter().all(|(answered, _)| *answered != id) {
                answers.push((id, function_calls::error_value(text::CALL_SKIPPED)));
            }
        }
    }

    /// Makes the calls that the answer asked for so far.
    async fn follow(&mut self) -> Result<()> {
        for batch in std::mem::take(&mut self.batches) {
            // Boxed, so that a turn without calls does not carry their state around.
            let follow = Box::pin(function_calls::follow(self.turn, &self.tools, &batch));
            if let Some(last) = follow.await? {
                self.last = Some(last);
            }
        }
        if let (Some(content), Some(cx)) = (self.said.take(), self.cx) {
            let made = Box::pin(handlers::respond(self.turn, &self.tools, cx, content)).await?;
            (self.last, self.after) = (made.last, made.after);
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
