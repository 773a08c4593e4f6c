//! Processors that have their place and do nothing yet: an agent that needs them cannot be built.

use umbel_core::{Response, Result, Run, Work};

use super::{RequestProcessor, ResponseProcessor};
use crate::agents::LlmAgent;

/// Where code and its results will be taken in and out.
pub(super) struct CodeExecution;

impl RequestProcessor for CodeExecution {
    fn name(&self) -> &str {
        "code_execution"
    }

    fn applies(&self, _agent: &LlmAgent) -> bool {
        false
    }
}

impl ResponseProcessor for CodeExecution {
    fn name(&self) -> &str {
        "code_execution"
    }

    fn process<'a>(
        &'a self,
        _agent: &'a LlmAgent,
        _run: &'a Run,
        _response: &'a mut Response,
    ) -> Work<'a, Result<()>> {
        Work::done(Ok(()))
    }
}
