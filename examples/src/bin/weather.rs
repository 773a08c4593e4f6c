//! The first tool: a weather agent on the scripted model. It runs anywhere, without a key.
//!
//! `cargo run -p umbel-examples --bin weather`

use serde_json::{Value, json};
use umbel::{LlmAgent, Result, Runner, ScriptedModel, tool};

/// Tells the weather of a city.
#[tool(read_only)]
async fn get_weather(
    /// The city's name.
    city: String,
) -> Value {
    json!({"city": city, "celsius": 18, "sky": "sunny"})
}

#[tokio::main]
async fn main() -> Result<()> {
    // What the model will say: first a call, then words.
    let model =
        ScriptedModel::new("demo").call("get_weather", json!({"city": "Paris"})).text("Sunny, 18 °C.");
    let agent = LlmAgent::new("weather").model(model).instruction("Be brief.").tool(get_weather);
    let runner = Runner::new("demo", agent)?;
    let session = runner.create_session("ann").await?;
    let answer = runner.run(&session.key, "How is the weather in Paris?").text().await?;
    println!("{answer}");
    Ok(())
}
