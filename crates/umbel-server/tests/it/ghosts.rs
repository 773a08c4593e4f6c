//! What was said and never came: by processes that died, models that failed, runs that were cancelled.

use std::time::Duration;

use serde_json::{Value, json};
use umbel_server::ServerLimits;

use crate::agents;
use crate::seams::{Seams, behind, cut_twice, cuts, events, file, offer, service};
use crate::support::{Host, SseFrame, input, read_until};

/// Short, so that a run is gone on with soon after its process died.
const LEASE: Duration = Duration::from_millis(500);

/// The messages of the thread, as the log has them.
async fn messages(host: &Host) -> Vec<Value> {
    host.get("/a/threads/t").await.json().await["messages"].as_array().unwrap().clone()
}

/// The frames that the agent sends in a process that dies then.
async fn frames_before_death(name: &'static str, store: &str) -> Vec<SseFrame> {
    let store = store.to_owned();
    let dying = move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let frames = runtime.block_on(async {
            let runner = agents::dying(name).lease(LEASE);
            let service = offer(name, runner, &store, ServerLimits::default()).await;
            let host = Host::start(service).await;
            read_until(&mut host.post("/a", &agents::request(name, "t", "r")).await, "ghost").await
        });
        runtime.shutdown_background();
        frames
    };
    tokio::task::spawn_blocking(dying).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_process_said_before_it_died_is_gone_when_another_one_goes_on() {
    for name in agents::DYING {
        let folder = tempfile::tempdir().unwrap();
        let store = file(folder.path());
        let input = agents::request(name, "t", "r");
        let before = frames_before_death(name, &store).await;
        let runner = agents::agent(name, Duration::ZERO).lease(LEASE);
        let second = Host::start(offer(name, runner, &store, ServerLimits::default()).await).await;
        // It comes while the run is still to be gone on with.
        let first = behind(&second, "r", before.last(), false).await.frames().await;
        let told = behind(&second, "r", None, false).await.frames().await;
        let mut seams = Seams::new(name, &input, &told);
        assert_eq!(seams.expected.messages, messages(&second).await, "{name}: clients have what the log has");
        let said = json!(seams.expected.messages).to_string();
        assert!(!said.contains("ghost"), "{name}: {said}");
        seams.check("at once", &[&before, &first]);
        for (cut, last) in cuts(&before) {
            let rest = behind(&second, "r", last, false).await.frames().await;
            seams.check(&format!("after a death, cut at {cut}"), &[&before[..cut], &rest]);
            for again in 1..rest.len() {
                let more = behind(&second, "r", Some(&rest[again - 1]), false).await.frames().await;
                let what = format!("after a death, cut at {cut} and {again} later");
                seams.check(&what, &[&before[..cut], &rest[..again], &more]);
            }
        }
        seams.assert();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_model_said_before_it_failed_is_gone() {
    let host = Host::start(service("fails", Duration::ZERO, "memory:").await).await;
    let input = input("t", "r", "Go on");
    let frames = host.post("/a", &input).await.frames().await;
    let seams = Seams::new("fails", &input, &frames);
    assert_eq!(frames.last().unwrap().kind(), "RUN_ERROR");
    assert_eq!(json!(seams.expected.messages), input["messages"]);
    assert_eq!(json!(messages(&host).await), input["messages"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_before_a_run_was_cancelled_is_gone_wherever_its_stream_is_cut() {
    for name in agents::DYING {
        let service = offer(name, agents::dying(name), "memory:", ServerLimits::default()).await;
        let host = Host::start(service).await;
        let input = agents::request(name, "t", "r");
        let mut reply = host.post("/a", &input).await;
        let mut uncut = read_until(&mut reply, "ghost").await;
        assert_eq!(host.post("/a/runs/r/cancel", &json!({})).await.status(), 202);
        uncut.extend(reply.frames().await);
        let end = &uncut.last().unwrap().event;
        assert_eq!(end["outcome"], json!({"type": "cancelled"}), "{name}");
        let mut seams = Seams::new(name, &input, &uncut);
        assert!(!json!(seams.expected.messages).to_string().contains("ghost"), "{name}");
        for (cut, last) in cuts(&uncut) {
            let rest = behind(&host, "r", last, false).await.frames().await;
            assert!(events(&rest).eq(events(&uncut[cut..])), "{name}, cut at {cut}");
        }
        host.service.forget_frames();
        cut_twice(&host, "r", &mut seams, "cancelled").await;
        seams.assert();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_run_is_told_as_it_was_when_others_came_after_it() {
    for name in ["retry", "retry_thoughts", "fails", "state", "team"] {
        let host = Host::start(service(name, Duration::ZERO, "memory:").await).await;
        let first = agents::request(name, "t", "r");
        let uncut = host.post("/a", &first).await.frames().await;
        let mut second = input("t", "r2", "And now?");
        second["messages"].as_array_mut().unwrap().insert(0, first["messages"][0].clone());
        host.post("/a", &second).await.frames().await;
        host.service.forget_frames();
        let mut seams = Seams::new(name, &first, &uncut);
        cut_twice(&host, "r", &mut seams, "older").await;
        seams.assert();
    }
}
