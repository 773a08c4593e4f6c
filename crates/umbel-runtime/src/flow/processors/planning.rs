//! Lets a planner have its say.

use std::sync::Arc;

use umbel_core::{Content, ContentsView, Result, Work};

use super::{Answered, RequestProcessor, ResponseProcessor};
use crate::agents::LlmAgent;
use crate::flow::Draft;

pub(super) struct Planning;

impl RequestProcessor for Planning {
    fn name(&self) -> &str {
        "planning"
    }

    fn applies(&self, agent: &LlmAgent) -> bool {
        agent.planner.is_some()
    }

    fn see(&self, draft: &Draft<'_>, view: &mut ContentsView) {
        view.plain_thoughts = draft.agent.planner.as_ref().is_some_and(|planner| planner.marks_thoughts());
    }

    fn process<'a>(&'a self, draft: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        let Some(planner) = &draft.agent.planner else { return Work::done(Ok(())) };
        if let Some(thinking) = planner.thinking() {
            Arc::make_mut(&mut draft.request.config).thinking = Some(thinking);
        }
        if let Some(instruction) = planner.instruction() {
            draft.request.instruction.push("planner", instruction);
        }
        Work::done(Ok(()))
    }
}

impl ResponseProcessor for Planning {
    fn name(&self) -> &str {
        "planning"
    }

    fn process<'a>(&'a self, answer: &'a mut Answered<'_>) -> Work<'a, Result<()>> {
        if let (Some(planner), Some(content)) = (&answer.agent.planner, &answer.response.content)
            && let Some(parts) = planner.rewrite(&content.parts)
        {
            answer.response.content = Some(Arc::new(Content { role: content.role.clone(), parts }));
        }
        Work::done(Ok(()))
    }
}
