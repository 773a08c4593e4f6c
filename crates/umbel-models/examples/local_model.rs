//! An agent on a real small model: it streams, keeps to a schema, and remembers the turn before.
//!
//! `cargo xtask local-model` serves SmolLM2-135M with llama.cpp and runs this. Any server that speaks like OpenAI will do:
//! `UMBEL_LOCAL_MODEL=http://localhost:8080/v1#name cargo run -p umbel-models --example local_model`.

#![allow(clippy::print_stdout, reason = "it talks to a person")]

use std::io::Write;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel_core::{Error, ErrorKind, GenerateConfig, Result, RunConfig};
use umbel_models::{HttpModel, model};
use umbel_runtime::{LlmAgent, Runner};

const VARIABLE: &str = "UMBEL_LOCAL_MODEL";

fn generation() -> GenerateConfig {
    GenerateConfig {
        temperature: Some(0.0),
        seed: Some(7),
        max_output_tokens: Some(60),
        ..GenerateConfig::default()
    }
}

/// Two turns, told while they come.
async fn chat(model: HttpModel) -> Result<()> {
    let agent = LlmAgent::new("guide")
        .instruction("You are a friendly guide. Answer in one short sentence.")
        .generate(generation())
        .model(model);
    let runner = Runner::new("local", agent)?;
    let session = runner.create_session("ann").await?;
    for question in ["What is the capital of France?", "And of Italy?"] {
        println!("> {question}");
        let config = RunConfig { streaming: true, ..RunConfig::default() };
        let mut run = runner.run_with(&session.key, question, config);
        let (mut pieces, mut whole, mut tokens) = (0, String::new(), None);
        while let Some(event) = run.next().await {
            let event = event?;
            if event.partial == Some(true) {
                pieces += 1;
                print!("{}", event.text());
                std::io::stdout().flush().map_err(|error| Error::new(ErrorKind::Other, error.to_string()))?;
            } else if let Some(usage) = event.meta.as_ref().and_then(|meta| meta.usage_metadata.as_ref()) {
                tokens = usage.candidates_token_count;
                whole = event.text();
            }
        }
        println!();
        if pieces < 2 || whole.trim().is_empty() || tokens.is_none() {
            let message = format!("{pieces} pieces, {tokens:?} tokens, and in the end: {whole:?}");
            return Err(Error::new(ErrorKind::InvalidOutput, message));
        }
        println!("  ({pieces} pieces, {} tokens)", tokens.unwrap_or_default());
    }
    Ok(())
}

/// An answer that has to be JSON of a certain form.
async fn structured(model: HttpModel) -> Result<()> {
    let schema = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
        "required": ["city", "country"],
        "additionalProperties": false,
    });
    let agent = LlmAgent::new("clerk")
        .instruction("Answer with the city and its country.")
        .output_schema(schema)
        .generate(generation())
        .model(model);
    let runner = Runner::new("local", agent)?;
    let session = runner.create_session("ann").await?;
    let answer = runner.run(&session.key, "I was in Paris, France.").text().await?;
    println!("> a city and its country, as JSON\n{answer}");
    let value: Value = serde_json::from_str(&answer)
        .map_err(|error| Error::new(ErrorKind::InvalidOutput, format!("{answer} is no JSON: {error}")))?;
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    match (text("city"), text("country")) {
        (Some(_), Some(_)) => Ok(()),
        _ => Err(Error::new(ErrorKind::InvalidOutput, format!("{answer} does not fit the schema"))),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let name = std::env::var(VARIABLE).map_err(|_| {
        Error::new(
            ErrorKind::Build,
            format!("set {VARIABLE} to an address such as http://localhost:8080/v1#name"),
        )
    })?;
    let model = model(&name)?;
    chat(model.clone()).await?;
    structured(model).await
}
