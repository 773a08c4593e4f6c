//! A tool needs an API key that only the user has: the run asks for it, and goes on once it is given. The key is kept for the
//! next time, and stands in no event.
//!
//! ```sh
//! cargo run -p umbel-examples --bin api_key -- my-key
//! ```

use serde_json::{Value, json};
use umbel::{
    Answer, AuthConfig, EventFilter, FunctionTool, HttpPlace, LlmAgent, PlainAuth, Result, Runner,
    ScriptedModel, ToolError,
};

/// Where the key goes, and what people are asked.
fn shop_key() -> AuthConfig {
    let method = PlainAuth::api_key(HttpPlace::Header, "X-Shop-Key");
    AuthConfig::new("shop", method.question("Which key do you have at the shop? It is on your account page."))
}

/// Orders something. It is called once there is a key.
fn order() -> FunctionTool {
    let auth = shop_key();
    let order = FunctionTool::with_context("order", "Orders something at the shop.", |cx, item: Item| {
        Box::pin(async move {
            let grant = cx.credential(&shop_key()).await?;
            let header = grant.http().ok_or_else(|| ToolError::new("the key cannot be sent"))?;
            // A request would be sent here, with `header.expose()` as the value of this header.
            println!("  order sends {}: ({} characters)", header.name, header.expose().len());
            Ok(json!({"ordered": item.item}))
        })
    });
    order.auth(auth)
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Item {
    /// What to order.
    item: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let key = std::env::args().nth(1).unwrap_or_else(|| "demo-key".to_owned());
    let model = ScriptedModel::new("demo")
        .call("order", json!({"item": "a kettle"}))
        .text("The kettle is ordered.")
        .call("order", json!({"item": "tea"}))
        .text("And so is the tea.");
    // With `.credentials(umbel::stores::open("sqlite:shop.db").await?.credentials)` it is kept, encrypted, in a file.
    let runner = Runner::new("shop", LlmAgent::new("clerk").model(model).tool(order()))?;
    let session = runner.create_session("ann").await?;

    runner.run(&session.key, "Order a kettle.").text().await?;
    for question in runner.open_questions(&session.key).await? {
        println!("clerk asks: {}", question.message.clone().unwrap_or_default());
        let answers = [(&question, Answer::input(key.clone()))];
        println!("clerk> {}", runner.resume(&session.key, answers).text().await?);
    }
    println!("clerk> {}", runner.run(&session.key, "And tea.").text().await?);

    let log = runner.sessions().get(&session.key, EventFilter::default()).await?;
    let events: Vec<Value> = log.iter().flat_map(|log| &log.events).map(|event| json!(event)).collect();
    println!(
        "The key is in {} of {} events.",
        events.iter().filter(|event| event.to_string().contains(&key)).count(),
        events.len()
    );
    runner.revoke_credential("ann", &shop_key()).await?;
    Ok(())
}
