//! Clients that mean harm: what they get, and that others are served all the same.

use std::time::Duration;

use http::{Method, Request, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use umbel_server::{AgentEndpoint, BearerTokens, Principal, Server, ServerLimits, auth_fn};

use crate::auth::{ask, get, post, runner};
use crate::support::{Host, Reply, input, within};

fn server(limits: ServerLimits) -> Server {
    let endpoint = |app, name| AgentEndpoint::new(runner(app, name).build().unwrap());
    Server::new()
        .agent("/chat", endpoint("a", "chat"))
        .agent("/chat/deep", endpoint("b", "deep"))
        .limits(limits)
}

async fn with_tokens(limits: ServerLimits, tokens: &str) -> Host {
    let auth = BearerTokens::from_text(tokens).unwrap();
    Host::start(server(limits).auth(auth).build().unwrap()).await
}

async fn as_bearer(host: &Host, token: &str, path: &str) -> Reply {
    ask(host, &get(path), &[("authorization", &format!("Bearer {token}"))]).await
}

async fn code(reply: Reply) -> (StatusCode, String) {
    let status = reply.status();
    let body: Value = reply.json().await;
    (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn connections_of_strangers_make_room_for_those_who_ask() {
    let limits = ServerLimits { connections: 20, ..ServerLimits::default() };
    let host = with_tokens(limits, "abc ann").await;
    // One by which somebody asked who may, and which goes on being used.
    let mut kept = host.connection().await;
    let agents = || Request::builder().uri("/agents").header("authorization", "Bearer abc");
    assert_eq!(kept.send(agents(), "").await.status(), StatusCode::OK);
    let mut idle = Vec::new();
    for number in 0..60 {
        let mut stream = TcpStream::connect(host.address).await.unwrap();
        // Some say nothing, some begin, and some ask for what is open to all.
        match number % 3 {
            0 => {}
            1 => stream.write_all(b"GET /chat HTTP/1.1\r\n").await.unwrap(),
            _ => stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap(),
        }
        idle.push(stream);
    }
    for _ in 0..30 {
        assert_eq!(as_bearer(&host, "abc", "/agents").await.status(), StatusCode::OK);
    }
    assert_eq!(kept.send(agents(), "").await.status(), StatusCode::OK);
    // The oldest of the strangers was closed.
    let mut rest = Vec::new();
    within(idle[0].read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty());
}

#[tokio::test]
async fn an_address_that_guesses_tokens_is_not_listened_to_but_good_ones_are() {
    let limits = ServerLimits { bad_tokens_per_minute: 5, ..ServerLimits::default() };
    let host = with_tokens(limits, "abc ann\ndef bob").await;
    assert_eq!(as_bearer(&host, "abc", "/agents").await.status(), StatusCode::OK);
    for guess in 0..5 {
        let told = code(as_bearer(&host, &format!("guess{guess}"), "/agents").await).await;
        assert_eq!(told, (StatusCode::UNAUTHORIZED, "INVALID_TOKEN".to_owned()));
    }
    for guess in ["guess5", "def"] {
        let reply = as_bearer(&host, guess, "/agents").await;
        let wait: u64 = reply.head.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=13).contains(&wait), "{wait}");
        let told = code(reply).await;
        assert_eq!(told, (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_BAD_TOKENS".to_owned()));
    }
    // Who was known before is not locked out by others at the same address, and what is open stays so.
    assert_eq!(as_bearer(&host, "abc", "/agents").await.status(), StatusCode::OK);
    assert_eq!(host.get("/health").await.status(), StatusCode::OK);
    // No token is no guess.
    assert_eq!(code(host.get("/agents").await).await.0, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_user_who_asks_too_often_waits_and_others_do_not() {
    let limits = ServerLimits { requests_per_second: 2, ..ServerLimits::default() };
    let host = with_tokens(limits, "abc ann\ndef bob").await;
    let mut refused = None;
    for _ in 0..40 {
        let reply = as_bearer(&host, "abc", "/agents").await;
        if reply.status() != StatusCode::OK {
            refused = Some(reply);
            break;
        }
    }
    let mut refused = refused.unwrap();
    assert_eq!(refused.head.headers["retry-after"], "1");
    assert!(refused.text().await.contains("requests_per_second"));
    assert_eq!(as_bearer(&host, "def", "/agents").await.status(), StatusCode::OK);
    // It is over after a while.
    let again = async {
        while as_bearer(&host, "abc", "/agents").await.status() != StatusCode::OK {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(again).await;
}

/// Sends a message with a token, and gives what came of it: the last event, or the error.
async fn say(host: &Host, token: &str, body: &Value) -> Value {
    let reply = ask(host, &post("/chat", body), &[("authorization", &format!("Bearer {token}"))]).await;
    match reply.status() {
        StatusCode::OK => reply.frames().await.last().unwrap().event.clone(),
        _ => reply.json().await["error"].clone(),
    }
}

#[tokio::test]
async fn a_user_over_quota_is_refused_and_others_are_not() {
    let limits = ServerLimits {
        threads_per_user: 2,
        stored_bytes_per_user: 20_000,
        forks_per_minute: 1,
        ..ServerLimits::default()
    };
    let host = with_tokens(limits, "abc ann\ndef bob").await;
    let finished = |told: &Value| assert_eq!(told["type"], "RUN_FINISHED", "{told}");
    for thread in ["one", "two"] {
        finished(&say(&host, "abc", &input(thread, thread, "Hello")).await);
    }
    let told = say(&host, "abc", &input("three", "three", "Hello")).await;
    assert_eq!(told["code"], "QUOTA_EXCEEDED");
    assert!(told["message"].as_str().unwrap().contains("`threads_per_user`"), "{told}");
    finished(&say(&host, "abc", &input("one", "again", "Hello again")).await);
    let as_ann = [("authorization", "Bearer abc")];
    let fork = post("/chat/threads/one/fork", &serde_json::json!({}));
    let told: Value = ask(&host, &fork, &as_ann).await.json().await;
    assert!(told["error"]["message"].as_str().unwrap().contains("`threads_per_user`"), "{told}");
    let told = code(ask(&host, &fork, &as_ann).await).await;
    assert_eq!(told, (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_REQUESTS".to_owned()));
    // Another user has quotas of their own.
    finished(&say(&host, "def", &input("three", "three", "Hello")).await);
    // What is deleted counts no more.
    let delete = (Method::DELETE, "/chat/threads/two".to_owned(), Value::Null);
    assert_eq!(ask(&host, &delete, &as_ann).await.status(), StatusCode::NO_CONTENT);
    let told = say(&host, "abc", &input("three", "three", &"x".repeat(20_000))).await;
    assert!(told["message"].as_str().unwrap().contains("`stored_bytes_per_user`"), "{told}");
    finished(&say(&host, "abc", &input("three", "three", "Hello")).await);
}

#[tokio::test]
async fn a_token_does_what_its_scopes_say() {
    let tokens = "all ann\nchat bob scopes=/chat\ndeep bob scopes=/chat/deep,inspect\nfigures eve scopes=metrics\n\
                  none eve scopes=\nboth zoe scopes=*,metrics\nold ann expires=2020-01-01\nnew ann expires=2999-01-01";
    let host = with_tokens(ServerLimits::default(), tokens).await;
    let cases = [
        ("all", "/chat/threads", 200),
        ("all", "/chat/deep/threads", 200),
        ("all", "/metrics", 403),
        ("all", "/chat/graph", 404),
        ("chat", "/chat/threads", 200),
        ("chat", "/chat/deep/threads", 403),
        ("chat", "/metrics", 403),
        ("deep", "/chat/threads", 403),
        ("deep", "/chat/deep/threads", 200),
        ("deep", "/chat/deep/graph", 200),
        ("deep", "/chat/graph", 403),
        ("figures", "/metrics", 200),
        ("figures", "/chat/threads", 403),
        ("figures", "/agents", 200),
        ("none", "/chat/threads", 403),
        ("none", "/metrics", 403),
        ("both", "/metrics", 200),
        ("both", "/chat/deep/threads", 200),
        ("old", "/chat/threads", 401),
        ("new", "/chat/threads", 200),
    ];
    for (token, path, status) in cases {
        assert_eq!(as_bearer(&host, token, path).await.status().as_u16(), status, "{token} {path}");
    }
    for (token, paths) in [("all", 2), ("chat", 1), ("deep", 1), ("figures", 0), ("both", 2)] {
        let listed = as_bearer(&host, token, "/agents").await.json().await;
        assert_eq!(listed["agents"].as_array().unwrap().len(), paths, "{token}");
        assert_eq!(listed["inspect"], token == "deep", "{token}");
    }
    let refused = as_bearer(&host, "chat", "/metrics").await;
    assert_eq!(refused.head.headers["www-authenticate"], "Bearer error=\"insufficient_scope\"");
    assert_eq!(code(refused).await.1, "INSUFFICIENT_SCOPE");
    let run = post("/chat", &input("t", "r", "hi"));
    let refused = ask(&host, &run, &[("authorization", "Bearer figures")]).await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn scopes_hold_for_closures_and_below_a_base_path() {
    let auth = auth_fn(|head| {
        let scope = head.headers.get("x-scope").map(|scope| scope.to_str().unwrap().to_owned());
        async move { Ok(Principal::new("ann").scopes(scope)) }
    });
    let host =
        Host::start(server(ServerLimits::default()).base_path("/api").auth(auth).build().unwrap()).await;
    for (scope, path, status) in [
        ("/chat", "/api/chat/threads", 200),
        ("/chat", "/api/chat/deep/threads", 403),
        ("/chat", "/api/metrics", 403),
        ("metrics", "/api/metrics", 200),
    ] {
        let reply = ask(&host, &get(path), &[("x-scope", scope)]).await;
        assert_eq!(reply.status().as_u16(), status, "{scope} {path}");
    }
}

#[tokio::test]
async fn no_answer_is_guessed_at_kept_or_made_part_of_another_page() {
    let host = with_tokens(ServerLimits::default(), "abc ann").await;
    let bearer: &[(&str, &str)] = &[("authorization", "Bearer abc")];
    let run = post("/chat", &input("t", "r", "hi"));
    for (route, headers) in [
        (&get("/agents"), bearer),
        (&get("/agents"), &[][..]),
        (&get("/health"), &[]),
        (&get("/chat/threads"), bearer),
        (&get("/nowhere"), bearer),
        (&(Method::PUT, "/chat".to_owned(), Value::Null), bearer),
        (&run, bearer),
    ] {
        let reply = ask(&host, route, headers).await;
        let headers = &reply.head.headers;
        assert_eq!(headers["x-content-type-options"], "nosniff", "{route:?}");
        assert_eq!(headers["cross-origin-resource-policy"], "same-origin", "{route:?}");
        assert!(headers["cache-control"].to_str().unwrap().contains("no-store"), "{route:?}");
    }
}

#[tokio::test]
async fn a_large_request_is_handled_on_a_blocking_thread() {
    let threads = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = threads.clone();
    let endpoint = AgentEndpoint::new(runner("a", "chat").build().unwrap()).request_state(move |_, _| {
        seen.lock().unwrap().push(std::thread::current().id());
        Ok(umbel_core::Object::new())
    });
    let host = Host::start(Server::new().agent("/chat", endpoint).build().unwrap()).await;
    for (run, words) in [("small", "Hello".to_owned()), ("large", "Hello ".repeat(60_000))] {
        let told = host.post("/chat", &input("t", run, &words)).await.frames().await;
        assert_eq!(told.last().unwrap().event["type"], "RUN_FINISHED");
    }
    // The test's runtime has one worker, which is this thread.
    let [small, large] = threads.lock().unwrap()[..] else { panic!("two requests") };
    assert_eq!(small, std::thread::current().id());
    assert_ne!(large, std::thread::current().id());
}
