//! A person has to agree, and may take days: the question waits in SQLite, not in a process.
//!
//! ```sh
//! cargo run -p umbel-examples --bin approval -- desk.db        # asks, and ends
//! cargo run -p umbel-examples --bin approval -- desk.db yes    # another process goes on with the answer
//! ```

use serde_json::json;
use umbel::handlers::Approve;
use umbel::stores;
use umbel::{Answer, Error, ErrorKind, LlmAgent, Object, Result, Runner, ScriptedModel, SessionKey, tool};

/// Pays money back to a customer.
#[tool]
async fn refund(customer: String, euros: u32) -> String {
    format!("{euros} € are on their way to {customer}")
}

/// The same agent in each process. Only the script differs, since a script does not think.
async fn runner(database: &str, model: ScriptedModel) -> Result<Runner> {
    let stores = stores::open(&format!("sqlite:{database}")).await?;
    let agent = LlmAgent::new("desk").model(model).tool(refund).handler(Approve::new().tool("refund"));
    Runner::builder("shop", agent).sessions(stores.sessions).build()
}

async fn ask(database: &str) -> Result<()> {
    let model = ScriptedModel::new("demo").call("refund", json!({"customer": "Bob", "euros": 40}));
    let runner = runner(database, model).await?;
    let session = runner.create_session_with("ann", "case-7", Object::new()).await?;
    runner.run(&session.key, "Bob's kettle came broken. Give him his 40 € back.").text().await?;
    for question in runner.open_questions(&session.key).await? {
        let call = question.call.unwrap_or_default();
        println!("May I call {}({})?", call.name, json!(call.args));
    }
    Ok(())
}

async fn go_on(database: &str, yes: bool) -> Result<()> {
    let words = if yes { "Bob gets 40 € back." } else { "I have paid nothing." };
    let runner = runner(database, ScriptedModel::new("demo").text(words)).await?;
    let key = SessionKey::new("shop", "ann", "case-7")?;
    let open = runner.open_questions(&key).await?;
    let answers = open.iter().map(|question| {
        (question, if yes { Answer::approve() } else { Answer::reject_because("ask for a photo first") })
    });
    let events = runner.resume(&key, answers).collect_events().await?;
    for response in events.iter().flat_map(|event| event.responses()) {
        println!("{}: {}", response.name, json!(response.response));
    }
    println!("desk> {}", events.last().map(|event| event.text()).unwrap_or_default());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        [database] => ask(database).await,
        [database, answer @ ("yes" | "no")] => go_on(database, *answer == "yes").await,
        _ => Err(Error::new(ErrorKind::InvalidInput, "usage: approval FILE [yes|no]")),
    }
}
