//! How the model is to generate.

use std::sync::Arc;

use umbel_core::{Mode, Result, Work};

use super::RequestProcessor;
use crate::flow::Step;

/// The media type of a structured answer.
const JSON: &str = "application/json";

pub(super) struct Basic;

impl RequestProcessor for Basic {
    fn name(&self) -> &str {
        "basic"
    }

    fn process<'a>(&'a self, step: &'a mut Step<'_>) -> Work<'a, Result<()>> {
        step.request.config = step.agent.generate.clone();
        let labels = &step.run.config().labels;
        if !labels.is_empty() {
            let config = Arc::make_mut(&mut step.request.config);
            config.labels.extend(labels.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        if let Some(schema) = step.agent.schema()
            && keeps_to_schema(step)
        {
            step.request.output_schema = Some(schema.schema().clone());
            Arc::make_mut(&mut step.request.config).response_mime_type = Some(JSON.into());
        }
        Work::done(Ok(()))
    }
}

/// Whether the model itself sees to the structure of its answer.
pub(super) fn keeps_to_schema(step: &Step<'_>) -> bool {
    step.mode() != Mode::Task && (step.tools.is_empty() || step.model.capabilities().schema_with_tools)
}
