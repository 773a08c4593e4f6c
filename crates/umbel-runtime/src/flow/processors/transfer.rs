//! Whom the agent may hand over to, and whom it may call as a tool.

use smol_str::SmolStr;
use umbel_core::{Mode, Result, Work};

use super::RequestProcessor;
use crate::flow::Draft;
use crate::text;
use crate::tools::delegate::FinishTask;

pub(super) struct Transfers;

impl RequestProcessor for Transfers {
    fn name(&self) -> &str {
        "transfer"
    }

    fn process<'a>(&'a self, draft: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        let team = draft.team.clone();
        let place = match team.place(draft.run.node_id()) {
            Ok(place) => place,
            Err(error) => return Work::done(Err(error)),
        };
        if let Some(transfer) = &place.transfer {
            if let Some(instruction) = &transfer.instruction {
                draft.request.instruction.push(SmolStr::new_static("transfer"), instruction.clone());
            }
            draft.add_tool(transfer.tool.clone());
        }
        for delegate in &place.delegates {
            draft.add_tool(delegate.clone());
        }
        if draft.mode() == Mode::Task && draft.run.source().isolation_scope.is_some() {
            draft.request.instruction.push("task", text::FINISH_TASK_NOTE);
            draft.add_tool(FinishTask::shared(draft.agent.schema()));
        }
        Work::done(Ok(()))
    }
}
