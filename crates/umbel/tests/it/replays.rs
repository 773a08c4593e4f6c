//! Recorded sessions that are run again, with the code of then and with other code.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use umbel::handlers::Approve;
use umbel::replay::{Difference, Part, Recording, Replay, Replayed, compare_requests};
use umbel::{
    AgentTool, Answer, AuthConfig, Confirm, Content, FunctionCall, FunctionTool, Handler, LlmAgent,
    LoopAgent, ModelTurn, Outcome, Parallel, Part as ContentPart, PlainAuth, Question, Result, RunConfig,
    Runner, RunnerBuilder, ScriptedModel, Sequential, SessionKey, Step, ToolSpec, handler,
};

use crate::evals::calls_once;
use crate::support::{Seen, read};

/// A tool that counts how often it is called for real, and writes the state.
fn counted(name: &'static str, called: &Arc<AtomicUsize>) -> FunctionTool {
    let called = called.clone();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    FunctionTool::raw(ToolSpec::new(name, "Counts.", schema), move |cx, _| {
        let count = called.fetch_add(1, Ordering::SeqCst) + 1;
        cx.set_state("count", count);
        Box::pin(async move { Ok(json!({"count": count}).into()) })
    })
}

/// Has a conversation with what the closure makes, answers what is asked by the second one, and records it.
async fn record(
    make: impl Fn() -> RunnerBuilder,
    messages: &[&str],
    answer: impl Fn(&umbel::Interrupt) -> Answer,
) -> (Runner, SessionKey, Recording) {
    let runner = make().build().unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    for message in messages {
        let mut seen: Seen = read(runner.run(&key, *message)).await;
        while let Outcome::Interrupted { interrupts } = &seen.outcome {
            let answers: Vec<_> = interrupts.iter().map(|asked| (asked, answer(asked))).collect();
            seen = read(runner.resume(&key, answers)).await;
        }
    }
    let recording = Recording::read(runner.sessions(), &key).await.unwrap().unwrap();
    (runner, key, recording)
}

fn yes(_: &umbel::Interrupt) -> Answer {
    Answer::approve()
}

async fn again(make: impl Fn() -> RunnerBuilder + Send + Sync + 'static, recording: &Recording) -> Replayed {
    Replay::new(move || Ok(make())).run(recording).await.unwrap()
}

fn parts(replayed: &Replayed) -> Vec<Part> {
    replayed.differences.iter().map(|difference| difference.part).collect()
}

fn assert_same(replayed: &Replayed) {
    assert!(replayed.is_same(), "{:#?}", replayed.differences);
}

/// The agent with an instruction and tools, on a model that knows nothing: all it says comes from the recording.
fn worker(instruction: &'static str, tools: Vec<FunctionTool>) -> impl Fn() -> RunnerBuilder {
    move || {
        let agent = LlmAgent::new("worker").instruction(instruction).model(ScriptedModel::new("demo"));
        Runner::builder("app", tools.iter().cloned().fold(agent, LlmAgent::tool))
    }
}

#[tokio::test]
async fn the_same_code_makes_the_same_and_calls_no_tool() {
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let make = move || {
        let agent = LlmAgent::new("worker").instruction("So far: {count?}").tool(counted("count", &count));
        Runner::builder("app", agent.model(calls_once("count", json!({"a": 1}))))
    };
    let (_, _, recording) = record(&make, &["one", "two"], yes).await;
    assert_eq!(called.load(Ordering::SeqCst), 2);
    let replayed = again(make.clone(), &recording).await;
    assert_same(&replayed);
    assert_eq!(called.load(Ordering::SeqCst), 2, "the tool was not called again");
    assert_eq!(replayed.requests.len(), 4);
    assert!(replayed.requests[3].request["instruction"].as_str().unwrap().starts_with("So far: 2"));
    let live = Replay::new(move || Ok(make())).live_tools().run(&recording).await.unwrap();
    assert_eq!(called.load(Ordering::SeqCst), 4, "now it was");
    assert_eq!(parts(&live).first(), Some(&Part::Events), "it counts on: {live:#?}");
}

#[tokio::test]
async fn approvals_are_given_as_they_were() {
    for (answer, made) in [
        (Answer::approve(), "{\"count\":1}"),
        (Answer::reject_because("not now"), "not now"),
        (Answer::edit(json!({"a": 5}).as_object().unwrap().clone()), "{\"count\":1}"),
    ] {
        let called = Arc::new(AtomicUsize::new(0));
        let count = called.clone();
        let make = move || {
            let agent = LlmAgent::new("worker").tool(counted("count", &count));
            let agent = agent.model(calls_once("count", json!({"a": 1})));
            Runner::builder("app", agent.handler(Approve::new().tool("count")))
        };
        let (_, _, recording) = record(&make, &["go", "again"], |_| answer.clone()).await;
        let before = called.load(Ordering::SeqCst);
        let log = format!("{:?}", recording.entries);
        assert!(log.contains(&made.replace('"', "\\\"")), "{log}");
        assert_same(&again(make, &recording).await);
        assert_eq!(called.load(Ordering::SeqCst), before, "nothing was done again");
    }
}

#[tokio::test]
async fn a_tool_that_needs_no_approval_any_more_is_a_difference_and_so_is_one_that_does_now() {
    let tool = |confirm: Confirm| {
        let spec = ToolSpec::new("act", "Acts.", json!({"type": "object"}));
        FunctionTool::raw(ToolSpec { confirm, ..spec }, |_, _| Box::pin(async { Ok(json!("done").into()) }))
    };
    let make = move |confirm: Confirm| {
        move || {
            let agent = LlmAgent::new("worker").tool(tool(confirm.clone()));
            Runner::builder("app", agent.model(calls_once("act", json!({}))))
        }
    };
    let (_, _, asked) = record(make(Confirm::Always), &["go"], yes).await;
    assert_same(&again(make(Confirm::Always), &asked).await);
    let replayed = again(make(Confirm::Never), &asked).await;
    let gone = replayed.differences.iter().find(|one| one.part == Part::Question).unwrap();
    assert!(gone.note.contains("is not now") && parts(&replayed).contains(&Part::Events), "{replayed:#?}");
    let (_, _, unasked) = record(make(Confirm::Never), &["go"], yes).await;
    let replayed = again(make(Confirm::Always), &unasked).await;
    let new = replayed.differences.iter().find(|one| one.part == Part::Question).unwrap();
    assert!(new.note.contains("about act") && new.note.contains("was not then"), "{replayed:#?}");
}

#[tokio::test]
async fn what_a_tool_asked_by_itself_is_asked_again() {
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let make = move || {
        let count = count.clone();
        let spec = ToolSpec::new("ask", "Asks.", json!({"type": "object"}));
        let ask = FunctionTool::raw(spec, move |cx, _| {
            count.fetch_add(1, Ordering::SeqCst);
            let said = cx.interrupt(Question::input("How many?"));
            Box::pin(async move { Ok(json!({"said": said?.payload}).into()) })
        });
        Runner::builder("app", LlmAgent::new("worker").model(calls_once("ask", json!({}))).tool(ask))
    };
    let (_, _, recording) = record(&make, &["go"], |_| Answer::input(7)).await;
    let before = called.load(Ordering::SeqCst);
    assert_same(&again(make, &recording).await);
    assert_eq!(called.load(Ordering::SeqCst), before);
}

#[tokio::test]
async fn credentials_are_asked_for_again_and_nobody_has_to_give_them() {
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let make = move || {
        let order = counted("order", &count).auth(AuthConfig::new("shop", PlainAuth::bearer()));
        Runner::builder("app", LlmAgent::new("worker").model(calls_once("order", json!({}))).tool(order))
    };
    let (_, _, recording) = record(&make, &["go"], |_| Answer::input("the key")).await;
    assert_eq!(called.load(Ordering::SeqCst), 1);
    assert_same(&again(make, &recording).await);
    assert_eq!(called.load(Ordering::SeqCst), 1);
}

/// Two scouts side by side, in a loop, and one who gets the conversation handed over.
fn team() -> RunnerBuilder {
    let scout = |name: &'static str| {
        let model = ScriptedModel::new("demo").text("one").text("two");
        LlmAgent::new(name).model(model).output_key(name)
    };
    let scouts = LoopAgent::new("again")
        .agent(Parallel::new("scouts").agent(scout("left")).agent(scout("right")))
        .max_iterations(2);
    let writer =
        LlmAgent::new("writer").instruction("{left} {right}").model(ScriptedModel::new("demo").text("end"));
    let plan = Sequential::new("plan").description("Plans.").agent(scouts).agent(writer);
    let model = ScriptedModel::new("demo").call("transfer_to_agent", json!({"agent_name": "plan"}));
    Runner::builder("app", LlmAgent::new("boss").model(model).sub_agent(plan))
}

#[tokio::test]
async fn teams_with_transfer_loops_and_branches_are_run_again() {
    let (_, _, recording) = record(team, &["go"], yes).await;
    let replayed = again(team, &recording).await;
    assert_same(&replayed);
    let places: Vec<String> = replayed.requests.iter().map(|sent| sent.place()).collect();
    assert_eq!(places.len(), 6, "{places:?}");
    let writer = replayed.requests.iter().find(|sent| sent.agent == "writer").unwrap();
    assert!(writer.request["instruction"].as_str().unwrap().starts_with("two two"), "{writer:?}");
    assert!(compare_requests(&replayed.requests, &again(team, &recording).await.requests).is_empty());
}

#[tokio::test]
async fn agents_that_are_called_as_tools_are_run_again_with_their_own_answers() {
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let make = move |instruction: &'static str| {
        let count = count.clone();
        move || {
            let inner = LlmAgent::new("scout").instruction(instruction).tool(counted("count", &count));
            let scout = AgentTool::new(inner.model(calls_once("count", json!({"a": 1}))));
            let model = calls_once("scout", json!({"request": "look"}));
            Runner::builder("app", LlmAgent::new("boss").model(model).tool(scout))
        }
    };
    let (_, _, recording) = record(make("Look."), &["go"], yes).await;
    assert_eq!((recording.children.len(), called.load(Ordering::SeqCst)), (1, 1));
    let before = again(make("Look."), &recording).await;
    assert_same(&before);
    assert_eq!((before.requests.len(), called.load(Ordering::SeqCst)), (4, 1));
    let after = again(make("Look well."), &recording).await;
    assert_same(&after);
    let differences = compare_requests(&before.requests, &after.requests);
    let places: Vec<&str> = differences.iter().map(|one| one.place.as_str()).collect();
    assert_eq!(places.len(), 2, "{differences:#?}");
    assert!(places.iter().all(|place| place.contains("scout under ")), "{places:?}");
    // Without the sessions of the calls, what the agents gave is known all the same.
    let alone = Recording { children: Vec::new(), ..recording };
    assert_same(&again(make("Look."), &alone).await);
}

#[tokio::test]
async fn exact_differences_of_requests_are_named_part_by_part() {
    let called = Arc::new(AtomicUsize::new(0));
    let (one, two) = (counted("one", &called), counted("two", &called));
    let make = worker("Be kind.", vec![one.clone(), two.clone()]);
    let recorded = || {
        let agent = LlmAgent::new("worker").instruction("Be kind.").model(calls_once("one", json!({"a": 1})));
        Runner::builder("app", agent.tool(one.clone()).tool(two.clone()))
    };
    let (_, _, recording) = record(recorded, &["go"], yes).await;
    let before = again(make, &recording).await;
    assert_same(&before);
    let other_schema = {
        let spec = ToolSpec::new(
            "one",
            "Counts.",
            json!({"type": "object", "properties": {"a": {"type": "string"}}}),
        );
        FunctionTool::raw(spec, |_, _| Box::pin(async { Ok(json!("never").into()) }))
    };
    for (instruction, tools, part, note) in [
        ("Be brief.", vec![one.clone(), two.clone()], Part::Instruction, ""),
        ("Be kind.", vec![one.clone()], Part::Tools, "removed: two"),
        ("Be kind.", vec![one.clone(), two.clone(), counted("three", &called)], Part::Tools, "added: three"),
        ("Be kind.", vec![two.clone(), one.clone()], Part::Tools, "in another order: two, one"),
        ("Be kind.", vec![other_schema, two.clone()], Part::Tools, "changed: one"),
    ] {
        let after = again(worker(instruction, tools), &recording).await;
        let found = compare_requests(&before.requests, &after.requests);
        assert_eq!(found.len(), 2, "both requests: {found:#?}");
        assert!(found.iter().all(|one| one.part == part && one.note == note), "{found:#?}");
        assert!(found[0].place.starts_with("run 1, worker, request 1"), "{}", found[0].place);
        assert_ne!(found[0].then, found[0].now);
    }
    assert_eq!(called.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_tool_that_was_removed_shows_in_the_events() {
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let recorded = move || {
        let agent = LlmAgent::new("worker").model(calls_once("count", json!({"a": 1})));
        Runner::builder("app", agent.tool(counted("count", &count)))
    };
    let (_, _, recording) = record(recorded, &["go"], yes).await;
    let replayed = again(worker("", vec![]), &recording).await;
    let Difference { then, now, .. } =
        replayed.differences.iter().find(|difference| difference.part == Part::Events).unwrap();
    assert!(then.contains("worker gets from count {\"count\":1}"), "{then}");
    assert!(then.contains("worker sets count = 1") && !now.contains("sets count"), "{now}");
    assert!(now.contains("worker gets from count {\"error\":"), "{now}");
    assert!(parts(&replayed).contains(&Part::Messages), "the model is told something else: {replayed:#?}");
}

/// Calls a tool before the model is asked.
#[derive(Debug)]
struct Asker;

#[handler]
impl Handler for Asker {
    fn name(&self) -> &str {
        "asker"
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let has_called = turn.history.iter().any(|content| content.has_calls());
        let call = FunctionCall::new("count", json!({"a": 3}).as_object().unwrap().clone());
        let call = Content::model(ContentPart::call(call));
        Ok(if has_called { Step::Continue } else { Step::Respond(call) })
    }
}

#[tokio::test]
async fn answers_that_the_recording_does_not_have_are_named() {
    let called = Arc::new(AtomicUsize::new(0));
    let talker = |texts: &'static [&'static str]| {
        move || {
            let model = texts.iter().fold(ScriptedModel::new("demo"), |model, text| model.text(*text));
            Runner::builder(
                "app",
                LoopAgent::new("twice")
                    .agent(LlmAgent::new("a").model(model))
                    .max_iterations(texts.len() as u32),
            )
        }
    };
    let (_, _, recording) = record(talker(&["one"]), &["go"], yes).await;
    let replayed = again(talker(&["one", "two"]), &recording).await;
    let missing = replayed.differences.iter().find(|one| one.part == Part::Answer).unwrap();
    assert!(missing.place.contains("a") && missing.note.contains("no answer"), "{replayed:#?}");
    assert!(parts(&replayed).contains(&Part::Events));

    // A handler that is new calls a tool which nobody called then.
    let count = called.clone();
    let recorded =
        || Runner::builder("app", LlmAgent::new("worker").model(ScriptedModel::new("demo").text("hi")));
    let (_, _, recording) = record(recorded, &["go"], yes).await;
    let after = move || {
        let agent = LlmAgent::new("worker").model(ScriptedModel::new("demo")).tool(counted("count", &count));
        Runner::builder("app", agent.handler(Asker))
    };
    let replayed = again(after, &recording).await;
    let missing = replayed.differences.iter().find(|one| one.part == Part::Result).unwrap();
    assert_eq!(missing.now, "count({\"a\":3})", "{replayed:#?}");
    assert_eq!(called.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn runs_that_failed_fail_again_and_are_continued_again() {
    let make = || {
        let model = ScriptedModel::new("demo").text("one").fail("out of order").text("two");
        Runner::builder("app", LlmAgent::new("a").model(model))
    };
    let runner = make().build().unwrap();
    let key = runner.create_session("ann").await.unwrap().key;
    read(runner.run(&key, "go")).await;
    assert!(matches!(read(runner.run(&key, "fail")).await.outcome, Outcome::Failed { .. }));
    read(runner.continue_run(&key)).await;
    let recording = Recording::read(runner.sessions(), &key).await.unwrap().unwrap();
    assert_same(&again(make, &recording).await);
}

#[tokio::test]
async fn state_from_outside_and_of_the_user_is_there_again() {
    let make = || {
        let agent =
            LlmAgent::new("a")
                .instruction("{colour} {user:name} {mood}")
                .model(ScriptedModel::from_fn("demo", |request| {
                    vec![Ok(umbel::Chunk::Text(request.instruction.text()))]
                }));
        Runner::builder("app", agent)
    };
    let runner = make().build().unwrap();
    let state = json!({"colour": "red", "user:name": "Ann"});
    let session = runner.create_session_with("ann", "s", state.as_object().unwrap().clone()).await.unwrap();
    let config = RunConfig {
        state_delta: json!({"mood": "glad"}).as_object().unwrap().clone(),
        ..RunConfig::default()
    };
    read(runner.run_with(&session.key, "hi", config)).await;
    let recording = Recording::read(runner.sessions(), &session.key).await.unwrap().unwrap();
    let replayed = again(make, &recording).await;
    assert_same(&replayed);
    let told = replayed.requests[0].request["instruction"].as_str().unwrap();
    assert!(told.starts_with("red Ann glad"), "{told}");
    assert!(
        Recording::read(runner.sessions(), &SessionKey::new("app", "ann", "no").unwrap())
            .await
            .unwrap()
            .is_none()
    );
}

#[tokio::test]
async fn an_agent_that_is_gone_is_a_difference_and_no_error() -> Result<()> {
    let (_, _, recording) = record(team, &["go"], yes).await;
    let boss = || Runner::builder("app", LlmAgent::new("boss").model(ScriptedModel::new("demo")));
    let replayed = again(boss, &recording).await;
    assert!(parts(&replayed).contains(&Part::Events), "{replayed:#?}");
    assert!(
        replayed.unknown_requests.iter().any(|one| one.contains("not what they were")),
        "{:?}",
        replayed.unknown_requests
    );
    assert!(
        replayed.unknown_requests.iter().any(|one| one.contains("writer")),
        "{:?}",
        replayed.unknown_requests
    );
    Ok(())
}

/// Calls a tool in the place of the model, by an id that another call had.
#[derive(Debug)]
struct Reuser;

#[handler]
impl Handler for Reuser {
    fn name(&self) -> &str {
        "reuser"
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let has_called = turn.history.iter().any(|content| content.has_calls());
        Ok(if has_called { Step::Continue } else { Step::Respond(called_c1(&json!({"a": 3}))) })
    }
}

fn called_c1(args: &serde_json::Value) -> Content {
    let mut call = FunctionCall::new("count", args.as_object().unwrap().clone());
    call.id = Some("c1".into());
    Content::model(ContentPart::call(call))
}

#[tokio::test]
async fn a_result_belongs_to_the_call_and_not_to_its_id_alone() {
    let called = Arc::new(AtomicUsize::new(0));
    let make = move |changed: bool| {
        let called = called.clone();
        move || {
            let model =
                ScriptedModel::new("demo").response(umbel::Response::new(called_c1(&json!({"a": 1}))));
            let agent = LlmAgent::new("worker").model(model.text("done")).tool(counted("count", &called));
            Runner::builder("app", if changed { agent.handler(Reuser) } else { agent })
        }
    };
    let (_, _, recording) = record(make(false), &["go"], yes).await;
    assert_same(&again(make(false), &recording).await);
    let replayed = again(make(true), &recording).await;
    let missing = replayed.differences.iter().find(|one| one.part == Part::Result);
    assert_eq!(missing.map(|one| one.now.as_str()), Some("count({\"a\":3})"), "{replayed:#?}");
}

#[tokio::test]
async fn nothing_is_written_to_the_store_that_the_closure_names() {
    let store = Arc::new(umbel::InMemorySessions::new());
    let sessions = store.clone();
    let make = move || {
        let agent = LlmAgent::new("worker").model(ScriptedModel::from_fn("demo", |_| {
            vec![Ok(umbel::Chunk::Complete(umbel::Response::text("hi")))]
        }));
        Runner::builder("app", agent).sessions(sessions.clone())
    };
    let (runner, key, recording) = record(&make, &["one", "two"], yes).await;
    assert_same(&again(make, &recording).await);
    let after = Recording::read(runner.sessions(), &key).await.unwrap().unwrap();
    assert_eq!(after.entries, recording.entries);
    assert_eq!(umbel::SessionStore::list(&store, "app", "ann").await.unwrap().len(), 1);
}

#[tokio::test]
async fn calls_whose_id_comes_again_have_each_its_own_result() {
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let make = move || {
        // Three calls of one id in each run, and then an answer.
        let model = ScriptedModel::from_fn("demo", |request| {
            let said = request.contents.iter().rposition(|content| {
                content.role == Some(umbel::Role::User) && content.responses().next().is_none()
            });
            let since = request.contents.iter().skip(said.unwrap_or_default());
            let content = match since.flat_map(|content| content.responses()).count() {
                3 => Content::model("done"),
                _ => {
                    let args = json!({"a": 1}).as_object().unwrap().clone();
                    let call = FunctionCall { id: Some("call_0".into()), ..FunctionCall::new("count", args) };
                    Content::new(umbel::Role::Model, [ContentPart::call(call)])
                }
            };
            vec![Ok(umbel::Chunk::Complete(umbel::Response::new(content)))]
        });
        Runner::builder("app", LlmAgent::new("worker").tool(counted("count", &count)).model(model))
    };
    let (_, _, recording) = record(&make, &["one", "two"], yes).await;
    assert_eq!(called.load(Ordering::SeqCst), 6);
    assert_same(&again(make, &recording).await);
    assert_eq!(called.load(Ordering::SeqCst), 6);
}
