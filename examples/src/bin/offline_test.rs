//! Testing an agent offline: what the model is asked, which tools are called, what is written, and that it repeats.
//!
//! `cargo test -p umbel-examples --bin offline_test`

use serde_json::json;
use umbel::{LlmAgent, Model, Result, Runner, ScriptedModel, ToolContext, ToolError, tool};

/// Books a table.
#[tool]
async fn book_table(cx: &ToolContext, people: u8) -> Result<String, ToolError> {
    if people > 8 {
        return Err(ToolError::new("there is no table for more than 8: ask for two tables"));
    }
    cx.set_state("booked", people);
    Ok(format!("a table for {people}"))
}

/// The agent takes its model as an argument: a test gives it a script.
fn waiter(model: impl Model + 'static) -> LlmAgent {
    LlmAgent::new("waiter").model(model).instruction("You book tables.").tool(book_table)
}

#[tokio::main]
async fn main() -> Result<()> {
    let model = ScriptedModel::new("demo").call("book_table", json!({"people": 4})).text("A table for four.");
    let runner = Runner::new("inn", waiter(model))?;
    let session = runner.create_session("ann").await?;
    println!("{}", runner.run(&session.key, "We are four.").text().await?);
    println!("`cargo test -p umbel-examples --bin offline_test` is what this example is about.");
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use umbel::{CountingIds, RecordingModel, ReplayModel, SteppingClock};

    /// Runs one message and gives the events with the state that came of it.
    async fn ask(model: impl Model + 'static, message: &str) -> (Vec<String>, Option<serde_json::Value>) {
        // Time and ids that do not change from run to run make whole logs comparable.
        let runner = Runner::builder("inn", waiter(model))
            .clock(SteppingClock::new(1_700_000_000.0, 1.0))
            .ids(CountingIds::default())
            .build()
            .unwrap();
        let session = runner.create_session("ann").await.unwrap();
        let events = runner.run(&session.key, message).collect_events().await.unwrap();
        let events = events.iter().map(|event| serde_json::to_string(event).unwrap()).collect();
        let state = runner.session(&session.key).await.unwrap().unwrap().state;
        (events, state.get("booked").cloned())
    }

    #[tokio::test]
    async fn a_table_is_booked_and_the_state_says_so() {
        let model =
            ScriptedModel::new("demo").recorded().call("book_table", json!({"people": 4})).text("Done.");
        let (events, booked) = ask(model.clone(), "We are four.").await;
        assert_eq!(events.len(), 3); // the call, its answer, the words
        assert_eq!(booked, Some(json!(4)));
        // What the model was asked: its instruction, its tools, the conversation.
        let requests = model.requests();
        assert!(requests[0].instruction.text().starts_with("You book tables."));
        assert!(requests[0].tools.get("book_table").is_some());
        assert_eq!(requests[1].contents.last().unwrap().responses().next().unwrap().name, "book_table");
    }

    #[tokio::test]
    async fn too_many_people_are_told_to_the_model() {
        let model = ScriptedModel::new("demo").call("book_table", json!({"people": 9})).text("Two tables?");
        let (events, booked) = ask(model, "We are nine.").await;
        assert!(events[1].contains("ask for two tables"));
        assert_eq!(booked, None);
    }

    #[tokio::test]
    async fn a_recorded_conversation_repeats_exactly() {
        // Here the script stands for a real model; the lines would be a file beside the test.
        let script = ScriptedModel::new("demo").call("book_table", json!({"people": 2})).text("Two.");
        let recording = RecordingModel::new(script);
        let first = ask(recording.clone(), "Two, please.").await;
        let lines = recording.to_json_lines().unwrap();
        let again = ask(ReplayModel::from_json_lines("demo", &lines).unwrap(), "Two, please.").await;
        assert_eq!(first, again);
    }
}
