//! The official servers of MCP, as an agent meets them: `cargo xtask test mcp` installs them and starts this.
//!
//! `official_servers FOLDER`, where `FOLDER` has `node_modules`.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use std::path::{Path, PathBuf};
use std::process::Stdio as Pipes;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use umbel_core::{Answer, Content, Event, Object, Outcome};
use umbel_mcp::client::{Http, McpToolset, Sampling, Stdio};
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};

#[tokio::main]
async fn main() {
    let folder = PathBuf::from(std::env::args().nth(1).expect("a folder with node_modules"));
    let begin = Instant::now();
    files(&folder).await;
    everything("stdio", || {
        let server = script(&folder, "server-everything/dist/index.js");
        McpToolset::new("everything", Stdio::new("node").args([server, "stdio".to_owned()]))
    })
    .await;
    let (mut child, port) = serve(&folder).await;
    everything("streamable HTTP", || {
        McpToolset::new("everything", Http::new(format!("http://127.0.0.1:{port}/mcp")))
    })
    .await;
    child.kill().await.expect("it can be stopped");
    println!("all well after {:.1} s", begin.elapsed().as_secs_f64());
}

fn script(folder: &Path, file: &str) -> String {
    folder.join("node_modules/@modelcontextprotocol").join(file).display().to_string()
}

/// Starts the server at a free port of this machine.
async fn serve(folder: &Path) -> (tokio::process::Child, u16) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = tokio::process::Command::new("node");
    command.arg(script(folder, "server-everything/dist/index.js")).arg("streamableHttp");
    command.env("PORT", port.to_string()).kill_on_drop(true).stdout(Pipes::null()).stderr(Pipes::piped());
    let mut child = command.spawn().expect("node is there");
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line.contains("listening") || line.contains("Listening") || line.contains("port") {
            break;
        }
    }
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, port)
}

/// What came of one conversation.
struct Talk {
    events: Vec<Arc<Event>>,
    outcome: Outcome,
}

impl Talk {
    /// What calls gave, without what was shown on the way.
    fn results(&self) -> Vec<Value> {
        let whole =
            self.events.iter().filter(|event| !event.is_partial()).flat_map(|event| event.responses());
        whole.map(|response| Value::Object(response.response.clone().unwrap_or_default())).collect()
    }

    fn result(&self) -> Value {
        assert_eq!(self.outcome, Outcome::Finished, "{:?}", self.events);
        self.results().pop().expect("a call was made")
    }
}

/// An agent that calls a tool and, if it is asked something, says what it is told to.
async fn call(tools: &McpToolset, name: &str, args: Value, answer: Option<Answer>) -> Talk {
    let model = ScriptedModel::new("m").call(name, args).text("done").text("done");
    let runner = Runner::new("official", LlmAgent::new("agent").model(model).toolset(tools.clone())).unwrap();
    let session = runner.create_session("ann").await.unwrap();
    let mut message = Content::user("go");
    let mut events = Vec::new();
    loop {
        let mut run = runner.run(&session.key, message);
        while let Some(event) = run.next().await {
            events.push(event.unwrap());
        }
        let outcome = run.outcome().unwrap().clone();
        match (&outcome, &answer) {
            (Outcome::Interrupted { interrupts }, Some(answer)) => {
                message = interrupts[0].answer_with(answer);
            }
            _ => return Talk { events, outcome },
        }
    }
}

fn text(result: &Value) -> String {
    result["result"].as_str().unwrap_or_else(|| panic!("{result} is a text")).to_owned()
}

/// The server for files, over its input and output.
async fn files(folder: &Path) {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("a.txt"), "hello there").unwrap();
    let root = place.path().canonicalize().unwrap();
    let server = script(folder, "server-filesystem/dist/index.js");
    let program = Stdio::new("node").args([server, root.display().to_string()]);
    let tools = McpToolset::new("files", program).prefix("fs_").trust_hints();
    let read = call(&tools, "fs_read_text_file", json!({"path": root.join("a.txt")}), None).await.result();
    assert_eq!(read["content"], "hello there", "{read}");
    let write = json!({"path": root.join("b.txt"), "content": "new"});
    call(&tools, "fs_write_file", write, None).await.result();
    assert_eq!(std::fs::read_to_string(root.join("b.txt")).unwrap(), "new");
    let outside = call(&tools, "fs_read_text_file", json!({"path": "/etc/passwd"}), None).await.result();
    assert!(outside.to_string().contains("denied"), "{outside}");
    tools.close().await;
    println!("files over stdio: well");
}

/// The server that does everything.
async fn everything(how: &str, toolset: impl Fn() -> McpToolset) {
    let lent = ScriptedModel::new("lent").text("sampled");
    let tools = toolset().resources().sampling(Sampling::new().model(lent)).root("file:///srv", Some("srv"));
    let echo = call(&tools, "echo", json!({"message": "hi"}), None).await.result();
    assert!(text(&echo).contains("hi"), "{echo}");
    let sum = call(&tools, "get-sum", json!({"a": 2, "b": 3}), None).await.result();
    assert!(text(&sum).contains('5'), "{sum}");
    let structured =
        call(&tools, "get-structured-content", json!({"location": "New York"}), None).await.result();
    assert!(structured["temperature"].is_number(), "{structured}");
    let image = call(&tools, "get-tiny-image", json!({}), None).await.result();
    assert!(image.to_string().contains("image/png"), "{image}");
    let links = call(&tools, "get-resource-links", json!({"count": 2}), None).await.result();
    assert!(links.to_string().contains("resource_link"), "{links}");
    let wrong = call(&tools, "get-sum", json!({"a": "x"}), None).await.result();
    assert!(wrong.get("error").is_some(), "{wrong}");

    let slow = json!({"duration": 1, "steps": 2});
    let slow = call(&tools, "trigger-long-running-operation", slow, None).await;
    let shown = slow.events.iter().filter(|event| event.is_partial()).count();
    assert!(shown >= 1, "progress was shown {shown} times");
    slow.result();

    let sampled = call(&tools, "trigger-sampling-request", json!({"prompt": "p", "maxTokens": 10}), None)
        .await
        .result();
    assert!(sampled.to_string().contains("sampled"), "{sampled}");
    let form = Answer::input(json!({"name": "Ann", "check": true}));
    let elicited = call(&tools, "trigger-elicitation-request", json!({}), Some(form)).await.result();
    assert!(elicited.to_string().contains("Ann"), "{elicited}");
    let declined =
        call(&tools, "trigger-elicitation-request", json!({}), Some(Answer::reject())).await.result();
    assert!(declined.to_string().contains("declin"), "{declined}");

    let listed = call(&tools, "list_resources", json!({}), None).await.result();
    let uri = listed["resources"][0]["uri"].as_str().expect("there is something to read").to_owned();
    let read = call(&tools, "read_resource", json!({ "uri": uri }), None).await.result();
    assert_eq!(read["contents"][0]["uri"], uri, "{read}");
    let prompts = tools.prompts().await.unwrap();
    assert!(prompts.iter().any(|prompt| prompt.name == "args-prompt"), "{prompts:?}");
    let args = Object::from_iter([("city".to_owned(), json!("Rome"))]);
    let messages = tools.prompt("args-prompt", args).await.unwrap();
    assert!(messages[0].text().contains("Rome"), "{messages:?}");
    tokio::time::timeout(Duration::from_secs(5), tools.close()).await.expect("it closes");
    println!("everything over {how}: well");
}
