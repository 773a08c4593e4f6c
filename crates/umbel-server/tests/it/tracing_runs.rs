//! Where the time of runs goes: recorded, and as the log tells it.

use std::sync::{Arc, OnceLock};

use http::Method;
use serde_json::{Value, json};
use tracing_subscriber::layer::SubscriberExt;
use umbel::handlers::{EventFilter, ModelRetry};
use umbel::layers::Timeout;
use umbel::usage::{Money, Price, Prices};
use umbel::{
    AgentTool, Chunk, Content, Error, FunctionTool, Handler, InMemorySessions, LlmAgent, LoopAgent, Mode,
    ModelTurn, Outcome, Parallel, Response, Result, Run, Runner, Sequential, Step, ToolError, Usage, handler,
};
use umbel_server::{AgentEndpoint, Server, TraceLimits, Traces};

use crate::desk::{ByName, Slowly, answers, ask, call, end, offered, results, say, serve, talker, user};
use crate::support::{Host, input};

/// What all tests of this process record into: a process has one subscriber.
fn recorded() -> Traces {
    static TRACES: OnceLock<Traces> = OnceLock::new();
    let traces = TRACES.get_or_init(|| {
        let traces = Traces::new();
        let subscriber = tracing_subscriber::registry().with(traces.layer()).with(few().layer());
        tracing::subscriber::set_global_default(subscriber).unwrap();
        traces
    });
    traces.clone()
}

/// The same, with little room.
fn few() -> Traces {
    static FEW: OnceLock<Traces> = OnceLock::new();
    FEW.get_or_init(|| Traces::with_limits(TraceLimits { runs: 100_000, spans: 3, bytes: usize::MAX }))
        .clone()
}

pub(crate) async fn trace(host: &Host, run: &str) -> Value {
    let reply = host.get(&format!("/agent/runs/{run}/trace?thread=t")).await;
    assert_eq!(reply.status(), 200);
    let trace = reply.json().await;
    check(&trace);
    trace
}

/// What holds for every trace: parents come before their children, and children are within them.
fn check(trace: &Value) {
    assert_eq!(trace["threadId"], "t");
    assert!(trace["startedAt"].as_f64().unwrap() > 1e9, "{trace}");
    let spans = spans(trace);
    for (index, span) in spans.iter().enumerate() {
        let start = span["start"].as_f64().unwrap();
        assert!(start >= 0.0 && span["end"].as_f64().is_none_or(|end| end >= start), "{span}");
        let Some(parent) = span["parent"].as_str() else { continue };
        let parent = spans.iter().position(|other| other["id"] == parent).unwrap();
        assert!(parent < index, "{span} comes before what it is part of");
        let (around, slack) = (&spans[parent], 0.01);
        assert!(start >= around["start"].as_f64().unwrap() - slack, "{span} begins before {around}");
        if let (Some(end), Some(last)) = (span["end"].as_f64(), around["end"].as_f64()) {
            assert!(end <= last + slack, "{span} ends after {around}");
        }
    }
}

fn spans(trace: &Value) -> &Vec<Value> {
    trace["spans"].as_array().unwrap()
}

/// The tree of a trace: a line per span, deeper ones further in.
pub(crate) fn tree(trace: &Value) -> Vec<String> {
    fn below(spans: &[Value], parent: &Value, depth: usize, lines: &mut Vec<String>) {
        for span in spans.iter().filter(|span| span["parent"] == *parent) {
            let hook = span["attributes"]["hook"].as_str().map(|hook| format!(" {hook}")).unwrap_or_default();
            let (kind, name) = (span["kind"].as_str().unwrap(), span["name"].as_str().unwrap());
            lines.push(format!("{}{kind} {name}{hook}", "  ".repeat(depth)));
            below(spans, &span["id"], depth + 1, lines);
        }
    }
    let mut lines = Vec::new();
    below(spans(trace), &Value::Null, 0, &mut lines);
    lines
}

fn find<'a>(trace: &'a Value, kind: &str, name: &str) -> &'a Value {
    let found = spans(trace).iter().find(|span| span["kind"] == kind && span["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name} in {trace:#}"))
}

/// An agent that calls these tools one after the other, and then says something.
fn caller(name: &'static str, tools: &'static [&'static str]) -> LlmAgent {
    LlmAgent::new(name).model(answers(move |request| {
        let done: usize = request.contents.iter().map(|content| content.responses().count()).sum();
        match tools.get(done) {
            Some(tool) => call([(tool, json!({"request": "please"}))]),
            None => say("All done."),
        }
    }))
}

fn tool(name: &'static str) -> FunctionTool {
    FunctionTool::new(name, "Does it.", |_: Value| async {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        Ok("done")
    })
}

/// A server that records, and one that knows the log alone, with the same sessions.
pub(crate) async fn hosts(agent: impl Fn() -> umbel::RunnerBuilder) -> (Host, Host) {
    let sessions = Arc::new(InMemorySessions::new());
    let server = || {
        let runner = agent().sessions(sessions.clone()).build().unwrap();
        Server::new().agent("/agent", AgentEndpoint::new(runner))
    };
    (serve(server().traces(recorded())).await, serve(server()).await)
}

#[tokio::test]
async fn a_run_is_traced_with_its_agent_its_model_calls_and_its_tools() {
    let agent = || Runner::builder("desk", caller("guide", &["look"]).tool(tool("look")));
    let (host, other) = hosts(agent).await;
    host.run(&input("t", "r", "Go")).await;
    let lines = ["run guide", "  agent guide", "    model script", "    tool look", "    model script"];
    for (told, source) in [(trace(&host, "r").await, "recorded"), (trace(&other, "r").await, "log")] {
        assert_eq!((&told["runId"], &told["source"]), (&json!("r"), &json!(source)));
        assert_eq!(tree(&told), lines, "{source}");
        assert!(spans(&told).iter().all(|span| span["end"].is_number()), "{told:#}");
        let steps: Vec<&Value> =
            spans(&told).iter().filter_map(|span| span["attributes"].get("step")).collect();
        assert_eq!(steps, [1, 2], "{source}");
        let look = find(&told, "tool", "look");
        let took = look["end"].as_f64().unwrap() - look["start"].as_f64().unwrap();
        assert!(took >= 2.0, "{source}: {look}");
        assert!(look["attributes"]["callId"].is_string(), "{look}");
    }
}

#[tokio::test]
async fn what_is_side_by_side_one_after_the_other_and_around_nests_as_it_ran() {
    let agent = || {
        let left = caller("left", &["look"]).tool(tool("look"));
        let right = Sequential::new("right").agent(talker("one")).agent(caller("second", &[]));
        let both = Parallel::new("both").agent(left).agent(right);
        let rounds = LoopAgent::new("rounds").max_iterations(2).agent(caller("again", &[]));
        Runner::builder("desk", Sequential::new("team").agent(both).agent(rounds))
    };
    let (host, other) = hosts(agent).await;
    host.run(&input("t", "r", "Go")).await;
    let expected = [
        "run team",
        "  agent team",
        "    agent both",
        "      agent left",
        "        model script",
        "        tool look",
        "        model script",
        "      agent right",
        "        agent talker",
        "          model script",
        "        agent second",
        "          model script",
        "    agent rounds",
        "      agent again",
        "        model script",
        "      agent again",
        "        model script",
    ];
    assert_eq!(tree(&trace(&host, "r").await), expected);
    let told = trace(&other, "r").await;
    let mut lines = tree(&told);
    // The log has agents side by side in the order in which they end, and a loop's rounds of one agent in one piece.
    let mut expected: Vec<String> = expected.map(str::to_owned).to_vec();
    expected.remove(expected.iter().rposition(|line| line == "      agent again").unwrap());
    lines.sort();
    expected.sort();
    assert_eq!(lines, expected, "{told:#}");
    let branch = &find(&told, "agent", "left")["attributes"]["branch"];
    assert_eq!(branch, &find(&trace(&host, "r").await, "agent", "left")["attributes"]["branch"]);
}

#[tokio::test]
async fn agents_that_work_for_a_call_are_part_of_it() {
    let agent = || {
        let inner = caller("inner", &["look"]).tool(tool("look"));
        let expert = caller("expert", &["inner"]).description("Knows.").tool(AgentTool::new(inner));
        let helper = caller("helper", &["look"]).tool(tool("look")).description("Helps.");
        let helper = helper.mode(Mode::SingleTurn);
        let boss = caller("boss", &["expert", "helper"]);
        Runner::builder("desk", boss.tool(AgentTool::new(expert)).sub_agent(helper))
    };
    let (host, other) = hosts(agent).await;
    let frames = host.run(&input("t", "r", "Go")).await;
    assert_eq!(end(&frames)["type"], "RUN_FINISHED");
    let expected = [
        "run boss",
        "  agent boss",
        "    model script",
        "    tool expert",
        "      agent expert",
        "        model script",
        "        tool inner",
        "          agent inner",
        "            model script",
        "            tool look",
        "            model script",
        "        model script",
        "    model script",
        "    tool helper",
        "      agent helper",
        "        model script",
        "        tool look",
        "        model script",
        "    model script",
    ];
    for host in [&host, &other] {
        let told = trace(host, "r").await;
        assert_eq!(tree(&told), expected, "{}", told["source"]);
    }
}

#[tokio::test]
async fn agents_that_hand_over_stand_beside_each_other() {
    let agent = || {
        let helper = caller("helper", &[]).description("Helps.");
        let model = answers(|_| call([("transfer_to_agent", json!({"agent_name": "helper"}))]));
        Runner::builder("desk", LlmAgent::new("guide").model(model).sub_agent(helper))
    };
    let (host, other) = hosts(agent).await;
    host.run(&input("t", "r", "Go")).await;
    let expected = [
        "run guide",
        "  agent guide",
        "    model script",
        "    tool transfer_to_agent",
        "  agent helper",
        "    model script",
    ];
    for host in [&host, &other] {
        assert_eq!(tree(&trace(host, "r").await), expected);
    }
}

#[tokio::test]
async fn tokens_and_what_they_cost_are_told_with_each_model_call() {
    let usage = Usage {
        prompt_token_count: Some(1_000),
        candidates_token_count: Some(100),
        cached_content_token_count: Some(400),
        thoughts_token_count: Some(50),
        ..Usage::default()
    };
    let answer = move || {
        let mut response = Response::new(Content::model("Hi."));
        response.meta_mut().usage_metadata = Some(usage.clone());
        response.meta_mut().model_version = Some("large-2026".into());
        vec![Ok(Chunk::Complete(response))]
    };
    let sessions = Arc::new(InMemorySessions::new());
    let price = Price::new(Money::dollars(1), Money::dollars(10)).cached_input(Money::cents(10));
    let server = || {
        let answer = answer.clone();
        let agent = LlmAgent::new("guide").model(answers(move |_| answer()));
        let runner = Runner::builder("desk", agent).sessions(sessions.clone()).build().unwrap();
        Server::new()
            .agent("/agent", AgentEndpoint::new(runner))
            .prices(Prices::new().with("large", price.clone()))
    };
    let (host, other) = (serve(server().traces(recorded())).await, serve(server()).await);
    host.run(&input("t", "r", "Go")).await;
    for host in [&host, &other] {
        let told = trace(host, "r").await;
        let model = spans(&told).iter().find(|span| span["kind"] == "model").unwrap();
        assert_eq!(model["usage"], json!({"input": 1_000, "output": 100, "cached": 400, "thoughts": 50}));
        // 600 plain, 400 cached, 150 written.
        assert_eq!(model["cost"], json!({"amount": 0.00214, "currency": "USD"}));
        assert!(spans(&told)[0].get("usage").is_none());
    }
    let unknown = serve(server().prices(Prices::new())).await;
    let told = trace(&unknown, "r").await;
    assert!(
        spans(&told).iter().all(|span| span.get("cost").is_none()),
        "what is not known costs not nothing"
    );
}

struct First;

#[handler]
impl Handler for First {
    fn name(&self) -> &str {
        "first"
    }

    async fn before_model(&self, _turn: &mut ModelTurn<'_>) -> Result<Step> {
        tokio::task::yield_now().await;
        Ok(Step::Continue)
    }
}

struct Last;

#[handler]
impl Handler for Last {
    fn name(&self) -> &str {
        "last"
    }

    fn after_run(&self, _run: &Run, _outcome: &Outcome) -> Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn hooks_of_handlers_are_told_around_what_they_are_around() {
    let agent = || {
        let agent = caller("guide", &["look"]).tool(tool("look")).handler(First);
        let agent =
            agent.handler(ModelRetry::new()).tool_layer(Timeout::new(std::time::Duration::from_secs(5)));
        Runner::builder("desk", agent).handler(Last)
    };
    let (host, _) = hosts(agent).await;
    host.run(&input("t", "r", "Go")).await;
    let expected = [
        "run guide",
        "  agent guide",
        "    handler first before_model",
        "    handler model-retry wrap_model",
        "      model script",
        "    tool look",
        "      handler timeout wrap_tool",
        "    handler first before_model",
        "    handler model-retry wrap_model",
        "      model script",
        "  handler last after_run",
    ];
    assert_eq!(tree(&trace(&host, "r").await), expected);
}

#[tokio::test]
async fn what_failed_says_so() {
    let agent = || {
        let model = answers(|request| match results(request).is_empty() {
            true => call([("broken", json!({}))]),
            false => vec![Err(Error::new(umbel::ErrorKind::Other, "no more"))],
        });
        let broken = FunctionTool::new("broken", "Breaks.", |_: Value| async {
            Err::<&str, ToolError>(Error::new(umbel::ErrorKind::Other, "it broke").into())
        });
        Runner::builder("desk", LlmAgent::new("guide").model(model).tool(broken))
    };
    let (host, other) = hosts(agent).await;
    host.run(&input("t", "r", "Go")).await;
    let told = trace(&host, "r").await;
    assert_eq!(find(&told, "tool", "broken")["error"], "TOOL_FAILED");
    let failed = spans(&told).iter().filter(|span| span["kind"] == "model" && span["error"] == "ERROR");
    assert_eq!((failed.count(), &find(&told, "agent", "guide")["error"]), (1, &json!("ERROR")));
    assert_eq!(spans(&trace(&other, "r").await)[0]["error"], "ERROR");
}

#[tokio::test]
async fn what_is_under_way_has_no_end_yet() {
    let slowly = Slowly::new("one two");
    let sessions = Arc::new(InMemorySessions::new());
    let server = || {
        let agent = LlmAgent::new("slow").model(slowly.clone());
        let runner = Runner::builder("desk", agent).sessions(sessions.clone()).build().unwrap();
        Server::new().agent("/agent", AgentEndpoint::new(runner))
    };
    let (host, other) = (serve(server().traces(recorded())).await, serve(server()).await);
    let mut running = host.post("/agent", &input("t", "r", "Go")).await;
    crate::support::read_until(&mut running, "one ").await;
    let told = trace(&host, "r").await;
    assert_eq!(tree(&told), ["run slow", "  agent slow", "    model slowly"]);
    assert!(spans(&told).iter().all(|span| span["end"].is_null()), "{told:#}");
    assert!(spans(&told)[2]["attributes"]["firstToken"].is_number(), "{told:#}");
    let from_log = trace(&other, "r").await;
    assert_eq!(tree(&from_log), ["run slow"], "nothing was answered yet");
    assert!(spans(&from_log)[0]["end"].is_null());
    slowly.go_on();
    running.frames().await;
    assert!(spans(&trace(&host, "r").await).iter().all(|span| span["end"].is_number()));
}

#[tokio::test]
async fn more_spans_than_are_kept_are_left_out_and_that_is_said() {
    recorded();
    let agent = caller("guide", &["look"]).tool(tool("look"));
    let host = serve(Server::new().agent("/agent", offered(agent)).traces(few())).await;
    host.run(&input("t", "r", "Go")).await;
    let told = trace(&host, "r").await;
    assert_eq!(tree(&told), ["run guide", "  agent guide", "    model script"]);
    assert_eq!(spans(&told)[0]["attributes"]["leftOut"], 2);
}

#[tokio::test]
async fn the_runs_that_began_first_are_forgotten_first() {
    for limits in [
        TraceLimits { runs: 2, ..TraceLimits::default() },
        // A run of this agent takes more than a third of that.
        TraceLimits { bytes: 2_600, ..TraceLimits::default() },
    ] {
        let traces = Traces::with_limits(limits);
        let subscriber = tracing_subscriber::registry().with(traces.layer());
        let host = serve(Server::new().agent("/agent", offered(talker("hi"))).traces(traces.clone())).await;
        let _guard = tracing::subscriber::set_default(subscriber);
        for run in ["r1", "r2", "r3"] {
            host.run(&ask("t", run, &[user(run, "Go")])).await;
        }
        let mut sources = Vec::new();
        for run in ["r1", "r2", "r3"] {
            sources.push(trace(&host, run).await["source"].as_str().unwrap().to_owned());
        }
        assert_eq!(sources, ["log", "recorded", "recorded"], "{limits:?} {traces:?}");
    }
}

#[tokio::test]
async fn another_s_run_is_not_traced_and_neither_is_one_where_nobody_may_look() {
    let server = || Server::new().auth(ByName).agent("/agent", offered(talker("hi"))).traces(recorded());
    let host = serve(server().inspect(true)).await;
    host.ask("ann", Method::POST, "/agent", &input("t", "r", "hello")).await.frames().await;
    for (name, path, status) in [
        ("ann", "/agent/runs/r/trace", 200),
        ("ann", "/agent/runs/r/trace?thread=t", 200),
        ("bob", "/agent/runs/r/trace", 404),
        ("bob", "/agent/runs/r/trace?thread=t", 404),
        ("ann", "/agent/runs/none/trace?thread=t", 404),
    ] {
        let reply = host.ask(name, Method::GET, path, &Value::Null).await;
        assert_eq!(reply.status(), status, "{name} {path}");
    }
    let closed = serve(server()).await;
    closed.ask("ann", Method::POST, "/agent", &input("t", "r", "hello")).await.frames().await;
    let told = closed.ask("ann", Method::GET, "/agent/runs/r/trace", &Value::Null).await.json().await;
    assert_eq!(told["error"]["code"], "INSPECTION_OFF");
}

#[tokio::test]
async fn reading_a_thread_later_is_no_part_of_its_runs() {
    let hide = || EventFilter::new().hide_if(|_, event| event.text() == "nothing");
    let (host, _) = hosts(|| Runner::builder("desk", talker("hi")).handler(hide())).await;
    host.run(&input("t", "r", "Go")).await;
    let before = trace(&host, "r").await;
    assert_eq!(before["source"], "recorded");
    assert!(tree(&before).iter().any(|line| line.ends_with("on_output")), "{before:#}");
    for path in ["/agent/threads/t", "/agent/threads/t/events"] {
        assert_eq!(host.get(path).await.status(), 200);
    }
    assert_eq!(trace(&host, "r").await, before);
}
