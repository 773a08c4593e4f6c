//! A workflow without a model that decides: look things up side by side, then write and revise in a loop.
//!
//! `cargo run -p umbel-examples --bin workflow`

use serde_json::json;
use umbel::{ExitLoop, LlmAgent, LoopAgent, Parallel, Result, Runner, ScriptedModel, Sequential};

#[tokio::main]
async fn main() -> Result<()> {
    // Each answer goes to the state, where the instructions of the next find it.
    let trains = LlmAgent::new("trains")
        .model(ScriptedModel::new("t").text("Night train at 20:10."))
        .output_key("trains");
    let hotels =
        LlmAgent::new("hotels").model(ScriptedModel::new("h").text("Room 7 is free.")).output_key("hotels");
    let research = Parallel::new("research").agent(trains).agent(hotels);

    let pen = ScriptedModel::new("w")
        .recorded()
        .text("Train, room.")
        .text("Take the night train at 20:10 to room 7.");
    let writer = LlmAgent::new("writer")
        .model(pen.clone())
        .instruction("Write a plan from: {trains} {hotels} What the critic said: {critique?}")
        .output_key("plan");
    let critic = LlmAgent::new("critic")
        .model(ScriptedModel::new("c").text("Say when it leaves.").call("exit_loop", json!({})))
        .instruction("Criticise this plan, or end the loop if it is good: {plan}")
        .tool(ExitLoop)
        .output_key("critique");
    let revise = LoopAgent::new("revise").agent(writer).agent(critic).max_iterations(5);

    let runner = Runner::new("travel", Sequential::new("planner").agent(research).agent(revise))?;
    let session = runner.create_session("ann").await?;
    let events = runner.run(&session.key, "Plan a trip to Rome.").collect_events().await?;

    // Agents that work side by side may be done in any order; the others come one after the other.
    let mut lines: Vec<String> = Vec::new();
    for event in events.iter().filter(|event| !event.text().is_empty()) {
        lines.push(format!("{}> {}", event.author(), event.text()));
    }
    if let Some(together) = lines.get_mut(..2) {
        together.sort();
    }
    println!("{}", lines.join("\n"));

    let state = runner.session(&session.key).await?.map(|session| session.state).unwrap_or_default();
    println!("plan: {}", json!(state.get("plan")));
    let told = pen.requests().last().map(|request| request.instruction.text().to_owned()).unwrap_or_default();
    println!("The writer was told: {}", told.lines().next().unwrap_or_default());
    Ok(())
}
