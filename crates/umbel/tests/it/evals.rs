//! Cases that agents are measured by.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use umbel::eval::{Case, Eval, Judge, Metric, Report, Suite, Turn, validate};
use umbel::handlers::Approve;
use umbel::{
    AgentTool, Chunk, Content, FunctionCall, FunctionTool, LlmAgent, Money, Part, Price, Prices, Question,
    Response, Runner, RunnerBuilder, ScriptedModel, ToolSpec, Usage,
};

/// A model that calls a tool, and then says what it gave.
pub(crate) fn calls_once(tool: &'static str, args: Value) -> ScriptedModel {
    ScriptedModel::from_fn("demo", move |request| {
        let last = request.contents.last().unwrap();
        let answer = match last.responses().next() {
            None => {
                let args = args.as_object().cloned().unwrap_or_default();
                Response::new(Content::model(Part::call(FunctionCall::new(tool, args))))
            }
            Some(response) => Response::text(format!("It gave {}", json!(response.response))),
        };
        vec![Ok(Chunk::Complete(answer))]
    })
    .recorded()
}

/// An agent that calls the tool `add` and says what it gave. The tool counts how often it is called.
fn adder(called: &Arc<AtomicUsize>) -> RunnerBuilder {
    let model = calls_once("add", json!({"a": 1, "b": 2}));
    let called = called.clone();
    let spec = ToolSpec::new("add", "Adds.", json!({"type": "object", "properties": {"a": {}, "b": {}}}));
    let add = FunctionTool::raw(spec, move |cx, args| {
        called.fetch_add(1, Ordering::SeqCst);
        cx.set_state("last", args.get("a").cloned().unwrap_or_default());
        Box::pin(async { Ok(json!({"sum": 3}).into()) })
    });
    Runner::builder("adder", LlmAgent::new("adder").model(model).tool(add))
}

fn says(text: &'static str) -> Eval {
    Eval::new(move || {
        let model = ScriptedModel::new("demo").text(text).text(text);
        Ok(Runner::builder("talker", LlmAgent::new("talker").model(model)))
    })
}

fn suite(case: Value) -> Suite {
    let suite = [("case".to_owned(), Value::Array(vec![case]))];
    serde_json::from_value(Value::Object(suite.into_iter().collect())).unwrap()
}

async fn run(eval: &Eval, case: Value) -> Report {
    eval.run(&suite(case)).await.unwrap()
}

/// The score of a metric in the only run.
fn score(report: &Report, metric: Metric) -> f64 {
    report.cases[0].runs[0].metrics[&metric].score
}

#[tokio::test]
async fn answers_are_measured_by_what_they_say() {
    let eval = says("Paris: 21 °C.");
    for (response, metric, expected) in [
        (json!({"exact": " Paris: 21 °C.\n"}), Metric::Text, 1.0),
        (json!({"exact": "Paris"}), Metric::Text, 0.0),
        (json!({"contains": "21"}), Metric::Text, 1.0),
        (json!({"contains": ["21", "Rome"]}), Metric::Text, 0.5),
        (json!({"lacks": ["Rome", "Oslo"]}), Metric::Text, 1.0),
        (json!({"lacks": "Paris"}), Metric::Text, 0.0),
        (json!({"regex": "^Paris: \\d+ °C\\.$"}), Metric::Text, 1.0),
        (json!({"regex": "Rome"}), Metric::Text, 0.0),
        (json!({"like": "In Paris it is 21 °C"}), Metric::Overlap, 2.0 / 3.0),
        (json!({"schema": {"type": "object"}}), Metric::Schema, 0.0),
    ] {
        let report = run(&eval, json!({"name": "x", "turn": [{"user": "hi", "response": response}]})).await;
        assert!((score(&report, metric) - expected).abs() < 1e-9, "{response}: {report:?}");
        assert_eq!(report.passed(), (expected - 1.0).abs() < 1e-9, "{response}");
    }
    let case = json!({"name": "x", "turn": [{"user": "hi", "response": {
        "schema": {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}}}]});
    assert!(run(&says("```json\n{\"city\": \"Rome\"}\n```"), case.clone()).await.passed());
    let report = run(&says("{\"city\": 3}"), case).await;
    assert!(report.failures().contains("city"), "{}", report.failures());
}

#[tokio::test]
async fn calls_state_agents_and_limits_are_measured() {
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let eval = Eval::new(move || Ok(adder(&count)));
    for (case, metric, expected) in [
        (
            json!({"turn": [{"user": "go", "tools": [{"name": "add", "args": {"a": 1, "b": 2}}]}]}),
            Metric::Tools,
            1.0,
        ),
        (json!({"turn": [{"user": "go", "tools": []}]}), Metric::Tools, 0.0),
        (json!({"turn": [{"user": "go", "tools": [{"name": "add", "args": {"a": 1}}]}]}), Metric::Tools, 0.0),
        (
            json!({"turn": [{"user": "go", "args_match": "partial", "tools": [{"name": "add", "args": {"a": 1}}]}]}),
            Metric::Tools,
            1.0,
        ),
        (json!({"turn": [{"user": "go", "never": ["add"]}]}), Metric::Tools, 0.0),
        (json!({"turn": [{"user": "go", "never": ["other"]}]}), Metric::Tools, 1.0),
        (json!({"turn": [{"user": "go", "agent": "adder"}]}), Metric::Agent, 1.0),
        (json!({"turn": [{"user": "go", "agent": "other"}]}), Metric::Agent, 0.0),
        (json!({"turn": [{"user": "go"}], "state_after": {"last": 1.0, "none": null}}), Metric::State, 1.0),
        (json!({"turn": [{"user": "go"}], "state_after": {"last": 2, "none": null}}), Metric::State, 0.5),
        (json!({"turn": [{"user": "go"}], "limits": {"model_calls": 2}}), Metric::ModelCalls, 1.0),
        (json!({"turn": [{"user": "go"}], "limits": {"model_calls": 1}}), Metric::ModelCalls, 0.0),
        (json!({"turn": [{"user": "go"}], "limits": {"seconds": 60}}), Metric::Latency, 1.0),
        // A model that does not tell what it used is not taken as free.
        (json!({"turn": [{"user": "go"}], "limits": {"tokens": 1000000}}), Metric::Tokens, 0.0),
        (json!({"turn": [{"user": "go"}], "limits": {"cost": 1000000}}), Metric::Cost, 0.0),
    ] {
        let mut case = case;
        case["name"] = "x".into();
        let report = run(&eval, case.clone()).await;
        assert!((score(&report, metric) - expected).abs() < 1e-9, "{case}: {report:?}");
    }
    assert_eq!(called.load(Ordering::SeqCst), 15);
}

#[tokio::test]
async fn cases_can_be_written_in_code() {
    let called = Arc::new(AtomicUsize::new(0));
    let eval = Eval::new(move || Ok(adder(&called)));
    let said = "It gave {\"sum\":3}";
    for (turn, passes) in [
        (Turn::new("go").calls("add").contains("sum").like(said), true),
        (Turn::new("go").calls_with("add", json!({"a": 1, "b": 2})), true),
        (Turn::new("go").calls_with("add", json!({"a": 2, "b": 2})), false),
        (Turn::new("go").calls("add").calls("add"), false),
        (Turn::new("go").like("Something else"), false),
    ] {
        let suite = Suite { cases: vec![Case::new("x", [turn.clone()])], ..Suite::default() };
        assert_eq!(eval.run(&suite).await.unwrap().passed(), passes, "{turn:?}");
    }
}

#[tokio::test]
async fn time_that_a_tool_takes_is_measured() {
    let eval = Eval::new(|| {
        let model = ScriptedModel::new("demo").call("wait", json!({})).text("done");
        let spec = ToolSpec::new("wait", "Waits.", json!({"type": "object"}));
        let wait = FunctionTool::raw(spec, |_, _| {
            Box::pin(async {
                tokio::time::sleep(std::time::Duration::from_millis(30)).await;
                Ok(Value::Null.into())
            })
        });
        Ok(Runner::builder("waiter", LlmAgent::new("waiter").model(model).tool(wait)))
    });
    let report =
        run(&eval, json!({"name": "x", "turn": [{"user": "go"}], "limits": {"seconds": 0.01}})).await;
    assert!(report.cases[0].runs[0].spent.seconds >= 0.03 && !report.passed(), "{report:?}");
}

#[tokio::test]
async fn tokens_and_cost_are_those_that_models_tell_of() {
    let eval = Eval::new(|| {
        let mut response = Response::text("hi");
        let usage = Usage {
            prompt_token_count: Some(1_000),
            candidates_token_count: Some(100),
            total_token_count: Some(1_100),
            ..Usage::default()
        };
        response.meta_mut().usage_metadata = Some(usage);
        let model = ScriptedModel::new("demo").response(response);
        Ok(Runner::builder("talker", LlmAgent::new("talker").model(model)))
    });
    let price = Price::new(Money::dollars(1), Money::dollars(10));
    let eval = eval.prices(Prices::new().with("demo", price));
    // 1,000 for a thousandth of a dollar, and 100 for another.
    for (limits, passes) in [
        (json!({"tokens": 1100, "cost": 0.002}), true),
        (json!({"tokens": 1099}), false),
        (json!({"cost": 0.0019}), false),
    ] {
        let report = run(&eval, json!({"name": "x", "turn": [{"user": "hi"}], "limits": limits})).await;
        assert_eq!(report.passed(), passes, "{limits}: {report:?}");
    }
}

#[tokio::test]
async fn mocks_take_the_place_of_tools() {
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    let eval = Eval::new(move || Ok(adder(&count)));
    for (mocks, text) in [
        (json!([{"tool": "add", "result": {"sum": 7}}]), "{\"sum\":7}"),
        (
            json!([{"tool": "add", "args": {"a": 9}}, {"tool": "add", "args": {"a": 1}, "result": 8}]),
            "{\"result\":8}",
        ),
        (json!([{"tool": "add", "error": "no more numbers"}]), "no more numbers"),
        (json!([{"tool": "add", "times": 0, "result": 1}, {"tool": "add", "result": 2}]), "{\"result\":2}"),
    ] {
        let turn = json!({"user": "go", "response": {"contains": text}});
        let report = run(&eval, json!({"name": "x", "mock": mocks, "turn": [turn]})).await;
        assert!(report.passed(), "{}", report.failures());
    }
    let mocks = json!([{"tool": "add", "result": 1, "state": {"last": 5}}]);
    let case = json!({"name": "x", "mock": mocks, "turn": [{"user": "go"}], "state_after": {"last": 5}});
    assert!(run(&eval, case).await.passed());
    let alone = json!({"name": "x", "only_mocks": true, "turn": [
        {"user": "go", "response": {"contains": "no mock"}}]});
    assert!(run(&eval, alone).await.passed());
    assert_eq!(called.load(Ordering::SeqCst), 0, "no tool was called for real");
    let turn = json!({"user": "go"});
    run(&eval, json!({"name": "x", "mock": [{"tool": "add", "args": {"a": 9}}], "turn": [turn]})).await;
    assert_eq!(called.load(Ordering::SeqCst), 1, "what no mock fits is called");
}

/// An agent whose only tool needs an approval.
fn booker() -> RunnerBuilder {
    let model = calls_once("book", json!({"nights": 3}));
    let spec = ToolSpec::new("book", "Books.", json!({"type": "object", "properties": {"nights": {}}}));
    let book = FunctionTool::raw(spec, |_, args| {
        let booked = json!({"booked": args.get("nights")});
        Box::pin(async move { Ok(booked.into()) })
    });
    let agent = LlmAgent::new("booker").model(model).tool(book);
    Runner::builder("booker", agent.handler(Approve::new().tool("book")))
}

#[tokio::test]
async fn questions_are_answered_as_the_case_says() {
    let eval = Eval::new(|| Ok(booker()));
    for (answers, text) in [
        (json!([{"decision": "approve"}]), "{\"booked\":3}"),
        (json!([{"tool": "other", "decision": "reject"}, {"tool": "book"}]), "{\"booked\":3}"),
        (json!([{"when": {"nights": 3}, "args": {"nights": 1}}]), "{\"booked\":1}"),
        (json!([{"reason": "too dear"}]), "too dear"),
        (json!([{"respond": {"booked": "by hand"}}]), "by hand"),
    ] {
        let turn = json!({"user": "go", "response": {"contains": text}});
        let report = run(&eval, json!({"name": "x", "answer": answers, "turn": [turn]})).await;
        assert!(report.passed(), "{answers}: {}", report.failures());
    }
    let rejected = json!({"name": "x", "answer": [{"decision": "reject"}],
                          "turn": [{"user": "go", "response": {"lacks": "booked"}}]});
    assert!(run(&eval, rejected).await.passed());
    let none = run(&eval, json!({"name": "x", "turn": [{"user": "go"}]})).await;
    assert!((score(&none, Metric::Completed)).abs() < 1e-9);
    assert!(none.failures().contains("about `book`"), "{}", none.failures());
}

#[tokio::test]
async fn what_a_tool_asks_for_is_said_as_the_case_says() {
    let eval = Eval::new(|| {
        let spec = ToolSpec::new("ask", "Asks.", json!({"type": "object"}));
        let ask = FunctionTool::raw(spec, |cx, _| {
            let said = cx.interrupt(Question::input("How many?"));
            Box::pin(async move { Ok(json!({"said": said?.payload}).into()) })
        });
        Ok(Runner::builder("asker", LlmAgent::new("asker").model(calls_once("ask", json!({}))).tool(ask)))
    });
    let turn = json!({"user": "go", "response": {"contains": "{\"said\":7}"}});
    let report = run(&eval, json!({"name": "x", "answer": [{"input": 7}], "turn": [turn]})).await;
    assert!(report.passed(), "{}", report.failures());
}

/// An agent whose tool waits until two are called at once.
fn meeting() -> Eval {
    let both = Arc::new(tokio::sync::Barrier::new(2));
    Eval::new(move || {
        let both = both.clone();
        let spec = ToolSpec::new("meet", "Waits for another.", json!({"type": "object"}));
        let meet = FunctionTool::raw(spec, move |_, _| {
            let both = both.clone();
            Box::pin(async move {
                both.wait().await;
                Ok(Value::Null.into())
            })
        });
        Ok(Runner::builder("a", LlmAgent::new("a").model(calls_once("meet", json!({}))).tool(meet)))
    })
}

#[tokio::test]
async fn as_many_runs_go_on_at_once_as_one_says() {
    let suite = suite(json!({"name": "x", "runs": 2, "turn": [{"user": "go"}]}));
    let wait = |millis| std::time::Duration::from_millis(millis);
    assert!(tokio::time::timeout(wait(50), meeting().run(&suite)).await.is_err(), "one waits for ever");
    assert!(tokio::time::timeout(wait(30_000), meeting().jobs(2).run(&suite)).await.is_ok());
}

#[tokio::test]
async fn a_mocked_tool_still_asks_for_its_approval() {
    let eval = Eval::new(|| Ok(booker()));
    let mocks = json!([{"tool": "book", "result": "made up"}]);
    let unasked = run(&eval, json!({"name": "x", "mock": mocks, "turn": [{"user": "go"}]})).await;
    assert!(unasked.failures().contains("about `book`"), "{}", unasked.failures());
    let turn = json!({"user": "go", "response": {"contains": "made up"}});
    let asked = json!({"name": "x", "mock": mocks, "answer": [{"tool": "book"}], "turn": [turn]});
    assert!(run(&eval, asked).await.passed());
}

#[tokio::test]
async fn a_mock_answers_inside_an_agent_that_is_called_as_a_tool() {
    let eval = Eval::new(|| {
        let spec = ToolSpec::new("look", "Looks.", json!({"type": "object"}));
        let look = FunctionTool::raw(spec, |_, _| Box::pin(async { Ok(json!("real").into()) }));
        let inner = calls_once("look", json!({}));
        let scout = AgentTool::new(LlmAgent::new("scout").model(inner).tool(look)).skip_summarization();
        let model = ScriptedModel::new("demo").call("scout", json!({"request": "look"}));
        Ok(Runner::builder("boss", LlmAgent::new("boss").model(model).tool(scout)))
    });
    let turn = json!({"user": "go", "response": {"contains": "made up"}});
    let report =
        run(&eval, json!({"name": "x", "mock": [{"tool": "look", "result": "made up"}], "turn": [turn]}))
            .await;
    assert!(report.passed(), "{}", report.failures());
    assert_eq!(report.cases[0].runs[0].spent.model_calls, 3);
}

/// A judge that gives these verdicts, one after the other.
fn judge(verdicts: &[&str]) -> (ScriptedModel, Judge) {
    let model = verdicts.iter().fold(ScriptedModel::new("judge").recorded(), |model, text| model.text(*text));
    (model.clone(), Judge::new(model))
}

const YES: &str = r#"{"reason": "it does", "holds": true}"#;
const NO: &str = r#"{"reason": "it does not", "holds": false}"#;

#[tokio::test]
async fn rubrics_are_judged_by_the_majority() {
    let rubric = "It greets.";
    for (verdicts, samples, passes) in [
        (vec![YES], 1, true),
        (vec![NO], 1, false),
        (vec!["```json\n{\"reason\": \"\", \"holds\": true}\n```"], 1, true),
        (vec![YES, NO, YES], 3, true),
        (vec![NO, NO, YES], 3, false),
        (vec![YES, NO], 2, false),
        // One that cannot be read is no yes.
        (vec!["hm", YES, YES], 3, true),
        (vec!["hm", YES], 2, false),
        (vec!["hm", "hm", YES], 3, false),
        (vec!["hm", "hm", "hm", YES, YES], 5, false),
        (vec!["hm"], 1, false),
        (vec![r#"{"holds": "yes"}"#], 1, false),
    ] {
        let (model, judge) = judge(&verdicts);
        let eval = says("Hello!").judge(judge.samples(samples));
        let report = run(&eval, json!({"name": "x", "turn": [{"user": "hi", "rubrics": [rubric]}]})).await;
        assert_eq!(report.passed(), passes, "{verdicts:?}: {}", report.failures());
        let asked = model.requests();
        assert_eq!(asked.len(), samples as usize);
        let words = asked[0].contents.last().unwrap().text();
        assert!(
            words.contains(rubric) && words.contains("user: hi") && words.contains("talker: Hello!"),
            "{words}"
        );
        assert_eq!(asked[0].output_schema.as_ref().unwrap()["required"], json!(["reason", "holds"]));
    }
    let (_, judge) = judge(&[YES, NO]);
    let eval = says("Hello!").judge(judge);
    let case =
        json!({"name": "x", "rubrics": ["It ends."], "turn": [{"user": "hi", "rubrics": ["It greets."]}]});
    let report = run(&eval, case).await;
    assert!((score(&report, Metric::Rubrics) - 0.5).abs() < 1e-9, "{report:?}");
    assert!(report.failures().contains("It ends.") && report.failures().contains("it does not"));
}

#[tokio::test]
async fn what_goes_wrong_fails_its_case_alone() {
    let eval = Eval::new(|| {
        let model = ScriptedModel::from_fn("demo", |request| {
            let said = request.contents.last().unwrap().text();
            match said.as_str() {
                "fail" => vec![Err(umbel::Error::new(umbel::ErrorKind::Other, "out of order"))],
                _ => vec![Ok(Chunk::Text("fine".to_owned()))],
            }
        });
        Ok(Runner::builder("talker", LlmAgent::new("talker").model(model)))
    });
    let cases = vec![
        Case::new("fails", [Turn::new("fail"), Turn::new("hi").contains("fine")]),
        Case::new("works", [Turn::new("hi").contains("fine")]),
    ];
    let report = eval.jobs(2).run(&Suite { cases, ..Suite::default() }).await.unwrap();
    assert!((report.pass_rate() - 0.5).abs() < 1e-9 && !report.passed());
    assert!(report.failures().contains("out of order"), "{}", report.failures());
    assert_eq!(report.cases[1].name, "works");
    assert!(report.cases[1].runs[0].passed);
}

#[tokio::test]
async fn thresholds_and_gates_say_what_is_good_enough() {
    let suite = |extra: Value| -> Suite {
        let mut suite = json!({"case": [
            {"name": "half", "turn": [{"user": "hi", "response": {"contains": ["Hello", "Rome"]}}]},
            {"name": "whole", "turn": [{"user": "hi", "response": {"contains": "Hello"}}]},
        ]});
        suite.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        serde_json::from_value(suite).unwrap()
    };
    for (extra, passes) in [
        (json!({}), false),
        (json!({"thresholds": {"text": 0.5}}), true),
        (json!({"gates": {"min_pass": 0.5}}), true),
        (json!({"gates": {"min_pass": 0.51}}), false),
        (json!({"gates": {"min_pass": 0.0, "metrics": {"text": 0.75}}}), true),
        (json!({"gates": {"min_pass": 0.0, "metrics": {"text": 0.76}}}), false),
        // What nobody measures is not reached.
        (json!({"gates": {"min_pass": 0.0, "metrics": {"tools": 0.1}}}), false),
    ] {
        let report = says("Hello!").run(&suite(extra.clone())).await.unwrap();
        assert_eq!(report.passed(), passes, "{extra}: {}", report.failures());
    }
    let mut own = suite(json!({}));
    own.cases[0].thresholds.insert(Metric::Text, 0.5);
    assert!(says("Hello!").run(&own).await.unwrap().passed());
}

#[tokio::test]
async fn cases_are_repeated_and_each_run_is_told_of() {
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let eval = says("Hello!").jobs(3).on_run(move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let mut suite = suite(json!({"name": "x", "turn": [{"user": "hi"}]}));
    suite.runs = Some(2);
    assert_eq!(eval.run(&suite).await.unwrap().cases[0].runs.len(), 2);
    suite.cases[0].runs = Some(3);
    assert_eq!(eval.run(&suite).await.unwrap().cases[0].runs.len(), 3);
    assert_eq!(eval.clone().runs(4).run(&suite).await.unwrap().cases[0].runs.len(), 4);
    assert_eq!(told.load(Ordering::SeqCst), 9);
}

#[tokio::test]
async fn a_report_is_compared_with_an_earlier_one() {
    let case = json!({"name": "x", "turn": [{"user": "hi", "response": {"contains": ["Hello", "Ann"]}}]});
    let before = run(&says("Hello, Ann!"), case.clone()).await;
    let kept: Report = serde_json::from_str(&serde_json::to_string(&before).unwrap()).unwrap();
    assert_eq!(kept, before);
    assert!(run(&says("Hello, Ann!"), case.clone()).await.compare(&kept).is_empty());
    let changes = run(&says("Hello!"), case.clone()).await.compare(&kept);
    assert!(changes[0].is_regression() && changes[0].case == "x", "{changes:?}");
    assert_eq!((changes[1].metric, changes[1].was, changes[1].is), (Some(Metric::Text), 1.0, 0.5));
    let back = before.compare(&run(&says("Hello!"), case).await);
    assert!(back.len() == 2 && !back.iter().any(|change| change.is_regression()), "{back:?}");
}

#[tokio::test]
async fn a_case_is_run_so_many_times_at_most() {
    let case = |runs: u32| json!({"name": "x", "runs": runs, "turn": [{"user": "hi"}]});
    for (suite, eval) in [
        (json!({"runs": u32::MAX, "case": [{"name": "x", "turn": [{"user": "hi"}]}]}), says("Hello!")),
        (json!({"case": [case(umbel::eval::MOST_RUNS + 1)]}), says("Hello!")),
        (json!({"case": [case(1)]}), says("Hello!").runs(u32::MAX)),
    ] {
        let suite: Suite = serde_json::from_value(suite).unwrap();
        let error = eval.run(&suite).await.unwrap_err();
        assert!(error.message().contains("`x`") && error.message().contains("10000 are the most"), "{error}");
    }
}

#[tokio::test]
async fn cases_that_cannot_be_run_say_why() {
    let turn = json!([{"user": "hi"}]);
    for (suite, word) in [
        (json!({"case": []}), "no cases"),
        (json!({"case": [{"turn": turn}]}), "no name"),
        (json!({"case": [{"name": "x", "turn": turn}, {"name": "x", "turn": turn}]}), "two cases"),
        (json!({"case": [{"name": "x"}]}), "says nothing"),
        (json!({"case": [{"name": "x", "turn": [{}]}]}), "turn 1 of case `x` says nothing"),
        (json!({"case": [{"name": "x", "rubrics": ["r"], "turn": turn}]}), "nobody judges"),
        (json!({"case": [{"name": "x", "mock": [{"result": 1}], "turn": turn}]}), "names no tool"),
        (json!({"case": [{"name": "x", "turn": [{"user": "hi", "response": {"regex": "("}}]}]}), "no regex"),
        (
            json!({"case": [{"name": "x", "turn": [{"user": "hi", "response": {"schema": {"type": 3}}}]}]}),
            "schema",
        ),
        (json!({"case": [{"name": "x", "thresholds": {"tools": 2}, "turn": turn}]}), "between 0 and 1"),
        (json!({"gates": {"min_pass": -1}, "case": [{"name": "x", "turn": turn}]}), "min_pass"),
    ] {
        let suite: Suite = serde_json::from_value(suite.clone()).unwrap();
        let error = validate(&suite, false).unwrap_err();
        assert!(error.message().contains(word), "{word}: {error}");
        assert!(says("Hello!").run(&suite).await.is_err());
    }
    for unknown in
        [json!({"case": [], "cases": []}), json!({"case": [{"nam": 1}]}), json!({"gates": {"x": 1}})]
    {
        assert!(serde_json::from_value::<Suite>(unknown.clone()).is_err(), "{unknown}");
    }
}
