//! Streams that are cut, and taken up again.

use std::path::Path;
use std::time::Duration;

use http::{Method, Request};
use serde::Serialize;
use serde_json::Value;
use umbel::RunnerBuilder;
use umbel_server::{Server, ServerLimits, Service};

use crate::agents;
use crate::fold::{Client, Folded};
use crate::support::{Host, Reply, SseFrame, within};

/// The service with one agent, at `/a`, on a store.
pub(crate) async fn service(name: &'static str, pause: Duration, store: &str) -> Service {
    offer(name, agents::agent(name, pause), store, ServerLimits::default()).await
}

/// The same with any agent.
pub(crate) async fn offer(
    name: &'static str,
    runner: RunnerBuilder,
    store: &str,
    limits: ServerLimits,
) -> Service {
    let sessions = umbel_stores::open(store).await.unwrap().sessions;
    let runner = runner.sessions(sessions).build().unwrap();
    Server::new().agent("/a", agents::endpoint(name, runner)).limits(limits).build().unwrap()
}

pub(crate) fn file(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("sessions.db").display())
}

/// Takes a stream up behind a frame: with the header, or with the query.
pub(crate) async fn behind(host: &Host, run: &str, last: Option<&SseFrame>, in_query: bool) -> Reply {
    let path = format!("/a/runs/{run}/events");
    let Some(last) = last else { return host.get(&path).await };
    if in_query {
        let id: String = last.id.bytes().map(|byte| format!("%{byte:02X}")).collect();
        return host.get(&format!("{path}?after={id}")).await;
    }
    let request = Request::builder().method(Method::GET).uri(path).header("last-event-id", &last.id);
    host.send(request, "").await
}

pub(crate) fn events(frames: &[SseFrame]) -> impl Iterator<Item = &Value> {
    frames.iter().map(|frame| &frame.event)
}

pub(crate) fn texts(frames: &[SseFrame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.text.as_str()).collect()
}

/// A stream in pieces, and the same uncut: the official client has to make the same of both.
#[derive(Serialize)]
struct Fold<'a> {
    name: &'a str,
    input: &'a Value,
    uncut: Vec<&'a Value>,
    joined: Vec<&'a Value>,
}

/// What is said of one stream in all the ways in which it may be cut.
pub(crate) struct Seams<'a> {
    pub(crate) name: &'a str,
    pub(crate) input: &'a Value,
    pub(crate) uncut: &'a [SseFrame],
    /// What a client of the uncut stream has.
    pub(crate) expected: Folded,
    pub(crate) wrong: Vec<String>,
}

impl<'a> Seams<'a> {
    pub(crate) fn new(name: &'a str, input: &'a Value, uncut: &'a [SseFrame]) -> Self {
        let all: Vec<&Value> = events(uncut).collect();
        umbel_agui::testing::record_stream(&all).unwrap();
        let told = Client::new(input).read(events(uncut));
        let expected = told.unwrap_or_else(|why| panic!("{name}: {why}\n{}", shape(uncut)));
        Self { name, input, uncut, expected, wrong: Vec::new() }
    }

    /// Holds the pieces against the uncut stream.
    pub(crate) fn check(&mut self, what: &str, pieces: &[&[SseFrame]]) {
        let joined: Vec<SseFrame> = pieces.concat();
        let fold = Fold {
            name: &format!("{} {what}", self.name),
            input: self.input,
            uncut: events(self.uncut).collect(),
            joined: events(&joined).collect(),
        };
        umbel_agui::testing::record_fold(&fold).unwrap();
        let told = Client::new(self.input).read(events(&joined));
        let why = match told {
            Ok(told) if told == self.expected => return,
            Ok(told) => format!("{told:#?}\nwould be {:#?}", self.expected),
            Err(why) => why,
        };
        let pieces: Vec<String> = pieces.iter().map(|piece| shape(piece)).collect();
        self.wrong.push(format!("{} {what}: {why}\n{}", self.name, pieces.join("\n  -- cut --\n")));
    }

    pub(crate) fn assert(self) {
        let shown: Vec<_> = self.wrong.iter().take(3).cloned().collect();
        let count = self.wrong.len();
        assert!(self.wrong.is_empty(), "{}: {count} seams do not hold:\n{}", self.name, shown.join("\n\n"));
    }
}

/// A stream in short.
pub(crate) fn shape(frames: &[SseFrame]) -> String {
    let lines = frames.iter().map(|frame| format!("  {} {}", frame.id, frame.event));
    lines.collect::<Vec<_>>().join("\n")
}

/// Every place at which a stream can be cut: before the first frame, behind each.
pub(crate) fn cuts(frames: &[SseFrame]) -> impl Iterator<Item = (usize, Option<&SseFrame>)> {
    (0..=frames.len()).map(|cut| (cut, cut.checked_sub(1).map(|last| &frames[last])))
}

/// Cuts the stream everywhere, takes it up, and cuts what comes then everywhere, too.
pub(crate) async fn cut_twice(host: &Host, run: &str, seams: &mut Seams<'_>, what: &str) {
    let uncut = seams.uncut;
    for (cut, last) in cuts(uncut) {
        let rest = behind(host, run, last, cut % 2 == 1).await.frames().await;
        seams.check(&format!("{what}, cut at {cut}"), &[&uncut[..cut], &rest]);
        for again in 1..rest.len() {
            let more = behind(host, run, Some(&rest[again - 1]), false).await.frames().await;
            let what = format!("{what}, cut at {cut} and {again} later");
            seams.check(&what, &[&uncut[..cut], &rest[..again], &more]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_from_any_frame_byte_for_byte_while_its_run_is_under_way() {
    for name in agents::ALL {
        let host = Host::start(service(name, Duration::from_millis(2), "memory:").await).await;
        let host = std::sync::Arc::new(host);
        let input = agents::request(name, "t", "r");
        let mut first = host.post("/a", &input).await;
        let (mut uncut, mut others) = (Vec::new(), Vec::new());
        while let Some(frame) = first.next().await {
            uncut.push(frame.clone());
            let (host, is_odd) = (host.clone(), uncut.len() % 2 == 1);
            others.push(tokio::spawn(async move {
                behind(&host, "r", Some(&frame), is_odd).await.frames().await
            }));
        }
        for (at, other) in others.into_iter().enumerate() {
            let rest = within(other).await.unwrap();
            assert_eq!(texts(&rest), texts(&uncut[at + 1..]), "{name}, cut at {}", at + 1);
        }
        Seams::new(name, &input, &uncut).assert();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_cut_off_after_every_frame_gets_the_bytes_of_the_uncut_stream() {
    for name in agents::ALL {
        let host = Host::start(service(name, Duration::from_millis(2), "memory:").await).await;
        let input = agents::request(name, "t", "r");
        let mut reply = host.post("/a", &input).await;
        let mut joined = Vec::new();
        while let Some(frame) = reply.next().await {
            reply = behind(&host, "r", Some(&frame), false).await;
            joined.push(frame);
        }
        let uncut = behind(&host, "r", None, false).await.frames().await;
        assert_eq!(texts(&joined), texts(&uncut), "{name}");
        let attached = host.post("/a", &input).await.frames().await;
        assert_eq!(texts(&attached), texts(&uncut), "{name}: the same request attaches");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_from_any_frame_when_its_frames_are_forgotten() {
    let mut wrong = Vec::new();
    for name in agents::ALL {
        for pause in [0, 2] {
            let host = Host::start(service(name, Duration::from_millis(pause), "memory:").await).await;
            let input = agents::request(name, "t", "r");
            let uncut = host.post("/a", &input).await.frames().await;
            host.service.forget_frames();
            let mut seams = Seams::new(name, &input, &uncut);
            cut_twice(&host, "r", &mut seams, "forgotten").await;
            wrong.extend(seams.wrong);
        }
    }
    let shown: Vec<_> = wrong.iter().map(|why| why.as_str()).collect();
    assert!(wrong.is_empty(), "{} seams do not hold:\n{}", wrong.len(), shown.join("\n\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_from_any_frame_after_a_restart() {
    for name in agents::ALL {
        let folder = tempfile::tempdir().unwrap();
        let store = file(folder.path());
        let input = agents::request(name, "t", "r");
        let first = Host::start(service(name, Duration::from_millis(2), &store).await).await;
        let uncut = first.post("/a", &input).await.frames().await;
        drop(first);
        let second = Host::start(service(name, Duration::ZERO, &store).await).await;
        let mut seams = Seams::new(name, &input, &uncut);
        for (cut, last) in cuts(&uncut) {
            let rest = behind(&second, "r", last, cut % 2 == 0).await.frames().await;
            seams.check(&format!("restarted, cut at {cut}"), &[&uncut[..cut], &rest]);
        }
        seams.assert();
    }
}
