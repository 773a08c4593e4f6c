//! Threads that begin like others.

use serde_json::{Value, json};
use umbel::{Confirm, Content, FunctionTool, LlmAgent, Object, Runner, SessionKey, agent_fn};
use umbel_server::{AgentEndpoint, Server};

use crate::desk::{answers, ask, call, desk, end, results, say, serve, talker, text, user, with};
use crate::support::{Host, input};

async fn get(host: &Host, path: &str) -> Value {
    let reply = host.get(path).await;
    assert_eq!(reply.status(), 200, "{path}");
    reply.json().await
}

/// Begins the thread `f` like `t`.
async fn fork(host: &Host, mut body: Value) {
    body["threadId"] = json!("f");
    assert_eq!(host.post("/agent/threads/t/fork", &body).await.status(), 201, "{body}");
}

#[tokio::test]
async fn a_fork_leaves_the_state_of_the_user_and_the_app_as_it_is() {
    let agent = agent_fn("own", |run| {
        Box::pin(async move {
            let said = run.input().map(|said| said.text()).unwrap_or_default();
            let mut event = run.event().with_content(Content::model("ok"));
            let keys = ["mood", "user:mood", "app:mood"].map(|key| (key.to_owned(), json!(said)));
            event.actions_mut().state_delta = Some(Object::from_iter(keys));
            run.emit(event).await?;
            Ok(())
        })
    });
    let runner = Runner::new("desk", agent).unwrap();
    let sessions = runner.sessions().clone();
    let host = serve(Server::new().agent("/agent", AgentEndpoint::new(runner))).await;
    for (run, text) in [("r1", "old"), ("r2", "new")] {
        host.post("/agent", &input("t", run, text)).await.frames().await;
    }
    fork(&host, json!({"messageId": "m-r2", "before": true})).await;
    for (thread, own) in [("t", "new"), ("f", "old")] {
        let key = SessionKey::new("desk", "local", thread).unwrap();
        let session = sessions.get(&key, umbel::EventFilter::default()).await.unwrap().unwrap();
        let mood = |key: &str| session.state.get(key).cloned();
        assert_eq!(mood("mood"), Some(json!(own)), "{thread}");
        assert_eq!((mood("user:mood"), mood("app:mood")), (Some(json!("new")), Some(json!("new"))));
    }
}

async fn outcomes(host: &Host) -> Vec<String> {
    let runs = get(host, "/agent/threads/f/runs").await["runs"].clone();
    let runs = runs.as_array().unwrap().iter();
    runs.map(|run| format!("{} {}", run["runId"].as_str().unwrap(), run["outcome"].as_str().unwrap()))
        .collect()
}

#[tokio::test]
async fn the_runs_of_a_fork_are_over() {
    for (body, runs) in [
        (json!({}), vec!["r1 finished", "r2 finished"]),
        (json!({"messageId": "m-r2"}), vec!["r1 finished", "r2 cancelled"]),
        (json!({"messageId": "m-r2", "before": true}), vec!["r1 finished"]),
    ] {
        let host = desk(talker("hi")).await;
        for run in ["r1", "r2"] {
            // State comes before what is said.
            host.run(&with(input("t", run, "Go"), "state", json!({"of": run}))).await;
        }
        fork(&host, body.clone()).await;
        assert_eq!(outcomes(&host).await, runs, "{body}");
        for run in runs {
            let run = run.split_once(' ').unwrap().0;
            let trace = get(&host, &format!("/agent/runs/{run}/trace?thread=f")).await;
            let spans = trace["spans"].as_array().unwrap();
            assert!(spans.iter().all(|span| span["end"].is_number()), "{body}: {trace:#}");
        }
        let next = host.run(&ask("f", "r3", &[user("m3", "And now?")])).await;
        assert_eq!(end(&next)["type"], "RUN_FINISHED");
    }
}

#[tokio::test]
async fn a_question_can_be_answered_in_a_fork_too() {
    let model = answers(|request| match results(request).first() {
        Some((_, result)) => say(&format!("It is {}", result["result"].as_str().unwrap())),
        None => call([("pay", json!({}))]),
    });
    let pay = FunctionTool::new("pay", "Pays.", |_: Value| async { Ok("paid") }).confirm(Confirm::Always);
    let host = desk(LlmAgent::new("clerk").model(model).tool(pay)).await;
    let asked = host.run(&input("t", "r1", "Pay")).await;
    let question = end(&asked)["outcome"]["interrupts"][0]["id"].clone();
    fork(&host, json!({})).await;
    assert_eq!(outcomes(&host).await, ["r1 interrupted"]);
    for thread in ["f", "t"] {
        let open = get(&host, &format!("/agent/threads/{thread}")).await["interrupts"].clone();
        assert_eq!(open[0]["id"], question, "{thread}");
        let resume = json!([{"interruptId": question, "status": "resolved", "payload": {"approved": true}}]);
        let answered = host.run(&with(ask(thread, &format!("r-{thread}"), &[]), "resume", resume)).await;
        assert_eq!(text(&answered), "It is paid", "{thread}");
    }
}
