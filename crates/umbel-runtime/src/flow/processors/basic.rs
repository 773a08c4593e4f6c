//! How the model is to generate.

use std::sync::Arc;

use umbel_core::{Mode, Result, Work};

use super::RequestProcessor;
use crate::flow::Draft;

/// The media type of a structured answer.
const JSON: &str = "application/json";

pub(super) struct Basic;

impl RequestProcessor for Basic {
    fn name(&self) -> &str {
        "basic"
    }

    fn process<'a>(&'a self, draft: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        draft.request.config = draft.plan().map_or(&draft.agent.generate, |plan| &plan.generate).clone();
        let labels = &draft.run.config().labels;
        if !labels.is_empty() {
            let config = Arc::make_mut(&mut draft.request.config);
            config.labels.extend(labels.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        if let Some(schema) = draft.agent.schema()
            && keeps_to_schema(draft)
        {
            draft.request.output_schema = Some(schema.schema().clone());
            Arc::make_mut(&mut draft.request.config).response_mime_type = Some(JSON.into());
        }
        Work::done(Ok(()))
    }
}

/// Whether the model itself sees to the structure of its answer.
pub(super) fn keeps_to_schema(draft: &Draft<'_>) -> bool {
    draft.mode() != Mode::Task && (!draft.declares_tools() || draft.model.capabilities().schema_with_tools)
}
