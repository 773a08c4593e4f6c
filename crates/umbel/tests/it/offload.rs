//! Tool results that are too long are stored, and read page by page.

use std::sync::Arc;

use futures::stream;
use serde_json::{Value, json};
use umbel::handlers::{Offload, READ_ARTIFACT};
use umbel::{
    ArtifactStore, Error, ErrorKind, FunctionTool, InMemoryArtifacts, LlmAgent, Part, Result, Runner,
    ScriptedModel, SessionKey, ToolError, ToolItem, ToolOutput, ToolValue, Work,
};

use super::support::{Seen, read, state, with_session};

/// Says as many characters as it is told, none of them ASCII.
fn speak() -> FunctionTool {
    FunctionTool::new("speak", "", |args: Value| async move {
        let count = args["n"].as_u64().unwrap_or(0) as usize;
        Ok("äöü".chars().cycle().take(count).collect::<String>())
    })
}

fn offloading(model: ScriptedModel) -> LlmAgent {
    LlmAgent::new("a").model(model).tool(speak()).handler(Offload::new().above(100).show(10))
}

async fn run(agent: LlmAgent) -> (Runner, SessionKey, Seen) {
    let runner = Runner::builder("app", agent).artifacts(InMemoryArtifacts::new()).build().unwrap();
    let (runner, key) = with_session(runner).await;
    let seen = read(runner.run(&key, "go")).await;
    (runner, key, seen)
}

async fn names(runner: &Runner, key: &SessionKey) -> Vec<String> {
    runner.services().artifacts.as_ref().unwrap().names(key).await.unwrap()
}

#[tokio::test]
async fn a_long_result_is_stored_and_read_page_by_page() {
    let model = ScriptedModel::new("m").call("speak", json!({"n": 101})).call("speak", json!({"n": 100}));
    let (runner, key, seen) = run(offloading(model.text("done").text("next"))).await;
    seen.assert_finished();
    let [long, short] = &seen.responses()[..] else { panic!("two results") };
    assert_eq!(short["result"].as_str().unwrap().chars().count(), 100, "the limit itself is not too long");
    assert_eq!(long["result"], "äöüäöüäöüä");
    let stored = names(&runner, &key).await;
    let note = long["note"].as_str().unwrap();
    for part in [stored[0].as_str(), READ_ARTIFACT, "10 of 101", "91 are missing"] {
        assert!(note.contains(part), "{note}");
    }
    let file = runner.services().artifacts.as_ref().unwrap().load(&key, &stored[0], None).await.unwrap();
    assert_eq!(file.unwrap().as_text().unwrap().chars().count(), 101);
    assert_eq!(stored.len(), 1);
    let event = seen.whole().into_iter().find(|event| event.responses().next().is_some()).unwrap();
    let versions = event.actions.as_ref().unwrap().artifact_delta.as_ref().unwrap();
    assert_eq!(versions.get(&stored[0]), Some(&0));
}

/// Reads what the first call stored, with these arguments besides the name.
async fn reading(pages: Vec<Value>) -> Vec<Value> {
    let count = pages.len();
    let step = std::sync::Mutex::new(0);
    let model = ScriptedModel::from_fn("m", move |request| {
        let mut step = step.lock().unwrap();
        *step += 1;
        let call = |name: &str, args: Value| {
            let call = umbel::FunctionCall::new(name, super::support::object(args));
            vec![Ok(umbel::Chunk::Complete(super::support::calls([Part::call(call)])))]
        };
        if *step == 1 {
            return call("speak", json!({"n": 250}));
        }
        let Some(page) = pages.get(*step - 2) else {
            return vec![Ok(umbel::Chunk::Text("done".into()))];
        };
        let mut answers = request.contents.iter().flat_map(|content| content.responses());
        let note = answers.next().unwrap().response.as_ref().unwrap()["note"].as_str().unwrap().to_owned();
        let mut args = page.clone();
        if args.get("name").is_none() {
            args["name"] = note.split('"').nth(1).unwrap().into();
        }
        call(READ_ARTIFACT, args)
    });
    let (_, _, seen) = run(offloading(model)).await;
    let responses = seen.assert_finished().responses();
    assert_eq!(responses.len(), count + 1);
    responses[1..].to_vec()
}

#[tokio::test]
async fn pages_are_counted_in_characters_and_none_is_longer_than_a_result_may_be() {
    let pages = reading(vec![
        json!({"offset": 0, "length": 4}),
        json!({"offset": 4}),
        json!({"offset": 104, "length": 9_999}),
        json!({"offset": 204}),
        json!({"offset": 250}),
        json!({"offset": 1_000_000}),
    ])
    .await;
    let next: Vec<&Value> = pages.iter().map(|page| &page["next_offset"]).collect();
    assert_eq!(next, [&json!(4), &json!(104), &json!(204), &Value::Null, &Value::Null, &Value::Null]);
    assert!(pages.iter().all(|page| page["total"] == 250));
    assert_eq!(pages[0]["text"], "äöüä");
    assert!(pages[1]["text"].as_str().unwrap().starts_with("öüä"));
    let lengths: Vec<usize> =
        pages.iter().map(|page| page["text"].as_str().unwrap().chars().count()).collect();
    assert_eq!(lengths, [4, 100, 100, 46, 0, 0]);
}

#[tokio::test]
async fn only_what_was_stored_here_can_be_read() {
    let answers =
        reading(vec![json!({"name": "secret.txt"}), json!({"name": "user:me"}), json!({"offset": -1})]).await;
    assert!(answers.iter().all(|answer| answer["error"].is_string()), "{answers:?}");

    // An artifact that someone else stored under such a name is none of it, nor is that of another session.
    let model =
        ScriptedModel::new("m").call(READ_ARTIFACT, json!({"name": "tool_result_x.txt"})).text("done");
    let runner =
        Runner::builder("app", offloading(model)).artifacts(InMemoryArtifacts::new()).build().unwrap();
    let (runner, key) = with_session(runner).await;
    let store = runner.services().artifacts.clone().unwrap();
    store.save(&key, "tool_result_x.txt", Part::text("hidden")).await.unwrap();
    let seen = read(runner.run(&key, "go")).await;
    assert!(seen.tool_error().contains("tool_result_x.txt"));
}

#[tokio::test]
async fn what_is_stored_is_known_under_an_internal_key() {
    let (runner, key, _) =
        run(offloading(ScriptedModel::new("m").call("speak", json!({"n": 200})).text("ok"))).await;
    let state = state(&runner, &key).await;
    let name = &names(&runner, &key).await[0];
    assert_eq!(state, json!({format!("_umbel:offload:{name}"): 200}));
}

#[tokio::test]
async fn several_long_results_of_one_batch_are_stored_apart() {
    let model = ScriptedModel::new("m")
        .calls([("speak", json!({"n": 200})), ("speak", json!({"n": 300}))])
        .text("done");
    let (runner, key, seen) = run(offloading(model)).await;
    seen.assert_finished();
    assert_eq!(names(&runner, &key).await.len(), 2);
    assert_eq!(state(&runner, &key).await.as_object().unwrap().len(), 2);
}

#[tokio::test]
async fn excluded_tools_keep_their_results_whole() {
    let model = ScriptedModel::new("m").call("speak", json!({"n": 500})).text("done");
    let agent = LlmAgent::new("a").model(model).tool(speak());
    let (runner, key, seen) = run(agent.handler(Offload::new().above(100).show(10).exclude(["speak"]))).await;
    assert_eq!(seen.responses()[0]["result"].as_str().unwrap().chars().count(), 500);
    assert!(names(&runner, &key).await.is_empty());
}

#[tokio::test]
async fn structures_and_errors_are_stored_as_json_and_stay_what_they_are() {
    let list = FunctionTool::new("list", "", |_: Value| async move { Ok(json!({"items": vec![1; 100]})) });
    let fail = FunctionTool::new("fail", "", |_: Value| async move {
        let value =
            ToolValue { value: json!({"error": "e".repeat(200)}), is_error: true, ..ToolValue::default() };
        Ok(ToolOutput::from(value))
    });
    let model = ScriptedModel::new("m").call("list", json!({})).call("fail", json!({})).text("done");
    let agent = offloading(model).tool(list).tool(fail);
    let (_, _, seen) = run(agent).await;
    let answers = seen.responses();
    assert_eq!(answers[0]["result"], r#"{"items":["#);
    assert_eq!(answers[1]["error"], "eeeeeeeeee");
    assert!(answers[1].get("result").is_none());
}

#[tokio::test]
async fn h6_a_streamed_result_is_stored_too_and_its_news_pass() {
    let streaming = FunctionTool::new("streaming", "", |_: Value| async move {
        let items =
            [Ok(ToolItem::Progress(json!("half"))), Ok(ToolItem::Done(Value::from("x".repeat(500)).into()))];
        Ok(ToolOutput::Stream(Box::pin(stream::iter(items))))
    });
    let model = ScriptedModel::new("m").call("streaming", json!({})).text("done");
    let (runner, key, seen) = run(offloading(model).tool(streaming)).await;
    assert_eq!(seen.assert_finished().responses()[0]["result"], "xxxxxxxxxx");
    assert_eq!(names(&runner, &key).await.len(), 1);
    assert_eq!(super::support::responses(&seen.partial())[0]["result"], "half");
}

#[tokio::test]
async fn without_an_artifact_store_the_first_turn_fails_and_says_what_to_do() {
    let model = ScriptedModel::new("m").recorded().call("speak", json!({"n": 1})).text("done");
    let (runner, key) = with_session(Runner::new("app", offloading(model.clone())).unwrap()).await;
    let seen = read(runner.run(&key, "go")).await;
    assert!(seen.error.as_ref().unwrap().message().contains(".artifacts(…)"), "{seen:?}");
    assert!(model.requests().is_empty());
    let wrong = LlmAgent::new("a").model(model).handler(Offload::new().above(10).show(11));
    assert!(Runner::new("app", wrong).is_err());
}

#[tokio::test]
async fn a_tool_of_the_agent_with_that_name_is_left_in_its_place() {
    let own = FunctionTool::new(READ_ARTIFACT, "My own.", |_: Value| async move { Ok("y".repeat(500)) });
    let model = ScriptedModel::new("m").recorded().call(READ_ARTIFACT, json!({})).text("done");
    let (_, _, seen) = run(offloading(model.clone()).tool(own)).await;
    assert_eq!(seen.responses()[0]["result"].as_str().unwrap().len(), 500, "what reads is never stored");
    let specs: Vec<_> = model.requests()[0].tools.specs().map(|spec| spec.description.clone()).collect();
    assert_eq!(specs, ["", "My own."]);
}

/// A store whose writes fail, with that kind of error.
#[derive(Debug)]
struct Full(ErrorKind);

impl ArtifactStore for Full {
    fn save<'a>(&'a self, _: &'a SessionKey, _: &'a str, _: Part) -> Work<'a, Result<u64>> {
        Work::done(Err(Error::new(self.0, "the disk is full")))
    }

    fn load<'a>(
        &'a self,
        _: &'a SessionKey,
        _: &'a str,
        _: Option<u64>,
    ) -> Work<'a, Result<Option<Arc<Part>>>> {
        Work::done(Ok(None))
    }

    fn names<'a>(&'a self, _: &'a SessionKey) -> Work<'a, Result<Vec<String>>> {
        Work::done(Ok(Vec::new()))
    }

    fn versions<'a>(&'a self, _: &'a SessionKey, _: &'a str) -> Work<'a, Result<Vec<u64>>> {
        Work::done(Ok(Vec::new()))
    }

    fn delete<'a>(&'a self, _: &'a SessionKey, _: &'a str) -> Work<'a, Result<()>> {
        Work::done(Ok(()))
    }

    fn erase_user<'a>(&'a self, _: &'a str, _: &'a str) -> Work<'a, Result<u64>> {
        Work::done(Ok(0))
    }

    fn delete_older_than<'a>(&'a self, _: &'a str, _: f64) -> Work<'a, Result<u64>> {
        Work::done(Ok(0))
    }
}

#[tokio::test]
async fn a_store_that_fails_loses_no_result_but_a_cancellation_passes() {
    let try_with = async |kind| {
        let model = ScriptedModel::new("m").call("speak", json!({"n": 500})).text("done");
        let runner = Runner::builder("app", offloading(model)).artifacts(Full(kind)).build().unwrap();
        let (runner, key) = with_session(runner).await;
        read(runner.run(&key, "go")).await
    };
    let seen = try_with(ErrorKind::Store).await;
    assert_eq!(seen.assert_finished().responses()[0]["result"].as_str().unwrap().chars().count(), 500);
    let seen = try_with(ErrorKind::Cancelled).await;
    assert_ne!(seen.outcome, umbel::Outcome::Finished);
}

#[tokio::test]
async fn e4_errors_of_the_tool_pass_untouched() {
    let fail =
        FunctionTool::new(
            "fail",
            "",
            |_: Value| async move { Err::<String, _>(ToolError::new("x".repeat(500))) },
        );
    let (runner, key, seen) =
        run(offloading(ScriptedModel::new("m").call("fail", json!({})).text("ok")).tool(fail)).await;
    assert_eq!(seen.tool_error(), "x".repeat(500));
    assert!(names(&runner, &key).await.is_empty());
}
