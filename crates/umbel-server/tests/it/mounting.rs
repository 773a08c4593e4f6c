//! Services of others at paths of the server.

use std::sync::Arc;
use std::time::Duration;

use axum::routing::any;
use futures::StreamExt;
use http::Request;
use umbel::{
    Caller, ErrorKind, EventFilter, InMemorySessions, LlmAgent, RunConfig, RunLimits, Runner, SessionKey,
    SessionStore,
};
use umbel_server::{AgentEndpoint, ProtectedResource, Server, Sweep};

use crate::desk::{Slowly, offered, serve, talker};
use crate::support::within;

#[test]
fn paths_that_meet_are_refused_when_the_server_is_built() {
    let protected =
        || ProtectedResource::new("https://agents.example/mcp").authorization_server("https://login.example");
    let server =
        || Server::new().studio(true).protected_resource(protected()).agent("/chat", offered(talker("hi")));
    let service = || any(async || "hi");
    server().mount("/mcp", service()).mount("/chat/more", service()).build().unwrap();
    for path in [
        "/",
        "/chat",
        "/chat/threads",
        "/chat/graph",
        "/chat/threads/{id}",
        "/health",
        "/studio",
        "/studio/x",
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/:name",
        "/{name",
    ] {
        let refused = server().mount(path, service()).build().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Build, "{path}");
    }
    let twice = server().mount("/mcp", service()).mount("mcp/", service()).build().unwrap_err();
    assert_eq!(twice.message(), "the path `/mcp` is taken: choose another");
    let below = server().agent("/chat/threads", offered(talker("hi"))).build().unwrap_err();
    assert_eq!(below.message(), "the path `/chat/threads` is taken: choose another");
    server().agent("/", offered(talker("hi"))).build().unwrap();
    Server::new().mount("/", service()).build().unwrap();
}

/// A server with two agents, whose services are used by a tenant.
fn of_a_tenant(store: &Arc<InMemorySessions>, config: &RunConfig) -> Server {
    let endpoint = |app: &'static str, agent: LlmAgent| {
        let runner = Runner::builder(app, agent).sessions(store.clone()).config(config.clone());
        AgentEndpoint::new(runner.build().unwrap())
    };
    let other = LlmAgent::new("other").model(Slowly::new("not I"));
    Server::new()
        .agent("/other", endpoint("first", other))
        .agent("/talker", endpoint("second", talker("gone on with")))
        .caller(|_, principal| Ok(Caller::new(principal.id.clone()).app("tenant")))
        .mount("/mounted", any(async || "hi"))
}

#[tokio::test]
async fn what_was_left_in_apps_of_callers_is_seen_to_by_the_agent_that_it_is_of() {
    let store = Arc::new(InMemorySessions::new());
    let limits = RunLimits { lease: Duration::from_millis(50), ..RunLimits::default() };
    let config = RunConfig { limits, streaming: true, create_session: true, ..RunConfig::default() };
    let lost = Runner::builder("second", LlmAgent::new("talker").model(Slowly::new("never said")));
    let lost = lost.sessions(store.clone()).config(config.clone()).build().unwrap();
    let key = SessionKey::new("tenant", "ann", "s1").unwrap();
    let mut run = lost.run(&key, "hi");
    run.next().await.unwrap().unwrap();
    // Nobody polls it any more, as in a process that died.
    std::mem::forget(run);

    let host = serve(of_a_tenant(&store, &config).sweep(None)).await;
    assert_eq!(host.send(Request::builder().uri("/mounted"), "").await.text().await, "hi");
    let text = async || {
        let session = store.get(&key, EventFilter::default()).await.unwrap()?;
        session.events.last().and_then(|event| event.content.as_ref().map(|content| content.text()))
    };
    within(async {
        while text().await.as_deref() != Some("gone on with") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let swift = Sweep { timeout: Duration::ZERO, every: Duration::from_millis(5), max_wait: None };
    // A server that takes its place knows of the tenant.
    host.service.replace(of_a_tenant(&store, &config).sweep(swift)).unwrap();
    within(async {
        while text().await.is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Begins a run in the tenant's app and lets nobody go on with it, as in a process that died.
async fn cut_short(store: &Arc<InMemorySessions>, config: &RunConfig, agent: &'static str) -> SessionKey {
    let lost = Runner::builder("lost", LlmAgent::new(agent).model(Slowly::new("never said")));
    let lost = lost.sessions(store.clone()).config(config.clone()).build().unwrap();
    let key = SessionKey::new("tenant", "ann", agent).unwrap();
    let mut run = lost.run(&key, "hi");
    run.next().await.unwrap().unwrap();
    std::mem::forget(run);
    key
}

#[tokio::test]
async fn an_agent_does_not_go_on_with_runs_of_one_that_only_a_mounted_service_has() {
    for own_app in ["first", "tenant"] {
        let store = Arc::new(InMemorySessions::new());
        let limits = RunLimits { lease: Duration::from_millis(50), ..RunLimits::default() };
        let config = RunConfig { limits, streaming: true, create_session: true, ..RunConfig::default() };
        let runner = Runner::builder(own_app, talker("gone on with"));
        let runner = runner.sessions(store.clone()).config(config.clone()).build().unwrap();
        let server = Server::new()
            .agent("/talker", AgentEndpoint::new(runner))
            .caller(|_, principal| Ok(Caller::new(principal.id.clone()).app("tenant")))
            .mount("/mounted", any(async || "hi"));
        let host = serve(server.sweep(None)).await;
        host.send(Request::builder().uri("/mounted"), "").await.text().await;
        let of_service = cut_short(&store, &config, "hidden").await;
        let of_talker = cut_short(&store, &config, "talker").await;
        let text = async |key: &SessionKey| {
            let session = store.get(key, EventFilter::default()).await.unwrap()?;
            session.events.last().and_then(|event| event.content.as_ref().map(|content| content.text()))
        };
        // It is counted when the others that were found with it are seen to as well.
        within(async {
            while host.get("/metrics").await.text().await.contains("umbel_runs_recovered_total 0") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert_eq!(text(&of_talker).await.as_deref(), Some("gone on with"));
        assert_ne!(text(&of_service).await.as_deref(), Some("gone on with"), "{own_app}");
    }
}
