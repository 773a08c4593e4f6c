//! Layers around a tool: answers are kept, calls are limited, and what fails is tried again.
//!
//! `cargo run -p umbel-examples --bin tool_layers`

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use umbel::backoff::Backoff;
use umbel::layers::{Caching, Quota, RateLimit, ToolRetry};
use umbel::{Dep, LlmAgent, Result, Runner, ScriptedModel, ToolError, tool};

/// How often the service was asked.
#[derive(Default)]
struct Asked(AtomicU32);

/// Looks up the rate of a currency.
#[tool(read_only)]
async fn exchange_rate(Dep(asked): Dep<Asked>, currency: String) -> Result<String, ToolError> {
    // The service fails each first time.
    if asked.0.fetch_add(1, Ordering::Relaxed) == 0 {
        return Err(ToolError::new("the service does not answer"));
    }
    Ok(format!("1 EUR is 160 {currency}"))
}

#[tokio::main]
async fn main() -> Result<()> {
    let yen = || ("exchange_rate", json!({"currency": "JPY"}));
    let model = ScriptedModel::new("demo")
        .calls([yen()])
        .calls([yen()])
        .calls([("exchange_rate", json!({"currency": "USD"}))])
        .text("160 yen. Of dollars I could not find out.");
    // The first layer is outermost. What the cache answers uses up no quota, and a second try needs none either.
    let patience = Backoff::new().initial(Duration::from_millis(1));
    let agent = LlmAgent::new("clerk")
        .model(model)
        .tool(exchange_rate)
        .tool_layer(Caching::new())
        .tool_layer(RateLimit::new(Quota::per_second(0.001, 1)?))
        .tool_layer(ToolRetry::new().max_retries(2).backoff(patience));
    let runner = Runner::builder("bank", agent).dependency(Asked::default()).build()?;
    let session = runner.create_session("ann").await?;
    let events = runner.run(&session.key, "What is a euro worth?").collect_events().await?;
    for event in &events {
        event.responses().for_each(|answer| println!("  {}", json!(answer.response)));
    }
    println!("{}", events.last().map(|event| event.text()).unwrap_or_default());
    Ok(())
}
