//! A team: the desk hands the conversation over, and calls a colleague like a tool.
//!
//! `cargo run -p umbel-examples --bin team`

use serde_json::json;
use umbel::{LlmAgent, Mode, Result, Runner, ScriptedModel};

#[tokio::main]
async fn main() -> Result<()> {
    // In mode `Chat`, which is the default, an agent takes the conversation over and keeps it.
    let billing = LlmAgent::new("billing")
        .description("Answers questions about bills.")
        .model(ScriptedModel::new("billing").text("You owe 5 €.").text("Until Friday."));
    // In mode `SingleTurn` it works for the one who calls it, and its last words are the result.
    let translator = LlmAgent::new("translator")
        .description("Translates into French.")
        .model(ScriptedModel::new("translator").text("Bonjour !"))
        .mode(Mode::SingleTurn);
    let desk = LlmAgent::new("desk")
        .model(
            ScriptedModel::new("desk")
                .call("translator", json!({"goal": "Say hello."}))
                .text("They say: Bonjour !")
                .call("transfer_to_agent", json!({"agent_name": "billing"})),
        )
        .sub_agent(billing)
        .sub_agent(translator);
    let runner = Runner::new("shop", desk)?;
    let session = runner.create_session("ann").await?;

    for message in ["What is hello in French?", "What do I owe?", "Until when?"] {
        println!("you> {message}");
        for event in runner.run(&session.key, message).collect_events().await? {
            let actions = event.actions.as_ref();
            if let Some(agent) = actions.and_then(|actions| actions.transfer_to_agent.as_ref()) {
                println!("  {} hands over to {agent}", event.author());
            } else if !event.text().is_empty() {
                println!("{}> {}", event.author(), event.text());
            }
        }
    }
    Ok(())
}
