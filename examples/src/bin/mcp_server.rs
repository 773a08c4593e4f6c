//! An agent as a tool of MCP clients: of a program that starts this one, or over HTTP.
//!
//! ```sh
//! cargo run -p umbel-examples --bin mcp_server              # for clients that start programs
//! cargo run -p umbel-examples --bin mcp_server -- --http    # at the address that it prints
//! ```

use tokio::net::TcpListener;
use umbel::mcp::server::{AgentOffer, McpServer, Prompt};
use umbel::server::Server;
use umbel::{LlmAgent, Runner, ScriptedModel, tool};

/// Tells when the next train leaves.
#[tool]
async fn next_train(
    /// Where from.
    station: String,
) -> String {
    format!("The next train from {station} leaves at 9:40.")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new("demo").text("Take the night train.").text("It leaves at 21:05.");
    let guide = LlmAgent::new("guide").description("Plans journeys.").model(model);
    let guide = AgentOffer::new(Runner::new("travel", guide)?).conversations();
    let mcp = McpServer::new("travel")
        .agent(guide)
        .tool(next_train)
        .prompt(Prompt::new("plan", "Plan a journey to {city}.").argument("city", "Where to."));

    if !std::env::args().any(|arg| arg == "--http") {
        return Ok(mcp.stdio("local").await?);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/mcp", listener.local_addr()?);
    let stop = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    Ok(Server::new().mount("/mcp", mcp.http()?).build()?.serve(listener, stop).await?)
}
