//! A server whose agents change while it serves.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use http::{Method, Request};
use http_body_util::BodyExt;
use serde_json::Value;
use tower_service::Service as _;
use umbel::{
    InMemorySessions, LlmAgent, LogEntry, RunConfig, RunLimits, RunStep, Runner, SessionStore, Versions,
};
use umbel_server::{AgentEndpoint, Server, Sweep};

use crate::desk::{ByName, Slowly, ask, end, offered, serve, talker, text, user};
use crate::support::{Host, within};

/// A server for an agent on a store that outlives it.
fn on(store: &Arc<InMemorySessions>, agent: LlmAgent) -> Server {
    let runner = Runner::builder("desk", agent).sessions(store.clone()).build().unwrap();
    Server::new().agent("/agent", AgentEndpoint::new(runner))
}

async fn read_to_end(reply: crate::support::Reply) -> String {
    let frames = reply.frames().await;
    assert_eq!(end(&frames)["type"], "RUN_FINISHED");
    text(&frames)
}

#[tokio::test]
async fn a_run_under_way_goes_on_while_new_ones_are_of_the_new_agents() {
    let store = Arc::new(InMemorySessions::new());
    let slowly = Slowly::new("the old agent speaks");
    let host = serve(on(&store, LlmAgent::new("old").model(slowly.clone()))).await;
    let mut kept = host.connection().await;
    let under_way = host.post("/agent", &ask("t1", "r1", &[user("m1", "hi")])).await;
    host.service.replace(on(&store, talker("the new agent speaks"))).unwrap();

    let other = kept.post("/agent", &ask("t2", "r2", &[user("m2", "hi")])).await;
    assert_eq!(read_to_end(other).await, "the new agent speaks");
    // Who looks for the run finds it behind the new routes.
    let late = host.get("/agent/runs/r1/events").await;
    // The thread still has one run at a time, whoever does it.
    let question = ask("t1", "r3", &[user("m3", "and you?")]);
    let next = host.post("/agent", &question);
    let (next, (first, late)) = tokio::join!(async { read_to_end(next.await).await }, async {
        while host.figure("umbel_runs_active").await < 2 {
            tokio::task::yield_now().await;
        }
        slowly.go_on();
        tokio::join!(read_to_end(under_way), read_to_end(late))
    });
    assert_eq!((first.as_str(), late.as_str()), ("the old agent speaks", "the old agent speaks"));
    assert_eq!(next, "the new agent speaks");
    // It is one session: what the old agent said is part of it.
    let thread: Value = host.get("/agent/threads/t1").await.json().await;
    let said = thread.to_string();
    assert!(said.contains("the old agent speaks") && said.contains("the new agent speaks"), "{said}");
    assert_eq!(host.figure("umbel_runs_started_total").await, 3);
}

#[tokio::test]
async fn paths_come_and_go() {
    let host = serve(Server::new().agent("/agent", offered(talker("one")))).await;
    host.service.replace(Server::new().agent("/other", offered(talker("two")))).unwrap();
    assert_eq!(host.post("/agent", &ask("t", "r1", &[user("m", "hi")])).await.status(), 404);
    let there = host.post("/other", &ask("t", "r2", &[user("m", "hi")])).await;
    assert_eq!(read_to_end(there).await, "two");
}

#[tokio::test]
async fn what_does_not_fit_together_leaves_all_as_it_was() {
    let host = serve(Server::new().agent("/agent", offered(talker("one")))).await;
    assert!(host.service.replace(Server::new()).is_err());
    let there = host.post("/agent", &ask("t", "r1", &[user("m", "hi")])).await;
    assert_eq!(read_to_end(there).await, "one");
}

#[tokio::test]
async fn who_may_ask_is_never_left_open() {
    let server = |text| Server::new().agent("/agent", offered(talker(text)));
    let host = serve(server("one").auth(ByName)).await;
    let error = host.service.replace(server("two")).unwrap_err();
    assert!(error.message().contains("set `auth`"), "{error}");
    assert_eq!(host.post("/agent", &ask("t", "r1", &[user("m", "hi")])).await.status(), 401);
    host.service.replace(server("two").auth(ByName)).unwrap();
    let there = host.ask("ann", Method::POST, "/agent", &ask("t", "r1", &[user("m", "hi")])).await;
    assert_eq!(read_to_end(there).await, "two");
}

#[tokio::test]
async fn a_router_of_an_application_of_ones_own_follows() {
    let service = Server::new().agent("/agent", offered(talker("one"))).build().unwrap();
    let own = axum::routing::get(async || "own");
    let mut app = axum::Router::new().route("/own", own).merge(service.router());
    service.replace(Server::new().agent("/agent", offered(talker("two")))).unwrap();
    let mut ask_there = async |method: &str, path: &str, body: String| {
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let request = request.header("content-type", "application/json").body(axum::body::Body::from(body));
        let response = app.call(request.unwrap()).await.unwrap();
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    };
    let body = ask("t", "r", &[user("m", "hi")]).to_string();
    let answer = ask_there("POST", "/agent", body).await;
    assert!(answer.contains("two"), "{answer}");
    assert_eq!(ask_there("GET", "/own", String::new()).await, "own");
}

async fn threads(host: &Host) -> usize {
    let request = Request::builder().uri("/agent/threads");
    let threads: Value = host.send(request, "").await.json().await;
    threads["threads"].as_array().unwrap().len()
}

#[tokio::test]
async fn idle_sessions_are_swept_as_the_new_server_says() {
    let store = Arc::new(InMemorySessions::new());
    let host = serve(on(&store, talker("one")).sweep(None)).await;
    host.run(&ask("t", "r", &[user("m", "hi")])).await;
    assert_eq!(threads(&host).await, 1);
    let swift = Sweep { timeout: Duration::ZERO, every: Duration::from_millis(5), max_wait: None };
    host.service.replace(on(&store, talker("two")).sweep(swift)).unwrap();
    within(async {
        while threads(&host).await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn runs_that_were_cut_short_are_gone_on_with_by_the_new_agents() {
    let store = Arc::new(InMemorySessions::new());
    let limits = RunLimits { lease: Duration::from_millis(50), ..RunLimits::default() };
    let config = RunConfig { limits, ..RunConfig::default() };
    let lost = Runner::builder("desk", LlmAgent::new("talker").model(Slowly::new("never said")));
    let lost = lost.sessions(store.clone()).config(config).build().unwrap();
    let session = lost.create_session("ann").await.unwrap();
    let mut run =
        lost.run_with(&session.key, "hi", RunConfig { streaming: true, ..RunConfig::clone(lost.config()) });
    run.next().await.unwrap().unwrap();
    // Nobody polls it any more, as in a process that died.
    std::mem::forget(run);

    let host = serve(Server::new().agent("/agent", offered(talker("elsewhere")))).await;
    let new = Runner::builder("desk", talker("gone on with"))
        .sessions(store.clone())
        .config(RunConfig { limits, ..RunConfig::default() });
    host.service.replace(Server::new().agent("/agent", AgentEndpoint::new(new.build().unwrap()))).unwrap();
    within(async {
        while host.figure("umbel_runs_recovered_total").await < 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_run_that_takes_long_when_it_is_gone_on_with_keeps_those_of_other_agents_not_waiting() {
    let limits = RunLimits { lease: Duration::from_millis(50), ..RunLimits::default() };
    let config = || RunConfig { limits, streaming: true, ..RunConfig::default() };
    let store = Arc::new(InMemorySessions::new());
    let cut_short = async |app: &'static str| {
        let lost = Runner::builder(app, LlmAgent::new("talker").model(Slowly::new("never said")));
        let lost = lost.sessions(store.clone()).config(config()).build().unwrap();
        let session = lost.create_session("ann").await.unwrap();
        let mut run = lost.run(&session.key, "hi");
        run.next().await.unwrap().unwrap();
        // Nobody polls it any more, as in a process that died.
        std::mem::forget(run);
        session.key
    };
    let endpoint = |app: &'static str, agent: LlmAgent| {
        let runner = Runner::builder(app, agent).sessions(store.clone()).config(config());
        AgentEndpoint::new(runner.build().unwrap())
    };
    let long = cut_short("long").await;
    let slow = LlmAgent::new("talker").model(Slowly::new("not soon"));
    let server = Server::new().agent("/long", endpoint("long", slow));
    let host = serve(server.agent("/short", endpoint("short", talker("soon")))).await;
    let is_gone_on_with = async || {
        let entries = store.news(&long, Versions::default()).await.unwrap().unwrap().entries;
        let is_it = |step: &RunStep| matches!(step, RunStep::Recovered);
        entries.iter().any(|entry| matches!(entry, LogEntry::Record(step) if is_it(step)))
    };
    within(async {
        while !is_gone_on_with().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cut_short("short").await;
        while host.figure("umbel_runs_recovered_total").await < 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_run_at_a_path_that_is_gone_goes_on_and_cannot_be_reached() {
    let slowly = Slowly::new("said to the end");
    let store = Arc::new(InMemorySessions::new());
    let host = serve(on(&store, LlmAgent::new("old").model(slowly.clone()))).await;
    let under_way = host.post("/agent", &ask("t", "r", &[user("m", "hi")])).await;
    host.service.replace(Server::new().agent("/other", offered(talker("two")))).unwrap();
    let cancel = host.post("/agent/runs/r/cancel", &Value::Null).await;
    assert_eq!(cancel.status(), 404);
    slowly.go_on();
    assert_eq!(read_to_end(under_way).await, "said to the end");
}
