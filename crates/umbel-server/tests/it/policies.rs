//! More runs than there is room for, several for one thread, and clients that go away.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use umbel::LlmAgent;
use umbel_server::{Disconnect, SameThread, Server, ServerLimits};

use crate::desk::{ByName, Slowly, ask, desk, end, offered, serve, talker, text, user};
use crate::support::{Host, Reply, input, within};

fn slow(model: &Slowly) -> LlmAgent {
    LlmAgent::new("slow").model(model.clone())
}

/// Reads until the agent has said something.
async fn until_it_speaks(reply: &mut Reply) {
    while reply.next().await.unwrap().kind() != "TEXT_MESSAGE_CONTENT" {}
}

async fn problem(reply: Reply) -> (StatusCode, String, Option<String>) {
    let status = reply.status();
    let wait = reply.head.headers.get("retry-after").map(|wait| wait.to_str().unwrap().to_owned());
    let told = reply.json().await;
    (status, told["error"]["code"].as_str().unwrap().to_owned(), wait)
}

#[tokio::test]
async fn a_run_too_many_is_refused_before_its_stream_and_told_when_to_come_again() {
    let model = Slowly::new("one two");
    let limits = ServerLimits { runs: 2, ..ServerLimits::default() };
    let host = serve(Server::new().limits(limits).agent("/agent", offered(slow(&model)))).await;
    let mut running = Vec::new();
    for name in ["a", "b"] {
        let mut reply = host.post("/agent", &input(name, name, "hello")).await;
        until_it_speaks(&mut reply).await;
        running.push(reply);
    }
    let refused = problem(host.post("/agent", &input("c", "c", "hello")).await).await;
    assert_eq!(refused, (StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_RUNS".to_owned(), Some("1".to_owned())));
    let again = host.post("/agent", &input("a", "a", "hello")).await;
    assert_eq!(again.status(), StatusCode::OK, "who looks at a run that is there takes no room");
    model.go_on();
    for reply in running {
        assert_eq!(end(&reply.frames().await)["type"], "RUN_FINISHED");
    }
    host.idle().await;
    let frames = host.run(&input("c", "c", "hello")).await;
    assert_eq!(text(&frames), "one two", "there is room again, and the refused run can begin under its name");
}

#[tokio::test]
async fn a_user_with_too_many_runs_is_refused_and_others_are_not() {
    let model = Slowly::new("one two");
    let limits = ServerLimits { runs_per_user: 1, ..ServerLimits::default() };
    let host = serve(Server::new().auth(ByName).limits(limits).agent("/agent", offered(slow(&model)))).await;
    let mut first = host.ask("ann", Method::POST, "/agent", &input("t1", "r1", "hello")).await;
    until_it_speaks(&mut first).await;
    let second = host.ask("ann", Method::POST, "/agent", &input("t2", "r2", "hello")).await;
    assert_eq!(problem(second).await.0, StatusCode::TOO_MANY_REQUESTS);
    let mut other = host.ask("bob", Method::POST, "/agent", &input("t1", "r1", "hello")).await;
    until_it_speaks(&mut other).await;
    model.go_on();
}

#[tokio::test]
async fn one_run_waits_for_its_thread_and_the_next_is_refused() {
    let model = Slowly::new("one two");
    let host = desk(slow(&model)).await;
    let mut first = host.post("/agent", &input("t", "r1", "first")).await;
    until_it_speaks(&mut first).await;
    let second = host.post("/agent", &input("t", "r2", "second")).await;
    assert_eq!(second.status(), StatusCode::OK);
    let third = problem(host.post("/agent", &input("t", "r3", "third")).await).await;
    assert_eq!((third.0, &*third.1), (StatusCode::CONFLICT, "THREAD_BUSY"));
    model.go_on();
    let (first, second) = (first.frames().await, second.frames().await);
    assert_eq!(
        (end(&first)["type"].as_str(), end(&second)["type"].as_str()),
        (Some("RUN_FINISHED"), Some("RUN_FINISHED"))
    );
    host.idle().await;
    let thread = host.get("/agent/threads/t").await.json().await;
    let said: Vec<&Value> =
        thread["messages"].as_array().unwrap().iter().map(|one| &one["content"]).collect();
    assert_eq!(said, ["first", "one two", "second", "one two"]);
}

#[tokio::test]
async fn a_busy_thread_can_refuse() {
    let model = Slowly::new("one two");
    let host =
        serve(Server::new().agent("/agent", offered(slow(&model)).same_thread(SameThread::Refuse))).await;
    let mut first = host.post("/agent", &input("t", "r1", "first")).await;
    until_it_speaks(&mut first).await;
    let second = problem(host.post("/agent", &input("t", "r2", "second")).await).await;
    assert_eq!((second.0, &*second.1), (StatusCode::CONFLICT, "THREAD_BUSY"));
    model.go_on();
    assert_eq!(end(&first.frames().await)["outcome"]["type"], "success");
    host.idle().await;
    assert_eq!(text(&host.run(&input("t", "r2", "second")).await), "one two");
}

#[tokio::test]
async fn a_newer_run_can_supersede_the_one_under_way_and_the_one_that_waits() {
    let model = Slowly::new("one two");
    let host =
        serve(Server::new().agent("/agent", offered(slow(&model)).same_thread(SameThread::Supersede))).await;
    let mut first = host.post("/agent", &input("t", "r1", "first")).await;
    until_it_speaks(&mut first).await;
    let second = host.post("/agent", &input("t", "r2", "second")).await;
    let third = host.post("/agent", &input("t", "r3", "third")).await;
    assert_eq!(end(&first.frames().await)["outcome"]["type"], "cancelled");
    model.go_on();
    assert_eq!(end(&third.frames().await)["outcome"]["type"], "success");
    let second = second.frames().await;
    assert_eq!(end(&second)["type"], "RUN_FINISHED", "it ends, one way or the other: {:?}", end(&second));
    host.idle().await;
}

#[tokio::test]
async fn a_newer_run_can_steer_the_thread() {
    let model = Slowly::new("one two");
    let host =
        serve(Server::new().agent("/agent", offered(slow(&model)).same_thread(SameThread::Steer))).await;
    let mut first = host.post("/agent", &input("t", "r1", "first")).await;
    until_it_speaks(&mut first).await;
    let second = host.post("/agent", &input("t", "r2", "second")).await;
    model.go_on();
    assert_eq!(end(&first.frames().await)["type"], "RUN_FINISHED");
    let second = second.frames().await;
    assert_eq!((&*text(&second), &end(&second)["outcome"]["type"]), ("one two", &json!("success")));
}

#[tokio::test]
async fn a_run_without_a_viewer_is_ended_by_the_next_one() {
    let model = Slowly::new("one two");
    let agent = offered(slow(&model)).on_disconnect(Disconnect::Continue).same_thread(SameThread::Refuse);
    let host = serve(Server::new().agent("/agent", agent)).await;
    let mut first = host.post("/agent", &input("t", "r1", "first")).await;
    until_it_speaks(&mut first).await;
    drop(first);
    // Until the server has noticed, the thread is busy.
    let mut second = within(async {
        loop {
            let reply = host.post("/agent", &input("t", "r2", "second")).await;
            if reply.status() == StatusCode::OK {
                return reply;
            }
            assert_eq!(reply.status(), StatusCode::CONFLICT);
        }
    })
    .await;
    until_it_speaks(&mut second).await;
    let first = host.get("/agent/runs/r1/events").await.frames().await;
    assert_eq!(end(&first)["outcome"]["type"], "cancelled");
    model.go_on();
    assert_eq!(end(&second.frames().await)["outcome"]["type"], "success");
}

#[tokio::test]
async fn a_run_goes_on_without_a_viewer_if_it_may() {
    let model = Slowly::new("one two");
    let agent = offered(slow(&model)).on_disconnect(Disconnect::Continue);
    let host = serve(Server::new().agent("/agent", agent)).await;
    let mut first = host.post("/agent", &input("t", "r1", "first")).await;
    until_it_speaks(&mut first).await;
    drop(first);
    model.go_on();
    host.idle().await;
    let frames = host.get("/agent/runs/r1/events").await.frames().await;
    assert_eq!((&*text(&frames), &end(&frames)["outcome"]["type"]), ("one two", &json!("success")));
}

#[tokio::test]
async fn a_run_without_a_viewer_is_cancelled_at_once_or_after_a_while() {
    for patience in [Duration::ZERO, Duration::from_millis(50)] {
        let model = Slowly::new("one two");
        let agent = offered(slow(&model)).on_disconnect(Disconnect::CancelAfter(patience));
        let host = serve(Server::new().agent("/agent", agent)).await;
        let mut first = host.post("/agent", &input("t", "r1", "first")).await;
        until_it_speaks(&mut first).await;
        drop(first);
        host.idle().await;
        let frames = host.get("/agent/runs/r1/events").await.frames().await;
        assert_eq!(end(&frames)["outcome"]["type"], "cancelled", "{patience:?}");
        model.go_on();
        assert_eq!(text(&host.run(&input("t", "r2", "again")).await), "one two", "the thread works");
    }
}

#[tokio::test]
async fn a_client_may_go_away_at_every_event_and_nothing_is_left_behind() {
    let agent =
        || offered(talker("one two three four")).on_disconnect(Disconnect::CancelAfter(Duration::ZERO));
    let host = serve(Server::new().agent("/agent", agent())).await;
    let whole = host.run(&input("whole", "whole", "hello")).await;
    for cut in 0..whole.len() {
        let thread = format!("t{cut}");
        let mut reply = host.post("/agent", &input(&thread, &thread, "hello")).await;
        for _ in 0..cut {
            reply.next().await.unwrap();
        }
        drop(reply);
        host.idle().await;
        let frames = host.run(&ask(&thread, &format!("again{cut}"), &[user("again", "again")])).await;
        assert_eq!(text(&frames), "one two three four", "after {cut} events");
    }
    assert_eq!(host.figure("umbel_runs_active").await, 0);
}

#[tokio::test]
async fn a_deleted_thread_takes_its_runs_with_it_waiting_ones_included() {
    let model = Slowly::new("one two");
    let host = desk(slow(&model)).await;
    let mut first = host.post("/agent", &input("t", "r1", "first")).await;
    until_it_speaks(&mut first).await;
    let second = host.post("/agent", &input("t", "r2", "second")).await;
    let request = http::Request::builder().method(Method::DELETE).uri("/agent/threads/t");
    let deleted = host.send(request, "").await;
    assert_eq!(deleted.status(), StatusCode::NO_CONTENT);
    assert_eq!(end(&first.frames().await)["outcome"]["type"], "cancelled");
    assert_eq!(end(&second.frames().await)["type"], "RUN_FINISHED");
    assert_eq!(host.get("/agent/threads/t").await.status(), StatusCode::NOT_FOUND);
    model.go_on();
    host.idle().await;
    let frames = host.run(&input("t", "r1", "anew")).await;
    assert_eq!(text(&frames), "one two", "the thread begins anew, and its names are free again");
}

/// Holds every message back, before anything is stored of it.
#[derive(Debug)]
struct Held(Arc<tokio::sync::Semaphore>);

#[umbel::handler]
impl umbel::Handler for Held {
    fn name(&self) -> &str {
        "held"
    }

    async fn on_input(
        &self,
        _run: &umbel::Run,
        input: Arc<umbel::Content>,
    ) -> umbel::Result<Arc<umbel::Content>> {
        drop(self.0.acquire().await);
        Ok(input)
    }
}

#[tokio::test]
async fn a_thread_is_deleted_though_its_first_run_has_stored_nothing_yet() {
    let go = Arc::new(tokio::sync::Semaphore::new(0));
    let runner = umbel::Runner::builder("desk", talker("Hello.")).handler(Held(go.clone())).build().unwrap();
    let host = serve(Server::new().agent("/agent", umbel_server::AgentEndpoint::new(runner))).await;
    let reply = host.post("/agent", &input("t", "r", "hello")).await;
    assert_eq!(host.get("/agent/threads/t").await.status(), StatusCode::NOT_FOUND, "nothing is stored");
    let request = http::Request::builder().method(Method::DELETE).uri("/agent/threads/t");
    assert_eq!(host.send(request, "").await.status(), StatusCode::NO_CONTENT);
    go.add_permits(1);
    drop(reply.frames().await);
    host.idle().await;
    assert_eq!(
        host.get("/agent/threads/t").await.status(),
        StatusCode::NOT_FOUND,
        "and nothing comes after it"
    );
}

#[tokio::test]
async fn the_same_request_looks_at_the_run_that_is_there_and_another_of_its_name_is_refused() {
    let host = desk(talker("Once only.")).await;
    let frames = host.run(&input("t", "r", "hello")).await;
    assert_eq!(host.run(&input("t", "r", "hello")).await, frames, "byte by byte");
    for evicted in [false, true] {
        if evicted {
            host.service.forget_frames();
        }
        let other = ask("t", "r", &[user("m-r", "hello"), user("m2", "something else")]);
        let refused = problem(host.post("/agent", &other).await).await;
        assert_eq!((refused.0, &*refused.1), (StatusCode::CONFLICT, "RUN_EXISTS"), "evicted: {evicted}");
    }
    let again = host.run(&input("t", "r", "hello")).await;
    assert_eq!((&*text(&again), end(&again)["type"].as_str()), ("Once only.", Some("RUN_FINISHED")));
    let thread = host.get("/agent/threads/t").await.json().await;
    assert_eq!(thread["messages"].as_array().unwrap().len(), 2, "it ran once");
}

#[tokio::test]
async fn a_silent_stream_says_that_it_is_alive() {
    let model = Slowly::new("one two");
    let limits = ServerLimits { keep_alive: Duration::from_millis(20), ..ServerLimits::default() };
    let host = serve(Server::new().limits(limits).agent("/agent", offered(slow(&model)))).await;
    let request = http::Request::builder().method(Method::POST).uri("/agent");
    let mut reply =
        host.send(request.header("content-type", "application/json"), input("t", "r", "x").to_string()).await;
    let mut read = String::new();
    while read.matches(": alive\n\n").count() < 3 {
        read.push_str(&reply.chunk().await.unwrap());
    }
    model.go_on();
    while let Some(more) = reply.chunk().await {
        read.push_str(&more);
    }
    let said = read
        .split("\n\n")
        .filter(|frame| !frame.is_empty() && !frame.starts_with("id: ") && *frame != ": alive");
    assert_eq!(said.count(), 0, "comments stand between frames, never within: {read}");
}

/// Stops a server while runs are under way.
async fn stopped(model: &Slowly, drain: Duration, let_go: bool) {
    const RUNS: usize = 24;
    let limits = ServerLimits { drain, ..ServerLimits::default() };
    let service = Server::new().limits(limits).agent("/agent", offered(slow(model))).build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let host = Host::start_until(service, async { stopped.await.unwrap_or(()) }).await;
    let mut running = Vec::new();
    for at in 0..RUNS {
        let mut reply = host.post("/agent", &input(&format!("t{at}"), &format!("r{at}"), "hello")).await;
        until_it_speaks(&mut reply).await;
        running.push(reply);
    }
    let mut kept = host.connection().await;
    assert_eq!(
        kept.send(http::Request::builder().uri("/ready"), "").await.text().await,
        "{\"status\":\"ok\"}"
    );
    stop.send(()).unwrap();
    let refused = within(async {
        loop {
            let reply = kept.post("/agent", &input("late", "late", "hello")).await;
            if reply.status() != StatusCode::OK {
                return reply;
            }
            drop(reply.frames().await);
        }
    })
    .await;
    let refused = problem(refused).await;
    assert_eq!(refused, (StatusCode::SERVICE_UNAVAILABLE, "SHUTTING_DOWN".to_owned(), Some("1".to_owned())));
    if let_go {
        model.go_on();
    }
    for reply in running {
        let frames = reply.frames().await;
        let wanted = if let_go { "success" } else { "cancelled" };
        assert_eq!(end(&frames)["outcome"]["type"], wanted);
    }
    within(host.finished()).await;
}

#[tokio::test]
async fn told_to_stop_a_server_lets_runs_finish_and_begins_none() {
    stopped(&Slowly::new("one two"), Duration::from_secs(20), true).await;
}

#[tokio::test]
async fn told_to_stop_a_server_cancels_runs_that_take_too_long_and_ends_each_stream() {
    stopped(&Slowly::new("one two"), Duration::from_millis(50), false).await;
}
