//! The structure of what an agent is asked that others call.

use serde_json::Value;
use umbel_core::{Agent, Object, ToolError};

use crate::output_schema::OutputSchema;

/// What the arguments must be by which an agent is called.
#[derive(Clone, Debug)]
pub(super) struct InputSchema(OutputSchema);

impl InputSchema {
    /// The input schema of an agent, if it has one. Without one it takes any words.
    pub(super) fn of(agent: &dyn Agent) -> Option<Self> {
        let schema = agent.input_schema()?;
        OutputSchema::new((**schema).clone()).ok().map(Self)
    }

    /// An error that tells the model what is wrong with the arguments.
    pub(super) fn check(&self, args: &Object) -> Result<(), ToolError> {
        self.0.check(&Value::Object(args.clone())).map_err(ToolError::invalid_arguments)
    }
}
