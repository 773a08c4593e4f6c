//! What a conversation costs, and an end to it.
//!
//! `cargo run -p umbel-examples --bin usage`

use std::error::Error;

use umbel::handlers::{UsageLedger, UsageLimit};
use umbel::{LlmAgent, Money, Prices, Response, Runner, ScriptedModel, Usage, Used};

/// An answer that says what it took, as those of real models do.
fn answer(text: &str, prompt: u64, words: u64) -> Response {
    let mut answer = Response::text(text);
    answer.meta_mut().usage_metadata = Some(Usage {
        prompt_token_count: Some(prompt),
        candidates_token_count: Some(words),
        ..Usage::default()
    });
    answer
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Dollars for a million tokens, by the beginning of a model's name. `umbel::models::prices` has a list to begin with.
    let prices: Prices = serde_json::from_str(r#"{"demo": {"input": 2.5, "output": 10}}"#)?;
    let model = ScriptedModel::new("demo-large")
        .response(answer("Rome.", 1_000, 20))
        .response(answer("By the night train.", 1_100, 60))
        .response(answer("Three nights.", 1_200, 30));
    let runner = Runner::builder("travel", LlmAgent::new("guide").model(model))
        .handler(UsageLedger::new(prices))
        // Half a cent for a conversation, and 50,000 tokens for a run, whichever comes first.
        .handler(UsageLimit::new().session_cost(Money::nanos(5_000_000)).run_tokens(50_000))
        .build()?;
    let session = runner.create_session("ann").await?;

    for message in ["Where to?", "How?", "For how long?"] {
        println!("guide> {}", runner.run(&session.key, message).text().await?);
        let state = runner.session(&session.key).await?.map(|session| session.state).unwrap_or_default();
        if let Some(used) = Used::session_in(&state)? {
            let total = used.total();
            let cost = total.cost().map_or_else(|| "not known".to_owned(), |cost| cost.to_string());
            println!("  so far {} tokens, {cost}", total.tokens());
        }
    }
    Ok(())
}
