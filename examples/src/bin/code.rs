//! An agent that has Python run in a sandbox, on a table that the user sends, once a person agrees.
//!
//! ```sh
//! cargo run -p umbel-examples --bin code      # needs python3 and bubblewrap
//! ```

use std::sync::Arc;

use umbel::outside::Sandbox;
use umbel::{
    Answer, CodeExecution, Confirm, Content, Event, InMemoryArtifacts, LlmAgent, Part, Payload, Result, Role,
    Runner, ScriptedModel,
};

const TABLE: &str = "who,euros\nAnn,12\nBob,30\nAnn,54\n";

const CODE: &str = r#"import csv
from collections import Counter
spent = Counter()
for row in csv.DictReader(open("data_1_2.csv")):
    spent[row["who"]] += int(row["euros"])
print(spent["Ann"] - spent["Bob"])
open("spent.txt", "w").write(str(dict(spent)))"#;

/// What code printed, from the events that tell it.
fn printed(events: &[Arc<Event>]) -> impl Iterator<Item = &str> {
    let parts = events.iter().flat_map(|event| event.content.iter().flat_map(|content| &content.parts));
    parts.filter_map(|part| match &part.payload {
        Payload::CodeResult(result) => result.output.as_deref(),
        _ => None,
    })
}

#[tokio::main]
async fn main() -> Result<()> {
    let model = ScriptedModel::new("demo")
        .text(format!("I will add it up.\n```tool_code\n{CODE}\n```\n"))
        .text("Bob owes Ann 18 €.");
    let code = CodeExecution::new(Sandbox::python().build()?).data_files().confirm(Confirm::Always);
    let agent = LlmAgent::new("clerk").model(model).code_executor(code);
    let runner = Runner::builder("trip", agent).artifacts(InMemoryArtifacts::new()).build()?;
    let session = runner.create_session("ann").await?;

    let question = "Who owes whom how much?";
    let message = Content::new(Role::User, [Part::text(question), Part::data("text/csv", TABLE)]);
    let events = runner.run(&session.key, message).collect_events().await?;
    printed(&events).for_each(|text| println!("{text}"));

    let open = runner.open_questions(&session.key).await?;
    for question in &open {
        let args = question.call.as_ref().and_then(|call| call.args.clone()).unwrap_or_default();
        let code = args.get("code").and_then(|code| code.as_str()).unwrap_or_default();
        println!("May I run this?");
        code.lines().for_each(|line| println!("    {line}"));
    }
    let answers = open.iter().map(|question| (question, Answer::approve()));
    let events = runner.resume(&session.key, answers).collect_events().await?;
    printed(&events).for_each(|text| println!("{text}"));
    println!("clerk> {}", events.last().map(|event| event.text()).unwrap_or_default());

    let file = runner.services().artifacts.as_ref().map(|store| store.load(&session.key, "spent.txt", None));
    if let Some(file) = file
        && let Some(part) = file.await?
        && let Payload::InlineData(data) = &part.payload
    {
        println!("spent.txt: {}", String::from_utf8_lossy(&data.data));
    }
    Ok(())
}
