//! The tools of an MCP server, and a person who agrees before the agent uses one. The server is in this program too, at the
//! other end of a pipe; a real one is a `Stdio` or an `Http`.
//!
//! `cargo run -p umbel-examples --bin mcp`

use futures::StreamExt;
use serde_json::json;
use umbel::mcp::client::{McpToolset, Pipe};
use umbel::mcp::server::McpServer;
use umbel::{Confirm, LlmAgent, Outcome, Result, Runner, ScriptedModel, tool};

/// Turns a lamp on or off.
#[tool]
async fn switch(
    /// Whether it is to be on.
    on: bool,
) -> String {
    format!("the lamp is {}", if on { "on" } else { "off" })
}

/// A server with a lamp. Each connection gets one.
fn lamp() -> Pipe {
    Pipe::new(|| {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (read, write) = tokio::io::split(theirs);
        tokio::spawn(McpServer::new("lamp").tool(switch).serve(read, write, "ann"));
        Ok(ours)
    })
}

#[tokio::main]
async fn main() -> Result<()> {
    let model = ScriptedModel::new("demo").call("lamp_switch", json!({"on": true})).text("It is bright now.");
    let tools = McpToolset::new("lamp", lamp()).prefix("lamp_").confirm(Confirm::Always);
    let runner = Runner::new("home", LlmAgent::new("butler").model(model).toolset(tools))?;
    let session = runner.create_session("ann").await?;

    let mut run = runner.run(&session.key, "It is dark.");
    while let Some(event) = run.next().await {
        event?;
    }
    let Some(Outcome::Interrupted { interrupts }) = run.outcome() else { return Ok(()) };
    let Some(question) = interrupts.first() else { return Ok(()) };
    if let Some(call) = &question.call {
        println!("May I call {}? Yes.", call.name);
    }
    let mut run = runner.run(&session.key, question.answer(true));
    while let Some(event) = run.next().await {
        let event = event?;
        for response in event.responses() {
            println!("{}: {}", response.name, json!(response.response));
        }
        if let Some(said) =
            event.content.as_ref().map(|content| content.text()).filter(|said| !said.is_empty())
        {
            println!("butler> {said}");
        }
    }
    Ok(())
}
