//! Whom the agent may hand over to, and whom it may call as a tool.

use smol_str::SmolStr;
use umbel_core::{Mode, Result, Work};

use super::RequestProcessor;
use crate::flow::Step;
use crate::text;
use crate::tools::delegate::FinishTask;

pub(super) struct Transfers;

impl RequestProcessor for Transfers {
    fn name(&self) -> &str {
        "transfer"
    }

    fn process<'a>(&'a self, step: &'a mut Step<'_>) -> Work<'a, Result<()>> {
        let team = step.team.clone();
        let place = match team.place(step.run.node_id()) {
            Ok(place) => place,
            Err(error) => return Work::done(Err(error)),
        };
        if let Some(transfer) = &place.transfer {
            if let Some(instruction) = &transfer.instruction {
                step.request.instruction.push(SmolStr::new_static("transfer"), instruction.clone());
            }
            step.add_tool(transfer.tool.clone());
        }
        for delegate in &place.delegates {
            step.add_tool(delegate.clone());
        }
        if step.mode() == Mode::Task && step.run.source().isolation_scope.is_some() {
            step.request.instruction.push("task", text::FINISH_TASK_NOTE);
            step.add_tool(FinishTask::shared(step.agent.schema()));
        }
        Work::done(Ok(()))
    }
}
