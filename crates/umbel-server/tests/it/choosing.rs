//! Whose sessions a request is about, and which agent it is for, on every route.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use umbel::{ErrorKind, InMemorySessions, NewSession, SessionKey, SessionStore};
use umbel_server::{AgentEndpoint, Principal, Problem, Server, Service};

use crate::auth::{ask, get, post, routes, runner};
use crate::support::{Host, SseFrame, input, within};

fn spoken(frames: &[SseFrame]) -> String {
    assert_eq!(frames.last().unwrap().kind(), "RUN_FINISHED");
    frames.iter().filter_map(|frame| frame.event["delta"].as_str()).collect()
}

async fn threads(host: &Host, path: &str, headers: &[(&str, &str)]) -> Vec<String> {
    let body = ask(host, &get(path), headers).await.json().await;
    let threads = body["threads"].as_array().unwrap().iter();
    threads.map(|thread| thread["threadId"].as_str().unwrap().to_owned()).collect()
}

fn tenant(head: &http::request::Parts, _: &Principal) -> Result<String, Problem> {
    match head.headers.get("x-tenant").and_then(|tenant| tenant.to_str().ok()) {
        Some(tenant) => Ok(tenant.to_owned()),
        None => Err(Problem::new(StatusCode::BAD_REQUEST, "NO_TENANT", "say which tenant")),
    }
}

#[tokio::test]
async fn an_app_extractor_keeps_tenants_apart_on_every_route() {
    let store = Arc::new(InMemorySessions::new());
    let runner = runner("app", "echo").sessions(store.clone()).build().unwrap();
    let endpoint = AgentEndpoint::new(runner).app(tenant);
    let host = Host::start(Server::new().agent("/chat", endpoint).build().unwrap()).await;
    let (red, blue) = ([("x-tenant", "red")], [("x-tenant", "blue")]);
    let route = post("/chat", &input("t", "r", "hi"));
    assert_eq!(spoken(&ask(&host, &route, &red).await.frames().await), "echo: hi");
    assert_eq!(store.list("red", "local").await.unwrap().len(), 1);
    assert!(store.list("app", "local").await.unwrap().is_empty());
    for route in routes("/chat", "t", "r") {
        assert_eq!(ask(&host, &route, &blue).await.status(), StatusCode::NOT_FOUND, "{route:?}");
        assert_eq!(ask(&host, &route, &[]).await.json().await["error"]["code"], "NO_TENANT", "{route:?}");
    }
    assert_eq!(ask(&host, &route, &[]).await.status(), StatusCode::BAD_REQUEST);
    assert_eq!(threads(&host, "/chat/threads", &red).await, ["t"]);
    assert!(threads(&host, "/chat/threads", &blue).await.is_empty());
    for route in routes("/chat", "t", "r") {
        assert!(ask(&host, &route, &red).await.status().is_success(), "{route:?}");
    }
}

#[tokio::test]
async fn a_user_extractor_says_whose_sessions_are_meant_on_every_route() {
    let endpoint = AgentEndpoint::new(runner("app", "echo").build().unwrap()).user(tenant);
    let host = Host::start(Server::new().agent("/chat", endpoint).build().unwrap()).await;
    let (red, blue) = ([("x-tenant", "red")], [("x-tenant", "blue")]);
    ask(&host, &post("/chat", &input("t", "r", "hi")), &red).await.frames().await;
    for route in routes("/chat", "t", "r") {
        assert_eq!(ask(&host, &route, &blue).await.status(), StatusCode::NOT_FOUND, "{route:?}");
    }
    for route in routes("/chat", "t", "r") {
        assert!(ask(&host, &route, &red).await.status().is_success(), "{route:?}");
    }
}

/// A run that a process left behind, in an app that no runner has the name of.
#[tokio::test]
async fn runs_of_extracted_apps_are_gone_on_with() {
    let store = Arc::new(InMemorySessions::new());
    let key = SessionKey::new("red", "local", "t").unwrap();
    store.create(NewSession::new(key.clone())).await.unwrap();
    let build =
        || runner("app", "echo").sessions(store.clone()).lease(Duration::from_millis(20)).build().unwrap();
    // It is gone as a process is: nobody winds it up.
    let mut left = build().run(&key, "hi");
    futures::future::poll_immediate(futures::StreamExt::next(&mut left)).await;
    std::mem::forget(left);
    let host =
        Host::start(Server::new().agent("/chat", AgentEndpoint::new(build()).app(tenant)).build().unwrap())
            .await;
    let red = [("x-tenant", "red")];
    let ended = async {
        loop {
            let body = ask(&host, &get("/chat/threads/t/runs"), &red).await.json().await;
            if body["runs"][0]["outcome"] == "finished" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(ended).await;
}

/// Two agents at one path: by a header, by what the client handed through, or by the thread.
fn service(apps: [&'static str; 2]) -> Service {
    let store = Arc::new(InMemorySessions::new());
    let agent = |app, name| AgentEndpoint::new(runner(app, name).sessions(store.clone()).build().unwrap());
    let agents = [("sales", agent(apps[0], "sales")), ("support", agent(apps[1], "support"))];
    let server = Server::new().resolver("/desk", agents, |asking| {
        let header = asking.head.headers.get("x-agent").and_then(|name| name.to_str().ok());
        let props = asking.input.and_then(|input| input.forwarded_props.as_ref());
        let prop = props.and_then(|props| props.get("agent")).and_then(Value::as_str);
        Ok(header.or(prop).map(Into::into))
    });
    server.build().unwrap()
}

fn to(agent: &str, thread: &str, run: &str) -> Value {
    let mut input = input(thread, run, "hi");
    input["forwardedProps"] = json!({"agent": agent});
    input
}

#[tokio::test]
async fn a_resolver_chooses_by_what_the_client_sends() {
    let host = Host::start(service(["one", "two"])).await;
    for name in ["sales", "support"] {
        let route = post("/desk", &to(name, name, name));
        assert_eq!(spoken(&ask(&host, &route, &[]).await.frames().await), format!("{name}: hi"));
        let route = get("/desk/capabilities");
        let capabilities = ask(&host, &route, &[("x-agent", name)]).await.json().await;
        assert_eq!(capabilities["identity"]["name"], name);
    }
    // Where nobody can tell, it is the first.
    let begun = ask(&host, &post("/desk", &input("new", "new", "hi")), &[]).await.frames().await;
    assert_eq!(spoken(&begun), "sales: hi");
    assert_eq!(ask(&host, &get("/desk/capabilities"), &[]).await.json().await["identity"]["name"], "sales");
    for route in [post("/desk", &to("nobody", "t", "r")), post("/desk", &to("nobody", "sales", "r"))] {
        assert_eq!(ask(&host, &route, &[]).await.json().await["error"]["message"], "there is no such agent");
    }
    for route in routes("/desk", "sales", "sales") {
        let reply = ask(&host, &route, &[("x-agent", "nobody")]).await;
        assert_eq!(reply.status(), StatusCode::NOT_FOUND, "{route:?}");
    }
}

#[tokio::test]
async fn runs_and_threads_of_a_resolver_find_their_agent() {
    for apps in [["one", "two"], ["one", "one"]] {
        let host = Host::start(service(apps)).await;
        for name in ["sales", "support"] {
            ask(&host, &post("/desk", &to(name, name, name)), &[]).await.frames().await;
        }
        assert_eq!(threads(&host, "/desk/threads", &[]).await, ["support", "sales"]);
        for name in ["sales", "support"] {
            // The thread goes on with the agent that it has, without its being named.
            let run = format!("{name}-2");
            let went_on = ask(&host, &post("/desk", &input(name, &run, "ho")), &[]).await.frames().await;
            assert_eq!(spoken(&went_on), format!("{name}: ho"));
        }
        host.service.forget_frames();
        for name in ["sales", "support"] {
            for path in
                [format!("/desk/runs/{name}/events"), format!("/desk/runs/{name}/events?thread={name}")]
            {
                let told = ask(&host, &get(&path), &[]).await.frames().await;
                assert_eq!(spoken(&told), format!("{name}: hi"), "{path}");
            }
            // It is told from the log by the agent that said it: the first agent would show it as another's.
            let path = format!("/desk/threads/{name}");
            let thread = ask(&host, &get(&path), &[]).await.json().await;
            assert_eq!(thread["messages"][1]["content"], format!("{name}: hi"));
            for route in routes("/desk", name, name).into_iter().filter(|route| !route.1.ends_with("cancel"))
            {
                assert!(ask(&host, &route, &[]).await.status().is_success(), "{route:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_run_is_found_though_another_agent_has_a_thread_of_the_same_name() {
    let host = Host::start(service(["one", "two"])).await;
    for name in ["sales", "support"] {
        ask(&host, &post("/desk", &to(name, "t", name)), &[]).await.frames().await;
    }
    for _ in ["from memory", "from the log"] {
        for name in ["sales", "support"] {
            for path in [format!("/desk/runs/{name}/events"), format!("/desk/runs/{name}/events?thread=t")] {
                let told = ask(&host, &get(&path), &[]).await.frames().await;
                assert_eq!(spoken(&told), format!("{name}: hi"), "{path}");
            }
            let steps = ask(&host, &get(&format!("/desk/runs/{name}/steps")), &[]).await.json().await;
            assert_eq!(steps["steps"][0]["agent"], name);
        }
        host.service.forget_frames();
    }
}

#[tokio::test]
async fn a_run_of_a_resolver_can_be_cancelled_while_it_is_at_hand() {
    let host = Host::start(service(["one", "two"])).await;
    ask(&host, &post("/desk", &to("support", "t", "r")), &[]).await.frames().await;
    let body = ask(&host, &post("/desk/runs/r/cancel", &json!({})), &[]).await.json().await;
    assert_eq!(body, json!({"runId": "r", "status": "over"}));
    let named = ask(&host, &post("/desk/runs/r/cancel", &json!({})), &[("x-agent", "sales")]).await;
    assert_eq!(named.status(), StatusCode::NOT_FOUND);
}

#[test]
fn a_resolver_needs_agents() {
    let none: [(&str, AgentEndpoint); 0] = [];
    let error = Server::new().resolver("/desk", none, |_| Ok(None)).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Build);
    assert!(error.message().contains("/desk"));
}
