//! What an agent knows beyond one conversation: state of the user, and memories of earlier sessions.
//!
//! `cargo run -p umbel-examples --bin memory`

use std::sync::Arc;

use serde_json::json;
use umbel::{
    EventFilter, InMemoryMemory, LlmAgent, LoadMemory, MemoryStore, Result, Runner, ScriptedModel,
    ToolContext, tool,
};

/// Remembers how the user wants to be called.
#[tool]
async fn remember_name(cx: &ToolContext, name: String) -> &'static str {
    // `user:` reaches all sessions of this user; without a prefix it would be this session alone.
    cx.set_state("user:name", name);
    "noted"
}

#[tokio::main]
async fn main() -> Result<()> {
    let model = ScriptedModel::new("demo")
        .recorded()
        .call("remember_name", json!({"name": "Ann"}))
        .text("Hello, Ann. The night train it is.")
        .call("load_memory", json!({"query": "train to Rome"}))
        .text("You wanted to take the night train to Rome.");
    let agent = LlmAgent::new("guide")
        .model(model.clone())
        .instruction("You speak with {user:name?}.")
        .tool(remember_name)
        .tool(LoadMemory);
    let memory = Arc::new(InMemoryMemory::new());
    let runner = Runner::builder("travel", agent).memory(memory.clone()).build()?;

    let first = runner.create_session("ann").await?;
    let said = runner.run(&first.key, "I am Ann, and I take the night train to Rome.").text().await?;
    println!("guide> {said}");

    // A session is remembered when you say so.
    if let Some(session) = runner.sessions().get(&first.key, EventFilter::default()).await? {
        memory.add(&session).await?;
    }

    // Another day, another conversation.
    let second = runner.create_session("ann").await?;
    let events = runner.run(&second.key, "How did I want to get to Rome?").collect_events().await?;
    for response in events.iter().flat_map(|event| event.responses()) {
        let found = response.response.as_ref().map(|found| json!(found).to_string().contains("night train"));
        println!("  {} found it: {}", response.name, found.unwrap_or(false));
    }
    println!("guide> {}", events.last().map(|event| event.text()).unwrap_or_default());

    let told = model.requests().last().map(|request| request.instruction.text().to_owned());
    println!("The model was told: {}", told.unwrap_or_default().lines().next().unwrap_or_default());
    Ok(())
}
