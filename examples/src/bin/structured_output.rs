//! An answer in the structure of a Rust type. What does not fit goes back to the model.
//!
//! `cargo run -p umbel-examples --bin structured_output`

use serde::Deserialize;
use serde_json::json;
use umbel::{LlmAgent, Result, Runner, ScriptedModel, tool};

/// What a mail of a customer is about.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
struct Ticket {
    /// In a few words.
    summary: String,
    kind: Kind,
    /// Whether somebody should look at it today.
    urgent: bool,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Billing,
    Delivery,
}

/// Looks up an order.
#[tool(read_only)]
async fn find_order(number: u32) -> String {
    format!("order {number} was sent on Monday")
}

#[tokio::main]
async fn main() -> Result<()> {
    // Without tools the model is given the schema, and answers in JSON by itself.
    let model =
        ScriptedModel::new("demo").text(r#"{"summary": "paid twice", "kind": "billing", "urgent": false}"#);
    let runner = Runner::new("desk", LlmAgent::new("sorter").model(model).output::<Ticket>())?;
    let session = runner.create_session("ann").await?;
    let ticket: Ticket = runner.run(&session.key, "I paid twice!").output().await?;
    println!("{ticket:?}");

    // With tools, a model that cannot have both at once answers through one more tool, and is told what does not fit.
    let model = ScriptedModel::new("demo")
        .recorded()
        .call("find_order", json!({"number": 7}))
        .call("set_model_response", json!({"summary": "order 7 is late", "kind": "parcel", "urgent": true}))
        .call(
            "set_model_response",
            json!({"summary": "order 7 is late", "kind": "delivery", "urgent": true}),
        );
    let agent = LlmAgent::new("sorter").model(model.clone()).tool(find_order).output::<Ticket>();
    let runner = Runner::new("desk", agent)?;
    let session = runner.create_session("ann").await?;
    let ticket: Ticket = runner.run(&session.key, "Where is my order 7?").output().await?;
    println!("{ticket:?}");
    println!("It was urgent: {}. The model was asked {} times.", ticket.urgent, model.requests().len());
    if matches!(ticket.kind, Kind::Delivery) {
        println!("Delivery looks at: {}", ticket.summary);
    }
    Ok(())
}
