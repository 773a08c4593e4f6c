//! An agent for AG-UI front ends, as part of an axum application with routes of its own.
//!
//! ```sh
//! cargo run -p umbel-examples --bin serve          # or `-- 0` for any free port
//! curl http://127.0.0.1:8124/hello
//! curl -N http://127.0.0.1:8124/agents/chat -H 'Content-Type: application/json' \
//!   -d '{"threadId": "t1", "runId": "r1", "messages": [{"id": "m1", "role": "user", "content": "Hi"}]}'
//! ```

use std::error::Error;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use umbel::server::{AgentEndpoint, Server};
use umbel::{Chunk, LlmAgent, Response, Runner, ScriptedModel};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // It echoes what it is told, so that it never comes to the end of a script.
    let model = ScriptedModel::from_fn("echo", |request| {
        let said = request.contents.last().map(|content| content.text()).unwrap_or_default();
        vec![Ok(Chunk::Complete(Response::text(format!("You said: {said}"))))]
    });
    let runner = Runner::new("demo", LlmAgent::new("parrot").model(model))?;
    let service = Server::new().agent("/chat", AgentEndpoint::new(runner)).base_path("/agents").build()?;

    let app = Router::new().route("/hello", get(|| async { "Hello from axum.\n" })).merge(service.router());

    let port: u16 = std::env::args().nth(1).map_or(Ok(8124), |port| port.parse())?;
    // Without auth it must be reached from this machine alone.
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("http://{}/agents/chat", listener.local_addr()?);

    // Runs whose process died, idle sessions, runs that nobody looks at: somebody has to see to them.
    let tended = service.clone();
    tokio::spawn(async move { tended.tend().await });

    let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    // Streams end with a word, and runs that take too long are cancelled.
    service.drain().await;
    Ok(())
}
