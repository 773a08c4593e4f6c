//! Clients that hardly read: what is kept for them is bounded, runs do not wait for them, and others are served.

use std::time::Duration;

use http::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use umbel::{Chunk, LlmAgent};
use umbel_server::{Disconnect, Server, ServerLimits};

use crate::desk::{answers, end, offered, serve, talker, text};
use crate::support::{Host, input, within};

const STREAMS: usize = 50;
/// What an agent says in all, to each of them.
const SAYS: usize = 1 << 20;
/// More than all buffers on the way hold.
const MUCH: usize = 24 << 20;

/// An agent that says much more than is kept for anybody.
fn flood(says: usize) -> LlmAgent {
    let piece = "x".repeat(4096);
    LlmAgent::new("flood")
        .model(answers(move |_| (0..says / 4096).map(|_| Ok(Chunk::Text(piece.clone()))).collect()))
}

/// Asks for a run over a connection that holds little.
async fn open(host: &Host, thread: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(host.address).await.unwrap();
    let body = input(thread, thread, "hello").to_string();
    let head = format!(
        "POST /flood HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        host.address,
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_slow_readers_cost_what_is_kept_for_them_and_others_are_served() {
    const KEPT: usize = 64 * 1024;
    let limits = ServerLimits { run_bytes: KEPT, kept_bytes: STREAMS * KEPT, ..ServerLimits::default() };
    let flood = offered(flood(SAYS)).on_disconnect(Disconnect::Continue);
    let host = serve(
        Server::new().limits(limits).agent("/flood", flood).agent("/agent", offered(talker("Served."))),
    )
    .await;
    let mut readers = Vec::new();
    for at in 0..STREAMS {
        let mut stream = open(&host, &format!("t{at}")).await;
        readers.push(tokio::spawn(async move {
            // A kilobyte a second, in small sips.
            let (mut sip, mut read) = ([0; 100], 0);
            while let Ok(count) = stream.read(&mut sip).await {
                if count == 0 || read > 1000 {
                    break;
                }
                read += count;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            (stream, read)
        }));
    }
    // The runs do not wait for their readers.
    host.idle().await;
    let frames = host.run(&input("other", "other", "hello")).await;
    assert_eq!((&*text(&frames), end(&frames)["type"].as_str()), ("Served.", Some("RUN_FINISHED")));
    let kept = host.figure("umbel_frames_kept_bytes").await;
    // Frames are handed on in batches of 16 kB.
    let bound = u64::try_from(STREAMS * (KEPT + 32 * 1024)).unwrap();
    assert!(kept < bound, "{kept} bytes for {STREAMS} readers, more than {bound}");
    for reader in readers {
        let (stream, read) = within(reader).await.unwrap();
        assert!(read > 0);
        drop(stream);
    }
}

#[tokio::test]
async fn a_reader_that_falls_too_far_behind_is_cut_off_and_can_take_up_the_stream() {
    let limits = ServerLimits { run_bytes: 64 * 1024, ..ServerLimits::default() };
    let flood = offered(flood(MUCH)).on_disconnect(Disconnect::Continue);
    let host = serve(Server::new().limits(limits).agent("/flood", flood)).await;
    let mut slow = open(&host, "t").await;
    // It reads nothing until the run is over.
    within(async {
        while host.figure("umbel_runs_started_total").await == 0 || host.figure("umbel_runs_active").await > 0
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let mut answer = Vec::new();
    let _ = within(slow.read_to_end(&mut answer)).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.len() < MUCH && !answer.contains("RUN_FINISHED"), "it was cut off");
    let last = answer.lines().filter_map(|line| line.strip_prefix("id: ")).next_back().unwrap();
    // The last frame may have come in part: the one before it is whole.
    let ids: Vec<&str> = answer.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    let whole = ids.get(ids.len() - 2).copied().unwrap_or(last);
    let request = http::Request::builder()
        .method(Method::GET)
        .uri("/flood/runs/t/events")
        .header("last-event-id", whole);
    let rest = host.send(request, "").await.frames().await;
    assert_eq!(end(&rest)["type"], "RUN_FINISHED");
    let seen = answer.split("\n\n").filter(|frame| frame.contains("TEXT_MESSAGE_CONTENT")).count();
    assert!(seen > 0 && text(&rest).len() < MUCH, "what was seen is not said again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stops_reading_altogether_loses_the_connection() {
    let limits = ServerLimits {
        run_bytes: 2 * MUCH,
        read_time: Duration::from_millis(200),
        ..ServerLimits::default()
    };
    let host = serve(Server::new().limits(limits).agent("/flood", offered(flood(MUCH)))).await;
    let mut stream = open(&host, "t").await;
    // What is tested is that time goes by.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut read = Vec::new();
    // It may be cut off with or without a word.
    let _ = within(stream.read_to_end(&mut read)).await;
    assert!(read.len() < MUCH, "{} bytes came through", read.len());
    assert!(!String::from_utf8_lossy(&read).contains("RUN_FINISHED"));
}
