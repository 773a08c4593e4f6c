//! Processors that have their place and do nothing yet: an agent that needs them cannot be built.

use super::RequestProcessor;
use crate::agents::LlmAgent;

/// Where answers to credential requests will be taken in.
pub(super) struct Auth;

impl RequestProcessor for Auth {
    fn name(&self) -> &str {
        "auth"
    }

    fn applies(&self, _agent: &LlmAgent) -> bool {
        false
    }
}
