//! Handlers whose hooks have spans, for those who want details. They stand in the place of the handlers themselves only while
//! somebody listens, so that otherwise nothing is the slower for them.

use std::sync::Arc;

use futures::StreamExt;
use tracing::Instrument;
use umbel_core::{
    AgentTurn, ChunkStream, Content, Error, Event, Handler, Hooks, ModelCall, ModelTurn, NextModel, NextTool,
    Outcome, Result, Run, Step, ToolCall, ToolResult, Work,
};

use crate::spans;

/// The same handlers with spans, if anybody wants details.
#[inline]
pub(crate) fn detailed(handlers: &[Arc<dyn Handler>]) -> Option<Vec<Arc<dyn Handler>>> {
    if handlers.is_empty() || !spans::is_detailed() { None } else { Some(all(handlers)) }
}

#[cold]
fn all(handlers: &[Arc<dyn Handler>]) -> Vec<Arc<dyn Handler>> {
    handlers.iter().map(|handler| Arc::new(Detailed(handler.clone())) as Arc<dyn Handler>).collect()
}

/// A handler whose hooks have spans. Only those are here that the lists of an onion are asked for.
struct Detailed(Arc<dyn Handler>);

impl Detailed {
    /// Calls a hook in its span.
    fn ask<'a, T, E>(
        &'a self,
        run: &Run,
        hook: &'static str,
        call: impl FnOnce(&'a dyn Handler) -> Work<'a, Result<T, E>>,
    ) -> Work<'a, Result<T, E>>
    where
        T: Send + 'a,
        E: AsError + Send + 'a,
    {
        let span = spans::handler(run, &*self.0, hook);
        match span.in_scope(|| call(&*self.0)).try_now() {
            Ok(result) => {
                span.in_scope(|| note(&result));
                Work::done(result)
            }
            Err(work) => {
                let work = async {
                    let result = work.await;
                    note(&result);
                    result
                };
                Work::later(work.instrument(span))
            }
        }
    }
}

/// Notes a failure in the current span. A question to people is none.
fn note<T, E: AsError>(result: &Result<T, E>) {
    if let Some(error) = result.as_ref().err().map(AsError::as_error).filter(|error| !error.is_control()) {
        spans::record_error(error.kind().code());
    }
}

/// What hooks fail with.
trait AsError {
    fn as_error(&self) -> &Error;
}

impl AsError for Error {
    fn as_error(&self) -> &Error {
        self
    }
}

impl AsError for umbel_core::ToolError {
    fn as_error(&self) -> &Error {
        self.error()
    }
}

impl Handler for Detailed {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn hooks(&self) -> Hooks {
        self.0.hooks()
    }

    fn on_input<'a>(&'a self, run: &'a Run, input: Arc<Content>) -> Work<'a, Result<Arc<Content>>> {
        self.ask(run, "on_input", |handler| handler.on_input(run, input))
    }

    fn before_run<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Option<Content>>> {
        self.ask(run, "before_run", |handler| handler.before_run(run))
    }

    fn before_agent<'a>(&'a self, turn: &'a mut AgentTurn<'_>) -> Work<'a, Result<Step>> {
        self.ask(turn.run(), "before_agent", |handler| handler.before_agent(turn))
    }

    fn before_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        self.ask(turn.run(), "before_model", |handler| handler.before_model(turn))
    }

    fn after_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        self.ask(turn.run(), "after_model", |handler| handler.after_model(turn))
    }

    fn wrap_model<'a>(
        &'a self,
        call: ModelCall<'a>,
        next: NextModel<'a>,
    ) -> Work<'a, Result<ChunkStream<'a>>> {
        self.ask(call.run(), "wrap_model", |handler| {
            let (span, asked) = (tracing::Span::current(), handler.wrap_model(call, next));
            Work::later(async move {
                let mut chunks = asked.await?;
                // A layer may ask again while its answer is read.
                let read = futures::stream::poll_fn(move |cx| span.in_scope(|| chunks.poll_next_unpin(cx)));
                Ok(Box::pin(read) as ChunkStream<'a>)
            })
        })
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        self.ask(call.run(), "wrap_tool", |handler| handler.wrap_tool(call, next))
    }

    fn on_event<'a>(&'a self, run: &'a Run, event: Event) -> Work<'a, Result<Event>> {
        self.ask(run, "on_event", |handler| handler.on_event(run, event))
    }

    fn on_output<'a>(&'a self, run: &'a Run, event: Arc<Event>) -> Work<'a, Result<Option<Arc<Event>>>> {
        self.ask(run, "on_output", |handler| handler.on_output(run, event))
    }

    fn on_error<'a>(&'a self, run: &'a Run, error: &'a Error) -> Work<'a, Result<Option<Content>>> {
        self.ask(run, "on_error", |handler| handler.on_error(run, error))
    }

    fn after_agent<'a>(&'a self, run: &'a Run, outcome: &'a Outcome) -> Work<'a, Result<()>> {
        self.ask(run, "after_agent", |handler| handler.after_agent(run, outcome))
    }

    fn after_run<'a>(&'a self, run: &'a Run, outcome: &'a Outcome) -> Work<'a, Result<()>> {
        self.ask(run, "after_run", |handler| handler.after_run(run, outcome))
    }
}
