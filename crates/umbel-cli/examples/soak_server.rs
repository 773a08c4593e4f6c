//! The server of `cargo xtask soak`: agents that answer, call tools, ask people, wait, and use MCP, on SQLite.
//!
//! `soak_server STORE` listens on a free port of loopback, prints its address, and stops when its input ends.
//! Each byte of input asks for the number of its tasks, printed as `tasks N`.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use umbel::{
    BoxStream, Chunk, Content, FunctionCall, LlmAgent, Model, ModelRequest, Object, Part, Response, Result,
    Runner, SessionStore, tool,
};
use umbel_mcp::client::{Http, McpToolset};
use umbel_mcp::server::{AgentOffer, McpServer};
use umbel_server::{AgentEndpoint, Server, ServerLimits};

/// The pause between two chunks of [`Script::Slow`].
const PACE: Duration = Duration::from_millis(20);

/// What a model does.
#[derive(Clone, Copy, Debug)]
enum Script {
    /// Answers in chunks.
    Chat,
    /// Answers in chunks, with a pause before each.
    Slow,
    /// Calls the tool, and answers when it has the result.
    Call(&'static str),
}

#[derive(Debug)]
struct SoakModel(Script);

impl Model for SoakModel {
    fn name(&self) -> &str {
        "soak"
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let answered = request.contents.last().is_some_and(|content| content.has_responses());
        let chunks = || futures::stream::iter((0..10).map(|_| Ok(Chunk::Text("some words ".into()))));
        match self.0 {
            Script::Call(name) if !answered => {
                let arguments = Object::from_iter([("city".to_owned(), json!("Paris"))]);
                let call = Part::call(FunctionCall::new(name, arguments));
                futures::stream::iter([Ok(Chunk::Complete(Response::new(Content::model(call))))]).boxed()
            }
            Script::Slow => chunks()
                .then(|chunk| async {
                    tokio::time::sleep(PACE).await;
                    chunk
                })
                .boxed(),
            Script::Chat | Script::Call(_) => chunks().boxed(),
        }
    }
}

/// The weather of a city.
#[tool]
async fn weather(city: String) -> Value {
    json!({ "city": city, "celsius": 18 })
}

/// Books a seat, if a person agrees.
#[tool(confirm)]
async fn book(city: String) -> Value {
    json!({ "booked": city })
}

fn agent(name: &'static str, script: Script) -> LlmAgent {
    LlmAgent::new(name).description("Answers.").model(SoakModel(script)).instruction("Be brief.")
}

fn server(address: &str, sessions: &Arc<dyn SessionStore>) -> Result<Server> {
    let runner = |agent: LlmAgent| Runner::builder("soak", agent).sessions(sessions.clone()).build();
    let own = Http::new(format!("http://{address}/mcp"));
    let agents = [
        ("/chat", agent("chat", Script::Chat)),
        ("/slow", agent("slow", Script::Slow)),
        ("/tool", agent("tool", Script::Call("weather")).tool(weather)),
        ("/ask", agent("ask", Script::Call("book")).tool(book)),
        ("/client", agent("client", Script::Call("pick"))),
        ("/remote", agent("remote", Script::Call("weather")).toolset(McpToolset::new("own", own))),
    ];
    // What viewers could take up again is dropped early, so that memory can be compared.
    let limits = ServerLimits { kept_for: Duration::from_secs(1), ..ServerLimits::default() };
    let mut server = Server::new().limits(limits);
    for (path, agent) in agents {
        server = server.agent(path, AgentEndpoint::new(runner(agent)?));
    }
    let offered = AgentOffer::new(runner(agent("guide", Script::Chat))?).conversations();
    server = server.mount("/mcp", McpServer::new("soak").agent(offered).tool(weather).http()?);
    Ok(server)
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let store = std::env::args().nth(1).ok_or("usage: soak_server STORE")?;
    let stores = umbel_stores::open(&store).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let service = server(&address, &stores.sessions)?.build()?;
    println!("listening on http://{address}");
    let mut input = tokio::io::stdin();
    let stop = async move {
        // A line asks for the number of tasks; the end of the input stops the server.
        let mut byte = [0; 1];
        while input.read(&mut byte).await.is_ok_and(|count| count > 0) {
            println!("tasks {}", Handle::current().metrics().num_alive_tasks());
        }
    };
    Ok(service.serve(listener, stop).await?)
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak_server: {error}");
            ExitCode::FAILURE
        }
    }
}
