//! What a model was asked, made from the log again.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use umbel::{
    Chunk, Content, ErrorKind, EventId, FunctionCall, Handler, LlmAgent, Model, ModelRequest, ModelTurn,
    Part, Response, Result, Runner, ScriptedModel, SessionKey, Step, handler,
};

use crate::support::{echo, read, stored, with_session};

/// What makes a request, as text that can be compared.
fn form(request: &ModelRequest) -> Value {
    let contents: Vec<Value> =
        request.contents.iter().map(|content| serde_json::to_value(&**content).unwrap()).collect();
    let tools: Vec<_> = request.tools.specs().map(|spec| spec.name.to_string()).collect();
    json!({"contents": contents, "told": request.instruction.text(), "tools": tools})
}

type Seen = Arc<Mutex<Vec<Value>>>;

/// A model that calls `echo` with every first message of a turn, and remembers what it was asked.
fn model(seen: &Seen) -> impl Model + use<> {
    let seen = seen.clone();
    ScriptedModel::from_fn("m", move |request| {
        seen.lock().unwrap().push(form(request));
        let answers = request.contents.last().is_some_and(|last| last.has_responses());
        let part = match answers {
            true => Part::text("done"),
            false => Part::call(FunctionCall::new("echo", Default::default())),
        };
        vec![Ok(Chunk::Complete(Response::new(Content::model(part))))]
    })
}

/// Compares what was asked with what is made again, for every answer in the log.
async fn compare(runner: &Runner, key: &SessionKey, seen: &Seen) {
    let events = stored(runner, key).await;
    let is_answer = |event: &&Arc<umbel::Event>| !event.is_user() && event.responses().next().is_none();
    let answers: Vec<EventId> = events.iter().filter(is_answer).map(|event| event.id.clone()).collect();
    let seen = seen.lock().unwrap().clone();
    assert_eq!(answers.len(), seen.len());
    for (answer, asked) in answers.iter().zip(seen) {
        assert_eq!(form(&runner.request_before(key, answer).await.unwrap()), asked);
    }
    assert_eq!(stored(runner, key).await.len(), events.len(), "looking changes nothing");
}

#[tokio::test]
async fn every_request_of_a_session_can_be_made_again() {
    let seen = Seen::default();
    let agent = LlmAgent::new("a").instruction("Be kind to {user:name?}.").model(model(&seen)).tool(echo());
    let (runner, key) = with_session(Runner::new("app", agent).unwrap()).await;
    read(runner.run(&key, "one")).await;
    read(runner.run(&key, "two")).await;
    compare(&runner, &key, &seen).await;
}

#[derive(Debug)]
struct Forgetful;

#[handler]
impl Handler for Forgetful {
    fn name(&self) -> &str {
        "forgetful"
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        if turn.history.len() > 2 {
            turn.history.splice(0..1, [Arc::new(Content::user("(forgotten)"))]);
        }
        Ok(Step::Continue)
    }
}

#[tokio::test]
async fn what_handlers_changed_in_the_conversation_is_part_of_it() {
    let seen = Seen::default();
    let agent = LlmAgent::new("a").model(model(&seen)).tool(echo()).handler(Forgetful);
    let (runner, key) = with_session(Runner::new("app", agent).unwrap()).await;
    read(runner.run(&key, "one")).await;
    assert!(seen.lock().unwrap()[1].to_string().contains("(forgotten)"));
    let events = stored(&runner, &key).await;
    let last = runner.request_before(&key, &events.last().unwrap().id).await.unwrap();
    assert_eq!(form(&last), seen.lock().unwrap()[1]);
}

#[tokio::test]
async fn what_no_model_said_has_no_request() {
    let seen = Seen::default();
    let agent = LlmAgent::new("a").model(model(&seen)).tool(echo());
    let (runner, key) = with_session(Runner::new("app", agent).unwrap()).await;
    read(runner.run(&key, "one")).await;
    let events = stored(&runner, &key).await;
    for id in [events[0].id.clone(), EventId::from("nonsense")] {
        assert_eq!(runner.request_before(&key, &id).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let nowhere = SessionKey::new("app", "ann", "nowhere").unwrap();
    let error = runner.request_before(&nowhere, &events[1].id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SessionNotFound);
}
