//! How a run begins: with its request, and with the head of the response.

use std::time::Duration;

use http::StatusCode;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use umbel_server::{AgentEndpoint, Problem, Server};

use crate::agents::agent;
use crate::support::{Host, input, within};

async fn host(endpoint: AgentEndpoint) -> Host {
    Host::start(Server::new().agent("/text", endpoint).build().unwrap()).await
}

#[tokio::test]
async fn what_a_run_says_at_once_comes_with_the_head_of_the_response() {
    let host = host(AgentEndpoint::new(agent("text", Duration::ZERO).build().unwrap())).await;
    let body = input("t", "r", "Hello").to_string();
    let head = format!(
        "POST /text HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        host.address,
        body.len()
    );
    let mut stream = TcpStream::connect(host.address).await.unwrap();
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut first = vec![0; 64 * 1024];
    let read = within(stream.read(&mut first)).await.unwrap();
    let first = String::from_utf8_lossy(&first[..read]);
    assert!(first.starts_with("HTTP/1.1 200 "), "{first}");
    assert!(first.contains("RUN_STARTED") && first.contains("RUN_FINISHED"), "{first}");
    assert!(first.ends_with("\r\n0\r\n\r\n"), "{first}");
}

#[tokio::test]
async fn a_run_that_has_to_wait_is_told_of_before_it_goes_on() {
    let slow = agent("text", Duration::from_secs(3_600)).build().unwrap();
    let host = host(AgentEndpoint::new(slow)).await;
    let mut reply = host.post("/text", &input("t", "r", "Hello")).await;
    assert_eq!(reply.next().await.unwrap().kind(), "RUN_STARTED");
}

#[tokio::test]
async fn a_request_that_is_refused_leaves_no_thread() {
    let runner = agent("text", Duration::ZERO).build().unwrap();
    let endpoint = AgentEndpoint::new(runner)
        .run_config(|_, _, _| Err(Problem::new(StatusCode::FORBIDDEN, "CLOSED", "come back tomorrow")));
    let host = host(endpoint).await;
    let reply = host.post("/text", &input("t", "r", "Hello")).await;
    assert_eq!(reply.status(), StatusCode::FORBIDDEN);
    let threads = host.get("/text/threads").await.json().await;
    assert_eq!(threads["threads"], json!([]));
}

#[tokio::test]
async fn a_session_that_cannot_be_made_is_the_failure_of_its_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.db");
    let stores = umbel_stores::open(&format!("sqlite:{}", file.display())).await.unwrap();
    let broken = rusqlite::Connection::open(&file).unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON sessions BEGIN SELECT RAISE(ABORT, 'secret'); END";
    broken.execute_batch(refuse).unwrap();
    let runner = agent("text", Duration::ZERO).sessions(stores.sessions).build().unwrap();
    let host = host(AgentEndpoint::new(runner)).await;
    let frames = host.post("/text", &input("t", "r", "Hello")).await.frames().await;
    let kinds: Vec<_> = frames.iter().map(|frame| frame.kind()).collect();
    assert_eq!(kinds, ["RUN_STARTED", "RUN_ERROR"]);
    assert!(!frames[1].text.contains("secret"), "{}", frames[1].text);
}
