//! What models were asked, made from the log again.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use umbel::handlers::UsageLedger;
use umbel::usage::Prices;
use umbel::{Error, ErrorKind, FunctionTool, LlmAgent, ModelRequest, RunConfig, Runner, ScriptedModel};
use umbel_server::{AgentEndpoint, Server};

use crate::desk::{answers, ask, call, desk, end, offered, results, say, serve, tool, user, with};
use crate::support::Host;

type Seen = Arc<Mutex<Vec<Value>>>;

fn form(request: &ModelRequest) -> Value {
    let tools = request.tools.specs().map(
        |spec| json!({"name": spec.name, "description": spec.description, "parameters": spec.parameters}),
    );
    json!({
        "instruction": request.instruction.text(),
        "contents": request.contents.iter().collect::<Vec<_>>(),
        "tools": tools.collect::<Vec<_>>(),
    })
}

/// A model that calls the client's tool once a turn, and remembers what it is asked.
fn remembering(seen: &Seen) -> ScriptedModel {
    let seen = seen.clone();
    answers(move |request| {
        seen.lock().unwrap().push(form(request));
        match results(request).is_empty() && request.tools.get("pick").is_some() {
            true => call([("pick", json!({"of": 2}))]),
            false => say("Done."),
        }
    })
}

fn brought(input: Value, description: &str) -> Value {
    let tool = json!({"name": "pick", "description": description,
        "parameters": {"type": "object", "properties": {"of": {"type": "integer"}}}});
    with(input, "tools", json!([tool]))
}

async fn rebuilt(host: &Host, run: &str, step: usize) -> Value {
    let reply = host.get(&format!("/agent/runs/{run}/steps/{step}/request?thread=t")).await;
    assert_eq!(reply.status(), 200);
    reply.json().await
}

/// Compares what a model was asked with what is told of it.
fn assert_same(told: &Value, asked: &Value) {
    for key in ["instruction", "contents", "tools"] {
        assert_eq!(told[key], asked[key], "{key}");
    }
}

fn system(text: &str) -> Value {
    json!({"id": "s", "role": "system", "content": text})
}

#[tokio::test]
async fn what_a_client_brought_along_is_part_of_what_a_model_was_asked() {
    let seen = Seen::default();
    let host = desk(LlmAgent::new("asker").instruction("Be kind.").model(remembering(&seen))).await;
    let first = host.run(&brought(ask("t", "r1", &[system("Be terse."), user("m1", "Go")]), "Picks")).await;
    let pending = end(&first)["outcome"]["pendingToolCallIds"][0].as_str().unwrap().to_owned();
    let answered = ask("t", "r2", &[system("Be terse."), tool("a1", &pending, "7")]);
    host.run(&brought(answered, "Picks")).await;
    host.run(&ask("t", "r3", &[user("m3", "Without anything")])).await;
    host.run(&brought(ask("t", "r4", &[user("m4", "With another")]), "Picks otherwise")).await;
    let asked = seen.lock().unwrap().clone();
    assert_eq!(asked.len(), 4);
    assert!(asked[0]["instruction"].as_str().unwrap().contains("Be terse."), "{}", asked[0]);
    for (run, asked) in ["r1", "r2", "r3", "r4"].into_iter().zip(&asked) {
        assert_same(&rebuilt(&host, run, 1).await, asked);
    }
    let left_out = rebuilt(&host, "r1", 1).await["leavesOut"].to_string();
    for hook in ["wrap_model", "before_model"] {
        assert!(left_out.contains(hook), "{left_out}");
    }
}

#[tokio::test]
async fn the_same_is_kept_once_and_what_is_too_large_is_not_kept_and_that_is_said() {
    let seen = Seen::default();
    let host = desk(LlmAgent::new("asker").model(remembering(&seen))).await;
    let long = "x".repeat(20_000);
    for run in 0..5 {
        let message = user(&format!("m{run}"), "Go");
        host.run(&brought(ask("t", &format!("r{run}"), &[message]), &long)).await;
        assert_same(&rebuilt(&host, &format!("r{run}"), 1).await, seen.lock().unwrap().last().unwrap());
    }
    let body = brought(ask("t", "large", &[user("m-large", "Go")]), &"x".repeat(70_000));
    host.run(&body).await;
    let told = rebuilt(&host, "large", 1).await;
    assert_eq!(told["tools"], json!([]));
    assert!(told["leavesOut"].to_string().contains("too large"), "{}", told["leavesOut"]);
}

#[tokio::test]
async fn the_log_grows_by_what_is_new_of_what_a_client_brings_along() {
    let (seen, sessions) = (Seen::default(), Arc::new(umbel::InMemorySessions::new()));
    let agent = LlmAgent::new("asker").model(remembering(&seen));
    let runner = umbel::Runner::builder("desk", agent).sessions(sessions.clone()).build().unwrap();
    let host = serve(Server::new().agent("/agent", umbel_server::AgentEndpoint::new(runner))).await;
    for run in 0..3 {
        let message = user(&format!("m{run}"), "Go");
        host.run(&brought(ask("t", &format!("r{run}"), &[message]), &"x".repeat(20_000))).await;
    }
    let key = umbel::SessionKey::new("desk", "local", "t").unwrap();
    let session =
        umbel::SessionStore::get(&*sessions, &key, umbel::EventFilter::default()).await.unwrap().unwrap();
    let sizes = session.events.iter().map(|event| serde_json::to_string(event).unwrap().len());
    assert_eq!(sizes.filter(|size| *size > 10_000).count(), 1, "it is there once");
}

#[tokio::test]
async fn tools_and_words_that_an_agent_does_not_take_from_clients_are_not_in_it() {
    let seen = Seen::default();
    let agent = offered(LlmAgent::new("asker").model(remembering(&seen)));
    let host = serve(Server::new().agent("/agent", agent.client_tools(false).system_messages(false))).await;
    host.run(&brought(ask("t", "r1", &[system("Be terse."), user("m1", "Go")]), "Picks")).await;
    let told = rebuilt(&host, "r1", 1).await;
    assert_eq!(told["tools"], json!([]));
    assert_same(&told, &seen.lock().unwrap()[0]);
}

#[tokio::test]
async fn what_the_runner_tells_its_agents_counts_unless_the_client_says_something_else() {
    let seen = Seen::default();
    let config = RunConfig { instruction: Some("Be brave.".into()), ..RunConfig::default() };
    let agent = LlmAgent::new("asker").instruction("Be kind.").model(remembering(&seen));
    let runner = Runner::builder("desk", agent).config(config).build().unwrap();
    let host = serve(Server::new().agent("/agent", AgentEndpoint::new(runner))).await;
    host.run(&ask("t", "r1", &[user("m1", "Go")])).await;
    host.run(&ask("t", "r2", &[system("Be terse."), user("m2", "Go")])).await;
    let asked = seen.lock().unwrap().clone();
    for (run, asked, told) in [("r1", &asked[0], "Be brave."), ("r2", &asked[1], "Be terse.")] {
        assert!(asked["instruction"].as_str().unwrap().contains(told), "{run}: {asked}");
        assert_same(&rebuilt(&host, run, 1).await, asked);
    }
}

#[tokio::test]
async fn what_was_brought_along_is_found_behind_what_nobody_said() {
    let seen = Seen::default();
    let notes = seen.clone();
    let model = answers(move |request| {
        notes.lock().unwrap().push(form(request));
        match results(request).is_empty() {
            true => call([("look", json!({}))]),
            false => vec![Err(Error::new(ErrorKind::Other, "gone"))],
        }
    });
    let look = FunctionTool::new("look", "Looks", |_: Value| async { Ok("seen") });
    let team = umbel::Sequential::new("team").agent(LlmAgent::new("asker").model(model).tool(look));
    // What the attempt that failed took is written down in the user's name.
    let runner = Runner::builder("desk", team).handler(UsageLedger::new(Prices::new())).build().unwrap();
    let host = serve(Server::new().agent("/agent", AgentEndpoint::new(runner))).await;
    let frames = host.run(&brought(ask("t", "r1", &[user("m1", "Go")]), "Picks")).await;
    assert_eq!(end(&frames)["type"], "RUN_ERROR");
    let asked = seen.lock().unwrap()[0].clone();
    assert_eq!(asked["tools"].as_array().unwrap().len(), 2, "{asked}");
    assert_same(&rebuilt(&host, "r1", 1).await, &asked);
}

#[tokio::test]
async fn a_question_to_people_is_no_step_of_a_model() {
    let model = answers(|request| match results(request).is_empty() {
        true => call([("send", json!({}))]),
        false => say("Sent."),
    });
    let send =
        FunctionTool::new("send", "Sends", |_: Value| async { Ok("sent") }).confirm(umbel::Confirm::Always);
    let host = desk(LlmAgent::new("careful").model(model).tool(send)).await;
    host.run(&with(ask("t", "r1", &[user("m1", "Go")]), "protocolVersion", json!("1.0"))).await;
    let told: Value = host.get("/agent/runs/r1/steps?thread=t").await.json().await;
    let steps = told["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 1, "{told}");
    assert_eq!(steps[0]["toolCalls"], json!(["send"]));
}
