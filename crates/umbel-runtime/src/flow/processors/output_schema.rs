//! Structured answers from models that cannot keep to a schema while they call tools.

use umbel_core::{Result, Work};

use super::RequestProcessor;
use super::basic::keeps_to_schema;
use crate::agents::LlmAgent;
use crate::flow::Step;
use crate::text;

pub(super) struct OutputSchemaNote;

impl RequestProcessor for OutputSchemaNote {
    fn name(&self) -> &str {
        "output_schema"
    }

    fn applies(&self, agent: &LlmAgent) -> bool {
        agent.answer_tool.is_some()
    }

    fn process<'a>(&'a self, step: &'a mut Step<'_>) -> Work<'a, Result<()>> {
        if let Some(tool) = &step.agent.answer_tool
            && !keeps_to_schema(step)
            && step.mode() != umbel_core::Mode::Task
        {
            step.add_tool(tool.clone());
            step.request.instruction.push("output_schema", text::OUTPUT_SCHEMA_NOTE);
        }
        Work::done(Ok(()))
    }
}
