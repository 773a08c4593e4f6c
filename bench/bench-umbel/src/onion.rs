//! What handlers and tool layers cost. `cargo xtask bench onion` makes a table of it.
//!
//! Each command does a fixed amount of work; the difference of two counts is what one unit of it costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use harness::{ANSWER, PROMPT, alloc_totals};
use serde_json::json;
use umbel::layers::{Caching, Layered};
use umbel::{
    Chunk, Content, Event, Handler, LlmAgent, LogEntry, Model, ModelRequest, ModelTurn, NextTool, Object,
    Response, Result, Role, Runner, SessionKey, Source, Step, ToolCall, ToolContext, ToolOutput, ToolResult,
    handler, tool,
};

#[derive(Debug)]
struct Answering;

impl Model for Answering {
    fn name(&self) -> &str {
        "fake"
    }

    fn generate(&self, _: &ModelRequest) -> umbel::BoxStream<'static, Result<Chunk>> {
        Box::pin(futures::stream::iter([Ok(Chunk::Complete(Response::text(ANSWER)))]))
    }
}

/// Looks at the conversation and leaves it alone.
struct Reader;

#[handler]
impl Handler for Reader {
    fn name(&self) -> &str {
        "reader"
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let user = turn.history.last().is_some_and(|content| content.role == Some(Role::User));
        assert!(user);
        Ok(Step::Continue)
    }
}

/// The same, as a future.
struct AsyncReader;

#[handler]
impl Handler for AsyncReader {
    fn name(&self) -> &str {
        "async_reader"
    }

    async fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let user = turn.history.last().is_some_and(|content| content.role == Some(Role::User));
        assert!(user);
        Ok(Step::Continue)
    }
}

/// Has a hook that never comes in these runs.
struct Idle;

#[handler]
impl Handler for Idle {
    fn name(&self) -> &str {
        "idle"
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// Puts a reminder behind what the user said, in each turn.
struct Editor;

#[handler]
impl Handler for Editor {
    fn name(&self) -> &str {
        "editor"
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        turn.history.push(Content::user("Be brief."));
        Ok(Step::Continue)
    }
}

fn agent(kind: &str, handlers: usize) -> LlmAgent {
    let mut agent = LlmAgent::new("weather").model(Answering).instruction(harness::INSTRUCTION);
    for _ in 0..handlers {
        agent = match kind {
            "reader" => agent.handler(Reader),
            "async" => agent.handler(AsyncReader),
            "idle" => agent.handler(Idle),
            _ => agent.handler(Editor),
        };
    }
    agent
}

async fn turns(runner: &Runner, key: &SessionKey, count: usize) {
    for _ in 0..count {
        let mut events = runner.run(key, PROMPT);
        let mut text = 0;
        while let Some(event) = events.next().await {
            text += event.unwrap().text().len();
        }
        assert_eq!(text, ANSWER.len());
    }
}

/// A session with so many messages behind it.
async fn session(runner: &Runner, messages: usize) -> SessionKey {
    let key = runner.create_session_with("user", "1", Object::new()).await.unwrap().key;
    let entries = (0..messages).map(|index| {
        let (source, content) = match index % 2 {
            0 => (Source::user(), Content::user(PROMPT)),
            _ => (Arc::new(Source::new("weather")), Content::model(ANSWER)),
        };
        let mut event = Event::new(format!("run-{}", index / 2).into(), source).with_content(content);
        event.id = format!("event-{index}").into();
        event.timestamp = index as f64;
        LogEntry::Event(Arc::new(event))
    });
    runner.sessions().commit(&key, None, entries.collect()).await.unwrap();
    // The first turn takes the session in.
    turns(runner, &key, 1).await;
    key
}

/// So many turns of a session with that many messages and handlers. Gives the allocations of a turn.
async fn handlers(kind: &str, count: usize, messages: usize, runs: usize) -> u64 {
    let runner = Runner::new("bench", agent(kind, count)).unwrap();
    let key = session(&runner, messages).await;
    let before = alloc_totals().0;
    turns(&runner, &key, runs).await;
    (alloc_totals().0 - before) / runs.max(1) as u64
}

/// Calls nothing but what is next.
struct PassThrough;

#[handler]
impl Handler for PassThrough {
    fn name(&self) -> &str {
        "pass_through"
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        next.call(call).await
    }
}

/// Looks something up.
#[tool(read_only)]
async fn look_up(query: String) -> usize {
    query.len()
}

/// So many calls of a tool with one layer or nine around it. Gives the allocations of a call.
async fn layers(count: usize, calls: usize) -> u64 {
    let layer = |_| Arc::new(PassThrough) as Arc<dyn Handler>;
    let tool = match count {
        1 => look_up.layered_with([(); 1].map(layer)),
        9 => look_up.layered_with([(); 9].map(layer)),
        _ => panic!("1 or 9 layers"),
    };
    call(tool, calls).await
}

/// So many calls that a cache answers, with 100 bytes of arguments. Gives the allocations of a call.
async fn cache(calls: usize) -> u64 {
    call(look_up.layered(Caching::new()), calls).await
}

async fn call(tool: Arc<dyn umbel::Tool>, calls: usize) -> u64 {
    let cx = ToolContext::detached("look_up").unwrap();
    let args = Arc::new(Object::from_iter([("query".to_owned(), json!("x".repeat(88)))]));
    let mut before = 0;
    for index in 0..=calls {
        let Ok(ToolOutput::Value(value)) = tool.call(&cx, args.clone()).await else { panic!("not a value") };
        assert_eq!(value.value, json!(88));
        if index == 0 {
            before = alloc_totals().0;
        }
    }
    (alloc_totals().0 - before) / calls.max(1) as u64
}

/// A hundred calls at once, with the same arguments. Gives how often the tool ran.
async fn flight() -> u64 {
    static RAN: AtomicUsize = AtomicUsize::new(0);
    /// Takes its time.
    #[tool(read_only)]
    async fn slow(query: String) -> usize {
        RAN.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        query.len()
    }
    let tool = slow.layered(Caching::new());
    let cx = ToolContext::detached("slow").unwrap();
    let args = Arc::new(Object::from_iter([("query".to_owned(), json!("x"))]));
    let calls = (0..100).map(|_| tool.call(&cx, args.clone()));
    for result in futures::future::join_all(calls).await {
        assert!(result.is_ok());
    }
    RAN.load(Ordering::Relaxed) as u64
}

/// Does what the arguments say and prints what was counted besides instructions.
pub fn main(args: &[String]) {
    let number = |index: usize| -> usize { args[index].parse().expect("a number") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let counted = runtime.block_on(async {
        match args[0].as_str() {
            "layers" => layers(number(1), number(2)).await,
            "cache" => cache(number(1)).await,
            "flight" => flight().await,
            kind => handlers(kind, number(1), number(2), number(3)).await,
        }
    });
    println!("{counted}");
}
