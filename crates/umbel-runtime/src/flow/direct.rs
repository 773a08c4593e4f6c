//! Tools whose result is the agent's answer.

use umbel_core::{CallId, FunctionCall, ToolSet};

use super::function_calls::{Batch, Executed};

/// Makes the results the agent's answer, if one of the tools that were called answers directly: that of the last such call
/// in call order. While people are asked about one of the calls there is no answer yet.
pub(super) fn mark(tools: &ToolSet, batch: &Batch, made: &mut Executed) {
    let Executed { event: Some(event), asks, skips, .. } = made else { return };
    let answers = |call: &FunctionCall| {
        tools.get(&call.name).is_some_and(|meta| meta.return_directly) && !batch.is_answered(call)
    };
    let is_direct = batch.calls.iter().any(answers);
    if !asks.is_empty() || (!is_direct && skips.is_empty()) {
        return;
    }
    event.actions_mut().skip_summarization = Some(true);
    let is_done = |id: &CallId| event.responses().any(|response| response.id.as_ref() == Some(id));
    let direct = batch.calls.iter().rev().find_map(|call| {
        let id = call.id.as_ref().filter(|id| is_done(id))?;
        (skips.contains(id) || answers(call)).then_some(id)
    });
    if event.responses().next().is_some() {
        event.set_direct_answer(direct);
    }
}
