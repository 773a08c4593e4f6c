//! What the official conformance suite of MCP looks for in a server: tools that give each kind of content, agents that ask
//! people and the client's model, things to read, and prompts; and some more for `conformance/mcp/server.mjs`.
//!
//! `cargo run -p umbel-mcp --example conformance_server`; with `--stdio` it serves whoever started it.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use umbel_core::{
    BoxFuture, Caller, Chunk, Confirm, Content, FunctionTool, ModelRequest, Part, Payload, Question,
    Response, Result, Role, ToolContext, ToolError, ToolItem, ToolOutput, ToolSpec, ToolValue,
};
use umbel_mcp::server::{AgentOffer, ClientModel, McpServer, Prompt, Resource, Resources};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
use umbel_server::Server;

/// A picture of one red pixel.
const PIXEL: &[u8] = &[
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0, 0, 0, 0x0d, 0x49, 0x48, 0x44, 0x52, 0, 0, 0, 1, 0, 0,
    0, 1, 8, 2, 0, 0, 0, 0x90, 0x77, 0x53, 0xde, 0, 0, 0, 0x0c, 0x49, 0x44, 0x41, 0x54, 8, 0xd7, 0x63, 0xf8,
    0xcf, 0xc0, 0, 0, 3, 1, 1, 0, 0x18, 0xdd, 0x8d, 0xb0, 0, 0, 0, 0, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42,
    0x60, 0x82,
];

/// A sound that is silent.
const SILENCE: &[u8] =
    b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x44\xac\0\0\x88\x58\x01\0\x02\0\x10\0data\0\0\0\0";

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("conformance_server: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().any(|arg| arg == "--stdio") {
        return Ok(server()?.stdio("local").await?);
    }
    let service = server()?.http()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let stop = std::future::pending();
    Ok(Server::new().mount("/mcp", service).build()?.serve(listener, stop).await?)
}

fn server() -> Result<McpServer> {
    let server = McpServer::new("umbel-conformance").resources(Shelf);
    Ok(prompts(agents(waiting(asking(showing(server))))?))
}

/// A tool without arguments.
fn tool<F>(name: &str, work: F) -> FunctionTool
where
    F: for<'a> Fn(&'a ToolContext, &'a Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>>
        + Send
        + Sync
        + 'static,
{
    tool_with(name, json!({"type": "object", "properties": {}}), work)
}

fn tool_with<F>(name: &str, schema: Value, work: F) -> FunctionTool
where
    F: for<'a> Fn(&'a ToolContext, &'a Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>>
        + Send
        + Sync
        + 'static,
{
    let spec = ToolSpec::new(name, format!("What the suite knows as `{name}`."), schema);
    let work = Arc::new(work);
    FunctionTool::raw(spec, move |cx, args| {
        let work = work.clone();
        Box::pin(async move {
            let args = Value::Object((*args).clone());
            work(cx, &args).await
        })
    })
}

/// A result with media.
fn with_parts(value: Value, parts: Vec<Part>) -> Result<ToolOutput, ToolError> {
    Ok(ToolValue { value, parts, ..ToolValue::default() }.into())
}

/// A text by an address.
fn embedded(uri: &str, mime: &str, text: &str) -> Part {
    let mut part = Part::data(mime, text.as_bytes());
    if let Payload::InlineData(blob) = &mut part.payload {
        blob.display_name = Some(uri.to_owned());
    }
    part
}

/// News, and a result at the end.
fn stream(news: Vec<Value>, last: &'static str) -> ToolOutput {
    let items = news.into_iter().map(ToolItem::Progress).chain([ToolItem::Done(json!(last).into())]);
    let items = futures::stream::iter(items);
    let slowly = futures::StreamExt::then(items, async |item| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(item)
    });
    ToolOutput::Stream(Box::pin(slowly))
}

/// Tools that give each kind of content, news while they work, and errors.
fn showing(server: McpServer) -> McpServer {
    let mixed = || {
        let text =
            embedded("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#);
        vec![Part::data("image/png", PIXEL), text]
    };
    let steps =
        [0, 50, 100].map(|at| json!({"progress": at, "total": 100, "message": format!("{at} of 100")}));
    let logs =
        ["Tool execution started", "Tool processing data", "Tool execution completed"].map(Value::from);
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }},
        "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
        "additionalProperties": false,
    });
    server
        .tool(tool("test_simple_text", |_, _| {
            Box::pin(async { Ok(json!("This is a simple text response for testing.").into()) })
        }))
        .tool(tool("test_image_content", |_, _| {
            Box::pin(async { with_parts(Value::Null, vec![Part::data("image/png", PIXEL)]) })
        }))
        .tool(tool("test_audio_content", |_, _| {
            Box::pin(async { with_parts(Value::Null, vec![Part::data("audio/wav", SILENCE)]) })
        }))
        .tool(tool("test_embedded_resource", |_, _| {
            let text = "This is an embedded resource content.";
            let part = embedded("test://embedded-resource", "text/plain", text);
            Box::pin(async { with_parts(Value::Null, vec![part]) })
        }))
        .tool(tool("test_multiple_content_types", move |_, _| {
            Box::pin(async move { with_parts(json!("Multiple content types test:"), mixed()) })
        }))
        .tool(tool("test_error_handling", |_, _| {
            let message = "This tool intentionally returns an error for testing";
            Box::pin(async move { Err(ToolError::new(message)) })
        }))
        .tool(tool("test_tool_with_progress", move |_, _| {
            let steps = steps.to_vec();
            Box::pin(async { Ok(stream(steps, "Done.")) })
        }))
        .tool(tool("test_tool_with_logging", move |_, _| {
            let logs = logs.to_vec();
            Box::pin(async { Ok(stream(logs, "Done.")) })
        }))
        .tool(tool("test_reconnection", |_, _| {
            Box::pin(async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                Ok(json!("Reconnection test completed.").into())
            })
        }))
        .tool(tool_with("json_schema_2020_12_tool", schema, |_, args| {
            let args = args.clone();
            Box::pin(async move { Ok(args.into()) })
        }))
}

/// Asks a person for something, and tells what they said.
fn ask(cx: &ToolContext, message: &str, schema: &Value) -> Result<ToolOutput, ToolError> {
    let answer = cx.interrupt(Question::input(message).schema(schema.clone()))?;
    let action = if answer.confirmed { "accept" } else { "decline" };
    Ok(json!(format!("User response: {action}, {}", answer.payload.unwrap_or_default())).into())
}

/// Tools that ask people.
fn asking(server: McpServer) -> McpServer {
    let person = json!({
        "type": "object",
        "properties": {
            "username": {"type": "string", "description": "User's response"},
            "email": {"type": "string", "description": "User's email address"},
        },
        "required": ["username", "email"],
    });
    let defaults = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "User name", "default": "John Doe"},
            "age": {"type": "integer", "description": "User age", "default": 30},
            "score": {"type": "number", "description": "User score", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "description": "Verification status", "default": true},
        },
        "required": [],
    });
    let titled = |kind: &str| {
        let one =
            |n: u32, word: &str| json!({"const": format!("value{n}"), "title": format!("{word} {kind}")});
        json!([one(1, "First"), one(2, "Second"), one(3, "Third")])
    };
    let enums = json!({
        "type": "object",
        "properties": {
            "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
            "titledSingle": {"type": "string", "oneOf": titled("Option")},
            "legacyEnum": {
                "type": "string",
                "enum": ["opt1", "opt2", "opt3"],
                "enumNames": ["Option One", "Option Two", "Option Three"],
            },
            "untitledMulti": {
                "type": "array",
                "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
            },
            "titledMulti": {"type": "array", "items": {"anyOf": titled("Choice")}},
        },
        "required": [],
    });
    let message =
        json!({"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]});
    server
        .tool(tool_with("test_elicitation", message, move |cx, args| {
            let said = ask(cx, args["message"].as_str().unwrap_or_default(), &person);
            Box::pin(async move { said })
        }))
        .tool(tool("test_elicitation_sep1034_defaults", move |cx, _| {
            let said = ask(cx, "Please review and update the form fields with defaults", &defaults);
            Box::pin(async move { said })
        }))
        .tool(tool("test_elicitation_sep1330_enums", move |cx, _| {
            let said = ask(cx, "Please select options from the enum fields", &enums);
            Box::pin(async move { said })
        }))
}

/// Counts calls that were given up.
struct GivenUp(Arc<AtomicUsize>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A tool that never ends, one that tells how often it was given up, and one that people must agree to.
fn waiting(server: McpServer) -> McpServer {
    let given_up = Arc::new(AtomicUsize::new(0));
    let count = given_up.clone();
    server
        .tool(tool("wait", move |_, _| {
            let guard = GivenUp(given_up.clone());
            let begun = futures::stream::iter([Ok(ToolItem::Progress(json!({"message": "begun"})))]);
            let waits = futures::stream::once(async move {
                let _guard = guard;
                std::future::pending().await
            });
            Box::pin(async { Ok(ToolOutput::Stream(Box::pin(futures::StreamExt::chain(begun, waits)))) })
        }))
        .tool(tool("given_up", move |_, _| {
            let given_up = count.load(Ordering::Relaxed);
            Box::pin(async move { Ok(json!({"givenUp": given_up}).into()) })
        }))
        .tool(tool("delete", |_, _| Box::pin(async { Ok(json!("deleted").into()) })).confirm(Confirm::Always))
}

/// An agent that thinks with the client's model, and one that tells how often it was spoken to.
fn agents(server: McpServer) -> Result<McpServer> {
    let counts = ScriptedModel::from_fn("counts", |request: &ModelRequest| {
        let turns = request.contents.iter().filter(|content| content.role == Some(Role::User)).count();
        let answer = json!({"turns": turns}).to_string();
        vec![Ok(Chunk::Complete(Response::text(answer)))]
    });
    let counter =
        LlmAgent::new("counter").description("Counts what it is told.").model(counts).output_schema(
            json!({"type": "object", "properties": {"turns": {"type": "integer"}}, "required": ["turns"]}),
        );
    let server = server.agent(AgentOffer::new(Runner::new("counter", counter)?).conversations());
    let prompt =
        json!({"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]});
    let agent = LlmAgent::new("test_sampling")
        .description("Asks the model of the client.")
        .model(ClientModel::new())
        .input_schema(prompt);
    Ok(server.agent(AgentOffer::new(Runner::new("conformance", agent)?)))
}

/// Things to read.
struct Shelf;

impl Resources for Shelf {
    fn list<'a>(&'a self, _: &'a Caller) -> BoxFuture<'a, Result<Vec<Resource>>> {
        let listed = [
            Resource::new("test://static-text", "Static text").mime_type("text/plain"),
            Resource::new("test://static-binary", "Static binary").mime_type("image/png"),
            Resource::new("test://watched-resource", "Watched").mime_type("text/plain"),
        ];
        Box::pin(async move { Ok(listed.to_vec()) })
    }

    fn patterns(&self) -> Vec<Resource> {
        vec![Resource::new("test://template/{id}/data", "Data by id").mime_type("application/json")]
    }

    fn read<'a>(&'a self, _: &'a Caller, uri: &'a str) -> BoxFuture<'a, Result<Option<Part>>> {
        let by_id = || {
            let id = uri.strip_prefix("test://template/")?.strip_suffix("/data")?;
            let data = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
            Some(Part::data("application/json", data.to_string().into_bytes()))
        };
        let part = match uri {
            "test://static-text" => Some(Part::text("This is the content of the static text resource.")),
            "test://static-binary" => Some(Part::data("image/png", PIXEL)),
            "test://watched-resource" => Some(Part::text("Watched.")),
            _ => by_id(),
        };
        Box::pin(async move { Ok(part) })
    }
}

fn prompts(server: McpServer) -> McpServer {
    let text = "Prompt with arguments: arg1='{arg1}', arg2='{arg2}'";
    server
        .prompt(
            Prompt::new("test_simple_prompt", "This is a simple prompt for testing.")
                .description("A simple prompt."),
        )
        .prompt(
            Prompt::new("test_prompt_with_arguments", text)
                .description("A prompt with arguments.")
                .argument("arg1", "First test argument")
                .argument("arg2", "Second test argument"),
        )
        .prompt(
            Prompt::with("test_prompt_with_embedded_resource", |arguments: &BTreeMap<String, String>| {
                let uri = arguments.get("resourceUri").map(String::as_str).unwrap_or_default();
                let part = embedded(uri, "text/plain", "Embedded resource content for testing.");
                vec![Content::user(part), Content::user("Please process the embedded resource above.")]
            })
            .description("A prompt with a resource in it.")
            .argument("resourceUri", "URI of the resource to embed"),
        )
        .prompt(
            Prompt::with("test_prompt_with_image", |_| {
                vec![
                    Content::user(Part::data("image/png", PIXEL)),
                    Content::user("Please analyze the image above."),
                ]
            })
            .description("A prompt with a picture in it."),
        )
}
