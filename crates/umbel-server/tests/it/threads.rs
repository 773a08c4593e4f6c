//! Threads as they are read.

use serde_json::{Value, json};
use umbel::{LlmAgent, Mode, Runner, SessionKey};
use umbel_server::{AgentEndpoint, Server};

use crate::auth::runner;
use crate::desk::{answers, ask, call, end, of_kind, say, serve, text, tool, user, with};
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
    assert_eq!(titles, [("bad", Some("Hello")), ("good", Some("Hello"))]);
    for status in [204, 404] {
        let delete = http::Request::builder().method("DELETE").uri("/chat/threads/bad");
        assert_eq!(host.send(delete, "").await.status().as_u16(), status);
    }
    assert_eq!(host.get("/chat/threads").await.json().await["threads"].as_array().unwrap().len(), 1);
}

/// All messages of a thread, read in pages of at least so many events, and how many pages there were.
async fn paged(host: &Host, limit: usize) -> (Vec<Value>, usize) {
    let (mut pages, mut until) = (Vec::new(), String::new());
    loop {
        let page = host.get(&format!("/agent/threads/t?limit={limit}{until}")).await.json().await;
        pages.push(page["messages"].as_array().unwrap().clone());
        match page["previous"].as_str() {
            Some(previous) => until = format!("&until={previous}"),
            None => break,
        }
    }
    let count = pages.len();
    (pages.into_iter().rev().flatten().collect(), count)
}

#[tokio::test]
async fn pages_of_a_thread_make_the_whole() {
    // Every third turn calls a tool of the client, whose result comes with the next request.
    let model = answers(|request| match request.contents.last() {
        Some(last) if last.responses().next().is_some() => say("Thank you."),
        Some(last) if last.text().ends_with('0') => call([("pick", json!({"of": last.text()}))]),
        _ => say("Good."),
    });
    let runner = Runner::new("desk", LlmAgent::new("asker").model(model)).unwrap();
    let host = serve(Server::new().agent("/agent", AgentEndpoint::new(runner.clone()))).await;
    let tools = json!([{"name": "pick", "description": "Picks.", "parameters": {"type": "object"}}]);
    let turns = async |from: usize, to: usize| {
        for turn in from..to {
            let said = user(&format!("m{turn}"), &format!("Number {turn}"));
            let frames =
                host.run(&with(ask("t", &format!("r{turn}"), &[said]), "tools", tools.clone())).await;
            if let Some(id) =
                of_kind(&frames, "TOOL_CALL_START").first().map(|call| call["toolCallId"].clone())
            {
                let result = tool(&format!("p{turn}"), id.as_str().unwrap(), "this");
                host.run(&with(ask("t", &format!("p{turn}"), &[result]), "tools", tools.clone())).await;
            }
        }
    };
    let check = async |expected: usize| {
        let (whole, one) = paged(&host, 1_000).await;
        assert_eq!((one, whole.len()), (1, expected));
        for limit in 1..10 {
            let (messages, pages) = paged(&host, limit).await;
            assert_eq!(messages, whole, "in pages of {limit}");
            assert!(pages > 1, "{pages} pages of {limit}");
        }
    };
    turns(0, 12).await;
    check(28).await;
    // A rewind in the newest page takes back what other pages had.
    let key = SessionKey::new("desk", "local", "t").unwrap();
    let run = runner.session(&key).await.unwrap().unwrap();
    let run = run.events.iter().find(|event| event.text() == "Number 4").unwrap().run.clone();
    runner.rewind(&key, &run).await.unwrap();
    turns(20, 24).await;
    let (whole, _) = paged(&host, 1_000).await;
    let texts: Vec<&str> =
        whole.iter().filter(|m| m["role"] == "user").filter_map(|m| m["content"].as_str()).collect();
    let kept = [0, 1, 2, 3, 20, 21, 22, 23].map(|number| format!("Number {number}"));
    assert_eq!(texts, kept);
    check(20).await;
    let unknown = host.get("/agent/threads/t?until=nothing").await;
    assert_eq!(unknown.status(), 422);
}
