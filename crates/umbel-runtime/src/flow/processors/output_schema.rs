//! Structured answers from models that cannot keep to a schema while they call tools.

use std::sync::Arc;

use umbel_core::{Result, Work};

use super::RequestProcessor;
use super::basic::keeps_to_schema;
use crate::agents::LlmAgent;
use crate::flow::Draft;
use crate::output_schema::{SET_MODEL_RESPONSE, SetModelResponse};
use crate::text;

pub(super) struct OutputSchemaNote;

impl RequestProcessor for OutputSchemaNote {
    fn name(&self) -> &str {
        "output_schema"
    }

    fn applies(&self, agent: &LlmAgent) -> bool {
        agent.answer_tool.is_some()
    }

    fn process<'a>(&'a self, draft: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        if let Some(tool) = &draft.agent.answer_tool
            && !keeps_to_schema(draft)
            && draft.mode() != umbel_core::Mode::Task
        {
            answer_by_tool(draft, tool.clone());
        }
        Work::done(Ok(()))
    }
}

/// Has the model give its answer through a tool.
fn answer_by_tool(draft: &mut Draft<'_>, tool: Arc<SetModelResponse>) {
    draft.add_tool(tool);
    draft.request.instruction.push("output_schema", text::OUTPUT_SCHEMA_NOTE);
}

/// Takes the schema out of a request that has tools all the same, if the model cannot take both: a processor added some
/// behind the one that put in the schema.
pub(crate) fn part_schema_from_tools(draft: &mut Draft<'_>) {
    if draft.request.output_schema.is_none() || keeps_to_schema(draft) {
        return;
    }
    draft.request.output_schema = None;
    let own = draft.plan().map_or(&draft.agent.generate, |plan| &plan.generate).response_mime_type.clone();
    Arc::make_mut(&mut draft.request.config).response_mime_type = own;
    if let Some(tool) = draft.agent.answer_tool.clone().filter(|_| draft.tool(SET_MODEL_RESPONSE).is_none()) {
        answer_by_tool(draft, tool);
    }
}
