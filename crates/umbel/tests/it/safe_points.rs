//! Runs that are told to stop at a safe point, and go on later.

use std::sync::{Arc, OnceLock};

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::{
    Agent, AgentTool, CancelToken, Chunk, FunctionTool, LlmAgent, ModelRequest, Outcome, Parallel, Response,
    Runner, SafePoint, ScriptedModel, Sequential, SessionKey, Step,
};

use crate::handler_support;
use crate::support::{Notes, begin, call_with_id, calls, log, read, responses, stored};

/// Calls `work` once with each id, all at once, then says "done".
fn worker(name: &str, ids: &'static [&'static str], notes: &Notes) -> LlmAgent {
    let asked = notes.clone();
    let model = ScriptedModel::from_fn("m", move |request: &ModelRequest| {
        asked.add("asked");
        let answered = request.contents.iter().any(|content| content.has_responses());
        let batch = calls(ids.iter().map(|id| call_with_id(id, "work", json!({}))));
        vec![Ok(Chunk::Complete(if answered { Response::text("done") } else { batch }))]
    });
    let notes = notes.clone();
    LlmAgent::new(name).model(model).tool(FunctionTool::new("work", "", move |_: Value| {
        let notes = notes.clone();
        async move {
            notes.add("begun");
            tokio::task::yield_now().await;
            notes.add("ended");
            Ok(json!(1))
        }
    }))
}

/// Runs, and asks to stop at that point once the notes are those.
async fn stop(runner: &Runner, key: &SessionKey, point: SafePoint, when: impl Fn() -> bool) -> Outcome {
    let mut stream = runner.run(key, "go");
    if when() {
        stream.cancel_at(point);
    }
    loop {
        let next = stream.next();
        tokio::pin!(next);
        let item = futures::future::poll_fn(|cx| {
            let polled = next.as_mut().poll(cx);
            std::task::Poll::Ready(polled)
        })
        .await;
        match item {
            std::task::Poll::Ready(None) => break,
            std::task::Poll::Ready(Some(_)) => {}
            std::task::Poll::Pending => tokio::task::yield_now().await,
        }
        if when() {
            stream.cancel_at(point);
        }
    }
    stream.outcome().unwrap().clone()
}

async fn check(
    agent: impl Agent + 'static,
    notes: &Notes,
    point: SafePoint,
    mark: &'static str,
    then: &[&str],
) -> (Runner, SessionKey) {
    let (runner, key) = begin(agent).await;
    let outcome = stop(&runner, &key, point, || notes.all().iter().any(|note| note == mark)).await;
    assert_eq!(outcome, Outcome::Cancelled);
    assert_eq!(notes.take(), then);
    (runner, key)
}

#[tokio::test]
async fn a_run_stops_when_its_calls_are_done_and_goes_on_with_their_results() {
    let notes = Notes::default();
    let agent = worker("a", &["c1"], &notes);
    let (runner, key) =
        check(agent, &notes, SafePoint::AfterTools, "begun", &["asked", "begun", "ended"]).await;
    read(runner.continue_run(&key)).await.assert_finished();
    assert_eq!(notes.take(), ["asked"]);
    assert_eq!(responses(&stored(&runner, &key).await), [json!({"result": 1})]);
    assert_eq!(outcomes_of(&runner, &key).await, 2);
}

#[tokio::test]
async fn a_run_stops_when_the_model_has_answered_and_begins_the_calls_when_it_goes_on() {
    let (notes, token) = (Notes::default(), Arc::new(OnceLock::<CancelToken>::new()));
    let told = token.clone();
    let stops = handler_support::before_model("stops", move |_| {
        // The model is about to be asked.
        if let Some(token) = told.get() {
            token.cancel_at(SafePoint::AfterModel);
        }
        Ok(Step::Continue)
    });
    let (runner, key) = begin(worker("a", &["c1", "c2"], &notes).handler(stops)).await;
    let stream = runner.run(&key, "go");
    token.set(stream.cancel_token()).unwrap();
    assert_eq!(read(stream).await.outcome, Outcome::Cancelled);
    assert_eq!(notes.take(), ["asked"]);
    read(runner.continue_run(&key)).await.assert_finished();
    assert_eq!(notes.take(), ["begun", "begun", "ended", "ended", "asked"]);
    assert_eq!(responses(&stored(&runner, &key).await), [json!({"result": 1}), json!({"result": 1})]);
}

#[tokio::test]
async fn a_run_that_is_done_before_it_comes_to_such_a_point_is_finished() {
    let (runner, key) = begin(LlmAgent::new("a").model(ScriptedModel::new("m").text("hello"))).await;
    let stream = runner.run(&key, "hi");
    let token = stream.cancel_token();
    let seen = read(stream).await;
    token.cancel_at(SafePoint::Next);
    seen.assert_finished();
}

#[tokio::test]
async fn agents_called_as_tools_and_agents_beside_each_other_stop_each_at_its_own_point() {
    let notes = Notes::default();
    let inner = worker("child", &["i1"], &notes);
    let model = ScriptedModel::from_fn("m", |request: &ModelRequest| {
        let answered = request.contents.iter().any(|content| content.has_responses());
        let call = calls([call_with_id("c1", "child", json!({"request": "go"}))]);
        vec![Ok(Chunk::Complete(if answered { Response::text("done") } else { call }))]
    });
    let boss = LlmAgent::new("boss").model(model).tool(AgentTool::new(inner));
    let beside = worker("beside", &["b1", "b2"], &notes);
    let team = Sequential::new("all").agent(Parallel::new("both").agent(boss).agent(beside)).agent(
        LlmAgent::new("last")
            .model(ScriptedModel::from_fn("m", |_| vec![Ok(Chunk::Complete(Response::text("last")))])),
    );
    let (runner, key) = begin(team).await;
    let outcome =
        stop(&runner, &key, SafePoint::AfterTools, || notes.all().contains(&"begun".to_owned())).await;
    assert_eq!(outcome, Outcome::Cancelled);
    let before = notes.take();
    assert_eq!(
        before.iter().filter(|note| *note == "begun").count(),
        before.iter().filter(|note| *note == "ended").count()
    );
    let seen = read(runner.continue_run(&key)).await;
    assert_eq!(seen.assert_finished().texts().last(), Some(&("last".into(), "last".into())));
    let all: Vec<String> = before.into_iter().chain(notes.take()).collect();
    assert_eq!(all.iter().filter(|note| *note == "begun").count(), 3, "each call is made once: {all:?}");
    let said = stored(&runner, &key).await;
    assert!(!said.iter().any(|event| {
        responses(std::slice::from_ref(event)).iter().any(|one| one.to_string().contains("unknown"))
    }));
    assert_eq!(said.iter().filter(|event| event.author() == "boss" && event.text() == "done").count(), 1);
}

async fn outcomes_of(runner: &Runner, key: &SessionKey) -> usize {
    let log = log(runner, key).await;
    let ended = |entry: &&umbel::LogEntry| matches!(entry, umbel::LogEntry::Record(step) if matches!(**step, umbel::RunStep::Ended { .. }));
    log.iter().filter(ended).count()
}
