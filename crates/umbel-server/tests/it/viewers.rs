//! Several who look at one run: at once, too slowly, from elsewhere.

use std::time::Duration;

use serde_json::{Value, json};
use umbel::{Content, Event, Handler, LlmAgent, Outcome, Run, Runner, Source, handler};
use umbel_server::ServerLimits;

use crate::agents::{self, Script};
use crate::desk::end;
use crate::fold::Client;
use crate::seams::{Seams, behind, cut_twice, cuts, events, file, offer, service, shape, texts};
use crate::support::{Host, SseFrame, input, read_until, within};

#[tokio::test(flavor = "multi_thread")]
async fn two_viewers_see_the_same_bytes() {
    let host = Host::start(service("busy_team", Duration::from_millis(3), "memory:").await).await;
    let input = agents::request("busy_team", "t", "r");
    let first = host.post("/a", &input).await;
    let second = behind(&host, "r", None, false).await;
    let third = host.post("/a", &input).await;
    let (first, second, third) = futures::join!(first.frames(), second.frames(), third.frames());
    assert_eq!(texts(&first), texts(&second));
    assert_eq!(texts(&first), texts(&third));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_agents_side_by_side_stand_in_one_order_for_all() {
    for name in ["team", "busy_team", "retry_team"] {
        let host = Host::start(service(name, Duration::from_millis(3), "memory:").await).await;
        let input = agents::request(name, "t", "r");
        let watched = host.post("/a", &input).await.frames().await;
        let first = watched.iter().filter(|frame| frame.kind() == "TEXT_MESSAGE_START").nth(1);
        assert!(first.is_some(), "{name}: they spoke");
        let ids = |messages: &[Value]| messages.iter().map(|one| one["id"].clone()).collect::<Vec<_>>();
        let later = host.get("/a/threads/t").await.json().await["messages"].as_array().unwrap().clone();
        let watched = Client::new(&input).read(events(&watched)).unwrap().messages;
        assert_eq!(ids(&watched), ids(&later), "{name}: who watched and who came later");
        host.service.forget_frames();
        let joined = behind(&host, "r", None, false).await.frames().await;
        let joined = Client::new(&input).read(events(&joined)).unwrap().messages;
        assert_eq!(ids(&joined), ids(&later), "{name}: who was told again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_that_is_too_slow_is_cut_off_and_goes_on_from_the_log() {
    let limits = ServerLimits { run_bytes: 4 << 10, ..ServerLimits::default() };
    let piece = "x".repeat(512 << 10);
    // More than the sockets between them hold.
    let model = Script::new(Duration::from_millis(1), move |_| {
        (0..32).map(|number| Ok(umbel::Chunk::Text(format!("{number} {piece} ")))).collect()
    });
    let runner = Runner::builder("long", LlmAgent::new("long").model(model));
    let host = Host::start(offer("long", runner, "memory:", limits).await).await;
    let input = input("t", "r", "Go on");
    let mut slow = host.post("/a", &input).await;
    let mut seen = vec![slow.next().await.unwrap()];
    // The run does not wait for anybody: it is over while the viewer does not read.
    within(async {
        while host.get("/a/threads/t").await.json().await["runningRunId"] != Value::Null {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let cut_off = loop {
        match slow.try_next().await {
            Ok(Some(frame)) => seen.push(frame),
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    assert!(cut_off, "it read {} frames and was not cut off", seen.len());
    let rest = behind(&host, "r", seen.last(), false).await.frames().await;
    let told = Client::new(&input).read(events(&[seen, rest].concat())).unwrap();
    let log = host.get("/a/threads/t").await.json().await;
    assert!(json!(told.messages) == log["messages"], "the client has what the log has");
}

/// The interrupts that a stream ends with.
fn asked(frames: &[SseFrame]) -> usize {
    let end = &frames.last().unwrap().event;
    end["outcome"]["interrupts"].as_array().map_or(0, Vec::len)
}

fn resume(input: &Value, run: &str, frames: &[SseFrame]) -> Value {
    let mut client = Client::new(input);
    events(frames).for_each(|event| client.take(event).unwrap());
    let answers = client.interrupts.iter().map(
        |asked| json!({"interruptId": asked["id"], "status": "resolved", "payload": {"approved": true}}),
    );
    let answers: Vec<Value> = answers.collect();
    assert!(!answers.is_empty());
    let mut resume = input.clone();
    resume["runId"] = json!(run);
    resume["messages"] = json!(client.messages);
    resume["resume"] = json!(answers);
    resume
}

/// Takes the first run up at every frame. Gives how often it was asked what was asked before.
async fn asked_again(host: &Host, input: &Value, uncut: &[SseFrame], what: &str) -> usize {
    let mut again = 0;
    for (cut, last) in cuts(uncut) {
        let rest = behind(host, "r", last, false).await.frames().await;
        let joined = [&uncut[..cut], &rest].concat();
        let told = Client::new(input).read(events(&joined));
        told.unwrap_or_else(|why| panic!("{what}, cut at {cut}: {why}\n{}", shape(&joined)));
        again += usize::from(!rest.is_empty() && asked(&rest) > 0);
    }
    again
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_is_not_asked_again_by_a_stream_that_is_taken_up() {
    for resumed in ["r", "r2"] {
        let folder = tempfile::tempdir().unwrap();
        let store = file(folder.path());
        let host = Host::start(service("hitl", Duration::ZERO, &store).await).await;
        let input = input("t", "r", "Mail ann");
        let uncut = host.post("/a", &input).await.frames().await;
        assert_eq!(asked(&uncut), 1);
        assert_eq!(asked_again(&host, &input, &uncut, "at hand").await, uncut.len());
        host.service.forget_frames();
        assert_eq!(asked_again(&host, &input, &uncut, "from the log").await, uncut.len());

        let resume = resume(&input, resumed, &uncut);
        let answered = host.post("/a", &resume).await.frames().await;
        assert_eq!(asked(&answered), 0);
        let mut seams = Seams::new("hitl", &resume, &answered);
        assert_eq!(asked_again(&host, &input, &uncut, "answered, at hand").await, 0);
        for (cut, last) in cuts(&answered).skip(1) {
            let rest = behind(&host, resumed, last, false).await.frames().await;
            assert_eq!(texts(&rest), texts(&answered[cut..]));
        }
        host.service.forget_frames();
        assert_eq!(asked_again(&host, &input, &uncut, "answered, from the log").await, 0);
        cut_twice(&host, resumed, &mut seams, "answered").await;
        drop(host);
        let host = Host::start(service("hitl", Duration::ZERO, &store).await).await;
        assert_eq!(asked_again(&host, &input, &uncut, "answered, after a restart").await, 0);
        cut_twice(&host, resumed, &mut seams, "answered, after a restart").await;
        seams.assert();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_knows_no_interrupts_gets_none_from_the_log_either() {
    let host = Host::start(service("hitl", Duration::ZERO, "memory:").await).await;
    let mut input = input("t", "r", "Mail ann");
    input.as_object_mut().unwrap().shift_remove("protocolVersion");
    let uncut = host.post("/a", &input).await.frames().await;
    assert_eq!(asked(&uncut), 0);
    // Clients of that time refuse a run whose outcome has a field that they do not know.
    assert_eq!(end(&uncut).get("outcome"), None);
    host.service.forget_frames();
    let mut seams = Seams::new("hitl", &input, &uncut);
    cut_twice(&host, "r", &mut seams, "plain").await;
    seams.assert();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_under_way_elsewhere_is_followed_to_its_end() {
    for name in ["busy_team", "predict", "retry", "hitl"] {
        let folder = tempfile::tempdir().unwrap();
        let store = file(folder.path());
        let pause = Duration::from_millis(15);
        let first = Host::start(service(name, pause, &store).await).await;
        let second = std::sync::Arc::new(Host::start(service(name, pause, &store).await).await);
        let input = agents::request(name, "t", "r");
        let mut reply = first.post("/a", &input).await;
        let (mut uncut, mut others) = (Vec::new(), Vec::new());
        while let Some(frame) = reply.next().await {
            uncut.push(frame.clone());
            let second = second.clone();
            let rest = async move { behind(&second, "r", Some(&frame), false).await.frames().await };
            others.push((uncut.len(), tokio::spawn(rest)));
        }
        let mut seams = Seams::new(name, &input, &uncut);
        for (cut, other) in others {
            let rest = within(other).await.unwrap();
            seams.check(&format!("elsewhere, cut at {cut}"), &[&uncut[..cut], &rest]);
        }
        seams.assert();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stream_of_a_thread_that_is_deleted_elsewhere_has_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let store = file(folder.path());
    let runner = agents::dying("text");
    let first = Host::start(offer("text", runner, &store, ServerLimits::default()).await).await;
    let second = Host::start(service("text", Duration::ZERO, &store).await).await;
    let mut reply = first.post("/a", &input("t", "r", "Go on")).await;
    let frame = read_until(&mut reply, "ghost").await.pop().unwrap();
    let other = behind(&second, "r", Some(&frame), false).await;
    let delete = http::Request::builder().method("DELETE").uri("/a/threads/t");
    assert_eq!(first.send(delete, "").await.status(), 204);
    let rest = other.frames().await;
    assert!(["RUN_ERROR", "RUN_FINISHED"].contains(&rest.last().unwrap().kind()), "{}", shape(&rest));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_the_log_does_not_know_yet_is_found_elsewhere_a_moment_later() {
    let folder = tempfile::tempdir().unwrap();
    let store = file(folder.path());
    let first = Host::start(service("text", Duration::ZERO, &store).await).await;
    let second = std::sync::Arc::new(Host::start(service("text", Duration::ZERO, &store).await).await);
    let input = input("t", "r", "Go on");
    // Nobody else may write as long as this is held.
    let held = rusqlite::Connection::open(folder.path().join("sessions.db")).unwrap();
    held.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut reply = first.post("/a", &input).await;
    let begun = reply.next().await.unwrap();
    assert_eq!(begun.kind(), "RUN_STARTED");
    let other = tokio::spawn({
        let (second, begun) = (second.clone(), begun.clone());
        async move { behind(&second, "r", Some(&begun), false).await.frames().await }
    });
    let named = tokio::spawn(async move { second.get("/a/runs/r/events?thread=t").await.frames().await });
    // A slow disk.
    tokio::time::sleep(Duration::from_millis(200)).await;
    held.execute_batch("COMMIT").unwrap();
    let uncut = [vec![begun], reply.frames().await].concat();
    let mut seams = Seams::new("text", &input, &uncut);
    seams.check("with the last id", &[&uncut[..1], &within(other).await.unwrap()]);
    seams.check("with the thread", &[&within(named).await.unwrap()]);
    seams.assert();
}

/// Holds messages that say `and then` until it is let.
#[derive(Debug)]
struct Holds(std::sync::Arc<tokio::sync::Semaphore>);

#[handler]
impl Handler for Holds {
    fn name(&self) -> &str {
        "holds"
    }

    async fn on_input(
        &self,
        _: &Run,
        input: std::sync::Arc<Content>,
    ) -> umbel::Result<std::sync::Arc<Content>> {
        if input.text() == "and then" {
            self.0.acquire().await.unwrap().forget();
        }
        Ok(input)
    }
}

/// Writes something in the user's name that nobody said, at the end of a run.
#[derive(Debug)]
struct Settles;

#[handler]
impl Handler for Settles {
    fn name(&self) -> &str {
        "settles"
    }

    async fn after_run(&self, run: &Run, _: &Outcome) -> umbel::Result<()> {
        let mut event = Event::new(run.id().clone(), Source::user());
        event.actions_mut().set_state("_umbel:settled", true);
        run.emit(event).await.map(drop)
    }
}

/// A run that waits for an answer, and a request that answers and says something.
async fn answered_and_more(host: &Host) -> Value {
    let input = input("t", "r", "Mail ann");
    let uncut = host.post("/a", &input).await.frames().await;
    let mut more = resume(&input, "r2", &uncut);
    let said = json!({"id": "m2", "role": "user", "content": "and then"});
    more["messages"].as_array_mut().unwrap().push(said);
    more
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_with_a_message_are_followed_elsewhere_through_both_parts() {
    let folder = tempfile::tempdir().unwrap();
    let store = file(folder.path());
    let go = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let runner = agents::agent("hitl", Duration::ZERO).handler(Holds(go.clone()));
    let first = Host::start(offer("hitl", runner, &store, ServerLimits::default()).await).await;
    let second = Host::start(service("hitl", Duration::ZERO, &store).await).await;
    let more = answered_and_more(&first).await;
    let mut reply = first.post("/a", &more).await;
    let mut uncut = read_until(&mut reply, "\"}").await;
    let cut = uncut.len();
    let mut other = behind(&second, "r2", None, false).await;
    let mut elsewhere = read_until(&mut other, "\"}").await;
    // Long enough for the other one to look at a log in which the first part has ended.
    tokio::time::sleep(Duration::from_millis(600)).await;
    go.add_permits(1);
    uncut.extend(reply.frames().await);
    elsewhere.extend(other.frames().await);
    assert_eq!(asked(&uncut), 1, "the message is answered with another question: {}", shape(&uncut[cut..]));
    let mut seams = Seams::new("hitl", &more, &uncut);
    seams.check("elsewhere", &[&elsewhere]);
    seams.assert();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_came_with_answers_and_was_lost_is_told_as_not_begun() {
    let folder = tempfile::tempdir().unwrap();
    let store = file(folder.path());
    let never = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let runner = agents::agent("hitl", Duration::ZERO).handler(Holds(never)).handler(Settles);
    let first = Host::start(offer("hitl", runner, &store, ServerLimits::default()).await).await;
    let second = Host::start(service("hitl", Duration::ZERO, &store).await).await;
    let more = answered_and_more(&first).await;
    let mut reply = first.post("/a", &more).await;
    read_until(&mut reply, "\"}").await;
    let rest = behind(&second, "r2", None, false).await.frames().await;
    let end = &rest.last().unwrap().event;
    assert_eq!((&end["type"], &end["code"]), (&json!("RUN_ERROR"), &json!("NOT_BEGUN")), "{}", shape(&rest));
    drop((reply, first));
    let mut again = more.clone();
    again["runId"] = json!("r3");
    again.as_object_mut().unwrap().shift_remove("resume");
    let frames = second.post("/a", &again).await.frames().await;
    assert_eq!(asked(&frames), 1, "sent again, it is answered: {}", shape(&frames));
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_stop_a_server_ends_streams_of_others_runs_and_they_go_on_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let store = file(folder.path());
    let pause = Duration::from_millis(20);
    let first = Host::start(service("busy_team", pause, &store).await).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let second = service("busy_team", pause, &store).await;
    let second = Host::start_until(second, async { stopped.await.unwrap_or_default() }).await;
    let input = agents::request("busy_team", "t", "r");
    let reply = first.post("/a", &input).await;
    let mut follower = second.get("/a/runs/r/events?thread=t").await;
    // The same request to a server that knows of the run from the log alone.
    let mut attached = second.post("/a", &input).await;
    let mut seen = vec![follower.next().await.unwrap()];
    let mut attached_seen = vec![attached.next().await.unwrap()];
    stop.send(()).unwrap();
    seen.extend(follower.frames().await);
    attached_seen.extend(attached.frames().await);
    within(second.finished()).await;
    let uncut = reply.frames().await;
    let mut seams = Seams::new("busy_team", &input, &uncut);
    for (what, seen) in [("followed", seen), ("attached", attached_seen)] {
        let (last, before) = seen.split_last().unwrap();
        assert_eq!((last.kind(), &last.event["code"]), ("RUN_ERROR", &json!("SHUTTING_DOWN")), "{what}");
        for behind_what in [last, before.last().unwrap()] {
            let rest = behind(&first, "r", Some(behind_what), false).await.frames().await;
            seams.check(what, &[before, &rest]);
        }
    }
    seams.assert();
}
