//! Small tools that most agents can use.

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};
use umbel_core::{
    BoxFuture, Content, MemoryEntry, ModelRequest, Object, Part, Result, Role, Run, Tool, ToolContext,
    ToolError, ToolOutput, ToolSpec,
};

use crate::contents::visible::REQUEST_INPUT;
use crate::template::artifact_text;

type Output<'a> = BoxFuture<'a, Result<ToolOutput, ToolError>>;

/// Ends the enclosing loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExitLoop;

impl Tool for ExitLoop {
    fn spec(&self) -> &ToolSpec {
        static SPEC: LazyLock<ToolSpec> = LazyLock::new(|| {
            let parameters = json!({"type": "object", "properties": {}});
            ToolSpec::new("exit_loop", "Ends the loop. Call it only when you are told to.", parameters)
                .resuming()
        });
        &SPEC
    }

    fn call<'a>(&'a self, cx: &'a ToolContext, _args: Arc<Object>) -> Output<'a> {
        cx.escalate();
        cx.skip_summarization();
        Box::pin(async { Ok(json!({}).into()) })
    }
}

/// Looks up what is remembered of the user.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadMemory;

impl Tool for LoadMemory {
    fn spec(&self) -> &ToolSpec {
        static SPEC: LazyLock<ToolSpec> = LazyLock::new(|| {
            let parameters = json!({
                "type": "object",
                "properties": {"query": {"type": "string", "description": "Words to look for."}},
                "required": ["query"],
            });
            let mut spec =
                ToolSpec::new("load_memory", "Looks up what is remembered of the user.", parameters);
            spec.read_only = true;
            spec
        });
        &SPEC
    }

    fn call<'a>(&'a self, cx: &'a ToolContext, args: Arc<Object>) -> Output<'a> {
        Box::pin(async move {
            let query = args.get("query").and_then(Value::as_str).unwrap_or_default();
            let found = cx.search_memory(query).await?;
            let memories: Vec<Value> = found.iter().map(memory_value).collect();
            Ok(json!({"memories": memories}).into())
        })
    }
}

fn memory_value(entry: &MemoryEntry) -> Value {
    json!({"author": entry.author, "timestamp": entry.timestamp, "text": entry.content.text()})
}

/// Puts what is remembered of the user before each request, without being called.
#[derive(Clone, Copy, Debug, Default)]
pub struct PreloadMemory;

impl Tool for PreloadMemory {
    fn spec(&self) -> &ToolSpec {
        static SPEC: LazyLock<ToolSpec> = LazyLock::new(|| {
            let mut spec = ToolSpec::new("preload_memory", "", json!({"type": "object"}));
            spec.hidden = true;
            spec
        });
        &SPEC
    }

    fn call<'a>(&'a self, _cx: &'a ToolContext, _args: Arc<Object>) -> Output<'a> {
        Box::pin(async { Err(ToolError::new("this tool is not to be called: it works on its own")) })
    }

    fn prepare<'a>(
        &'a self,
        run: &'a Run,
        request: &'a mut ModelRequest,
    ) -> Option<BoxFuture<'a, Result<()>>> {
        Some(Box::pin(async move {
            let query = run.input().map(|input| input.text()).unwrap_or_default();
            let key = run.session_key();
            let found = run.memory()?.search(key.app(), key.user(), &query).await?;
            if !found.is_empty() {
                let mut text = String::from("From earlier conversations with this user, as data:\n");
                for entry in &found {
                    text.push_str(&format!("- {}: {}\n", entry.author, entry.content.text()));
                }
                request.instruction.push("preload_memory", text);
            }
            Ok(())
        }))
    }
}

/// Tells the model which artifacts there are, and shows it those it asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadArtifacts;

const LOAD_ARTIFACTS: &str = "load_artifacts";

impl Tool for LoadArtifacts {
    fn spec(&self) -> &ToolSpec {
        static SPEC: LazyLock<ToolSpec> = LazyLock::new(|| {
            let parameters = json!({
                "type": "object",
                "properties": {"artifact_names": {"type": "array", "items": {"type": "string"}}},
                "required": ["artifact_names"],
            });
            let mut spec = ToolSpec::new(LOAD_ARTIFACTS, "Shows the contents of artifacts.", parameters);
            spec.read_only = true;
            spec
        });
        &SPEC
    }

    fn call<'a>(&'a self, _cx: &'a ToolContext, args: Arc<Object>) -> Output<'a> {
        let names = args.get("artifact_names").cloned().unwrap_or_else(|| json!([]));
        Box::pin(async move { Ok(json!({"artifact_names": names}).into()) })
    }

    fn prepare<'a>(
        &'a self,
        run: &'a Run,
        request: &'a mut ModelRequest,
    ) -> Option<BoxFuture<'a, Result<()>>> {
        Some(Box::pin(async move {
            let store = run.artifacts()?;
            let names = store.names(run.session_key()).await?;
            if names.is_empty() {
                return Ok(());
            }
            let text = format!(
                "There are these artifacts: {}. To see one, call `{LOAD_ARTIFACTS}` with its name before you speak of it.",
                names.join(", ")
            );
            request.instruction.push(LOAD_ARTIFACTS, text);
            for name in asked_for(request) {
                let Some(part) = store.load(run.session_key(), &name, None).await? else { continue };
                let head = Part::text(format!("The artifact {name}:"));
                let body = match artifact_text(&name, &part) {
                    text if part.as_text().is_some() => Part::text(text.into_owned()),
                    _ => (*part).clone(),
                };
                request.contents.push(Content::new(Role::User, [head, body]));
            }
            Ok(())
        }))
    }
}

/// The artifacts that the model has just asked for.
fn asked_for(request: &ModelRequest) -> Vec<String> {
    let last = request.contents.last();
    let responses = last.into_iter().flat_map(|content| content.responses());
    let names = responses.filter(|response| response.name == LOAD_ARTIFACTS).filter_map(|response| {
        let names = response.response.as_ref()?.get("artifact_names")?.as_array()?;
        Some(names.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>())
    });
    names.flatten().collect()
}

/// Asks the user something and waits for the answer, however long it takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestInput;

impl Tool for RequestInput {
    fn spec(&self) -> &ToolSpec {
        static SPEC: LazyLock<ToolSpec> = LazyLock::new(|| {
            let parameters = json!({
                "type": "object",
                "properties": {"message": {"type": "string", "description": "The question for the user."}},
                "required": ["message"],
            });
            let mut spec = ToolSpec::new(
                REQUEST_INPUT,
                "Asks the user a question and waits for the answer.",
                parameters,
            );
            spec.long_running = true;
            spec
        });
        &SPEC
    }

    fn call<'a>(&'a self, _cx: &'a ToolContext, _args: Arc<Object>) -> Output<'a> {
        Box::pin(async { Ok(Value::Null.into()) })
    }
}
