//! A tool that does what its description says.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use umbel::{
    Actions, BoxError, BoxFuture, Confirm, Object, Result, Tool, ToolContext, ToolError, ToolOutput, ToolSpec,
};

use super::{Log, Stage, flag, object, text};

/// A tool that does what its description says, and leaves a trace.
pub(crate) struct ScriptTool {
    spec: ToolSpec,
    does: Value,
    actions: Actions,
    log: Arc<Log>,
}

impl ScriptTool {
    pub(crate) fn new(does: &Value, stage: &Stage) -> Result<Self, BoxError> {
        let name = text(does, "name").ok_or("a tool has no `name`")?;
        let mut spec = ToolSpec::new(name, "", json!({"type": "object"}));
        spec.long_running = flag(does, "long_running");
        if flag(does, "require_confirmation") {
            spec.confirm = Confirm::Always;
        }
        let actions = serde_json::from_value(Value::Object(object(does, "actions")))?;
        Ok(Self { spec, does: does.clone(), actions, log: stage.log().clone() })
    }

    async fn work(&self, cx: &ToolContext, args: Arc<Object>) -> Result<ToolOutput, ToolError> {
        self.log.note(format!("tool:{}", self.spec.name));
        if let Some(delay) = self.does.get("delay_ms").and_then(Value::as_u64) {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        for (key, value) in object(&self.does, "set_state") {
            cx.set_state(key, value);
        }
        cx.actions(|actions| actions.merge(self.actions.clone()));
        if let Some(message) = text(&self.does, "raise") {
            return Err(ToolError::new(message));
        }
        let asks = self.does.get("request_confirmation").filter(|asks| asks.is_object());
        if let Some(asks) = asks.filter(|_| cx.confirmation().is_none()) {
            let payload = asks.get("payload").filter(|payload| !payload.is_null()).cloned();
            cx.request_confirmation(text(asks, "hint").unwrap_or_default(), payload)?;
            return Ok(asks.get("pending").cloned().unwrap_or_default().into());
        }
        if flag(&self.does, "echo") {
            return Ok(Value::Object((*args).clone()).into());
        }
        Ok(self.does.get("return").cloned().unwrap_or_default().into())
    }
}

impl Tool for ScriptTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(self.work(cx, args))
    }
}

/// A JSON schema from the short form of vectors: fields with their types, all of them required.
pub(crate) fn schema_of(short: &Value) -> Value {
    let Some(fields) = short.as_object() else { return short.clone() };
    if fields.get("type").is_some_and(|kind| kind == "object" || kind == "array") {
        return short.clone();
    }
    let typed = |(name, kind): (&String, &Value)| {
        let kind = if kind.is_string() { json!({"type": kind}) } else { kind.clone() };
        (name.clone(), kind)
    };
    let properties: Object = fields.iter().map(typed).collect();
    let required: Vec<&String> = fields.keys().collect();
    json!({"type": "object", "properties": properties, "required": required})
}
