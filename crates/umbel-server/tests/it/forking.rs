//! Threads that begin like others.

use serde_json::{Value, json};
use umbel::{Content, Object, Runner, SessionKey, agent_fn};
use umbel_server::{AgentEndpoint, Server};

use crate::desk::serve;
use crate::support::{Host, input};

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
