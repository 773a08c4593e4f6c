//! Threads as they are read.

use serde_json::Value;
use umbel_server::{AgentEndpoint, Server};

use crate::auth::runner;
use crate::support::{Host, input};

#[tokio::test]
async fn a_thread_can_be_read_as_it_was_when_a_run_began() {
    let endpoint = AgentEndpoint::new(runner("app", "echo").build().unwrap());
    let host = Host::start(Server::new().agent("/chat", endpoint).build().unwrap()).await;
    for (run, text) in [("r1", "one"), ("r2", "two")] {
        host.post("/chat", &input("t", run, text)).await.frames().await;
    }
    let said = |query: &'static str| {
        let host = &host;
        async move {
            let thread = host.get(&format!("/chat/threads/t{query}")).await.json().await;
            let messages: Vec<Value> = thread["messages"].as_array().unwrap().clone();
            messages.iter().map(|message| message["content"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        }
    };
    assert_eq!(said("?before=r1").await, ["one"]);
    assert_eq!(said("?before=r2").await, ["one", "echo: one", "two"]);
    for all in ["", "?before=r9"] {
        assert_eq!(said(all).await, ["one", "echo: one", "two", "echo: two"]);
    }
}
