//! One model call as the handlers before and behind it see it.

use std::sync::Arc;

use crate::context::Context;
use crate::error::Result;
use crate::handler::Handler;
use crate::id::CallId;
use crate::interrupt::{Answer, Question};
use crate::onion::layer_name;
use crate::part::FunctionCall;
use crate::response::Response;
use crate::run::Run;
use crate::tool::{ToolSet, ToolValue};
use crate::transcript::Transcript;

/// One model call: the history that goes to it, and behind it its response.
#[derive(Debug)]
pub struct ModelTurn<'a> {
    cx: &'a Context,
    /// The conversation. What is changed here is the run's state.
    pub history: &'a mut Transcript,
    /// The response; absent before the model was asked. It is stored as it is left here.
    pub response: Option<Response>,
    /// The tools that the model may call.
    pub tools: &'a Arc<ToolSet>,
    answers: Vec<(CallId, ToolValue)>,
    overflows: u32,
    shortens: bool,
}

impl<'a> ModelTurn<'a> {
    /// A turn in the context of a run.
    pub fn new(cx: &'a Context, history: &'a mut Transcript, tools: &'a Arc<ToolSet>) -> Self {
        Self { cx, history, response: None, tools, answers: Vec::new(), overflows: 0, shortens: false }
    }

    /// The same with the response.
    pub fn with_response(mut self, response: Response) -> Self {
        self.response = Some(response);
        self
    }

    /// The same, asked for again since the conversation was too long for the model so many times in a row.
    pub fn with_overflows(mut self, overflows: u32) -> Self {
        self.overflows = overflows;
        self
    }

    /// How many times in a row the conversation was too long for the model: who offered to shorten it should do so now.
    pub fn overflows(&self) -> u32 {
        self.overflows
    }

    /// Offers to make the conversation shorter, should it be too long for the model. Then what readers saw of an answer is
    /// made void, and `before_model` comes again with [`overflows`](Self::overflows). Unless the conversation got shorter,
    /// the model's error stands. To be said before each model call.
    pub fn offer_to_shorten(&mut self) {
        self.shortens = true;
    }

    /// Whether a handler offered that.
    pub fn can_be_shortened(&self) -> bool {
        self.shortens
    }

    /// The run, seen from the agent's place.
    pub fn run(&self) -> &'a Run {
        self.cx.run()
    }

    /// Where to leave state and other actions; they go with the event of the response.
    pub fn cx(&self) -> &'a Context {
        self.cx
    }

    /// What people said to this question of a handler: pass the handler itself. If nobody was asked yet, the error ends
    /// the run as *interrupted*, and the hook is called again with the answer. The model is not asked twice for that.
    pub fn interrupt(&self, handler: &dyn Handler, question: impl Into<Question>) -> Result<Answer> {
        let hook = if self.response.is_some() { "after_model" } else { "before_model" };
        self.run().ask(Some(layer_name(handler, hook)), question.into())
    }

    /// The calls that the response asks for.
    pub fn calls(&self) -> impl Iterator<Item = &FunctionCall> {
        self.response
            .iter()
            .filter_map(|response| response.content.as_ref())
            .flat_map(|content| content.calls())
    }

    /// Answers a call of the response in the tool's place: it is not made. The first answer to a call counts.
    pub fn answer(&mut self, call: CallId, value: impl Into<ToolValue>) {
        if !self.is_answered(&call) {
            self.answers.push((call, value.into()));
        }
    }

    /// Whether someone answered that call already.
    pub fn is_answered(&self, call: &CallId) -> bool {
        self.answers.iter().any(|(answered, _)| answered == call)
    }

    /// The response and the answers, taken out.
    pub fn finish(self) -> (Option<Response>, Vec<(CallId, ToolValue)>) {
        (self.response, self.answers)
    }
}
