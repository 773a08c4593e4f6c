//! Who may ask, on every route.

use std::path::Path;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use umbel::{Chunk, LlmAgent, ModelRequest, Runner, RunnerBuilder, ScriptedModel};
use umbel_server::{AgentEndpoint, Auth, BearerTokens, Principal, Problem, Server, auth_fn};

use crate::support::{Host, Reply, input, within};

/// An agent that says its name and what it was told last.
pub(crate) fn echo(name: &'static str) -> LlmAgent {
    LlmAgent::new(name).model(ScriptedModel::from_fn("echo", move |request: &ModelRequest| {
        let said = request.contents.last().map(|content| content.text()).unwrap_or_default();
        vec![Ok(Chunk::Text(format!("{name}: {said}")))]
    }))
}

pub(crate) fn runner(app: &'static str, name: &'static str) -> RunnerBuilder {
    Runner::builder(app, echo(name))
}

fn endpoint() -> AgentEndpoint {
    AgentEndpoint::new(runner("app", "echo").build().unwrap())
}

async fn host(auth: impl Auth + 'static) -> Host {
    Host::start(Server::new().agent("/chat", endpoint()).auth(auth).inspect(true).build().unwrap()).await
}

/// Everything that can be asked of an agent, about that thread and run. What changes nothing comes first.
pub(crate) fn routes(agent: &str, thread: &str, run: &str) -> Vec<(Method, String, Value)> {
    let get = |path: &str| (Method::GET, format!("{agent}{path}"), Value::Null);
    vec![
        get(&format!("/runs/{run}/events")),
        get(&format!("/runs/{run}/events?thread={thread}")),
        get(&format!("/runs/{run}/steps")),
        get(&format!("/runs/{run}/steps/1/request?thread={thread}")),
        get(&format!("/runs/{run}/trace?thread={thread}")),
        get(&format!("/threads/{thread}")),
        get(&format!("/threads/{thread}/events")),
        get(&format!("/threads/{thread}/runs")),
        (Method::POST, format!("{agent}/runs/{run}/cancel"), json!({})),
        (Method::POST, format!("{agent}/threads/{thread}/fork"), json!({})),
        (Method::DELETE, format!("{agent}/threads/{thread}"), Value::Null),
    ]
}

/// Asks with some headers.
pub(crate) async fn ask(
    host: &Host,
    (method, path, body): &(Method, String, Value),
    headers: &[(&str, &str)],
) -> Reply {
    let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    host.send(request, if body.is_null() { String::new() } else { body.to_string() }).await
}

pub(crate) fn post(path: &str, input: &Value) -> (Method, String, Value) {
    (Method::POST, path.to_owned(), input.clone())
}

pub(crate) fn get(path: &str) -> (Method, String, Value) {
    (Method::GET, path.to_owned(), Value::Null)
}

#[tokio::test]
async fn nothing_but_the_state_of_the_server_is_told_to_nobody() {
    let host = host(BearerTokens::from_text("abc ann").unwrap()).await;
    let mut all = routes("/chat", "t", "r");
    all.extend([post("/chat", &input("t", "r", "hi"))]);
    all.extend(
        ["/chat/capabilities", "/chat/graph", "/chat/threads", "/agents", "/metrics", "/nowhere"].map(get),
    );
    for route in &all {
        for (given, code, how) in [
            (&[][..], "UNAUTHORIZED", "Bearer"),
            (&[("authorization", "Basic abc")], "UNAUTHORIZED", "Bearer"),
            (&[("authorization", "Bearer abcd")], "INVALID_TOKEN", "Bearer error=\"invalid_token\""),
        ] {
            let reply = ask(&host, route, given).await;
            assert_eq!(reply.status(), StatusCode::UNAUTHORIZED, "{route:?}");
            assert_eq!(reply.head.headers["www-authenticate"], how, "{route:?}");
            let body = reply.json().await;
            assert_eq!(body["error"]["code"], code);
            assert!(!body["error"]["message"].as_str().unwrap().is_empty());
        }
    }
    for open in ["/health", "/ready"] {
        assert_eq!(host.get(open).await.status(), StatusCode::OK, "{open}");
    }
}

#[tokio::test]
async fn what_is_somebody_elses_is_not_there_on_any_route() {
    let host = host(BearerTokens::from_text("abc ann\ndef bob").unwrap()).await;
    let (ann, bob) = ([("authorization", "Bearer abc")], [("authorization", "Bearer def")]);
    let begun = ask(&host, &post("/chat", &input("t", "r", "hi")), &ann).await.frames().await;
    assert_eq!(begun.last().unwrap().kind(), "RUN_FINISHED");
    for route in routes("/chat", "t", "r") {
        assert_eq!(ask(&host, &route, &bob).await.status(), StatusCode::NOT_FOUND, "{route:?}");
    }
    assert_eq!(ask(&host, &get("/chat/threads"), &bob).await.json().await["threads"], json!([]));
    assert_eq!(ask(&host, &get("/chat/threads"), &ann).await.json().await["threads"][0]["threadId"], "t");
    for route in routes("/chat", "t", "r") {
        assert!(ask(&host, &route, &ann).await.status().is_success(), "{route:?}");
    }
    // The same names are somebody else's own.
    let own = ask(&host, &post("/chat", &input("t", "r", "ho")), &bob).await.frames().await;
    assert!(own.iter().any(|frame| frame.event["delta"] == "echo: ho"));
}

/// Whether a token is taken.
async fn is_taken(host: &Host, token: &str) -> bool {
    let given = format!("Bearer {token}");
    ask(host, &get("/chat/threads"), &[("authorization", &given)]).await.status() == StatusCode::OK
}

/// Waits until it is, or is not.
async fn becomes(host: &Host, token: &str, taken: bool) {
    let look = async {
        while is_taken(host, token).await != taken {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(look).await;
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

#[tokio::test]
async fn a_file_of_tokens_is_read_again_when_it_changes_and_a_slip_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    write(&path, "abc ann\n");
    let tokens = BearerTokens::from_file(&path).unwrap();
    let host = host(tokens.clone()).await;
    assert!(is_taken(&host, "abc").await && !is_taken(&host, "def").await);
    write(&path, "abc ann\ndef bob\n");
    becomes(&host, "def", true).await;
    write(&path, "abc\n");
    // Nothing shows that it was looked at, so time has to pass.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert!(is_taken(&host, "abc").await && is_taken(&host, "def").await);
    write(&path, "# nobody\n");
    becomes(&host, "abc", false).await;
    assert!(!is_taken(&host, "def").await && tokens.is_empty());
    write(&path, "def bob\n");
    becomes(&host, "def", true).await;
    std::fs::remove_file(&path).unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert!(is_taken(&host, "def").await && !is_taken(&host, "abc").await);
}

#[test]
fn a_file_of_tokens_must_be_there_and_have_some() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    let refused = |path: &Path| BearerTokens::from_file(path).unwrap_err().message().to_owned();
    assert!(refused(&path).contains("cannot be read"));
    write(&path, "abc ann\nx\n");
    let message = refused(&path);
    assert!(message.contains("line 2") && message.contains("tokens"), "{message}");
    write(&path, "\n");
    assert!(refused(&path).contains("TOKEN USER"));
}

#[cfg(unix)]
#[test]
fn a_file_of_tokens_that_others_may_read_is_noticed() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    write(&path, "abc ann\n");
    let tokens = BearerTokens::from_file(&path).unwrap();
    for (mode, exposed) in [(0o644, true), (0o640, true), (0o604, true), (0o600, false), (0o400, false)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(tokens.exposed().is_some(), exposed, "{mode:o}");
    }
    assert_eq!(BearerTokens::from_text("abc ann").unwrap().exposed(), None);
}

#[tokio::test]
async fn a_closure_may_tell_who_asks() {
    let auth = auth_fn(|head| {
        let user = head.headers.get("x-user").map(|user| user.to_str().unwrap().to_owned());
        async move {
            tokio::task::yield_now().await;
            match user.as_deref() {
                Some("eve") => Err(Problem::new(StatusCode::FORBIDDEN, "NOT_EVE", "not you")),
                Some(user) => Ok(Principal::new(user)),
                None => Err(Problem::unauthorized("the proxy names nobody")),
            }
        }
    });
    let host = host(auth).await;
    let body = ask(&host, &get("/chat/threads"), &[]).await.json().await;
    assert_eq!(body["error"]["message"], "the proxy names nobody");
    assert_eq!(ask(&host, &get("/chat/threads"), &[("x-user", "eve")]).await.status(), StatusCode::FORBIDDEN);
    let route = post("/chat", &input("t", "r", "hi"));
    ask(&host, &route, &[("x-user", "ann")]).await.frames().await;
    let count = |user: &'static str| {
        let (host, route) = (&host, get("/chat/threads"));
        async move {
            let body = ask(host, &route, &[("x-user", user)]).await.json().await;
            body["threads"].as_array().unwrap().len()
        }
    };
    assert_eq!((count("ann").await, count("bob").await), (1, 0));
}
