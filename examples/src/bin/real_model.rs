//! A real model by its name, and a tape of what was said with it, so that the program runs offline.
//!
//! ```sh
//! cargo run -p umbel-examples --bin real_model              # plays the tape: no key, no network
//! OPENAI_API_KEY=… cargo run -p umbel-examples --bin real_model -- --record new-tape.json
//! ```
//!
//! The tape that comes with it was written by hand in the provider's format. What you record is real.

use std::error::Error;

use serde_json::{Value, json};
use umbel::models::{Tape, model, model_with};
use umbel::{LlmAgent, Runner, tool};

const NAME: &str = "openai-chat/gpt-4.1-mini";
const TAPE: &str = include_str!("../../tapes/weather.json");

/// Tells the weather of a city.
#[tool(read_only)]
async fn get_weather(
    /// The city's name.
    city: String,
) -> Value {
    json!({"city": city, "celsius": 18, "sky": "sunny"})
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let record_to = match args.as_slice() {
        [flag, file] if flag == "--record" => Some(file),
        [] => None,
        _ => return Err("usage: real_model [--record FILE]".into()),
    };
    let (model, tape) = match record_to {
        // The key comes from the environment. It is never on the tape.
        Some(_) => {
            let tape = Tape::new();
            (model(NAME)?.record(&tape), tape)
        }
        // Whoever plays a tape needs no key; the environment is made up.
        None => {
            let tape = Tape::from_json(TAPE)?;
            let key = |variable: &str| (variable == "OPENAI_API_KEY").then(|| "none".to_owned());
            (model_with(NAME, key)?.replay(&tape), tape)
        }
    };
    let agent = LlmAgent::new("weather").model(model).instruction("Be brief.").tool(get_weather);
    let runner = Runner::new("demo", agent)?;
    let session = runner.create_session("ann").await?;
    println!("{}", runner.run(&session.key, "How is the weather in Paris?").text().await?);

    match record_to {
        Some(file) => std::fs::write(file, tape.to_json())?,
        None => println!("Played all of the tape: {}", tape.is_played()),
    }
    Ok(())
}
