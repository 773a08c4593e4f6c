//! The same request twice, and other requests under the same name.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use crate::agents;
use crate::seams::{Seams, file, service, texts};
use crate::support::{Host, input};

/// A request for the same run that says something else.
fn other(input: &Value) -> Value {
    let mut other = input.clone();
    other["messages"][0]["content"] = json!("Something else");
    other
}

async fn assert_refused(host: &Host, input: &Value, when: &str) {
    let refused = host.post("/a", input).await;
    assert_eq!(refused.status(), StatusCode::CONFLICT, "{when}");
    assert_eq!(refused.json().await["error"]["code"], "RUN_EXISTS", "{when}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_attaches_and_another_one_under_its_name_is_refused() {
    for name in ["text", "one_tool", "busy_team", "fails", "client_tools"] {
        let folder = tempfile::tempdir().unwrap();
        let store = file(folder.path());
        let input = agents::request(name, "t", "r");
        let host = Host::start(service(name, Duration::from_millis(5), &store).await).await;
        let mut reply = host.post("/a", &input).await;
        let begun = reply.next().await.unwrap();
        assert_refused(&host, &other(&input), "under way").await;
        let attached = host.post("/a", &input).await;
        let rest = reply.frames().await;
        let uncut = [vec![begun], rest].concat();
        assert_eq!(texts(&attached.frames().await), texts(&uncut), "{name}: under way");
        assert_eq!(texts(&host.post("/a", &input).await.frames().await), texts(&uncut), "{name}: over");
        assert_refused(&host, &other(&input), "over").await;

        let mut seams = Seams::new(name, &input, &uncut);
        host.service.forget_frames();
        seams.check("forgotten", &[&host.post("/a", &input).await.frames().await]);
        host.service.forget_frames();
        assert_refused(&host, &other(&input), "forgotten").await;
        drop(host);
        let host = Host::start(service(name, Duration::ZERO, &store).await).await;
        seams.check("after a restart", &[&host.post("/a", &input).await.frames().await]);
        drop(host);
        let host = Host::start(service(name, Duration::ZERO, &store).await).await;
        assert_refused(&host, &other(&input), "after a restart").await;
        seams.assert();
        let runs = host.get("/a/threads/t/runs").await.json().await;
        assert_eq!(runs["runs"].as_array().unwrap().len(), 1, "{name}: it was run once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_go_on_under_the_name_of_the_run_that_asked_and_may_come_twice() {
    let folder = tempfile::tempdir().unwrap();
    let store = file(folder.path());
    let host = Host::start(service("hitl", Duration::from_millis(3), &store).await).await;
    let input = input("t", "r", "Mail ann");
    let first = host.post("/a", &input).await.frames().await;
    let interrupt = &first.last().unwrap().event["outcome"]["interrupts"][0];
    let mut resume = input.clone();
    resume["resume"] = json!([{"interruptId": interrupt["id"], "status": "resolved",
        "payload": {"approved": true}}]);
    let (second, attached) = futures::join!(host.post("/a", &resume), host.post("/a", &resume));
    let (second, attached) = futures::join!(second.frames(), attached.frames());
    assert_eq!(second.last().unwrap().event["outcome"]["type"], "success");
    assert_eq!(texts(&second), texts(&attached), "under way");
    assert_eq!(texts(&second), texts(&host.post("/a", &resume).await.frames().await), "over");
    let mut seams = Seams::new("hitl", &resume, &second);
    host.service.forget_frames();
    seams.check("forgotten", &[&host.post("/a", &resume).await.frames().await]);
    drop(host);
    let host = Host::start(service("hitl", Duration::ZERO, &store).await).await;
    seams.check("after a restart", &[&host.post("/a", &resume).await.frames().await]);
    seams.assert();
    let runs = host.get("/a/threads/t/runs").await.json().await;
    assert_eq!(runs["runs"].as_array().unwrap().len(), 2, "it was asked once and answered once");
}
