//! Code as a call that is counted, and told of in evaluations.

use serde_json::json;
use umbel::eval::{Eval, Judge, Suite};
use umbel::handlers::{Approve, LimitReached, ToolCallLimit, ToolLimitExit};
use umbel::{
    Answer, CodeExecution, Content, ErrorKind, LlmAgent, Part, Role, RunCode, Runner, ScriptedModel, text,
};

use super::{Toy, agent, block, results, told};
use crate::support::{begin, echo, read, run_once, state};

/// An agent whose model writes code again and again, and what runs it.
fn writes(times: usize, toy: &Toy) -> LlmAgent {
    let code = block("print 1");
    let (agent, _) = agent(std::iter::repeat_n(code.as_str(), times).chain(["done"]));
    agent.code_executor(toy.clone())
}

#[tokio::test]
async fn code_counts_as_a_call_and_is_refused_when_there_were_enough() {
    for (limit, tool) in
        [(ToolCallLimit::new().run(2), None), (ToolCallLimit::of("run_code").run(2), Some("run_code"))]
    {
        let toy = Toy::new();
        let seen = run_once(writes(3, &toy).handler(limit)).await;
        let results = results(&seen.assert_finished().whole());
        assert_eq!(toy.ran().len(), 2);
        assert_eq!((&results[1]["output"], &results[1]["outcome"]), (&json!("1"), &json!("OUTCOME_OK")));
        assert_eq!(results[2]["output"], text::tool_limit(tool));
        assert_eq!(results[2]["outcome"], "OUTCOME_FAILED");
        assert_eq!(told(&seen.whole()).last().unwrap(), "done");
    }
    // Calls of other tools are something else.
    let toy = Toy::new();
    run_once(writes(3, &toy).handler(ToolCallLimit::of("echo").run(1))).await.assert_finished();
    assert_eq!(toy.ran().len(), 3);
}

#[tokio::test]
async fn code_and_calls_count_together() {
    let toy = Toy::new();
    let model = ScriptedModel::new("m").call("echo", json!({"n": 1})).text(block("print 1")).text("done");
    let agent = LlmAgent::new("a").model(model).tool(echo()).code_executor(toy.clone());
    let seen = run_once(agent.handler(ToolCallLimit::new().run(1))).await;
    assert_eq!(seen.assert_finished().responses(), [json!({"n": 1})]);
    assert!(toy.ran().is_empty());
    // The tool of that name is counted once, as what it is.
    let toy = Toy::new();
    let model = ScriptedModel::new("m").call("run_code", json!({"code": "print 1"})).text("done");
    let agent = LlmAgent::new("a").model(model).tool(RunCode::new(toy.clone()));
    run_once(agent.handler(ToolCallLimit::new().run(1))).await.assert_finished();
    assert_eq!(toy.ran().len(), 1);
}

#[tokio::test]
async fn too_much_code_can_end_the_turn_or_fail_the_run() {
    let toy = Toy::new();
    let limit = || ToolCallLimit::new().run(1);
    let seen = run_once(writes(3, &toy).handler(limit().exit(ToolLimitExit::End))).await;
    let words = text::tool_limit_end(None, &text::calls_of(2, 1, "run"));
    assert_eq!(seen.assert_finished().texts().last().unwrap().1, words);
    assert_eq!((toy.ran().len(), results(&seen.whole()).len()), (1, 2));

    let toy = Toy::new();
    let seen = run_once(writes(3, &toy).handler(limit().exit(ToolLimitExit::Error))).await;
    assert_eq!((seen.kind(), toy.ran().len()), (ErrorKind::ToolCallLimit, 1));
    let error = seen.error.unwrap();
    let mut sources = std::iter::successors(std::error::Error::source(&error), |error| error.source());
    let reached = sources.find_map(|error| error.downcast_ref::<LimitReached>()).unwrap();
    assert_eq!((reached.run, reached.run_limit), (2, Some(1)));
}

#[tokio::test]
async fn a_session_remembers_how_often_code_was_run() {
    let toy = Toy::new();
    let code = block("print 1");
    let (agent, _) = agent([&code, "one", &code, "two", &code, "three"].map(|words| words as &str));
    let (runner, key) =
        begin(agent.code_executor(toy.clone()).handler(ToolCallLimit::new().session(2))).await;
    for ran in [1, 2, 2] {
        read(runner.run(&key, "go")).await.assert_finished();
        assert_eq!(toy.ran().len(), ran);
    }
    assert_eq!(state(&runner, &key).await["_umbel:calls:tool-call-limit"], 2);
}

#[tokio::test]
async fn code_counts_once_though_people_are_asked_about_it() {
    let toy = Toy::new();
    let agent = writes(2, &toy).handler(ToolCallLimit::new().run(2));
    let (runner, key) = begin(agent.handler(Approve::new().tool("run_code"))).await;
    let mut seen = read(runner.run(&key, "go")).await;
    for _ in 0..2 {
        let asked = seen.interrupts()[0].clone();
        seen = read(runner.resume(&key, [(&asked, Answer::approve())])).await;
    }
    assert_eq!(told(&seen.assert_finished().whole()), ["= 1 (OK)", "done"]);
    assert_eq!(toy.ran().len(), 2);
}

#[tokio::test]
async fn code_counts_once_in_a_session_though_something_else_is_said_before_people_answer() {
    let toy = Toy::new();
    let model = ScriptedModel::new("m").text(block("print 1")).text("Something else.").text("done");
    let agent = LlmAgent::new("a").model(model).code_executor(toy.clone());
    let agent = agent.handler(ToolCallLimit::new().session(1)).handler(Approve::new().tool("run_code"));
    let (runner, key) = begin(agent).await;
    let asked = read(runner.run(&key, "go")).await.interrupts()[0].clone();
    read(runner.run(&key, "and what about this?")).await;
    read(runner.resume(&key, [(&asked, Answer::approve())])).await.assert_finished();
    assert_eq!(toy.ran().len(), 1, "it was counted when people were asked");
}

#[tokio::test]
async fn a_look_at_a_table_is_not_counted() {
    let toy = Toy::new();
    let model = ScriptedModel::new("m").text(block("print 1")).text("done");
    let execution = CodeExecution::new(toy.clone()).data_files();
    let agent = LlmAgent::new("a").model(model).code_executor(execution);
    let (runner, key) = begin(agent.handler(ToolCallLimit::new().run(1))).await;
    let table = Content::new(Role::User, [Part::data("text/csv", *b"a\n1\n")]);
    read(runner.run(&key, table)).await.assert_finished();
    assert_eq!(toy.ran().len(), 2);
}

fn suite(case: &serde_json::Value) -> Suite {
    serde_json::from_value(json!({"case": [case]})).unwrap()
}

#[tokio::test]
async fn evaluations_see_code_as_a_call() {
    let eval = || {
        Eval::new(|| {
            let model = ScriptedModel::new("m").text(block("print 1")).text("done");
            let execution = CodeExecution::new(Toy::new()).data_files();
            Ok(Runner::builder("app", LlmAgent::new("a").model(model).code_executor(execution)))
        })
    };
    let table =
        json!({"role": "user", "parts": [{"inlineData": {"mimeType": "text/csv", "data": "YQoxCg=="}}]});
    for (user, tools, passes) in [
        (json!("go"), json!([{"name": "run_code", "args": {"code": "print 1"}}]), true),
        (json!("go"), json!([{"name": "run_code", "args": {"code": "print 2"}}]), false),
        (json!("go"), json!([]), false),
        // No model asked for code that looks at tables.
        (table, json!([{"name": "run_code", "args": {"code": "print 1"}}]), true),
    ] {
        let case = json!({"name": "x", "turn": [{"user": user, "tools": tools}]});
        let report = eval().run(&suite(&case)).await.unwrap();
        assert_eq!(report.passed(), passes, "{case}: {}", report.failures());
    }
    let judge = ScriptedModel::new("judge").recorded().text(r#"{"reason": "so", "holds": true}"#);
    let case = json!({"name": "x", "rubrics": ["It computes."], "turn": [{"user": "go"}]});
    let report = eval().judge(Judge::new(judge.clone()).samples(1)).run(&suite(&case)).await.unwrap();
    assert!(report.passed(), "{}", report.failures());
    let shown = serde_json::to_string(&judge.requests()[0].contents.iter().collect::<Vec<_>>()).unwrap();
    assert!(shown.contains("a calls run_code with") && shown.contains("run_code answers"), "{shown}");
}

#[tokio::test]
async fn evaluations_may_say_what_code_gives() {
    let toy = Toy::new();
    let ran = toy.clone();
    let eval = Eval::new(move || {
        let model = ScriptedModel::new("m").text(block("print 1")).text("done");
        Ok(Runner::builder("app", LlmAgent::new("a").model(model).code_executor(toy.clone())))
    });
    let mocks = json!([{"tool": "run_code", "result": {"outcome": "ok", "output": "made up"}}]);
    let case = json!({"name": "x", "mock": mocks, "turn": [{"user": "go", "response": {"exact": "done"}}]});
    let report = eval.run(&suite(&case)).await.unwrap();
    assert!(report.passed() && ran.ran().is_empty(), "{}", report.failures());
}
