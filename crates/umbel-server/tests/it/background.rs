//! What a server does that nobody asked for: it goes on, whatever a store does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt;
use umbel::{
    InMemorySessions, LlmAgent, LogEntry, RunConfig, RunLimits, RunStep, Runner, SessionKey, SessionStore,
    Versions,
};
use umbel_server::{AgentEndpoint, Server, Sweep};

use crate::desk::{Slowly, serve, talker};
use crate::looks::Counting;
use crate::support::within;

fn config() -> RunConfig {
    let limits = RunLimits { lease: Duration::from_millis(50), ..RunLimits::default() };
    RunConfig { limits, streaming: true, ..RunConfig::default() }
}

fn runner(agent: LlmAgent, store: impl SessionStore + 'static) -> Runner {
    Runner::builder("desk", agent).sessions(store).config(config()).build().unwrap()
}

/// A session whose run was cut short.
async fn cut_short(store: impl SessionStore + 'static) -> SessionKey {
    let lost = runner(LlmAgent::new("talker").model(Slowly::new("never said")), store);
    let key = lost.create_session("ann").await.unwrap().key;
    let mut run = lost.run(&key, "hi");
    run.next().await.unwrap().unwrap();
    // Nobody polls it any more, as in a process that died.
    std::mem::forget(run);
    key
}

async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    within(async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_panic_of_a_store_ends_neither_recovery_nor_sweeps_nor_the_server() {
    // The first look panics, and so does the one with which the recovery itself begins.
    let store = Arc::new(Counting { panics: vec![0, 2], ..Counting::default() });
    let key = cut_short(store.clone()).await;
    let sweep = Sweep { timeout: Duration::ZERO, every: Duration::from_millis(10), max_wait: None };
    let endpoint = AgentEndpoint::new(runner(talker("gone on with"), store.clone()));
    let host = serve(Server::new().sweep(sweep).agent("/agent", endpoint)).await;
    until(async || host.figure("umbel_runs_recovered_total").await == 1).await;
    // Its run is over, so that it is idle now.
    until(async || store.store.get(&key, umbel::EventFilter::default()).await.unwrap().is_none()).await;
    // Both went on looking after each panic.
    until(async || store.abandoned.load(Ordering::SeqCst) >= 5 && store.idle.load(Ordering::SeqCst) >= 4)
        .await;
    assert_eq!(host.get("/ready").await.status(), http::StatusCode::OK);
}

#[tokio::test]
async fn an_app_is_looked_at_again_while_one_of_its_recovered_runs_lasts() {
    let store = Arc::new(InMemorySessions::new());
    let is_gone_on_with = async |key: &SessionKey| {
        let entries = store.news(key, Versions::default()).await.unwrap().unwrap().entries;
        let is_it = |step: &RunStep| matches!(step, RunStep::Recovered);
        entries.iter().filter(|entry| matches!(entry, LogEntry::Record(step) if is_it(step))).count() > 0
    };
    let first = cut_short(store.clone()).await;
    let model = Slowly::new("not soon");
    let agent = LlmAgent::new("talker").model(model.clone());
    let endpoint = AgentEndpoint::new(runner(agent, store.clone()));
    let host = serve(Server::new().agent("/agent", endpoint)).await;
    until(async || is_gone_on_with(&first).await).await;
    // The first run waits for its model, and so does the second then.
    for _ in 0..2 {
        let another = cut_short(store.clone()).await;
        until(async || is_gone_on_with(&another).await).await;
    }
    assert_eq!(host.figure("umbel_runs_recovered_total").await, 0, "all of them last");
    model.go_on();
    until(async || host.figure("umbel_runs_recovered_total").await == 3).await;
}
