//! Questions that nobody ever answers. A program of its own, since it looks at the memory of its process.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use umbel::{
    Chunk, Confirm, Content, FunctionCall, FunctionTool, LlmAgent, ModelRequest, Outcome, Part, Response,
    Role, Runner, ScriptedModel,
};
use umbel_stores::Sqlite;

/// How many bytes of memory this process has in use.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn asks() -> LlmAgent {
    let model = ScriptedModel::from_fn("m", |_: &ModelRequest| {
        let args = json!({"to": "x".repeat(500)}).as_object().cloned().unwrap();
        let call = Part::call(FunctionCall::new("pay", args).with_id("c1"));
        vec![Ok(Chunk::Complete(Response::new(Content::new(Role::Model, [call]))))]
    });
    let pay = FunctionTool::new("pay", "", |_: Value| async { Ok("paid") }).confirm(Confirm::Always);
    LlmAgent::new("a").model(model).tool(pay)
}

#[tokio::test]
async fn ten_thousand_of_them_leave_nothing_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(folder.path().join("some.db")).await.unwrap();
    let runner = Runner::builder("app", asks()).sessions(store).hot_sessions(64).build().unwrap();
    let ask = async |number: usize| {
        let key = runner.create_session(format!("user {number}")).await.unwrap().key;
        let mut run = runner.run(&key, "pay");
        while let Some(event) = run.next().await {
            event.unwrap();
        }
        assert!(matches!(run.outcome(), Some(Outcome::Interrupted { .. })));
    };
    let all = async |numbers: std::ops::Range<usize>| {
        stream::iter(numbers).map(&ask).buffer_unordered(128).collect::<Vec<()>>().await;
    };
    all(0..2_000).await;
    let before = resident();
    all(2_000..10_000).await;
    let grown = resident().saturating_sub(before);
    assert!(grown < 4 << 20, "8,000 more questions took {grown} bytes");
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks, 0, "no task waits for an answer");
    let open = runner.sessions().open_questions("app", None).await.unwrap();
    assert_eq!(open.len(), 10_000);
    // Any of them can still be answered.
    let late = &open[5_000];
    let first = runner.run(&late.key, late.interrupt.answer(true)).next().await.unwrap().unwrap();
    assert_eq!(first.responses().next().unwrap().response, json!({"result": "paid"}).as_object().cloned());
}
