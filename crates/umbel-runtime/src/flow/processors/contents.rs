//! What the model is sent of the conversation.

use umbel_core::{ContentsView, Result, Work};

use super::RequestProcessor;
use crate::flow::Draft;

pub(super) struct Contents;

impl RequestProcessor for Contents {
    fn name(&self) -> &str {
        "contents"
    }

    fn process<'a>(&'a self, draft: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        Work::done(draft.take_contents())
    }
}

pub(super) struct DisplayNames;

impl RequestProcessor for DisplayNames {
    fn name(&self) -> &str {
        "display_names"
    }

    fn see(&self, draft: &Draft<'_>, view: &mut ContentsView) {
        view.no_display_names = draft.model.capabilities().refuses_display_names;
    }
}
