//! The agents of the suite, by path.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use umbel::handlers::{ConfirmChanges, ModelRetry};
use umbel::{
    Chunk, Confirm, Error, ErrorKind, FunctionTool, LlmAgent, ModelErrorKind, Parallel, Runner,
    RunnerBuilder, Sequential, tool,
};

use crate::script::{Script, call, results, said, say};

/// The agents, by path.
pub(crate) fn all() -> Vec<(&'static str, RunnerBuilder)> {
    let agents = vec![
        ("/chat", LlmAgent::new("chat").model(Script::new(|_| say("Hello there, how are you today?")))),
        ("/slow", LlmAgent::new("slow").model(slow())),
        ("/memory", LlmAgent::new("memory").model(Script::new(|request| say(&said(request).join(" | "))))),
        ("/reason", LlmAgent::new("reason").model(Script::new(|_| think()))),
        ("/tool", LlmAgent::new("tool").model(Script::new(weather)).tool(get_weather)),
        ("/client_tool", LlmAgent::new("client_tool").model(Script::new(pick_color))),
        ("/state", LlmAgent::new("state").model(Script::new(cook)).tool(write_recipe())),
        ("/hitl", LlmAgent::new("hitl").model(Script::new(careful)).tool(send_mail())),
        ("/error", LlmAgent::new("error").model(Script::new(|_| fails()))),
        ("/three", LlmAgent::new("three").model(Script::new(three))),
        ("/retry", LlmAgent::new("retry").model(flaky()).handler(ModelRetry::new().max_retries(2))),
    ];
    let mut all: Vec<_> =
        agents.into_iter().map(|(path, agent)| (path, Runner::builder(name(path), agent))).collect();
    all.push(("/team", Runner::builder("team", team())));
    let writer = LlmAgent::new("predict").model(Script::new(predict)).tool(write_document());
    let confirm = ConfirmChanges::new(["write_document"]);
    all.push(("/predict", Runner::builder("predict", writer).handler(confirm)));
    all
}

fn name(path: &'static str) -> &'static str {
    path.trim_start_matches('/')
}

fn slow() -> Script {
    let words = "This answer takes its time, one small piece after another, until it is all there.";
    Script::new(move |_| say(words)).pause(Duration::from_millis(130))
}

fn think() -> Vec<umbel::Result<Chunk>> {
    let mut chunks =
        vec![Ok(Chunk::Thought("The user wants ".into())), Ok(Chunk::Thought("an answer.".into()))];
    chunks.extend(say("Forty-two, as always."));
    chunks
}

/// The weather of a city.
#[tool]
async fn get_weather(
    /// The city.
    city: String,
) -> String {
    format!("Sunny in {city}, 21 degrees")
}

fn weather(request: &umbel::ModelRequest) -> Vec<umbel::Result<Chunk>> {
    match results(request).first() {
        Some(result) => say(&format!("The weather: {result}")),
        None => call([("get_weather", json!({"city": "Paris"}))]),
    }
}

fn pick_color(request: &umbel::ModelRequest) -> Vec<umbel::Result<Chunk>> {
    match results(request).first() {
        Some(result) => say(&format!("You picked: {result}")),
        None if request.tools.get("pick_color").is_some() && said(request).len() == 1 => {
            call([("pick_color", json!({"options": ["red", "teal"]}))])
        }
        None => say("You are welcome."),
    }
}

fn three(request: &umbel::ModelRequest) -> Vec<umbel::Result<Chunk>> {
    let results = results(request);
    match results.is_empty() {
        false => say(&format!("All of it: {}", results.join(" "))),
        true => {
            let tools: Vec<_> = ["first", "second", "third"].map(|name| (name, json!({"for": name}))).into();
            call(tools)
        }
    }
}

fn write_recipe() -> FunctionTool {
    FunctionTool::with_context("write_recipe", "Writes a recipe", |cx, _: Value| {
        Box::pin(async move {
            let count = cx.state("count").and_then(|count| count.as_i64()).unwrap_or(0);
            cx.set_state("recipe", json!({"title": "Soup", "steps": ["boil", "eat"]}));
            cx.set_state("count", count + 1);
            Ok("written")
        })
    })
}

fn cook(request: &umbel::ModelRequest) -> Vec<umbel::Result<Chunk>> {
    match results(request).is_empty() {
        true => call([("write_recipe", json!({}))]),
        false => say("The recipe is ready."),
    }
}

fn send_mail() -> FunctionTool {
    FunctionTool::new("send_mail", "Sends a mail", |_: Value| async { Ok("ok, sent") })
        .confirm(Confirm::Always)
}

fn careful(request: &umbel::ModelRequest) -> Vec<umbel::Result<Chunk>> {
    match results(request).first() {
        Some(result) => say(&format!("Done: {result}")),
        None => call([("send_mail", json!({"to": "ann"}))]),
    }
}

fn fails() -> Vec<umbel::Result<Chunk>> {
    let broken = Error::new(ErrorKind::Model(ModelErrorKind::Other), "secret detail of the provider");
    vec![Ok(Chunk::Text("I was about to ".into())), Ok(Chunk::Text("say".into())), Err(broken)]
}

fn write_document() -> FunctionTool {
    FunctionTool::with_context("write_document", "Writes the document", |cx, args: Value| {
        Box::pin(async move {
            cx.set_state("document", args.get("text").cloned().unwrap_or_default());
            Ok("written")
        })
    })
}

fn predict(request: &umbel::ModelRequest) -> Vec<umbel::Result<Chunk>> {
    match results(request).first() {
        None => call([("write_document", json!({"text": "Once upon a time"}))]),
        Some(result) => say(&format!("It is so: {result}")),
    }
}

/// Breaks off in the middle of every first attempt.
fn flaky() -> Script {
    let attempts = Arc::new(AtomicUsize::new(0));
    Script::new(move |_| {
        if attempts.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            let broken = Error::new(ErrorKind::Model(ModelErrorKind::Overloaded), "try again");
            return vec![
                Ok(Chunk::Text("This will be ".into())),
                Ok(Chunk::Text("void".into())),
                Err(broken),
            ];
        }
        say("The second attempt holds.")
    })
}

/// Two agents side by side, then one that sums up.
fn team() -> Sequential {
    let speaks = |name: &'static str, text: &'static str| {
        LlmAgent::new(name).description(format!("Says {text}")).model(Script::new(move |_| say(text)))
    };
    let both = Parallel::new("both")
        .agent(speaks("left", "From the left."))
        .agent(speaks("right", "From the right."));
    Sequential::new("team").agent(both).agent(speaks("editor", "Both have spoken."))
}
