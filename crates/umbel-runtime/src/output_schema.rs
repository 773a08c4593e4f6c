//! The structure an agent's answer must have.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};
use umbel_core::{
    BoxFuture, Error, ErrorKind, Object, Result, Tool, ToolContext, ToolError, ToolOutput, ToolSpec,
};

use crate::text;

/// Name of the tool through which a model gives a structured answer.
pub const SET_MODEL_RESPONSE: &str = "set_model_response";

/// A JSON schema that can be checked against.
#[derive(Clone)]
pub struct OutputSchema {
    schema: Arc<Value>,
    validator: Arc<jsonschema::Validator>,
}

impl OutputSchema {
    /// A schema; an error if it is none.
    pub fn new(schema: Value) -> Result<Self> {
        let validator = jsonschema::validator_for(&schema).map_err(|e| {
            Error::new(ErrorKind::Build, format!("the output schema is not a valid JSON schema: {e}"))
        })?;
        Ok(Self { schema: Arc::new(schema), validator: Arc::new(validator) })
    }

    /// The schema itself.
    pub fn schema(&self) -> &Arc<Value> {
        &self.schema
    }

    /// What is wrong with a value, in words; nothing if it fits.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let problems: Vec<String> = self
            .validator
            .iter_errors(value)
            .take(5)
            .map(|error| format!("at `{}`: {error}", error.instance_path()))
            .collect();
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }

    /// Leaves out what the schema does not know of, unless it says what else there may be.
    pub fn prune(&self, value: &mut Value) {
        prune(&self.schema, value);
    }

    /// Reads a model's text as a value that fits.
    pub fn parse(&self, text: &str) -> Result<Value> {
        let mut value: Value = serde_json::from_str(strip_fence(text)).map_err(|e| {
            Error::new(
                ErrorKind::InvalidOutput,
                format!("the model's answer is not JSON, as its schema asks: {e}"),
            )
        })?;
        self.check(&value).map_err(|problems| {
            let message = format!("the model's answer does not fit its schema: {problems}");
            Error::new(ErrorKind::InvalidOutput, message)
        })?;
        self.prune(&mut value);
        Ok(value)
    }
}

fn prune(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(object) if schema.get("additionalProperties").is_none() => {
            let Some(known) = schema.get("properties").and_then(Value::as_object) else { return };
            object.retain(|key, _| known.contains_key(key));
            for (key, value) in object {
                if let Some(schema) = known.get(key) {
                    prune(schema, value);
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else { return };
            items.iter_mut().for_each(|item| prune(schema, item));
        }
        _ => {}
    }
}

/// The text without the code fence that models like to put around JSON.
pub(crate) fn strip_fence(text: &str) -> &str {
    let text = text.trim();
    let Some(inner) = text.strip_prefix("```").and_then(|rest| rest.strip_suffix("```")) else { return text };
    inner.strip_prefix("json").unwrap_or(inner).trim()
}

impl fmt::Debug for OutputSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OutputSchema({})", self.schema)
    }
}

/// The tool through which a model that cannot keep to a schema gives its answer.
pub struct SetModelResponse {
    schema: OutputSchema,
    spec: ToolSpec,
    /// The argument that holds the value, if the schema is not one of an object.
    wrapped: Option<&'static str>,
}

impl SetModelResponse {
    /// The tool for a schema.
    pub fn new(schema: OutputSchema) -> Self {
        let kind = schema.schema.get("type").and_then(Value::as_str);
        let is_object = kind == Some("object") && schema.schema.get("properties").is_some();
        let wrapped = (!is_object).then(|| if kind == Some("array") { "items" } else { "response" });
        let parameters = match wrapped {
            None => (*schema.schema).clone(),
            Some(name) => json!({"type": "object", "properties": {name: *schema.schema}, "required": [name]}),
        };
        Self {
            spec: ToolSpec::new(SET_MODEL_RESPONSE, text::SET_MODEL_RESPONSE, parameters).resuming(),
            schema,
            wrapped,
        }
    }
}

impl Tool for SetModelResponse {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let mut value = match self.wrapped {
                None => Value::Object((*args).clone()),
                Some(name) => args.get(name).cloned().unwrap_or_default(),
            };
            self.schema.check(&value).map_err(ToolError::invalid_arguments)?;
            self.schema.prune(&mut value);
            cx.actions(|actions| actions.set_model_response = Some(value.clone()));
            Ok(value.into())
        })
    }
}

impl fmt::Debug for SetModelResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SetModelResponse")
    }
}
