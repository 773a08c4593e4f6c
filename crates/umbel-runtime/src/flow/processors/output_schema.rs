//! Structured answers from models that cannot keep to a schema while they call tools.

use umbel_core::{Result, Work};

use super::RequestProcessor;
use super::basic::keeps_to_schema;
use crate::agents::LlmAgent;
use crate::flow::Draft;
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
            draft.add_tool(tool.clone());
            draft.request.instruction.push("output_schema", text::OUTPUT_SCHEMA_NOTE);
        }
        Work::done(Ok(()))
    }
}
