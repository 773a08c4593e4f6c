//! What a request is made of, and what processors, callbacks, plugins and handlers do with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use umbel::flow::{Answered, Draft, RequestProcessor, ResponseProcessor};
use umbel::{
    AgentTurn, BoxFuture, Capabilities, Chunk, Content, ErrorKind, Event, FunctionTool, GenerateConfig,
    Handler, Hooks, InMemoryArtifacts, IncludeContents, LlmAgent, ModelRequest, Outcome, Part, PlanAndAct,
    Plugin, Response, Result, Role, Run, RunConfig, Runner, ScriptedModel, Step, Thinking, ThinkingPlanner,
    Tool, ToolError, Toolset, Usage, Work,
};

use crate::support::{
    Notes, begin, changed, echo, fine, object, read, run_once, said, state, stored_answers, with_session,
};

/// Leaves its name in the instruction.
struct Spot(&'static str);

impl RequestProcessor for Spot {
    fn name(&self) -> &str {
        self.0
    }

    fn process<'a>(&'a self, step: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        step.request.instruction.push(self.0, self.0);
        Work::done(Ok(()))
    }
}

/// Who put the parts of the instruction there.
fn sources(request: &ModelRequest) -> Vec<String> {
    request.instruction.parts().iter().map(|part| part.source.to_string()).collect()
}

/// The first request of an agent.
async fn request_of(agent: LlmAgent) -> ModelRequest {
    let model = ScriptedModel::new("m").recorded().text("ok");
    run_once(agent.model(model.clone())).await.assert_finished();
    model.requests().remove(0)
}

#[test]
fn processors_have_names_and_an_order() {
    LlmAgent::new("a").processors(changed(|processors| {
        let names = [
            "basic",
            "auth",
            "confirmation",
            "instructions",
            "identity",
            "compaction",
            "data_files",
            "contents",
            "planning",
            "code_execution",
            "output_schema",
            "transfer",
            "display_names",
        ];
        assert_eq!(processors.request_names(), names);
    }));
}

#[tokio::test]
async fn processors_act_in_the_order_of_the_list() {
    let agent = LlmAgent::new("a").instruction("Be brief.").processors(changed(|processors| {
        processors.insert_before("instructions", Spot("first")).unwrap();
        processors.insert_after("identity", Spot("last")).unwrap();
        processors.insert_before("last", Spot("third")).unwrap();
    }));
    let request = request_of(agent).await;
    assert_eq!(sources(&request), ["first", "instruction", "identity", "third", "last"]);
    let text = request.instruction.text();
    assert!(text.starts_with("first\n\nBe brief.\n\n"), "{text}");
}

#[tokio::test]
async fn processors_can_be_replaced_and_removed() {
    let agent = LlmAgent::new("a")
        .processors(changed(|processors| processors.replace("identity", Spot("me")).unwrap()));
    assert_eq!(sources(&request_of(agent).await), ["me"]);
    let agent = LlmAgent::new("a").processors(changed(|processors| processors.remove("identity").unwrap()));
    assert!(sources(&request_of(agent).await).is_empty());
}

struct Stop;

impl RequestProcessor for Stop {
    fn name(&self) -> &str {
        "stop"
    }

    fn process<'a>(&'a self, step: &'a mut Draft<'_>) -> Work<'a, Result<()>> {
        Work::later(async move {
            step.emit(step.run.event().with_content(Content::model("not today"))).await?;
            step.stop();
            Ok(())
        })
    }
}

#[tokio::test]
async fn a_processor_can_answer_in_the_models_place() {
    let agent = LlmAgent::new("a").model(ScriptedModel::new("m"));
    let agent = agent.processors(changed(|processors| processors.insert_before("contents", Stop).unwrap()));
    assert_eq!(run_once(agent).await.assert_finished().texts(), [("a".into(), "not today".into())]);
}

struct Shout;

impl ResponseProcessor for Shout {
    fn name(&self) -> &str {
        "shout"
    }

    fn process<'a>(&'a self, answer: &'a mut Answered<'_>) -> Work<'a, Result<()>> {
        let said = answer.response.content.as_ref().map(|content| content.text());
        answer.response = Response::text(said.unwrap_or_default().to_uppercase());
        Work::done(Ok(()))
    }
}

#[tokio::test]
async fn response_processors_change_whole_answers() {
    let agent = LlmAgent::new("a").model(ScriptedModel::new("m").stream(["he", "llo"]));
    let (runner, key) = begin(agent.processors(changed(|processors| processors.add_response(Shout)))).await;
    let seen = read(runner.run_with(&key, "hi", RunConfig { streaming: true, ..RunConfig::default() })).await;
    assert_eq!(seen.partial().iter().map(|event| event.text()).collect::<Vec<_>>(), ["he", "llo"]);
    assert_eq!(seen.texts(), [("a".into(), "HELLO".into())]);
}

const PLANNED: &str = "/*PLANNING*/ think /*FINAL_ANSWER*/done";

#[tokio::test]
async fn a_planner_asks_for_a_plan_and_hides_it() {
    let model = ScriptedModel::new("m").recorded().text(PLANNED).text("ok");
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).planner(PlanAndAct)).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.texts(), [("a".into(), "done".into())]);
    let parts = &seen.events[0].content.as_ref().unwrap().parts;
    assert!(parts[0].is_thought());
    assert_eq!(parts[0].as_text(), Some(" think "));
    read(runner.run(&key, "more")).await.assert_finished();
    let requests = model.requests();
    assert!(sources(&requests[0]).contains(&"planner".to_owned()));
    // The planner marked the thought, so the model gets it back as plain text.
    assert!(
        requests[1].contents.iter().flat_map(|content| content.parts.iter()).all(|part| !part.is_thought())
    );
}

#[tokio::test]
async fn a_response_processor_can_be_removed() {
    let agent = LlmAgent::new("a").model(ScriptedModel::new("m").text(PLANNED)).planner(PlanAndAct);
    let seen = run_once(agent.processors(changed(|processors| processors.remove_response("planning")))).await;
    assert_eq!(seen.texts(), [("a".into(), PLANNED.into())]);
}

#[tokio::test]
async fn a_thinking_planner_sets_how_much_the_model_thinks() {
    let thinking = Thinking { include_thoughts: true, budget: Some(100), effort: None };
    let request = request_of(LlmAgent::new("a").planner(ThinkingPlanner(thinking))).await;
    assert_eq!(request.config.thinking, Some(thinking));
}

#[tokio::test]
async fn settings_and_labels_reach_the_request() {
    let model = ScriptedModel::new("m").recorded().text("ok");
    let config = json!({"temperature": 0.5, "labels": {"team": "a", "env": "test"}});
    let config: GenerateConfig = serde_json::from_value(config).unwrap();
    let (runner, key) = begin(LlmAgent::new("a").model(model.clone()).generate(config)).await;
    let run = RunConfig { labels: object(json!({"env": "prod"})), streaming: true, ..RunConfig::default() };
    read(runner.run_with(&key, "hi", run)).await.assert_finished();
    let request = model.requests().remove(0);
    assert_eq!(request.config.temperature, Some(0.5));
    assert_eq!(Value::Object(request.config.labels.clone()), json!({"team": "a", "env": "prod"}));
    assert!(request.stream);
    assert_eq!(request.model, "m");
}

#[tokio::test]
async fn instructions_are_filled_from_the_state_and_the_artifacts() {
    let model = ScriptedModel::new("m").recorded().text("ok");
    let agent = LlmAgent::new("a").model(model.clone()).global_instruction("App {app:name}.").instruction(
        "City {city}, {missing?}user {user:name}, temp {temp:x?}, file {artifact.note}, ${city} {not a name}.",
    );
    let artifacts = InMemoryArtifacts::new();
    let runner = Runner::builder("app", agent).artifacts(artifacts).build().unwrap();
    let first = object(json!({"city": "Rome", "user:name": "Ann", "app:name": "Umbel"}));
    let key = runner.create_session_with("ann", "s", first).await.unwrap().key;
    runner.services().artifacts.as_ref().unwrap().save(&key, "note", Part::text("hello")).await.unwrap();
    read(runner.run(&key, "hi")).await.assert_finished();
    let request = model.requests().remove(0);
    assert_eq!(sources(&request), ["global_instruction", "instruction", "identity"]);
    let parts = request.instruction.parts();
    assert_eq!(&*parts[0].text, "App Umbel.");
    assert_eq!(&*parts[1].text, "City Rome, user Ann, temp , file hello, ${city} {not a name}.");
}

#[tokio::test]
async fn a_hole_that_cannot_be_filled_fails_the_run() {
    let agent = |instruction: &str| LlmAgent::new("a").model(fine()).instruction(instruction);
    assert_eq!(run_once(agent("{city}")).await.kind(), ErrorKind::MissingState);
    assert_eq!(run_once(agent("{artifact.x?}")).await.kind(), ErrorKind::NoArtifactStore);
    let runner = Runner::builder("app", agent("{artifact.x}")).artifacts(InMemoryArtifacts::new());
    let (runner, key) = with_session(runner.build().unwrap()).await;
    assert_eq!(read(runner.run(&key, "hi")).await.kind(), ErrorKind::MissingArtifact);
}

#[tokio::test]
async fn an_instruction_made_by_a_function_is_taken_as_it_is() {
    let agent = LlmAgent::new("a")
        .global_instruction_fn(|_| Box::pin(async { Ok("all {x}".to_owned()) }))
        .instruction_fn(|run| Box::pin(async move { Ok(format!("{{raw}} {}", run.agent_name())) }));
    let text = request_of(agent).await.instruction.text();
    assert!(text.starts_with("all {x}\n\n{raw} a\n\n"), "{text}");
}

#[tokio::test]
async fn a_static_instruction_sends_the_other_one_among_the_messages() {
    let agent = LlmAgent::new("a").static_instruction("Never {changes}.").instruction("Today.");
    let request = request_of(agent).await;
    assert_eq!(&*request.instruction.parts()[0].text, "Never {changes}.");
    assert!(!request.instruction.text().contains("Today."));
    let said = said(&request);
    assert_eq!(said.len(), 2);
    assert!(said[0].contains("Today.") && said[1] == "hi", "{said:?}");
}

#[tokio::test]
async fn the_global_instruction_of_the_root_reaches_agents_below_it() {
    let below = ScriptedModel::new("below").recorded().text("ok");
    let model = ScriptedModel::new("m").call("transfer_to_agent", json!({"agent_name": "b"}));
    let b = LlmAgent::new("b").model(below.clone()).global_instruction("of b");
    run_once(LlmAgent::new("a").model(model).global_instruction("of a").sub_agent(b)).await.assert_finished();
    let text = below.requests()[0].instruction.text();
    assert!(text.starts_with("of a") && !text.contains("of b"), "{text}");
}

#[derive(Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
struct Weather {
    celsius: i32,
}

#[tokio::test]
async fn a_structured_answer_is_given_as_its_type() {
    let model = ScriptedModel::new("m")
        .recorded()
        .text(r#"{"celsius": 3}"#)
        .text("```json\n{\"celsius\": 4}\n```")
        .text("cold");
    let agent = LlmAgent::new("a").model(model.clone()).output::<Weather>().output_key("weather");
    let (runner, key) = begin(agent).await;
    assert_eq!(runner.run(&key, "hi").output::<Weather>().await.unwrap(), Weather { celsius: 3 });
    assert_eq!(state(&runner, &key).await, json!({"weather": {"celsius": 3}}));
    let request = model.requests().remove(0);
    assert!(request.output_schema.is_some());
    assert_eq!(request.config.response_mime_type.as_deref(), Some("application/json"));
    // Models like to put a fence around it.
    assert_eq!(runner.run(&key, "hi").output::<Weather>().await.unwrap(), Weather { celsius: 4 });
    let error = runner.run(&key, "hi").output::<Weather>().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOutput);
    assert_eq!(state(&runner, &key).await, json!({"weather": {"celsius": 4}}));
}

#[tokio::test]
async fn a_structured_answer_beside_tools_comes_through_the_answer_tool() {
    let model = ScriptedModel::new("m")
        .recorded()
        .call("echo", json!({}))
        .call("set_model_response", json!({"celsius": "warm"}))
        .call("set_model_response", json!({"celsius": 20}));
    let agent =
        LlmAgent::new("a").model(model.clone()).tool(echo()).output::<Weather>().output_key("weather");
    let (runner, key) = begin(agent).await;
    assert_eq!(runner.run(&key, "hi").output::<Weather>().await.unwrap(), Weather { celsius: 20 });
    assert_eq!(state(&runner, &key).await["weather"], json!({"celsius": 20}));
    let request = model.requests().remove(0);
    assert!(request.output_schema.is_none());
    assert!(sources(&request).contains(&"output_schema".to_owned()));
    let answers = crate::support::responses(&stored_answers(&runner, &key).await);
    assert!(answers[1]["error"].as_str().unwrap().contains("celsius"), "{answers:?}");
}

#[tokio::test]
async fn a_model_that_can_do_both_keeps_to_the_schema_while_it_calls_tools() {
    let model = ScriptedModel::new("m").recorded().capabilities(Capabilities::default().schema_with_tools());
    let model = model.text(r#"{"celsius": 1}"#);
    run_once(LlmAgent::new("a").model(model.clone()).tool(echo()).output::<Weather>())
        .await
        .assert_finished();
    let request = model.requests().remove(0);
    assert!(request.output_schema.is_some());
    assert!(request.tools.get("set_model_response").is_none());
}

#[tokio::test]
async fn an_output_key_gets_the_words_of_the_turn_without_thoughts() {
    let asks = Response::new(Content::new(
        Role::Model,
        [
            Part::thought("hm"),
            Part::text("One moment. "),
            Part::call(umbel::FunctionCall::new("echo", Default::default())),
        ],
    ));
    let model = ScriptedModel::new("m").response(asks).text("Done.");
    let (runner, key) = begin(LlmAgent::new("a").model(model).tool(echo()).output_key("answer")).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(state(&runner, &key).await, json!({"answer": "One moment. Done."}));
}

#[tokio::test]
async fn an_agent_can_be_sent_the_current_turn_only() {
    let model = ScriptedModel::new("m").recorded().text("one").call("echo", json!({})).text("two");
    let agent = LlmAgent::new("a").model(model.clone()).tool(echo()).include_contents(IncludeContents::None);
    let (runner, key) = begin(agent).await;
    read(runner.run(&key, "first")).await.assert_finished();
    read(runner.run(&key, "second")).await.assert_finished();
    let requests = model.requests();
    assert_eq!(said(&requests[1]), ["second"]);
    assert_eq!(requests[2].contents.len(), 3);
}

/// Tools that are found out when they are needed.
struct Shelf(Arc<AtomicUsize>);

impl Toolset for Shelf {
    fn name(&self) -> &str {
        "shelf"
    }

    fn tools<'a>(&'a self, _: &'a Run) -> BoxFuture<'a, Result<Vec<Arc<dyn Tool>>>> {
        let n = self.0.fetch_add(1, Ordering::SeqCst);
        let tool = FunctionTool::new(format!("tool_{n}"), "", move |_: Value| async move { Ok(n) });
        Box::pin(async move { Ok(vec![Arc::new(tool) as Arc<dyn Tool>]) })
    }

    fn instruction(&self, _: &Run) -> Option<Arc<str>> {
        Some("Mind the shelf.".into())
    }
}

#[tokio::test]
async fn a_toolset_is_asked_once_for_each_model_call() {
    let asked = Arc::new(AtomicUsize::new(0));
    let model =
        ScriptedModel::new("m").recorded().call("tool_0", json!({})).call("tool_0", json!({})).text("done");
    let agent = LlmAgent::new("a").model(model.clone()).toolset(Shelf(asked.clone())).tool(echo());
    let seen = run_once(agent).await;
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    let requests = model.requests();
    let names: Vec<_> = requests[1].tools.specs().map(|spec| spec.name.to_string()).collect();
    assert_eq!(names, ["echo", "tool_1"]);
    assert!(requests[0].instruction.text().ends_with("Mind the shelf."));
    assert_eq!(seen.responses()[0], json!({"result": 0}));
    assert!(seen.responses()[1]["error"].as_str().unwrap().contains("echo, tool_1"));
}

/// Finds tools of names that others have.
struct Shadow(&'static str);

impl Toolset for Shadow {
    fn name(&self) -> &str {
        "shadow"
    }

    fn tools<'a>(&'a self, _: &'a Run) -> BoxFuture<'a, Result<Vec<Arc<dyn Tool>>>> {
        let word = self.0;
        let tool = move |name: &str| {
            Arc::new(FunctionTool::new(name, "", move |_: Value| async move { Ok(word) })) as Arc<dyn Tool>
        };
        Box::pin(async move { Ok(["echo", "transfer_to_agent", "own"].map(tool).to_vec()) })
    }
}

/// Changes an agent's tools before its turn.
struct Changes;

impl Handler for Changes {
    fn name(&self) -> &str {
        "changes"
    }

    fn hooks(&self) -> Hooks {
        Hooks::BEFORE_AGENT
    }

    fn before_agent<'a>(&'a self, turn: &'a mut AgentTurn<'_>) -> Work<'a, Result<Step>> {
        turn.plan.add_tool(Arc::new(FunctionTool::new("more", "", |_: Value| async { Ok(1) })));
        Work::done(Ok(Step::Continue))
    }
}

#[tokio::test]
async fn a_toolset_takes_the_place_of_no_tool_that_is_there() {
    for changes in [false, true] {
        let model = || {
            let calls = ScriptedModel::new("m").call("echo", json!({"text": "hi"})).call("own", json!({}));
            calls.call("transfer_to_agent", json!({"agent_name": "b"})).text("done")
        };
        let agent = LlmAgent::new("a").model(model()).tool(echo());
        let agent = agent.toolset(Shadow("first")).toolset(Shadow("second"));
        let agent = agent.sub_agent(LlmAgent::new("b").description("Knows more.").model(fine()));
        let seen = run_once(if changes { agent.handler(Changes) } else { agent }).await;
        let results = seen.responses();
        assert!(!["first", "second"].contains(&results[0]["result"].as_str().unwrap_or_default()));
        assert_eq!(results[1], json!({"result": "first"}));
        assert!(seen.texts().iter().any(|(author, _)| author == "b"), "it is handed over");
    }
}

struct Broken;

impl Toolset for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn tools<'a>(&'a self, _: &'a Run) -> BoxFuture<'a, Result<Vec<Arc<dyn Tool>>>> {
        Box::pin(async { Err(umbel::Error::new(ErrorKind::Other, "the server is away")) })
    }
}

#[tokio::test]
async fn a_toolset_that_fails_fails_the_run() {
    let seen = run_once(LlmAgent::new("a").model(fine()).toolset(Broken)).await;
    assert_eq!(seen.error.unwrap().message(), "the server is away");
}

#[tokio::test]
async fn previews_share_the_id_of_the_whole_and_come_only_when_asked_for() {
    let script = || ScriptedModel::new("m").stream(["", "Hel", "", "lo"]);
    let seen = run_once(LlmAgent::new("a").model(script())).await;
    assert_eq!((seen.partial().len(), seen.texts()), (0, vec![("a".into(), "Hello".into())]));
    let (runner, key) = begin(LlmAgent::new("a").model(script())).await;
    let seen = read(runner.run_with(&key, "hi", RunConfig { streaming: true, ..RunConfig::default() })).await;
    let previews: Vec<_> = seen.partial().iter().map(|event| event.text()).collect();
    assert_eq!(previews, ["Hel", "lo"], "where nothing is said, nothing is shown");
    assert!(seen.events.iter().all(|event| event.id == seen.events[0].id));
    assert_eq!(stored_answers(&runner, &key).await, seen.whole());
}

#[tokio::test]
async fn what_came_before_a_restart_is_void() {
    let piece = |text: &str| Chunk::Delta(Response::text(text));
    let model = ScriptedModel::new("m").chunks([piece("no"), Chunk::Restart, piece("yes")]);
    let (runner, key) = begin(LlmAgent::new("a").model(model)).await;
    let seen = read(runner.run_with(&key, "hi", RunConfig { streaming: true, ..RunConfig::default() })).await;
    assert_eq!(seen.texts(), [("a".into(), "yes".into())]);
    let [first, void, second, whole] = &seen.events[..] else { panic!("{:?}", seen.events) };
    assert_eq!((first.text(), second.text()), ("no".into(), "yes".into()));
    assert!(void.is_partial() && void.content.is_none() && void.id == first.id);
    assert_eq!(void.error_code(), Some(umbel::text::ATTEMPT_REJECTED));
    assert!(second.id == whole.id && second.id != first.id);
}

/// An agent and a plugin that note all they are called for.
fn noting(notes: &Notes, model: ScriptedModel) -> Runner {
    macro_rules! note {
        ($who:literal, $hook:literal) => {{
            let notes = notes.clone();
            move || notes.add(concat!($who, " ", $hook))
        }};
    }
    macro_rules! hooks {
        ($target:expr, $who:literal) => {{
            let (ba, aa) = (note!($who, "before_agent"), note!($who, "after_agent"));
            let (bm, am) = (note!($who, "before_model"), note!($who, "after_model"));
            let (em, et) = (note!($who, "on_model_error"), note!($who, "on_tool_error"));
            let (bt, at) = (note!($who, "before_tool"), note!($who, "after_tool"));
            $target
                .before_agent(move |_| {
                    ba();
                    Box::pin(async { Ok(None) })
                })
                .after_agent(move |_| {
                    aa();
                    Box::pin(async { Ok(None) })
                })
                .before_model(move |_, _| {
                    bm();
                    Box::pin(async { Ok(None) })
                })
                .after_model(move |_, _| {
                    am();
                    Box::pin(async { Ok(None) })
                })
                .on_model_error(move |_, _, _| {
                    em();
                    Box::pin(async { Ok(None) })
                })
                .before_tool(move |_, _, _| {
                    bt();
                    Box::pin(async { Ok(None) })
                })
                .after_tool(move |_, _, _| {
                    at();
                    Box::pin(async { Ok(None) })
                })
                .on_tool_error(move |_, _, _| {
                    et();
                    Box::pin(async { Ok(None) })
                })
        }};
    }
    let fail = FunctionTool::new("fail", "", |_: Value| async { Err::<Value, _>(ToolError::new("no")) });
    let agent = hooks!(LlmAgent::new("a").model(model).tool(echo()).tool(fail), "agent");
    Runner::builder("app", agent).plugin(hooks!(Plugin::new("p"), "plugin")).build().unwrap()
}

#[tokio::test]
async fn plugins_are_called_before_the_agents_own_callbacks() {
    let notes = Notes::default();
    let (runner, key) =
        with_session(noting(&notes, ScriptedModel::new("m").call("echo", json!({})).text("ok"))).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    let both = |hook: &str| [format!("plugin {hook}"), format!("agent {hook}")];
    let hooks = ["before_agent", "before_model", "after_model", "before_tool", "after_tool"];
    let hooks = hooks.into_iter().chain(["before_model", "after_model", "after_agent"]);
    assert_eq!(notes.all(), hooks.flat_map(both).collect::<Vec<_>>());
}

#[tokio::test]
async fn error_callbacks_see_what_nobody_answered() {
    let notes = Notes::default();
    let model = ScriptedModel::new("m").call("fail", json!({})).call("nope", json!({})).fail("no power");
    let (runner, key) = with_session(noting(&notes, model)).await;
    assert_eq!(read(runner.run(&key, "hi")).await.code(), "MODEL_FAILED");
    let errors: Vec<_> = notes.all().into_iter().filter(|note| note.contains("on_")).collect();
    let expected = ["on_tool_error", "on_tool_error", "on_model_error"];
    let both = |hook: &str| [format!("plugin {hook}"), format!("agent {hook}")];
    assert_eq!(errors, expected.into_iter().flat_map(both).collect::<Vec<_>>());
    // An unknown tool has no result, so there is nothing after it; and a failed run has no end of its agent.
    assert_eq!(notes.all().iter().filter(|note| note.ends_with("after_tool")).count(), 2);
    assert!(!notes.all().iter().any(|note| note.ends_with("after_agent")));
}

#[tokio::test]
async fn before_model_answers_in_the_models_place_and_writes_state() {
    let model = ScriptedModel::new("m").recorded();
    let agent = LlmAgent::new("a").model(model.clone()).before_model(|cx, request| {
        Box::pin(async move {
            cx.set_state("asked", said(request).len());
            Ok(Some(Response::text("cached")))
        })
    });
    let (runner, key) = begin(agent).await;
    assert_eq!(read(runner.run(&key, "hi")).await.texts(), [("a".into(), "cached".into())]);
    assert_eq!(state(&runner, &key).await, json!({"asked": 1}));
    assert!(model.requests().is_empty());
}

#[tokio::test]
async fn before_model_changes_the_request() {
    let model = ScriptedModel::new("m").recorded().text("ok");
    let agent = LlmAgent::new("a").model(model.clone()).before_model(|_, request| {
        request.contents.push(Content::user("and be nice"));
        Box::pin(async { Ok(None) })
    });
    run_once(agent).await.assert_finished();
    assert_eq!(said(&model.requests()[0]), ["hi", "and be nice"]);
}

#[tokio::test]
async fn a_plugins_answer_goes_before_the_agents() {
    let answer = |text: &'static str| move || Box::pin(async move { Ok(Some(Response::text(text))) });
    let (agents, plugins) = (answer("agent"), answer("plugin"));
    let agent = LlmAgent::new("a").model(ScriptedModel::new("m")).before_model(move |_, _| agents());
    let runner = Runner::builder("app", agent).plugin(Plugin::new("p").before_model(move |_, _| plugins()));
    let (runner, key) = with_session(runner.build().unwrap()).await;
    assert_eq!(read(runner.run(&key, "hi")).await.texts(), [("a".into(), "plugin".into())]);
}

#[tokio::test]
async fn after_model_replaces_an_answer_and_keeps_what_it_cost() {
    let mut answer = Response::text("rude");
    answer.meta_mut().usage_metadata = Some(Usage { prompt_token_count: Some(7), ..Usage::default() });
    let agent =
        LlmAgent::new("a").model(ScriptedModel::new("m").response(answer)).after_model(|_, response| {
            let polite = response.content.as_ref().map(|content| content.text().replace("rude", "polite"));
            Box::pin(async move { Ok(polite.map(Response::text)) })
        });
    let seen = run_once(agent).await;
    assert_eq!(seen.texts(), [("a".into(), "polite".into())]);
    let usage = seen.events[0].meta.as_ref().unwrap().usage_metadata.clone().unwrap();
    assert_eq!(usage.prompt_token_count, Some(7));
}

#[tokio::test]
async fn after_model_sees_each_piece_of_a_stream_once() {
    let notes = Notes::default();
    let told = notes.clone();
    let preview = |text: &str| Chunk::Complete(Response { partial: Some(true), ..Response::text(text) });
    let model = ScriptedModel::new("m")
        .stream(["a", "b"])
        .chunks([preview("c"), Chunk::Complete(Response::text("cd"))]);
    let agent = LlmAgent::new("a").model(model).after_model(move |_, response| {
        told.add(response.content.as_ref().unwrap().text());
        Box::pin(async { Ok(None) })
    });
    let (runner, key) = begin(agent).await;
    for _ in 0..2 {
        let config = RunConfig { streaming: true, ..RunConfig::default() };
        read(runner.run_with(&key, "hi", config)).await.assert_finished();
    }
    assert_eq!(notes.all(), ["a", "b", "ab", "c", "cd"]);
}

#[tokio::test]
async fn on_model_error_answers_for_a_model_that_failed() {
    for model in [ScriptedModel::new("m").fail("no power"), ScriptedModel::new("m").break_off(["half"])] {
        let agent = LlmAgent::new("a").model(model).on_model_error(|_, request, error| {
            let text = format!("{}: {}", request.model, error.kind().code());
            Box::pin(async move { Ok(Some(Response::text(text))) })
        });
        let seen = run_once(agent).await;
        assert!(seen.texts()[0].1.starts_with("m: "), "{:?}", seen.texts());
        seen.assert_finished();
    }
}

#[tokio::test]
async fn tool_callbacks_change_arguments_answer_and_replace() {
    let model = ScriptedModel::new("m")
        .call("echo", json!({"n": 1}))
        .call("echo", json!({"skip": true}))
        .call("echo", json!({"n": 2, "hide": true}))
        .text("done");
    let agent = LlmAgent::new("a")
        .model(model)
        .tool(echo())
        .before_tool(|_, tool, args| {
            assert_eq!(tool.unwrap().spec().name, "echo");
            args.insert("seen".into(), json!(true));
            let skip = args.contains_key("skip");
            Box::pin(async move { Ok(skip.then(Default::default)) })
        })
        .after_tool(|_, args, result| {
            let hide = args.contains_key("hide") && result.contains_key("n");
            Box::pin(async move { Ok(hide.then(|| object(json!({"hidden": true})))) })
        });
    let seen = run_once(agent).await;
    assert_eq!(seen.responses(), [json!({"n": 1, "seen": true}), json!({}), json!({"hidden": true})]);
}

#[tokio::test]
async fn on_tool_error_answers_for_a_tool_that_failed_or_does_not_exist() {
    let fail = FunctionTool::new("fail", "", |_: Value| async { Err::<Value, _>(ToolError::new("no")) });
    let model = ScriptedModel::new("m").call("fail", json!({})).call("nope", json!({})).text("done");
    let agent = LlmAgent::new("a").model(model).tool(fail).on_tool_error(|cx, _, _| {
        let name = cx.tool_name().to_owned();
        Box::pin(async move { Ok(Some(object(json!({"instead": name})))) })
    });
    let seen = run_once(agent).await;
    assert_eq!(seen.responses(), [json!({"instead": "fail"}), json!({"instead": "nope"})]);
}

#[tokio::test]
async fn before_agent_answers_in_the_agents_place_and_after_agent_adds() {
    let before = LlmAgent::new("a")
        .model(ScriptedModel::new("m"))
        .before_agent(|_| Box::pin(async { Ok(Some(Content::model("closed"))) }))
        .after_agent(|_| Box::pin(async { Ok(Some(Content::model("never"))) }));
    assert_eq!(run_once(before).await.assert_finished().texts(), [("a".into(), "closed".into())]);
    let after = LlmAgent::new("a").model(fine()).after_agent(|cx| {
        cx.set_state("done", true);
        Box::pin(async { Ok(Some(Content::model("bye"))) })
    });
    let (runner, key) = begin(after).await;
    let texts = read(runner.run(&key, "hi")).await.texts();
    assert_eq!(texts, [("a".into(), "fine".into()), ("a".into(), "bye".into())]);
    assert_eq!(state(&runner, &key).await, json!({"done": true}));
}

fn broken<T: Send + 'static>() -> BoxFuture<'static, Result<T>> {
    Box::pin(async { Err(umbel::Error::new(ErrorKind::Other, "ouch")) })
}

#[tokio::test]
async fn an_error_in_a_plugin_names_the_plugin_and_the_hook() {
    let new = || Plugin::new("p");
    let plugins = [
        ("on_user_message", new().on_user_message(|_, _| broken())),
        ("before_run", new().before_run(|_| broken())),
        ("before_agent", new().before_agent(|_| broken())),
        ("before_model", new().before_model(|_, _| broken())),
        ("after_model", new().after_model(|_, _| broken())),
        ("before_tool", new().before_tool(|_, _, _| broken())),
        ("after_tool", new().after_tool(|_, _, _| broken())),
        ("on_tool_error", new().on_tool_error(|_, _, _| broken())),
        ("on_model_error", new().on_model_error(|_, _, _| broken())),
        ("on_event", new().on_event(|_, _| broken())),
        ("after_agent", new().after_agent(|_| broken())),
        ("after_run", new().after_run(|_, _| broken())),
    ];
    for (hook, plugin) in plugins {
        let mut model = ScriptedModel::new("m").call("echo", json!({}));
        model = if hook == "on_tool_error" { model.call("nope", json!({})) } else { model };
        model = if hook == "on_model_error" { model.fail("no") } else { model.text("ok") };
        let agent = LlmAgent::new("a").model(model).tool(echo());
        let (runner, key) = with_session(Runner::builder("app", agent).plugin(plugin).build().unwrap()).await;
        let seen = read(runner.run(&key, "hi")).await;
        let message = seen.error.as_ref().unwrap_or_else(|| panic!("{hook}")).message().to_owned();
        assert_eq!(
            (seen.kind(), message),
            (ErrorKind::Handler, format!("plugin `p` failed in `{hook}`: ouch"))
        );
    }
    let runner = Runner::builder("app", LlmAgent::new("a").model(fine())).plugin(new().on_close(broken));
    let error = runner.build().unwrap().close().await.unwrap_err();
    assert_eq!(error.message(), "plugin `p` failed in `close`: ouch");
}

#[tokio::test]
async fn what_a_plugin_gives_for_an_event_is_laid_over_it() {
    let model = ScriptedModel::new("m").text("secret");
    let plugin = Plugin::new("p").on_event(|_, event| {
        let mut over = Event { id: "other".into(), timestamp: 1.0, ..Event::default() };
        over.content = event.text().contains("secret").then(|| Arc::new(Content::model("***")));
        Box::pin(async move { Ok(Some(over)) })
    });
    let runner = Runner::builder("app", LlmAgent::new("a").model(model).output_key("k")).plugin(plugin);
    let (runner, key) = with_session(runner.build().unwrap()).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.texts(), [("a".into(), "***".into())]);
    assert!(seen.events[0].id != "other" && seen.events[0].timestamp > 1.0);
    assert_eq!(seen.events[0].state_delta().unwrap()["k"], "secret");
    assert_eq!(stored_answers(&runner, &key).await, seen.events);
}

#[tokio::test]
async fn a_plugin_changes_the_message_and_answers_in_the_place_of_all() {
    let model = ScriptedModel::new("m").recorded().text("ok");
    let plugin = Plugin::new("p")
        .on_user_message(|_, message| {
            let louder = Content::user(message.text().to_uppercase().as_str());
            Box::pin(async move { Ok(Some(louder)) })
        })
        .before_run(|run| {
            let closed = run.input().unwrap().text() == "CLOSED?";
            Box::pin(async move { Ok(closed.then(|| Content::model("yes"))) })
        });
    let runner = Runner::builder("app", LlmAgent::new("a").model(model.clone())).plugin(plugin);
    let (runner, key) = with_session(runner.build().unwrap()).await;
    read(runner.run(&key, "hi")).await.assert_finished();
    assert_eq!(said(&model.requests()[0]), ["HI"]);
    assert_eq!(
        read(runner.run(&key, "closed?")).await.assert_finished().texts(),
        [("model".into(), "yes".into())]
    );
}

/// A handler with all hooks.
struct Diary(Notes);

impl Handler for Diary {
    fn name(&self) -> &str {
        "diary"
    }

    fn on_input<'a>(&'a self, run: &'a Run, input: Arc<Content>) -> Work<'a, Result<Arc<Content>>> {
        self.0.add(format!("on_input {} after {}", input.text(), run.events().len()));
        Work::done(Ok(input))
    }

    fn before_run<'a>(&'a self, _: &'a Run) -> Work<'a, Result<Option<Content>>> {
        self.0.add("before_run");
        Work::done(Ok(None))
    }

    fn on_event<'a>(&'a self, _: &'a Run, mut event: Event) -> Work<'a, Result<Event>> {
        self.0.add(format!("on_event {}", event.text()));
        event.turn_complete = Some(true);
        Work::done(Ok(event))
    }

    fn after_run<'a>(&'a self, _: &'a Run, outcome: &'a Outcome) -> Work<'a, Result<()>> {
        self.0.add(format!("after_run {outcome:?}"));
        Work::done(Ok(()))
    }

    fn close(&self) -> Work<'_, Result<()>> {
        self.0.add("close");
        Work::done(Ok(()))
    }
}

#[tokio::test]
async fn a_handler_surrounds_the_whole_run() {
    let notes = Notes::default();
    let runner = Runner::builder("app", LlmAgent::new("a").model(fine())).handler(Diary(notes.clone()));
    let (runner, key) = with_session(runner.build().unwrap()).await;
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.events[0].turn_complete, Some(true));
    read(runner.run(&key, "again")).await.assert_finished();
    runner.close().await.unwrap();
    let once = |input: &str| {
        let input = format!("on_input {input}");
        [input, "before_run".into(), "on_event fine".into(), "after_run Finished".into()]
    };
    let expected: Vec<String> =
        once("hi after 0").into_iter().chain(once("again after 2")).chain(["close".to_owned()]).collect();
    assert_eq!(notes.all(), expected);
}
