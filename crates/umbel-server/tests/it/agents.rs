//! Agents with scripted models, one for each way in which a stream can go.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use umbel::handlers::{ConfirmChanges, ModelRetry};
use umbel::{
    BoxStream, Chunk, Confirm, Content, Error, ErrorKind, FunctionCall, FunctionTool, LlmAgent, Model,
    ModelErrorKind, ModelRequest, Parallel, Part, PartialArg, Response, Result, Role, Runner, RunnerBuilder,
    Sequential,
};
use umbel_runtime::backoff::Backoff;
use umbel_server::AgentEndpoint;

type Chunks = Vec<Result<Chunk>>;
type Answer = dyn Fn(&ModelRequest) -> Chunks + Send + Sync;

/// A model that says what a function tells it to, pausing before each piece.
#[derive(Clone)]
pub(crate) struct Script {
    answer: Arc<Answer>,
    pause: Duration,
    /// Whether it never comes to the end of what it says.
    hangs: bool,
}

impl Script {
    /// A model that says what it is told to, and nothing more, for ever.
    fn hanging(answer: impl Fn(&ModelRequest) -> Chunks + Send + Sync + 'static) -> Self {
        Self { hangs: true, ..Self::new(Duration::ZERO, answer) }
    }

    pub(crate) fn new(
        pause: Duration,
        answer: impl Fn(&ModelRequest) -> Chunks + Send + Sync + 'static,
    ) -> Self {
        Self { answer: Arc::new(answer), pause, hangs: false }
    }
}

impl Model for Script {
    fn name(&self) -> &str {
        "script"
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let (chunks, pause) = (stream::iter((self.answer)(request)), self.pause);
        if self.hangs {
            return Box::pin(chunks.chain(stream::pending()));
        }
        if pause.is_zero() {
            return Box::pin(chunks);
        }
        Box::pin(chunks.then(move |chunk| async move {
            tokio::time::sleep(pause).await;
            chunk
        }))
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Script")
    }
}

/// Text in pieces of a few characters.
pub(crate) fn say(text: &str) -> Chunks {
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(5).map(|piece| Ok(Chunk::Text(piece.iter().collect()))).collect()
}

fn think(text: &str) -> Chunks {
    let letters: Vec<char> = text.chars().collect();
    letters.chunks(7).map(|piece| Ok(Chunk::Thought(piece.iter().collect()))).collect()
}

/// One after the other.
fn then(mut first: Chunks, second: Chunks) -> Chunks {
    first.extend(second);
    first
}

/// Calls of tools, all at once, as the last piece of an answer.
fn call(calls: &[(&str, Value)]) -> Chunks {
    let parts = calls.iter().map(|(name, args)| {
        Part::call(FunctionCall::new(*name, args.as_object().cloned().unwrap_or_default()))
    });
    let content = Content::new(Role::Model, parts.collect::<Vec<_>>());
    vec![Ok(Chunk::Delta(Response::new(content)))]
}

/// A call whose arguments come piece by piece.
fn written(name: &str, id: &str, pieces: &[(&str, Value)]) -> Chunks {
    let delta = |call: FunctionCall| Ok(Chunk::Delta(Response::new(Content::model(Part::call(call)))));
    let begun = FunctionCall { name: name.into(), will_continue: Some(true), ..FunctionCall::default() };
    let mut chunks = vec![delta(begun.with_id(id))];
    for (path, value) in pieces {
        let mut piece = PartialArg { json_path: Some((*path).to_owned()), ..PartialArg::default() };
        match value {
            Value::String(text) => piece.string_value = Some(text.clone()),
            Value::Number(number) => piece.number_value = Some(number.clone()),
            Value::Bool(flag) => piece.bool_value = Some(*flag),
            _ => piece.null_value = Some(json!("NULL_VALUE")),
        }
        let more = FunctionCall {
            partial_args: Some(vec![piece]),
            will_continue: Some(true),
            ..FunctionCall::default()
        };
        chunks.push(delta(more));
    }
    chunks.push(delta(FunctionCall { will_continue: Some(false), ..FunctionCall::default() }));
    chunks
}

/// What tools answered to the last calls.
pub(crate) fn results(request: &ModelRequest) -> Vec<String> {
    let Some(last) = request.contents.last() else { return Vec::new() };
    last.responses().map(|response| json!(response.response).to_string()).collect()
}

fn overloaded() -> Error {
    Error::new(ErrorKind::Model(ModelErrorKind::Overloaded), "try again")
}

/// Tries again at once.
fn retry() -> ModelRetry {
    ModelRetry::new().max_retries(2).backoff(Backoff::new().initial(Duration::from_millis(1)).jitter(false))
}

/// The weather, known to a tool.
fn weather() -> FunctionTool {
    FunctionTool::new("weather", "The weather of a city", |args: Value| async move {
        Ok(json!({"city": args["city"], "degrees": 21}))
    })
}

fn cook() -> FunctionTool {
    FunctionTool::with_context("cook", "Writes a recipe", |cx, args: Value| {
        Box::pin(async move {
            let count = cx.state("count").and_then(|count| count.as_i64()).unwrap_or(0);
            cx.set_state("recipe", json!({"title": args["title"], "a/b~c": ["boil", {"then": "eat"}]}));
            cx.set_state("count", count + 1);
            Ok("written")
        })
    })
}

fn send_mail() -> FunctionTool {
    FunctionTool::new("send_mail", "Sends a mail", |_: Value| async { Ok("sent") }).confirm(Confirm::Always)
}

fn write_document() -> FunctionTool {
    FunctionTool::with_context("write_document", "Writes the document", |cx, args: Value| {
        Box::pin(async move {
            cx.set_state("document", args["text"].clone());
            Ok("written")
        })
    })
}

/// Words after calls, calls before: as long as there are no results to the last calls.
fn calls_then(calls: impl Fn() -> Chunks + Send + Sync + 'static, words: &'static str) -> Box<Answer> {
    Box::new(move |request| match results(request).is_empty() {
        true => calls(),
        false => say(&format!("{words} {}", results(request).join(" "))),
    })
}

/// Breaks off at every odd attempt, after that much.
fn flaky(broken: impl Fn() -> Chunks + Send + Sync + 'static, words: &'static str) -> Box<Answer> {
    let attempts = Arc::new(AtomicUsize::new(0));
    Box::new(move |_| match attempts.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
        true => then(broken(), vec![Err(overloaded())]),
        false => say(words),
    })
}

/// An agent of each kind. What may be asked of it follows from its name alone, so that another process has the same.
pub(crate) const ALL: [&str; 19] = [
    "text",
    "reasoning",
    "one_tool",
    "talking_tool",
    "batch",
    "client_tools",
    "state",
    "hitl",
    "team",
    "busy_team",
    "transfer",
    "retry",
    "retry_thoughts",
    "retry_call",
    "retry_team",
    "restart",
    "predict",
    "confirm",
    "fails",
];

/// An agent as it is offered, at a pace.
pub(crate) fn agent(name: &'static str, pause: Duration) -> RunnerBuilder {
    let llm = |answer: Box<Answer>| LlmAgent::new(name).model(Script::new(pause, answer));
    let agent = match name {
        "text" => llm(Box::new(|_| say("Hello th\u{e9}re, how are you t\u{f6}day?"))),
        "reasoning" => {
            llm(Box::new(|_| then(think("The user wants an answer."), say("Forty-two, as always."))))
        }
        "one_tool" => {
            llm(calls_then(|| call(&[("weather", json!({"city": "Paris"}))]), "It is so:")).tool(weather())
        }
        "talking_tool" => llm(calls_then(
            || {
                let words = then(think("Which city is it?"), say("Let me look."));
                then(words, call(&[("weather", json!({"city": "Rome"}))]))
            },
            "It is so:",
        ))
        .tool(weather()),
        "batch" => llm(calls_then(
            || {
                let cities = ["Paris", "Rome", "Oslo"].map(|city| ("weather", json!({"city": city})));
                then(say("Three at once."), call(&cities))
            },
            "All of them:",
        ))
        .tool(weather()),
        "client_tools" => llm(calls_then(
            || {
                let calls = ["first", "second", "third"].map(|name| (name, json!({"for": name})));
                then(say("Over to you."), call(&calls))
            },
            "You said",
        )),
        "state" => llm(calls_then(|| call(&[("cook", json!({"title": "Soup"}))]), "Ready:")).tool(cook()),
        "hitl" => {
            llm(calls_then(|| then(say("May I?"), call(&[("send_mail", json!({"to": "ann"}))])), "Done:"))
                .tool(send_mail())
        }
        "retry" => llm(flaky(|| say("This will be void"), "The second attempt holds.")).handler(retry()),
        "retry_thoughts" => {
            llm(flaky(|| think("Half a thought"), "The second attempt holds.")).handler(retry())
        }
        "retry_call" => llm(flaky(
            || {
                let pieces = [("$.city", json!("Atlan")), ("$.city", json!("tis"))];
                let mut chunks = then(say("Let me see."), written("weather", "void-call", &pieces));
                chunks.pop();
                chunks
            },
            "No call was made.",
        ))
        .tool(weather())
        .handler(retry()),
        "restart" => llm(Box::new(|_| {
            let mut chunks = then(think("A first try"), say("Void words"));
            chunks.push(Ok(Chunk::Restart));
            chunks.extend(then(think("A second try"), say("Better words")));
            chunks
        })),
        "predict" | "confirm" => llm(calls_then(
            || {
                let pieces = [
                    ("$.title", json!("A t\u{e4}le")),
                    ("$.text", json!("Once upon ")),
                    ("$.text", json!("a \"time\"\n")),
                    ("$.text", json!("there was")),
                    ("$.pages", json!(3)),
                    ("$.tags[0]", json!("old")),
                ];
                then(say("I write."), written("write_document", "doc-1", &pieces))
            },
            "It is there:",
        ))
        .tool(write_document()),
        "fails" => llm(Box::new(|_| {
            let broken = Error::new(ErrorKind::Model(ModelErrorKind::Other), "a secret of the provider");
            then(say("I was about to say"), vec![Err(broken)])
        })),
        _ => return Runner::builder(name, team(name, pause)),
    };
    let runner = Runner::builder(name, agent);
    if name == "confirm" { runner.handler(ConfirmChanges::new(["write_document"])) } else { runner }
}

/// Agents that work together.
fn team(name: &'static str, pause: Duration) -> Arc<dyn umbel::Agent> {
    let llm = |name: &'static str, pause: Duration, answer: Box<Answer>| {
        LlmAgent::new(name).description(format!("The one {name}")).model(Script::new(pause, answer))
    };
    let says = |words: &'static str| -> Box<Answer> { Box::new(move |_| say(words)) };
    let later = pause.saturating_mul(2);
    match name {
        "team" => {
            let both = Parallel::new("both").agent(llm("left", pause, says("From the left."))).agent(llm(
                "right",
                later,
                says("From the right."),
            ));
            Arc::new(Sequential::new(name).agent(both).agent(llm("editor", pause, says("Both have spoken."))))
        }
        "busy_team" => {
            let looks = calls_then(
                || then(think("Let me think."), call(&[("weather", json!({"city": "Bern"}))])),
                "It is so:",
            );
            let both = Parallel::new("both").agent(llm("left", pause, looks).tool(weather())).agent(llm(
                "right",
                later,
                says("I wait for nobody at all."),
            ));
            let cooks = calls_then(|| call(&[("cook", json!({"title": "Stew"}))]), "Then we eat:");
            Arc::new(Sequential::new(name).agent(both).agent(llm("editor", pause, cooks).tool(cook())))
        }
        "retry_team" => {
            let flaky = flaky(|| say("This is void"), "From the left, at last.");
            let both = Parallel::new("both").agent(llm("left", pause, flaky).handler(retry())).agent(llm(
                "right",
                later,
                says("From the right, slowly."),
            ));
            Arc::new(Sequential::new(name).agent(both).agent(llm("editor", pause, says("The end."))))
        }
        "transfer" => {
            let helper =
                llm("helper", pause, calls_then(|| call(&[("weather", json!({"city": "Lima"}))]), "I know:"));
            let passes: Box<Answer> = Box::new(|_| {
                then(say("One moment."), call(&[("transfer_to_agent", json!({"agent_name": "helper"}))]))
            });
            Arc::new(llm(name, pause, passes).sub_agent(helper.tool(weather())))
        }
        other => panic!("there is no agent {other}"),
    }
}

/// Agents that are cut short when they have said `ghost`.
pub(crate) const DYING: [&str; 5] = ["text", "reasoning", "one_tool", "predict", "busy_team"];

/// The agent of that name in a process that dies: it comes to where it says `ghost`, and no further.
pub(crate) fn dying(name: &'static str) -> RunnerBuilder {
    let llm = |answer: Box<Answer>| LlmAgent::new(name).model(Script::hanging(answer));
    let agent = match name {
        "text" => llm(Box::new(|_| then(say("Half a "), say("ghost")))),
        "reasoning" => llm(Box::new(|_| then(think("This is a "), think("ghost")))),
        "one_tool" => {
            let calls = Script::new(Duration::ZERO, |_| call(&[("weather", json!({"city": "Paris"}))]));
            let model = OneThenOther {
                first: calls,
                other: Script::hanging(|_| then(say("It is a "), say("ghost"))),
            };
            LlmAgent::new(name).model(model).tool(weather())
        }
        "predict" => llm(Box::new(|_| {
            let pieces = [("$.title", json!("A tale")), ("$.text", json!("A ghost"))];
            let mut chunks = then(say("I write."), written("write_document", "doc-1", &pieces));
            chunks.pop();
            chunks
        }))
        .tool(write_document()),
        "busy_team" => {
            let says = |_: &ModelRequest| then(think("Let me think."), say("Done."));
            let both = Parallel::new("both")
                .agent(LlmAgent::new("left").model(Script::new(Duration::ZERO, says)))
                .agent(LlmAgent::new("right").model(Script::hanging(|_| then(say("I am a "), say("ghost")))));
            return Runner::builder(
                name,
                Sequential::new(name)
                    .agent(both)
                    .agent(LlmAgent::new("editor").model(Script::hanging(|_| Vec::new()))),
            );
        }
        other => panic!("{other} does not die"),
    };
    Runner::builder(name, agent)
}

/// One model for the first call of a turn, another one once there are results.
#[derive(Debug)]
struct OneThenOther {
    first: Script,
    other: Script,
}

impl Model for OneThenOther {
    fn name(&self) -> &str {
        "script"
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        if results(request).is_empty() { self.first.generate(request) } else { self.other.generate(request) }
    }
}

/// An agent as it is offered.
pub(crate) fn endpoint(name: &'static str, runner: Runner) -> AgentEndpoint {
    let endpoint = AgentEndpoint::new(runner);
    match name {
        "predict" | "confirm" => endpoint.predict_state("document", "write_document", "text"),
        _ => endpoint,
    }
}

/// What a client asks of the agent first.
pub(crate) fn request(name: &str, thread: &str, run: &str) -> Value {
    let mut input = crate::support::input(thread, run, "Go on");
    match name {
        "state" => input["state"] = json!({"count": 4, "theirs": {"kept": [1, 2]}}),
        "busy_team" => input["state"] = json!({}),
        "client_tools" => {
            let tools = ["first", "second", "third"]
                .map(|name| json!({"name": name, "description": "", "parameters": {"type": "object"}}));
            input["tools"] = json!(tools);
        }
        _ => {}
    }
    input
}
