//! Code that is found in answers and run, and what the model is told.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::handlers::Approve;
use umbel::{
    CodeExecution, CodeSpec, Content, Event, Fence, Handler, InMemoryArtifacts, Jump, LlmAgent, ModelTurn,
    NextTool, Outcome, Part, PlanAndAct, Response, Result, Role, Run, RunCode, RunConfig, RunLimits, Runner,
    ScriptedModel, SessionKey, Step, ToolCall, ToolErrors, ToolResult, handler,
};

use super::{Toy, agent, block, results, told};
use crate::support::{
    Notes, Seen, begin, call_with_id, calls, config, echo, read, run_once, said, state, stored,
    stored_answers, streaming, with_session,
};

/// What was said in a run of an agent with that executor.
async fn run_of<'a>(toy: &Toy, words: impl IntoIterator<Item = &'a str>) -> Seen {
    run_once(agent(words).0.code_executor(toy.clone())).await
}

#[tokio::test]
async fn code_between_words_is_run_and_the_model_reads_what_it_printed() {
    let toy = Toy::new();
    let first = format!("Let me see.\n{}\nIt will be 41.", block("print 42"));
    let (agent, model) = agent([first.as_str(), "It is 42."]);
    let (runner, key) = begin(agent.code_executor(toy.clone())).await;
    let seen = read(runner.run(&key, "6 * 7?")).await;
    let whole = seen.assert_finished().whole();
    assert_eq!(told(&whole), ["Let me see.\n", "> print 42", "= 42 (OK)", "It is 42."]);
    assert_eq!(toy.ran(), ["print 42"]);
    let code = serde_json::to_value(whole[0].content.as_ref().unwrap()).unwrap();
    let id = code["parts"][1]["executableCode"]["id"].as_str().unwrap();
    let form = json!({"id": id, "code": "print 42", "language": "PYTHON"});
    assert_eq!((&code["role"], &code["parts"][1]["executableCode"]), (&json!("model"), &form));
    assert_eq!(results(&whole), [json!({"id": id, "outcome": "OUTCOME_OK", "output": "42"})]);
    assert_eq!(whole.iter().map(|event| event.is_final()).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(stored_answers(&runner, &key).await, whole, "what was seen is stored");

    let requests = model.requests();
    let instruction = requests[0].instruction.text();
    assert!(instruction.contains("```tool_code\nprint(6 * 7)\n```"), "{instruction}");
    assert!(instruction.contains("```tool_output\n42\n```"), "{instruction}");
    let sent = &requests[1].contents;
    assert_eq!(
        said(&requests[1]),
        ["6 * 7?", "Let me see.\n```tool_code\nprint 42\n```", "```tool_output\n42\n```"]
    );
    let roles: Vec<_> = sent.iter().map(|content| content.role.clone().unwrap()).collect();
    assert_eq!(roles, [Role::User, Role::Model, Role::User]);
}

#[tokio::test]
async fn an_agent_without_an_executor_leaves_code_alone() {
    let words = block("print 42");
    let seen = run_once(agent([words.as_str()]).0).await;
    assert_eq!(told(&seen.assert_finished().whole()), [words]);
}

#[tokio::test]
async fn the_first_block_is_run_whatever_its_fence() {
    let toy = Toy::new();
    let words = format!("{}\n```tool_code\nprint 2\n```", block("print 1"));
    assert_eq!(told(&run_of(&toy, [words.as_str(), "ok"]).await.whole()), ["> print 1", "= 1 (OK)", "ok"]);
    let words = format!("```tool_code\nprint 2\n```\n{}", block("print 1"));
    assert_eq!(told(&run_of(&toy, [words.as_str(), "ok"]).await.whole()), ["> print 2", "= 2 (OK)", "ok"]);
    for words in ["```python\nprint 1", "```bash\nprint 1\n```", "```python\n\n```"] {
        assert_eq!(told(&run_of(&toy, [words]).await.assert_finished().whole()), [words]);
    }
    assert_eq!(toy.ran(), ["print 1", "print 2"]);
}

#[tokio::test]
async fn fences_may_be_others() {
    let toy = Toy::new();
    let execution = CodeExecution::new(toy.clone())
        .fences([Fence::new("<run>", "</run>"), Fence::named("sh")])
        .result_fence(Fence::new("<out>", "</out>"));
    let (agent, model) = agent(["<run>print 1</run>", "ok"]);
    run_once(agent.code_executor(execution)).await.assert_finished();
    assert_eq!(toy.ran(), ["print 1"]);
    let request = &model.requests()[1];
    assert_eq!(said(request)[1..], ["<run>print 1</run>", "<out>1</out>"]);
    assert!(request.instruction.text().contains("<run>print(6 * 7)</run>"));
    // The second fence of an executor is named after its language.
    let toy = Toy::with(CodeSpec::new("lua"));
    run_of(&toy, ["```lua\nprint 3\n```", "ok"]).await.assert_finished();
    assert_eq!(toy.ran(), ["print 3"]);
    assert_eq!(toy.inputs()[0].language, "lua");
}

fn response(parts: &Value) -> Response {
    Response::new(serde_json::from_value::<Content>(json!({"role": "model", "parts": parts})).unwrap())
}

#[tokio::test]
async fn a_part_with_code_is_run_unless_its_result_is_there() {
    let toy = Toy::new();
    let ran = json!({"executableCode": {"code": "print 1"}});
    let result = json!({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}});
    let open = json!({"executableCode": {"code": "print 2", "id": "theirs"}});
    let parts = json!([{"text": "first"}, ran, result, open, {"text": "behind"}]);
    let model = ScriptedModel::new("m")
        .response(response(&parts))
        .response(response(&json!([ran, result, {"text": "ok"}])));
    let seen = run_once(LlmAgent::new("a").model(model).code_executor(toy.clone())).await;
    let whole = seen.assert_finished().whole();
    assert_eq!(
        told(&whole),
        ["first", "> print 1", "= 1 (OK)", "> print 2", "= 2 (OK)", "> print 1", "= 1 (OK)", "ok"]
    );
    assert_eq!(toy.ran(), ["print 2"]);
    assert!(
        results(&whole)[1]["id"].as_str().unwrap().starts_with("adk-"),
        "code to be run has an id of ours"
    );
}

#[tokio::test]
async fn thoughts_are_not_run_but_what_a_planner_marked_is() {
    let toy = Toy::new();
    let thought = Part::thought(block("print 1"));
    let model = ScriptedModel::new("m").response(calls([thought, Part::text(block("print 2"))])).text("ok");
    let seen = run_once(LlmAgent::new("a").model(model).code_executor(toy.clone())).await;
    let whole = seen.assert_finished().whole();
    assert_eq!(told(&whole)[1..], ["> print 2", "= 2 (OK)", "ok"]);
    assert!(whole[0].content.as_ref().unwrap().parts[0].is_thought(), "a thought stays with the code");

    let toy = Toy::new();
    let (agent, _) = agent(["/*ACTION*/ ```python\nprint 3\n```", "/*FINAL_ANSWER*/ ok"]);
    run_once(agent.planner(PlanAndAct).code_executor(toy.clone())).await.assert_finished();
    assert_eq!(toy.ran(), ["print 3"]);
}

#[tokio::test]
async fn calls_beside_code_are_not_made() {
    let toy = Toy::new();
    let both = calls([Part::text(block("print 1")), call_with_id("c", "echo", json!({}))]);
    let part = response(
        &json!([{"functionCall": {"id": "d", "name": "echo"}}, {"executableCode": {"code": "print 2"}}]),
    );
    let model = ScriptedModel::new("m").response(both).response(part).text("ok");
    let seen = run_once(LlmAgent::new("a").model(model).tool(echo()).code_executor(toy.clone())).await;
    assert_eq!(
        told(&seen.assert_finished().whole()),
        ["> print 1", "= 1 (OK)", "> print 2", "= 2 (OK)", "ok"]
    );
}

#[tokio::test]
async fn code_that_fails_too_often_in_a_row_is_no_longer_run() {
    let toy = Toy::new();
    let (fail, fine) = (block("fail no b"), block("print 1"));
    let (agent, model) = agent([&fail, &fine, &fail, &fail, &fail, &fail, "ok"]);
    let (runner, key) = begin(agent.code_executor(toy.clone())).await;
    let seen = read(runner.run(&key, "go")).await;
    let whole = seen.assert_finished().whole();
    let why = "no b\n\nThe code failed.";
    let last = format!("= {why}\n\n{} (FAILED)", umbel::text::NO_MORE_CODE);
    let first = format!("= {why} (FAILED)");
    let expected =
        ["> fail no b", &first, "> print 1", "= 1 (OK)", "> fail no b", &first, "> fail no b", &last, &fail];
    assert_eq!(told(&whole), expected);
    assert!(whole.last().unwrap().is_final());
    assert_eq!(toy.ran().len(), 4);
    // What the user says next begins anew.
    read(runner.run(&key, "again")).await.assert_finished();
    assert_eq!(toy.ran().len(), 5);
    assert_eq!(model.requests().len(), 7);
}

#[tokio::test]
async fn how_often_code_may_fail_is_an_option() {
    for failures in [0, 1, 3] {
        let toy = Toy::new();
        let fail = block("fail");
        let model = ScriptedModel::from_fn("m", move |_| {
            vec![Ok(umbel::Chunk::Complete(Response::text(fail.clone())))]
        });
        let execution = CodeExecution::new(toy.clone()).max_failures(failures);
        run_once(LlmAgent::new("a").model(model).code_executor(execution)).await.assert_finished();
        assert_eq!(toy.ran().len(), failures as usize);
    }
}

#[tokio::test]
async fn an_executor_that_cannot_run_code_or_panics_is_a_result_that_says_so() {
    for (code, words) in [("break", "the machine is gone"), ("panic", "run_code")] {
        let toy = Toy::new();
        let seen = run_of(&toy, [block(code).as_str(), "ok"]).await;
        let result = &results(&seen.assert_finished().whole())[0];
        assert_eq!(result["outcome"], "OUTCOME_FAILED");
        assert!(result["output"].as_str().unwrap().contains(words), "{result}");
    }
    let words = block("break");
    let (agent, _) = agent([words.as_str()]);
    let (runner, key) = begin(agent.code_executor(Toy::new())).await;
    let fails = RunConfig { tool_errors: ToolErrors::Fail, ..RunConfig::default() };
    assert_eq!(read(runner.run_with(&key, "go", fails)).await.message(), "the machine is gone");
}

async fn with_artifacts(agent: LlmAgent) -> (Runner, SessionKey) {
    with_session(Runner::builder("app", agent).artifacts(InMemoryArtifacts::new()).build().unwrap()).await
}

#[tokio::test]
async fn files_that_code_leaves_are_artifacts() {
    let words = block("print drawn\nwrite plot.txt\nwrite user:me");
    let (agent, _) = agent([words.as_str(), "ok"]);
    let (runner, key) = with_artifacts(agent.code_executor(Toy::new())).await;
    let whole = read(runner.run(&key, "draw")).await.assert_finished().whole();
    assert_eq!(told(&whole)[1], "= drawn\n\nSaved artifacts:\n`plot.txt`, `user_me` (OK)");
    let delta = whole[1].actions.as_ref().unwrap().artifact_delta.clone().unwrap();
    assert_eq!(json!(delta), json!({"plot.txt": 0, "user_me": 0}));
    let store = runner.services().artifacts.as_ref().unwrap();
    let part = store.load(&key, "plot.txt", None).await.unwrap().unwrap();
    assert_eq!(*part, Part::data("text/plain", *b"written"));
}

#[tokio::test]
async fn files_without_a_place_for_them_are_told_of() {
    let words = block("write plot.txt");
    let seen = run_of(&Toy::new(), [words.as_str(), "ok"]).await;
    assert_eq!(told(&seen.assert_finished().whole())[1], format!("= {} (OK)", umbel::text::FILES_LOST));
}

#[tokio::test]
async fn code_that_streams_in_is_shown_and_run_once_it_is_whole() {
    let toy = Toy::new();
    let model =
        ScriptedModel::new("m").stream(["See: ", "```py", "thon\nprint 1\n``", "`"]).stream(["o", "k"]);
    let (runner, key) = begin(LlmAgent::new("a").model(model).code_executor(toy.clone())).await;
    let seen = read(runner.run_with(&key, "go", streaming())).await;
    let previews: Vec<_> = seen.assert_finished().partial().iter().map(|event| event.text()).collect();
    assert_eq!(previews, ["See: ", "```py", "thon\nprint 1\n``", "`", "o", "k"]);
    let whole = seen.whole();
    assert_eq!(told(&whole), ["See: ", "> print 1", "= 1 (OK)", "ok"]);
    assert_eq!(seen.partial()[0].id, whole[0].id, "previews belong to the event with the code");
    assert_eq!(toy.ran(), ["print 1"]);
}

#[tokio::test]
async fn what_an_executor_keeps_belongs_to_the_session() {
    for (spec, keeps) in [(CodeSpec::new("python"), false), (CodeSpec::new("python").stateful(), true)] {
        let toy = Toy::with(spec);
        let words = block("print 1");
        let (agent, _) = agent([words.as_str(), "ok"]);
        let (runner, key) = begin(agent.code_executor(toy.clone())).await;
        read(runner.run(&key, "go")).await.assert_finished();
        assert_eq!(toy.inputs()[0].session, keeps.then(|| key.clone()));
    }
}

#[tokio::test]
async fn the_model_is_told_whether_later_code_finds_what_earlier_code_defined() {
    let told = async |spec: CodeSpec| {
        let (agent, model) = agent(["ok"]);
        let agent = agent.code_executor(Toy::with(spec.clone()));
        run_once(agent.clone()).await.assert_finished();
        let tool = RunCode::new(Toy::with(spec));
        [model.requests()[0].instruction.text(), umbel::Tool::spec(&tool).description.to_string()]
    };
    for words in told(CodeSpec::new("python")).await {
        assert!(words.contains("each code starts anew"), "{words}");
    }
    for words in told(CodeSpec::new("python").stateful()).await {
        assert!(words.contains("are there for later code") && !words.contains("anew"), "{words}");
    }
}

/// Sees calls and events.
#[derive(Clone, Default)]
struct Watch(Notes);

#[handler]
impl Handler for Watch {
    fn name(&self) -> &str {
        "watch"
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        self.0.add(format!("{} {}", call.name(), json!(call.args)));
        next.call(call).await
    }

    fn on_event(&self, _: &Run, event: Event) -> Result<Event> {
        if !event.is_user() {
            self.0.add(told(&[Arc::new(event.clone())]).join(", "));
        }
        Ok(event)
    }
}

#[tokio::test]
async fn handlers_see_code_as_a_call_and_its_events() {
    let watch = Watch::default();
    let words = block("print 1");
    let (agent, _) = agent([words.as_str(), "ok"]);
    run_once(agent.code_executor(Toy::new()).handler(watch.clone())).await.assert_finished();
    assert_eq!(watch.0.all(), ["> print 1", r#"run_code {"code":"print 1"}"#, "= 1 (OK)", "ok"]);
}

/// Changes code in events.
struct Meddle;

#[handler]
impl Handler for Meddle {
    fn name(&self) -> &str {
        "meddle"
    }

    fn on_event(&self, _: &Run, mut event: Event) -> Result<Event> {
        if event.code_call().is_some() {
            event.content = Some(Arc::new(Content::model("nothing")));
        }
        Ok(event)
    }
}

#[tokio::test]
async fn code_that_is_about_to_run_cannot_be_changed_in_its_event() {
    let words = block("print 1");
    let toy = Toy::new();
    let (agent, _) = agent([words.as_str(), "ok"]);
    let seen = run_once(agent.code_executor(toy.clone()).handler(Meddle)).await;
    assert!(seen.message().contains(umbel::text::FIXED_IN_EVENTS), "{seen:?}");
    assert!(toy.ran().is_empty());
}

/// Ends the turn at the first answer, or speaks in its place.
struct Stop(Step);

#[handler]
impl Handler for Stop {
    fn name(&self) -> &str {
        "stop"
    }

    fn after_model(&self, _: &mut ModelTurn<'_>) -> Result<Step> {
        Ok(self.0.clone())
    }
}

#[tokio::test]
async fn a_handler_may_want_no_code_run() {
    let words = block("print 1");
    let skipped = format!("= {} (FAILED)", umbel::text::CALL_SKIPPED);
    for (step, expected) in [
        (Step::Jump(Jump::End), vec!["> print 1"]),
        (Step::Respond(Content::model("no")), vec!["> print 1", &skipped, "no"]),
    ] {
        let toy = Toy::new();
        let (agent, _) = agent([words.as_str()]);
        let seen = run_once(agent.code_executor(toy.clone()).handler(Stop(step))).await;
        assert_eq!(told(&seen.assert_finished().whole()), expected);
        assert!(toy.ran().is_empty());
    }
}

#[tokio::test]
async fn code_is_stopped_when_its_time_is_over() {
    for (spec, limit) in [
        (CodeSpec::new("python"), Duration::from_millis(20)),
        (CodeSpec::new("python").timeout(Duration::from_secs(60)), Duration::from_secs(600)),
    ] {
        let own = spec.timeout;
        let toy = Toy::with(spec);
        let words = block("hang");
        let (agent, _) = agent([words.as_str(), "ok"]);
        let limits = config(RunLimits { tool_time: limit, ..RunLimits::default() });
        let (runner, key) = begin(agent.code_executor(toy.clone())).await;
        if own.is_some() {
            tokio::time::pause();
        }
        let seen = read(runner.run_with(&key, "go", limits)).await;
        let result = &results(&seen.assert_finished().whole())[0];
        let words = if own.is_some() { "longer than 60 s" } else { "longer than 0.02 s" };
        assert!(result["output"].as_str().unwrap().contains(words), "{result}");
        assert_eq!(toy.notes.all(), ["hangs", "killed"]);
    }
}

#[tokio::test]
async fn cancelling_a_run_kills_its_code() {
    let toy = Toy::new();
    let words = block("hang");
    let (agent, _) = agent([words.as_str(), "ok"]);
    let (runner, key) = begin(agent.code_executor(toy.clone())).await;
    let mut stream = runner.run(&key, "go");
    let event = stream.next().await.unwrap().unwrap();
    assert_eq!(told(&[event]), ["> hang"]);
    let cancel = stream.cancel_token();
    let rest = tokio::spawn(read(stream));
    while toy.notes.all().is_empty() {
        tokio::task::yield_now().await;
    }
    cancel.cancel(umbel::CancelReason::Asked);
    assert_eq!(rest.await.unwrap().outcome, Outcome::Cancelled);
    assert_eq!(toy.notes.all(), ["hangs", "killed"]);
}

#[tokio::test]
async fn the_output_key_and_the_output_schema_are_for_answers_and_not_for_code() {
    let first = format!("Let me see.\n{}", block("print 1"));
    let (plain, _) = agent([first.as_str(), "ok"]);
    let (runner, key) = begin(plain.code_executor(Toy::new()).output_key("said")).await;
    read(runner.run(&key, "go")).await.assert_finished();
    assert_eq!(state(&runner, &key).await["said"], "Let me see.\nok");
    let (typed, _) = agent([first.as_str(), r#"{"n": 1}"#]);
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let (runner, key) = begin(typed.code_executor(Toy::new()).output_schema(schema).output_key("said")).await;
    read(runner.run(&key, "go")).await.assert_finished();
    assert_eq!(state(&runner, &key).await["said"], json!({"n": 1}));
}

#[tokio::test]
async fn other_agents_are_quoted_the_code_without_our_ids() {
    let words = block("print 1");
    let (coder, _) = agent([words.as_str(), "ok"]);
    let reader = ScriptedModel::new("r").recorded().text("read");
    let team = umbel::Sequential::new("team")
        .agent(coder.code_executor(Toy::new()))
        .agent(LlmAgent::new("b").model(reader.clone()));
    run_once(team).await.assert_finished();
    let sent = serde_json::to_string(&reader.requests()[0].contents.iter().collect::<Vec<_>>()).unwrap();
    assert!(sent.contains(r#""executableCode":{"code":"print 1","language":"PYTHON"}"#), "{sent}");
    assert!(sent.contains(r#""codeExecutionResult":{"outcome":"OUTCOME_OK","output":"1"}"#), "{sent}");
}

#[tokio::test]
async fn a_model_may_run_code_by_a_call() {
    let toy = Toy::new();
    let model = ScriptedModel::new("m")
        .recorded()
        .call("run_code", json!({"code": "print 1\nwrite a.txt"}))
        .call("run_code", json!({"code": "fail no b"}))
        .call("run_code", json!({}))
        .text("ok");
    let agent = LlmAgent::new("a").model(model.clone()).tool(RunCode::new(toy.clone()));
    let (runner, key) = with_artifacts(agent).await;
    let seen = read(runner.run(&key, "go")).await;
    assert_eq!(
        seen.assert_finished().responses()[..2],
        [
            json!({"outcome": "ok", "output": "1\n\nSaved artifacts:\n`a.txt`"}),
            json!({"outcome": "failed", "output": "no b\n\nThe code failed."}),
        ]
    );
    assert!(seen.responses()[2]["error"].as_str().unwrap().contains("`code` is missing"));
    assert!(model.requests()[0].tools.get("run_code").is_some());
    let stored = stored(&runner, &key).await;
    assert!(stored.iter().any(|event| event.actions.as_ref().is_some_and(|a| a.artifact_delta.is_some())));
}

#[tokio::test]
async fn a_handler_that_approves_calls_approves_code() {
    let toy = Toy::new();
    let words = block("print 1");
    let (agent, _) = agent([words.as_str(), "ok"]);
    let agent = agent.code_executor(toy.clone()).handler(Approve::new().tool("run_code"));
    let (runner, key) = begin(agent).await;
    let seen = read(runner.run(&key, "go")).await;
    assert!(toy.ran().is_empty());
    let asked = seen.interrupts()[0].clone();
    let seen = read(runner.resume(&key, [(&asked, umbel::Answer::approve())])).await;
    assert_eq!(told(&seen.assert_finished().whole()), ["= 1 (OK)", "ok"]);
}
