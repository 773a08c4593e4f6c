//! Stores that do not answer: whoever reads a run is let go in time.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use umbel::{
    CancelReason, ErrorKind, FunctionTool, LlmAgent, Outcome, RunConfig, RunLimits, Runner, RunnerBuilder,
    ScriptedModel, SessionKey, SessionStore, agent_fn,
};

use crate::support::{Operation, Spy, assert_free, call_with_id, calls, log, outcomes, read, with_session};

const RUN_TIME: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(2);
/// What the store has at least for the last write.
const LAST_WRITE: Duration = Duration::from_secs(5);

fn limits() -> RunConfig {
    let lease = Duration::from_secs(9);
    RunConfig {
        limits: RunLimits { run_time: RUN_TIME, grace: GRACE, lease, ..RunLimits::default() },
        ..RunConfig::default()
    }
}

/// Calls a tool that never comes back by itself.
fn waiting() -> LlmAgent {
    let wait = FunctionTool::new("wait", "", |_: Value| async {
        std::future::pending::<()>().await;
        Ok(json!("waited"))
    });
    LlmAgent::new("a").model(ScriptedModel::new("m").call("wait", json!({})).text("done")).tool(wait)
}

async fn on(store: &Spy, builder: RunnerBuilder) -> (Runner, SessionKey) {
    with_session(builder.sessions(store.clone()).config(limits()).build().unwrap()).await
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_hangs_does_not_stop_the_clock_of_a_run() {
    let store = Spy::default();
    store.hang(Operation::Heartbeat);
    let (runner, key) = on(&store, Runner::builder("app", waiting())).await;
    let began = Instant::now();
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.kind(), ErrorKind::Timeout);
    assert!(began.elapsed() <= RUN_TIME + GRACE, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_hangs_does_not_keep_a_cancelled_run_alive() {
    // It does not look at the token: only the end of the grace stops it.
    let deaf = agent_fn("deaf", |_| {
        Box::pin(async move {
            std::future::pending::<()>().await;
            Ok(())
        })
    });
    let store = Spy::default();
    store.hang(Operation::Heartbeat);
    let (runner, key) = on(&store, Runner::builder("app", deaf)).await;
    let stream = runner.run(&key, "hi");
    let token = stream.cancel_token();
    let began = Instant::now();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(20)).await;
        token.cancel(CancelReason::Asked);
    });
    let seen = read(stream).await;
    assert_eq!(seen.outcome, Outcome::Cancelled);
    assert!(began.elapsed() <= Duration::from_secs(20) + GRACE, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_kept_while_a_write_takes_long() {
    let store = Spy::default();
    let (runner, key) = on(&store, Runner::builder("app", waiting())).await;
    store.hang(Operation::Append);
    let stream = tokio::spawn(read(runner.run(&key, "hi")));
    tokio::time::sleep(RUN_TIME / 2).await;
    let abandoned = store.memory().abandoned("app").await.unwrap();
    assert!(abandoned.is_empty(), "heartbeats went on beside the write");
    stream.abort();
}

#[tokio::test(start_paused = true)]
async fn whatever_hangs_the_reader_of_a_run_is_let_go_in_time() {
    for operation in [Operation::Acquire, Operation::Append, Operation::Release] {
        for cancelled in [false, true] {
            let store = Spy::default();
            let work = FunctionTool::new("work", "", |_: Value| async { Ok(json!("worked")) });
            let model = ScriptedModel::new("m").call("work", json!({})).text("done");
            let agent = LlmAgent::new("a").model(model).tool(work);
            let (runner, key) = on(&store, Runner::builder("app", agent)).await;
            store.hang(operation);
            let (stream, began) = (runner.run(&key, "hi"), Instant::now());
            let limit = if cancelled { Duration::from_secs(10) } else { RUN_TIME };
            if cancelled {
                let token = stream.cancel_token();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(10)).await;
                    token.cancel(CancelReason::Asked);
                });
            }
            let seen = read(stream).await;
            let what = format!("{operation:?} {cancelled}: {} after {:?}", seen.message(), began.elapsed());
            assert!(began.elapsed() <= limit + GRACE + LAST_WRITE + Duration::from_millis(10), "{what}");
            assert!(matches!(seen.kind(), ErrorKind::Store), "{what}");
            assert!(seen.message().contains("did not answer in time"), "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_let_go_writes_its_outcome_when_the_store_answers_again() {
    let store = Spy::default();
    let model = ScriptedModel::from_fn("m", |_| {
        vec![Ok(umbel::Chunk::Complete(calls([call_with_id("c1", "wait", json!({}))])))]
    });
    let wait = FunctionTool::new("wait", "", |_: Value| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(json!("waited"))
    });
    let (runner, key) = on(&store, Runner::builder("app", LlmAgent::new("a").model(model).tool(wait))).await;
    let resume = store.hang(Operation::Append);
    let seen = read(runner.run(&key, "hi")).await;
    assert_eq!(seen.kind(), ErrorKind::Store);
    assert_eq!(outcomes(&log(&runner, &key).await), []);
    resume.notify_waiters();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(outcomes(&log(&runner, &key).await).len(), 1);
    assert_free(&runner, &key).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_let_go_is_recovered_in_the_same_process_once_its_lease_ran_out() {
    let store = Spy::default();
    let work = FunctionTool::new("work", "", |_: Value| async { Ok(json!("worked")) });
    let model = ScriptedModel::new("m").call("work", json!({})).text("done").text("recovered");
    let (runner, key) =
        on(&store, Runner::builder("app", LlmAgent::new("a").model(model).tool(work.idempotent()))).await;
    let hanging = store.hang(Operation::Append);
    assert_eq!(read(runner.run(&key, "hi")).await.kind(), ErrorKind::Store);
    tokio::time::sleep(Duration::from_secs(10)).await;
    store.stop_hanging();
    let recovered = runner.recover().await.unwrap();
    assert_eq!(recovered.len(), 1, "{recovered:?}");
    // What hung takes no effect any more.
    hanging.notify_waiters();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(outcomes(&log(&runner, &key).await).len(), 1);
    assert_free(&runner, &key).await;
}
