//! The agents that the AG-UI conformance suite talks to, with scripted models.
//!
//! `cargo run -p umbel-server --example conformance -- --port 8123`; port 0 takes a free one. With `--store ADDRESS`
//! sessions are kept there, such as in `sqlite:conformance.db`.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod agents;
mod script;

use std::process::ExitCode;

use tokio::net::TcpListener;
use umbel_server::{AgentEndpoint, Server};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (mut port, mut store) = (8123_u16, "memory:".to_owned());
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--port" => port = value.parse().map_err(|_| format!("{value} is no port"))?,
            "--store" => store = value,
            _ => return Err(format!("{name} is not known: use --port and --store").into()),
        }
    }
    let sessions = umbel_stores::open(&store).await?.sessions;
    let mut server = Server::new();
    for (path, agent) in agents::all() {
        let runner = agent.sessions(sessions.clone()).build()?;
        let endpoint = AgentEndpoint::new(runner);
        let endpoint = match path {
            "/predict" => endpoint.predict_state("document", "write_document", "text"),
            _ => endpoint,
        };
        server = server.agent(path, endpoint);
    }
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let stop = async {
        // Told to stop, or never.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    server.build()?.serve(listener, stop).await?;
    Ok(())
}
