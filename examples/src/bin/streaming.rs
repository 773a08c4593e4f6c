//! An answer on the terminal while the model still writes it: thoughts, calls, news of a tool, words.
//!
//! `cargo run -p umbel-examples --bin streaming`

use std::io::Write;

use futures::StreamExt;
use serde_json::json;
use umbel::{Chunk, Event, LlmAgent, Result, RunConfig, Runner, ScriptedModel, ToolItem, ToolOutput, tool};

/// Searches for trains, and tells how far it has come.
#[tool(read_only)]
async fn search_trains(to: String) -> ToolOutput {
    let items = [
        ToolItem::Progress(json!({"searched": "day trains"})),
        ToolItem::Progress(json!({"searched": "night trains"})),
        ToolItem::Done(json!({"to": to, "leaves": "20:10"}).into()),
    ];
    ToolOutput::Stream(Box::pin(futures::stream::iter(items.map(Ok))))
}

/// Shows one event. A preview is a piece of what comes; the whole comes later under the same id.
fn show(event: &Event) {
    if event.is_partial() {
        for part in event.content.iter().flat_map(|content| content.parts.iter()) {
            match part.as_text() {
                Some(text) if part.is_thought() => println!("({text})"),
                Some(text) => print!("{text}"),
                None => {}
            }
        }
        event.responses().for_each(|news| println!("  … {}", json!(news.response)));
        // A piece is worth something only if it is seen at once.
        let _ = std::io::stdout().flush();
        return;
    }
    event.calls().for_each(|call| println!("  → {}({})", call.name, json!(call.args)));
    event.responses().for_each(|answer| println!("  ← {}", json!(answer.response)));
    if event.is_final() {
        println!();
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let model = ScriptedModel::new("demo").call("search_trains", json!({"to": "Rome"})).chunks([
        Chunk::Thought("The night train saves a day.".to_owned()),
        Chunk::Text("Take ".to_owned()),
        Chunk::Text("the train ".to_owned()),
        Chunk::Text("at 20:10.".to_owned()),
    ]);
    let agent = LlmAgent::new("guide").model(model).tool(search_trains);
    let runner = Runner::new("travel", agent)?;
    let session = runner.create_session("ann").await?;

    let config = RunConfig { streaming: true, ..RunConfig::default() };
    let mut run = runner.run_with(&session.key, "How do I get to Rome?", config);
    while let Some(event) = run.next().await {
        let event = event?;
        show(&event);
    }
    println!("The run has {:?}.", run.outcome());
    Ok(())
}
