//! Handlers of a simulated world.

use std::sync::Arc;

use serde_json::Value;
use umbel::{
    AgentTurn, Content, Error, Event, Handler, Hooks, ModelTurn, NextTool, Outcome, Part, Result, Run, Step,
    ToolCall, ToolResult, Work,
};

use super::ledger::Ledger;
use super::tools::call_key;
use super::world::{HandlerShape, millis};

/// What a handler adds to conversations.
const RULES: &str = "remember the rules";

/// A handler by its shape.
#[derive(Clone, Debug)]
pub(super) struct SimHandler {
    pub(super) shape: HandlerShape,
    pub(super) ledger: Ledger,
}

impl SimHandler {
    /// Whether it has this shape, counted if so.
    fn acts(&self, shape: HandlerShape) -> bool {
        let acts = self.shape == shape;
        if acts {
            self.ledger.count("handler");
        }
        acts
    }
}

impl Handler for SimHandler {
    fn name(&self) -> &'static str {
        match self.shape {
            HandlerShape::EditsPrompt => "edits-prompt",
            HandlerShape::MarksEvents => "marks-events",
            HandlerShape::HidesOutput => "hides-output",
            HandlerShape::AnswersErrors => "answers-errors",
            HandlerShape::RetriesTools => "retries-tools",
            HandlerShape::SetsState => "sets-state",
            HandlerShape::MarksInput => "marks-input",
            HandlerShape::WaitsAfterRun(_) => "waits-after-run",
            HandlerShape::KeepsCount => "keeps-count",
        }
    }

    fn hooks(&self) -> Hooks {
        match self.shape {
            HandlerShape::EditsPrompt | HandlerShape::KeepsCount => Hooks::BEFORE_MODEL,
            HandlerShape::MarksEvents => Hooks::ON_EVENT,
            HandlerShape::HidesOutput => Hooks::ON_OUTPUT,
            HandlerShape::AnswersErrors => Hooks::ON_ERROR,
            HandlerShape::RetriesTools => Hooks::WRAP_TOOL,
            HandlerShape::SetsState => Hooks::BEFORE_AGENT,
            HandlerShape::MarksInput => Hooks::ON_INPUT,
            HandlerShape::WaitsAfterRun(_) => Hooks::AFTER_RUN,
        }
    }

    fn on_input<'a>(&'a self, _run: &'a Run, input: Arc<Content>) -> Work<'a, Result<Arc<Content>>> {
        if !self.acts(HandlerShape::MarksInput) || input.has_responses() {
            return Work::done(Ok(input));
        }
        let mut input = Arc::unwrap_or_clone(input);
        input.parts.push(Part::text(" (marked)"));
        Work::done(Ok(Arc::new(input)))
    }

    fn before_agent<'a>(&'a self, turn: &'a mut AgentTurn<'_>) -> Work<'a, Result<Step>> {
        if self.acts(HandlerShape::SetsState) {
            turn.cx().set_state("handler", Value::from(turn.run().agent_name().as_str()));
        }
        Work::done(Ok(Step::Continue))
    }

    fn before_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        let is_edited = || turn.history.history().iter().any(|content| content.text() == RULES);
        if self.acts(HandlerShape::EditsPrompt) && !is_edited() {
            turn.history.splice(0..0, [Arc::new(Content::user(RULES))]);
        }
        if self.acts(HandlerShape::KeepsCount) {
            let run = turn.run();
            let kept =
                run.kept::<u32>("count").and_then(|count| run.keep("count", &(count.unwrap_or(0) + 1)));
            if let Err(error) = kept {
                return Work::done(Err(error));
            }
        }
        Work::done(Ok(Step::Continue))
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        Work::later(async move {
            let again = (call.clone(), next);
            match next.call(call).await {
                Err(error) if !error.error().is_control() && self.acts(HandlerShape::RetriesTools) => {
                    self.ledger.retry(&call_key(again.0.cx));
                    again.1.call(again.0).await
                }
                result => result,
            }
        })
    }

    fn on_event<'a>(&'a self, _run: &'a Run, mut event: Event) -> Work<'a, Result<Event>> {
        if self.acts(HandlerShape::MarksEvents) {
            let metadata = event.meta_mut().custom_metadata.get_or_insert_default();
            metadata.insert("marked".to_owned(), Value::from(true));
        }
        Work::done(Ok(event))
    }

    fn on_output<'a>(&'a self, _run: &'a Run, event: Arc<Event>) -> Work<'a, Result<Option<Arc<Event>>>> {
        let hides = self.acts(HandlerShape::HidesOutput) && !event.is_final();
        Work::done(Ok((!hides).then_some(event)))
    }

    fn on_error<'a>(&'a self, _run: &'a Run, _error: &'a Error) -> Work<'a, Result<Option<Content>>> {
        let answer = self.acts(HandlerShape::AnswersErrors).then(|| Content::model("Something went wrong."));
        Work::done(Ok(answer))
    }

    fn after_run<'a>(&'a self, _run: &'a Run, _outcome: &'a Outcome) -> Work<'a, Result<()>> {
        let HandlerShape::WaitsAfterRun(ms) = self.shape else { return Work::done(Ok(())) };
        self.ledger.count("handler");
        Work::later(async move {
            tokio::time::sleep(millis(ms)).await;
            Ok(())
        })
    }
}
