//! Threads as they are read.

use serde_json::{Value, json};
use umbel::{LlmAgent, Mode, Runner, SessionKey};
use umbel_server::{AgentEndpoint, Server};

use crate::auth::runner;
use crate::desk::{answers, ask, call, end, say, serve, text, user};
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

#[tokio::test]
async fn a_team_with_a_task_begins_a_thread_with_its_first_message_and_again_after_it_was_deleted() {
    let helper = answers(|_| say("Which seat?"));
    let helper = LlmAgent::new("helper").description("Books.").mode(Mode::Task).model(helper);
    let model = answers(|_| call([("helper", json!({"goal": "book a seat"}))]));
    let runner = Runner::new("desk", LlmAgent::new("asker").model(model).sub_agent(helper)).unwrap();
    let sessions = runner.sessions().clone();
    let host = serve(Server::new().agent("/agent", AgentEndpoint::new(runner))).await;
    let first = host.run(&ask("t", "r1", &[user("m1", "Book me a seat")])).await;
    assert_eq!((end(&first)["type"].as_str(), text(&first).as_str()), (Some("RUN_FINISHED"), "Which seat?"));
    // Whoever deletes it does not tell the runner, which keeps what it knew.
    sessions.delete(&SessionKey::new("desk", "local", "t").unwrap()).await.unwrap();
    let again = host.run(&ask("t", "r2", &[user("m2", "Book me a seat")])).await;
    assert_eq!((end(&again)["type"].as_str(), text(&again).as_str()), (Some("RUN_FINISHED"), "Which seat?"));
    let messages = host.get("/agent/threads/t").await.json().await["messages"].clone();
    assert_eq!(messages[0]["id"], "m2", "nothing of the old one is there: {messages}");
}

#[tokio::test]
async fn a_thread_that_cannot_be_read_is_listed_and_deleted_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sessions.db");
    let stores = umbel_stores::open(&format!("sqlite:{}", file.display())).await.unwrap();
    let endpoint =
        AgentEndpoint::new(runner("app", "echo").sessions(stores.sessions).hot_sessions(0).build().unwrap());
    let host = Host::start(Server::new().agent("/chat", endpoint).build().unwrap()).await;
    for thread in ["good", "bad"] {
        host.post("/chat", &input(thread, thread, "Hello")).await.frames().await;
    }
    let damage = "UPDATE log SET body = '{' WHERE session = (SELECT id FROM sessions WHERE name = 'bad')";
    let changed = rusqlite::Connection::open(&file).unwrap().execute(damage, []).unwrap();
    assert!(changed > 0);
    assert_eq!(host.get("/chat/threads/bad").await.status().as_u16(), 500);
    let listed = host.get("/chat/threads").await.json().await;
    let titles: Vec<(&str, Option<&str>)> = listed["threads"]
        .as_array()
        .unwrap()
        .iter()
        .map(|thread| (thread["threadId"].as_str().unwrap(), thread["title"].as_str()))
        .collect();
    assert_eq!(titles, [("bad", None), ("good", Some("Hello"))]);
    for status in [204, 404] {
        let delete = http::Request::builder().method("DELETE").uri("/chat/threads/bad");
        assert_eq!(host.send(delete, "").await.status().as_u16(), status);
    }
    assert_eq!(host.get("/chat/threads").await.json().await["threads"].as_array().unwrap().len(), 1);
}
