//! Secrets, and what is said, through the whole of it: a server, an agent, a model behind HTTP, tools with credentials of every
//! kind, an MCP server, and somebody who listens to everything. Each place where something may be written down is searched.

use std::path::Path;

use serde_json::{Value, json};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt;
use umbel_core::{AuthConfig, FunctionTool, PlainAuth, ToolError, ToolSpec};
use umbel_mcp::client::{Approval, Http, McpToolset};
use umbel_mcp::server::McpServer;
use umbel_runtime::layers::Logging;
use umbel_runtime::{LlmAgent, Runner};
use umbel_server::{AgentEndpoint, BearerTokens, Server, Traces};
use umbel_stores::Sqlite;
use umbel_telemetry::{Exporting, Telemetry};
use umbel_tools::{Command, OpenApi, Secret};

use crate::served::{CLOSE, Served};
use crate::stub::{Answer, Stub};
use crate::support::{Logged, PATIENCE};

/// What nobody may learn, wherever they look.
const SECRETS: [&str; 7] = [
    "secret-api-key",
    "secret-fixed",
    "secret-given",
    "secret-header",
    "secret-environment",
    "secret-mcp-token-0123456789",
    "secret-collector-key",
];

/// What is for those who talk, and in no trace, metric or log.
const SAID: [&str; 6] =
    ["said-prompt", "said-argument", "said-result", "said-answer", "said-failure", "said-instruction"];

/// Somebody who listens: a collector, a log of all levels, and the studio.
struct Everywhere {
    collector: Stub,
    exporting: Exporting,
    log: Logged,
    traces: Traces,
    _guard: DefaultGuard,
}

fn listen_everywhere() -> Everywhere {
    let collector = Stub::start(Answer::Say(200, "application/x-protobuf", String::new()));
    let telemetry = Telemetry::new("desk").otlp(collector.url()).header("x-key", "secret-collector-key");
    let shown = format!("{telemetry:?}");
    let exporting = telemetry.build().unwrap();
    let (log, traces) = (Logged::default(), Traces::new());
    let lines = log.clone();
    let written = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || lines.clone());
    let subscriber =
        tracing_subscriber::registry().with(exporting.layer()).with(traces.layer()).with(written);
    let guard = tracing::subscriber::set_default(subscriber);
    tracing::info!("{shown} {exporting:?}");
    Everywhere { collector, exporting, log, traces, _guard: guard }
}

/// A piece of a streamed answer, as OpenAI's form has it.
fn piece(delta: &Value, finish: Option<&str>) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
    format!("data: {}\n\n", json!({"id": "c-1", "model": "m-1", "choices": [choice]}))
}

/// A provider that calls all tools, then answers, and then repeats the key that it does not like: at once, and in the middle of
/// an answer.
fn provider() -> Stub {
    let call = |index: usize, name: &str| {
        let arguments = json!({"secret": "said-argument"}).to_string();
        json!({"index": index, "id": format!("call-{index}"), "type": "function",
            "function": {"name": name, "arguments": arguments}})
    };
    let names = ["keep", "fixed", "given", "order", "program", "note"];
    let calls: Vec<Value> = names.iter().enumerate().map(|(index, name)| call(index, name)).collect();
    Stub::start_by(move |nth, _| match nth {
        0 => {
            let body = piece(&json!({"role": "assistant", "tool_calls": calls}), Some("tool_calls"));
            Answer::Say(200, "text/event-stream", format!("{body}data: [DONE]\n\n"))
        }
        1 => {
            let body = piece(&json!({"role": "assistant", "content": "said-answer"}), Some("stop"));
            Answer::Say(200, "text/event-stream", format!("{body}data: [DONE]\n\n"))
        }
        nth => {
            let error =
                json!({"error": {"message": "Incorrect API key: secret-api-key", "code": "invalid_api_key"}});
            match nth {
                2 => Answer::Say(401, "application/json", error.to_string()),
                _ => Answer::Say(200, "text/event-stream", format!("data: {error}\n\n")),
            }
        }
    })
}

/// A tool that needs a credential, and has it.
fn keyed(name: &'static str, auth: AuthConfig, key: &'static str) -> FunctionTool {
    let own = auth.clone();
    let spec = ToolSpec::new(name, "", json!({"type": "object"}));
    FunctionTool::raw(spec, move |cx, _| {
        let own = own.clone();
        Box::pin(async move {
            let grant = cx.credential(&own).await?;
            assert_eq!(grant.http().unwrap().expose(), format!("Bearer {key}"));
            Ok(json!("used").into())
        })
    })
    .auth(auth)
}

/// A service that gives back the key it was given, and fails.
fn service(place: &Stub) -> umbel_tools::OpenApiTools {
    let operation = json!({"operationId": "order", "summary": "Orders.", "responses": {},
        "requestBody": {"content": {"application/json": {"schema":
            {"type": "object", "properties": {"secret": {"type": "string"}}}}}}});
    let document = json!({"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": place.url()}], "paths": {"/order": {"post": operation}}});
    OpenApi::new(document)
        .allow_private("127.0.0.1")
        .header("x-key", Secret::new("secret-header"))
        .build()
        .unwrap()
}

/// The agent, with tools that know secrets in every way.
fn agent(model: &Stub, shop: &Stub, mcp: &Served) -> LlmAgent {
    let model = umbel_models::model(&format!("{}/v1#m", model.url())).unwrap();
    let keep = FunctionTool::new("keep", "Keeps it.", |_: Value| async { Ok("said-result") });
    let program = Command::new("program", "Fails.", "sh")
        .args(["-c", "test -n \"$TOKEN\" && exit 3"])
        .env("TOKEN", "secret-environment")
        .schema(json!({"type": "object"}))
        .build()
        .unwrap();
    let token = AuthConfig::new("mcp", PlainAuth::bearer().fixed("secret-mcp-token-0123456789"));
    let notes = McpToolset::new("notes", Http::new(format!("http://{}/mcp", mcp.address)))
        .auth(token)
        .first_use(Approval::Trust);
    LlmAgent::new("guide")
        .instruction("said-instruction")
        .model(model.api_key("secret-api-key").unwrap())
        .tool(keep)
        .tool(keyed(
            "fixed",
            AuthConfig::new("fixed", PlainAuth::bearer().fixed("secret-fixed")),
            "secret-fixed",
        ))
        .tool(keyed("given", AuthConfig::new("given", PlainAuth::bearer()), "secret-given"))
        .toolset(service(shop))
        .tool(program)
        .toolset(notes)
        .handler(Logging::new().redact("/secret").without_output_logging())
}

/// An MCP server that asks for a token, and whose tool fails with what it was told.
async fn mcp_server() -> Served {
    let note = FunctionTool::new("note", "Notes it.", |_: Value| async {
        Err::<(), _>(ToolError::new("said-failure"))
    });
    let service = McpServer::new("notes").tool(note).http().unwrap();
    let tokens = BearerTokens::from_text("secret-mcp-token-0123456789 ann").unwrap();
    Served::start(Server::new().auth(tokens).mount("/mcp", service)).await
}

/// What a client sends.
fn input(run: &str, more: &Value) -> String {
    let mut input = json!({"threadId": "t", "runId": run, "protocolVersion": "1.0", "state": {}, "tools": [], "context": [],
        "forwardedProps": {}, "messages": []});
    input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    input.to_string()
}

fn message(id: &str) -> Value {
    json!({"messages": [{"id": id, "role": "user", "content": "said-prompt"}]})
}

/// Four runs: one that asks for a credential, one that gets it, and two whose model fails. Gives all that clients are told.
async fn talk(served: &Served) -> Vec<String> {
    let asked = served.read("POST /agent", &input("r1", &message("m1"))).await;
    let interrupted =
        asked.lines().find(|line| line.contains("RUN_FINISHED")).unwrap_or_else(|| panic!("{asked}"));
    let finished: Value = serde_json::from_str(interrupted.trim_start_matches("data: ")).unwrap();
    let question = finished["outcome"]["interrupts"][0]["id"].clone();
    assert!(question.is_string(), "{asked}");
    let mut told = vec![asked];
    for (run, answer) in [("r2", json!({"key": "secret-given"})), ("r3", json!("secret-given"))] {
        let resume = json!({"resume": [{"interruptId": question, "status": "resolved", "payload": answer}]});
        told.push(served.read("POST /agent", &input(run, &resume)).await);
    }
    assert!(told[1].contains("INVALID_ANSWER"), "{}", told[1]);
    assert!(told[2].contains("said-answer"), "{}", told[2]);
    for (run, id) in [("r4", "m2"), ("r5", "m3")] {
        let failed = served.read("POST /agent", &input(run, &message(id))).await;
        assert!(failed.contains("RUN_ERROR"), "{failed}");
        told.push(failed);
    }
    told
}

/// What can be asked about the runs, with content in it or without.
async fn asked_later(served: &Served) -> (Vec<String>, Vec<String>) {
    let (mut with_content, mut without) = (Vec::new(), Vec::new());
    for run in ["r1", "r3", "r4", "r5"] {
        let trace = served.read(&format!("GET /agent/runs/{run}/trace?thread=t"), "").await;
        assert!(trace.contains("\"kind\":\"model\""), "{trace}");
        without.push(trace);
        for path in ["steps", "steps/0/request", "events"] {
            with_content.push(served.read(&format!("GET /agent/runs/{run}/{path}?thread=t"), "").await);
        }
    }
    without.push(served.read("GET /metrics", "").await);
    without.push(served.read("GET /agent/threads/none", "").await);
    for path in ["threads/t", "threads/t/events", "threads", "graph", "capabilities"] {
        with_content.push(served.read(&format!("GET /agent/{path}"), "").await);
    }
    (with_content, without)
}

/// All bytes of a database, with what is not yet in its file.
fn bytes_of(folder: &Path) -> String {
    let files = std::fs::read_dir(folder).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    files.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
}

fn search(place: &str, text: &str, canaries: &[&str]) {
    for canary in canaries {
        let found = text.find(canary);
        let around =
            found.map(|at| String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(300)..at + 100]));
        assert!(found.is_none(), "{canary} is in {place}: {}", around.unwrap_or_default());
    }
}

#[tokio::test]
async fn secrets_are_found_nowhere_and_what_is_said_in_no_trace_metric_or_log() {
    let everywhere = listen_everywhere();
    let shop = Stub::start(Answer::Say(500, "text/plain", "Bad key secret-header: said-failure".to_owned()));
    let (model, mcp) = (provider(), mcp_server().await);
    let folder = tempfile::tempdir().unwrap();
    let sessions = Sqlite::open(folder.path().join("sessions.db")).await.unwrap();
    let runner = Runner::builder("app", agent(&model, &shop, &mcp)).sessions(sessions).build().unwrap();
    let server = Server::new().agent("/agent", AgentEndpoint::new(runner)).traces(everywhere.traces.clone());
    let served = Served::start(server).await;
    let told = talk(&served).await;
    let (with_content, without) = asked_later(&served).await;
    // A request that names a secret in its query, as some clients do.
    let _ = served.ask("GET /agent/threads?token=secret-given", CLOSE, "").await;
    served.stop().await;
    mcp.stop().await;
    assert!(everywhere.exporting.shutdown(PATIENCE));

    // All of it has happened: secrets went where they belong, and everything was told.
    assert_eq!(model.asked()[0].header("authorization"), Some("Bearer secret-api-key"));
    assert_eq!(shop.asked()[0].header("x-key"), Some("secret-header"));
    let collected: Vec<String> = everywhere
        .collector
        .asked()
        .iter()
        .map(|asked| String::from_utf8_lossy(&asked.body).into_owned())
        .collect();
    let (collected, log) = (collected.concat(), everywhere.log.text());
    for tool in ["keep", "fixed", "given", "order", "program", "note"] {
        assert!(collected.contains(&format!("execute_tool {tool}")), "{tool}");
        assert!(log.contains(&format!("tool=\"{tool}\"")), "{tool}");
    }
    assert!(collected.contains("gen_ai.client.operation.duration"));
    let database = bytes_of(folder.path());
    assert!(database.contains("said-answer") && log.contains("[redacted]"));

    for (place, text) in [
        ("a stream", told.concat()),
        ("what can be read later", with_content.concat()),
        ("the log of events", database),
        ("the studio's traces", without.concat()),
        ("what a collector gets", collected.clone()),
        ("the log", log.clone()),
    ] {
        search(place, &text, &SECRETS);
    }
    // Lines of the library that speaks MCP have its messages in them: see docs/telemetry.md.
    let own: String = log.lines().filter(|line| !line.contains(" rmcp::")).collect();
    for (place, text) in
        [("the studio's traces", without.concat()), ("what a collector gets", collected), ("the log", own)]
    {
        search(place, &text, &SAID);
    }
}
