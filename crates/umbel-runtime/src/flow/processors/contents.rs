//! What the model is sent of the conversation.

use umbel_core::{ContentsView, Result, Work};

use super::RequestProcessor;
use crate::contents;
use crate::flow::Step;

pub(super) struct Contents;

impl RequestProcessor for Contents {
    fn name(&self) -> &str {
        "contents"
    }

    fn process<'a>(&'a self, step: &'a mut Step<'_>) -> Work<'a, Result<()>> {
        step.request.contents = step.run.contents(&step.view());
        let context = &step.run.config().model_input_context;
        let turn = std::mem::take(&mut step.turn_contents);
        contents::place(&mut step.request.contents, context, step.run.input(), &turn);
        Work::done(Ok(()))
    }
}

pub(super) struct DisplayNames;

impl RequestProcessor for DisplayNames {
    fn name(&self) -> &str {
        "display_names"
    }

    fn see(&self, step: &Step<'_>, view: &mut ContentsView) {
        view.no_display_names = step.model.capabilities().refuses_display_names;
    }
}
