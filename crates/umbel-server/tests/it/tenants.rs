//! Threads and runs of somebody else: nobody is told that they are there, and nothing happens to them.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use umbel::LlmAgent;
use umbel_server::Server;

use crate::desk::{ByName, Slowly, ask, end, offered, serve, talker, text, user};
use crate::support::{Host, input};

async fn shared() -> Host {
    serve(Server::new().auth(ByName).agent("/agent", offered(talker("Well met, friend.")))).await
}

#[tokio::test]
async fn whoever_does_not_say_who_they_are_gets_nowhere() {
    let host = shared().await;
    for (method, path) in [
        (Method::POST, "/agent"),
        (Method::GET, "/agent/capabilities"),
        (Method::GET, "/agent/threads"),
        (Method::GET, "/agent/threads/t"),
        (Method::DELETE, "/agent/threads/t"),
        (Method::POST, "/agent/threads/t/fork"),
        (Method::GET, "/agent/threads/t/runs"),
        (Method::GET, "/agent/runs/r/events"),
        (Method::POST, "/agent/runs/r/cancel"),
        (Method::GET, "/metrics"),
        (Method::GET, "/nowhere"),
    ] {
        let request = http::Request::builder().method(method.clone()).uri(path);
        let request = request.header("content-type", "application/json");
        let reply = host.send(request, input("t", "r", "x").to_string()).await;
        assert_eq!(reply.status(), StatusCode::UNAUTHORIZED, "{method} {path}");
        assert_eq!(reply.json().await["error"]["code"], "UNAUTHORIZED");
    }
    assert_eq!(host.get("/health").await.status(), StatusCode::OK, "that is no secret");
}

#[tokio::test]
async fn another_s_thread_and_run_are_not_there_on_any_route_and_nothing_happens_to_them() {
    let host = shared().await;
    let frames = host.ask("ann", Method::POST, "/agent", &input("t", "r", "hello")).await.frames().await;
    assert_eq!(end(&frames)["type"], "RUN_FINISHED");
    let before = host.ask("ann", Method::GET, "/agent/threads/t", &Value::Null).await.json().await;
    for (method, path) in [
        (Method::GET, "/agent/threads/t"),
        (Method::DELETE, "/agent/threads/t"),
        (Method::POST, "/agent/threads/t/fork"),
        (Method::GET, "/agent/threads/t/runs"),
        (Method::GET, "/agent/runs/r/events"),
        (Method::GET, "/agent/runs/r/events?thread=t"),
        (Method::POST, "/agent/runs/r/cancel"),
    ] {
        let reply = host.ask("bob", method.clone(), path, &Value::Null).await;
        assert_eq!(reply.status(), StatusCode::NOT_FOUND, "{method} {path}");
        let told = reply.json().await;
        assert_eq!(told["error"]["code"], "NOT_FOUND", "{method} {path}: {told}");
    }
    let threads = host.ask("bob", Method::GET, "/agent/threads", &Value::Null).await.json().await;
    assert_eq!(threads, json!({"threads": [], "next": null}));
    let after = host.ask("ann", Method::GET, "/agent/threads/t", &Value::Null).await.json().await;
    assert_eq!(after, before, "nothing happened to it");
}

#[tokio::test]
async fn the_same_thread_and_run_id_of_two_users_are_two_threads_and_two_runs() {
    let host = shared().await;
    for name in ["ann", "bob"] {
        let body = ask("t", "r", &[user("m", &format!("I am {name}"))]);
        let frames = host.ask(name, Method::POST, "/agent", &body).await.frames().await;
        assert_eq!(text(&frames), "Well met, friend.", "{name}");
    }
    for name in ["ann", "bob"] {
        let thread = host.ask(name, Method::GET, "/agent/threads/t", &Value::Null).await.json().await;
        let said = thread["messages"][0]["content"].as_str().unwrap();
        assert_eq!((said, thread["messages"].as_array().unwrap().len()), (&*format!("I am {name}"), 2));
    }
    let gone = host.ask("bob", Method::DELETE, "/agent/threads/t", &Value::Null).await;
    assert_eq!(gone.status(), StatusCode::NO_CONTENT);
    let left = host.ask("ann", Method::GET, "/agent/threads/t", &Value::Null).await;
    assert_eq!(left.status(), StatusCode::OK, "only one's own is deleted");
}

#[tokio::test]
async fn another_s_run_under_way_can_neither_be_watched_nor_cancelled() {
    let model = Slowly::new("one two three");
    let agent = LlmAgent::new("slow").model(model.clone());
    let host = serve(Server::new().auth(ByName).agent("/agent", offered(agent))).await;
    let mut running = host.ask("ann", Method::POST, "/agent", &input("t", "r", "hello")).await;
    assert_eq!(running.next().await.unwrap().kind(), "RUN_STARTED");
    for (method, path) in [(Method::GET, "/agent/runs/r/events"), (Method::POST, "/agent/runs/r/cancel")] {
        let reply = host.ask("bob", method, path, &Value::Null).await;
        assert_eq!(reply.status(), StatusCode::NOT_FOUND, "{path}");
    }
    model.go_on();
    let rest = running.frames().await;
    assert_eq!(
        (text(&rest), &end(&rest)["outcome"]),
        ("one two three".to_owned(), &json!({"type": "success"}))
    );
}
