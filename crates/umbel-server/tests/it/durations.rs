//! Each option of a server that is a time, with none at all and with a time without end.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use umbel::{LlmAgent, Runner, SessionStore};
use umbel_server::{AgentEndpoint, Disconnect, Server, ServerLimits, Sweep};

use crate::desk::{Slowly, end, offered, serve, talker, text};
use crate::support::{Host, input, within};

const BOTH: [Duration; 2] = [Duration::ZERO, Duration::MAX];

async fn limited(limits: ServerLimits, agent: LlmAgent) -> Host {
    serve(Server::new().limits(limits).agent("/agent", offered(agent))).await
}

fn limits() -> ServerLimits {
    ServerLimits::default()
}

async fn assert_serves(host: &Host, what: &str) {
    let frames = host.run(&input("t", "r", "hello")).await;
    assert_eq!((&*text(&frames), end(&frames)["type"].as_str()), ("Served.", Some("RUN_FINISHED")), "{what}");
}

#[tokio::test]
async fn frames_are_kept_for_no_time_or_for_good() {
    for kept_for in BOTH {
        let host = limited(ServerLimits { kept_for, ..limits() }, talker("Served.")).await;
        assert_serves(&host, "kept_for").await;
        let again = host.get("/agent/runs/r/events").await.frames().await;
        assert_eq!(text(&again), "Served.", "{kept_for:?}");
    }
}

#[tokio::test]
async fn a_request_has_no_time_to_arrive_or_all_the_time_there_is() {
    let host = limited(ServerLimits { request_time: Duration::MAX, ..limits() }, talker("Served.")).await;
    assert_serves(&host, "request_time").await;
    let host = limited(ServerLimits { request_time: Duration::ZERO, ..limits() }, talker("Served.")).await;
    let mut silent = TcpStream::connect(host.address).await.unwrap();
    let mut answer = Vec::new();
    within(silent.read_to_end(&mut answer)).await.unwrap();
}

#[tokio::test]
async fn a_client_may_stop_reading_for_no_time_or_for_good() {
    for read_time in BOTH {
        let host = limited(ServerLimits { read_time, ..limits() }, talker("Served.")).await;
        assert_serves(&host, "read_time").await;
    }
}

#[tokio::test]
async fn a_silent_stream_says_that_it_is_alive_all_the_time_or_never() {
    for keep_alive in BOTH {
        let model = Slowly::new("one two");
        let host =
            limited(ServerLimits { keep_alive, ..limits() }, LlmAgent::new("slow").model(model.clone()))
                .await;
        let mut reply = host.post("/agent", &input("t", "r", "x")).await;
        let mut read = String::new();
        // The first word comes at once, and then there is silence.
        while !read.contains("one") || (keep_alive.is_zero() && read.matches(": alive\n\n").count() < 3) {
            read.push_str(&reply.chunk().await.unwrap());
        }
        model.go_on();
        while let Some(more) = reply.chunk().await {
            read.push_str(&more);
        }
        assert!(read.contains("RUN_FINISHED"), "{read}");
        assert_eq!(read.contains(": alive"), keep_alive.is_zero(), "{read}");
    }
}

#[tokio::test]
async fn runs_may_go_on_for_no_time_or_to_their_end_when_the_server_stops() {
    for drain in BOTH {
        let model = Slowly::new("one two");
        let server = Server::new().limits(ServerLimits { drain, ..limits() });
        let service = server.agent("/agent", offered(LlmAgent::new("slow").model(model.clone())));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let host =
            Host::start_until(service.build().unwrap(), async { stopped.await.unwrap_or_default() }).await;
        let mut reply = host.post("/agent", &input("t", "r", "x")).await;
        while reply.next().await.unwrap().kind() != "TEXT_MESSAGE_CONTENT" {}
        stop.send(()).unwrap();
        if drain == Duration::MAX {
            model.go_on();
        }
        let frames = reply.frames().await;
        let outcome = end(&frames)["outcome"]["type"].clone();
        assert_eq!(outcome == "success", drain == Duration::MAX, "{drain:?}: {:?}", end(&frames));
        within(host.finished()).await;
    }
}

#[tokio::test]
async fn a_run_that_nobody_looks_at_is_never_cancelled_if_it_may_go_on_for_good() {
    let model = Slowly::new("one two");
    let agent = LlmAgent::new("slow").model(model.clone());
    let agent = offered(agent).on_disconnect(Disconnect::CancelAfter(Duration::MAX));
    let host = serve(Server::new().agent("/agent", agent)).await;
    let mut reply = host.post("/agent", &input("t", "r", "x")).await;
    while reply.next().await.unwrap().kind() != "TEXT_MESSAGE_CONTENT" {}
    drop(reply);
    model.go_on();
    host.idle().await;
    let frames = host.get("/agent/runs/r/events").await.frames().await;
    assert_eq!((&*text(&frames), end(&frames)["type"].as_str()), ("one two", Some("RUN_FINISHED")));
}

#[tokio::test]
async fn idle_sessions_are_swept_at_once_or_never() {
    for timeout in BOTH {
        for every in BOTH {
            for max_wait in [Some(Duration::ZERO), Some(Duration::MAX), None] {
                let runner = Runner::new("desk", talker("Served.")).unwrap();
                let sessions = runner.sessions().clone();
                // It is there before the first sweep, whenever the next one comes.
                runner.create_session("ann").await.unwrap();
                let server = Server::new().sweep(Sweep { timeout, every, max_wait });
                let host = serve(server.agent("/agent", AgentEndpoint::new(runner))).await;
                if timeout.is_zero() {
                    within(async {
                        while !sessions.list("desk", "ann").await.unwrap().is_empty() {
                            tokio::task::yield_now().await;
                        }
                    })
                    .await;
                }
                assert_serves(&host, "sweep").await;
                let left = sessions.list("desk", "ann").await.unwrap().len();
                assert_eq!(left == 0, timeout.is_zero(), "{timeout:?} {every:?} {max_wait:?}");
            }
        }
    }
}
