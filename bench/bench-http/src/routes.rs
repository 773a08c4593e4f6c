//! What a request costs by how much it brings or asks for: instructions of a server with one thread.

use crate::child::block_on;
use crate::client::{Client, one_turn};
use crate::counted::Counting;

/// What is asked for, by name.
pub const SHAPES: [&str; 22] = [
    "messages",
    "tool-messages",
    "long-message",
    "state",
    "state-again",
    "same-key",
    "long-key",
    "tools",
    "context",
    "resume",
    "thread",
    "thread-of-runs",
    "thread-before",
    "runs",
    "events",
    "threads",
    "search",
    "replay",
    "find-run",
    "steps",
    "fork",
    "delete",
];

/// So many threads are there to be deleted, whether they are or not.
const DELETED: usize = 4;

/// Instructions of a process that prepares what is needed for a request of that size, and sends so many of them.
pub fn requests(shape: &str, size: usize, count: usize) -> u64 {
    let counting = Counting::start("umbel", "chat", "memory:");
    block_on(async {
        let mut client = Client::connect(counting.server.address).await;
        prepare(&mut client, shape, size).await;
        for n in 0..count {
            let (method, path, body) = request(shape, size, n);
            let (status, answer) = client.exchange(method, &path, &body).await;
            let is_good =
                if shape == "resume" { status == 200 || status == 409 } else { (200..300).contains(&status) };
            assert!(
                is_good,
                "{shape}: {status} {}",
                String::from_utf8_lossy(&answer[..answer.len().min(400)])
            );
        }
    });
    counting.end()
}

/// What has to be there before.
async fn prepare(client: &mut Client, shape: &str, size: usize) {
    let mut bodies = Vec::new();
    match shape {
        "thread" | "fork" => bodies.push(brings("thread", "r", &messages(size), "{}", "")),
        "delete" => {
            let names = (0..DELETED).map(|n| format!("thread-{n}"));
            bodies.extend(names.map(|name| brings(&name, &format!("{name}-r"), &messages(size), "{}", "")));
        }
        "thread-of-runs" | "thread-before" | "runs" | "events" | "replay" | "steps" => {
            let said = |n: usize| format!(r#"{{"id":"m{n}","role":"user","content":"hello"}}"#);
            bodies.extend((0..size).map(|n| brings("thread", &format!("run-{n}"), &said(n), "{}", "")));
        }
        "threads" | "search" | "find-run" => {
            bodies.extend((0..size).map(|n| one_turn(format!("thread-{n:06}"))));
        }
        "state-again" => bodies.push(brings("thread", "first", &messages(1), &state(size, 0), "")),
        _ => {}
    }
    for body in bodies {
        client.run("/chat", &body).await;
    }
    if matches!(shape, "replay" | "find-run") {
        // What was kept of old runs goes, so that streams are made from the log.
        client.exchange("GET", "/forget", "").await;
    }
}

/// The request of that number.
fn request(shape: &str, size: usize, n: usize) -> (&'static str, String, String) {
    let (name, run) = (format!("new-{n}"), format!("new-{n}-r"));
    let brings = |messages: &str, state: &str, more: &str| {
        ("POST", "/chat".to_owned(), brings(&name, &run, messages, state, more))
    };
    let list = |one: &dyn Fn(usize) -> String| (0..size).map(one).collect::<Vec<_>>().join(",");
    let get = |path: String| ("GET", path, String::new());
    match shape {
        "messages" => brings(&messages(size), "{}", ""),
        "tool-messages" => {
            let tool =
                |n: usize| format!(r#"{{"id":"t{n}","role":"tool","toolCallId":"c{n}","content":"{{}}"}}"#);
            brings(&format!("{},{}", list(&tool), messages(1)), "{}", "")
        }
        "long-message" => {
            let said = format!(r#"{{"id":"m","role":"user","content":"{}"}}"#, "words ".repeat(size * 20));
            brings(&said, "{}", "")
        }
        "state" => brings(&messages(1), &state(size, 0), ""),
        "state-again" => {
            let said = format!(r#"{{"id":"again-{n}","role":"user","content":"hello"}}"#);
            (
                "POST",
                "/chat".to_owned(),
                super::routes::brings("thread", &run, &said, &state(size, n + 1), ""),
            )
        }
        "same-key" => brings(&messages(1), &format!("{{{}}}", list(&|n| format!(r#""key":{n}"#))), ""),
        "long-key" => brings(&messages(1), &format!(r#"{{"{}":{{"a":1,"b":2}}}}"#, "k".repeat(size)), ""),
        "tools" => {
            let tool = |n: usize| {
                format!(r#"{{"name":"tool_{n}","description":"Does.","parameters":{{"type":"object"}}}}"#)
            };
            brings(&messages(1), "{}", &format!(r#","tools":[{}]"#, list(&tool)))
        }
        "context" => {
            let one = |n: usize| format!(r#"{{"description":"about {n}","value":"text"}}"#);
            brings(&messages(1), "{}", &format!(r#","context":[{}]"#, list(&one)))
        }
        "resume" => {
            let one = |n: usize| format!(r#"{{"interruptId":"q{n}","status":"resolved","payload":{{}}}}"#);
            brings("", "{}", &format!(r#","resume":[{}]"#, list(&one)))
        }
        "thread" | "thread-of-runs" => get("/chat/threads/thread".to_owned()),
        "thread-before" => get(format!("/chat/threads/thread?before=run-{}", size - 1)),
        "runs" => get("/chat/threads/thread/runs".to_owned()),
        "events" => get("/chat/threads/thread/events".to_owned()),
        "threads" => get("/chat/threads?limit=10".to_owned()),
        "search" => get("/chat/threads?search=nothing".to_owned()),
        "replay" => get(format!("/chat/runs/run-{}/events?thread=thread", size - 1)),
        "find-run" => get("/chat/runs/thread-000000-r0/events".to_owned()),
        "steps" => get(format!("/chat/runs/run-{}/steps?thread=thread", size - 1)),
        "fork" => ("POST", "/chat/threads/thread/fork".to_owned(), "{}".to_owned()),
        "delete" => ("DELETE", format!("/chat/threads/thread-{n}"), String::new()),
        other => panic!("there is no request `{other}`"),
    }
}

/// The body of a run.
fn brings(thread: &str, run: &str, messages: &str, state: &str, more: &str) -> String {
    format!(
        r#"{{"threadId":"{thread}","runId":"{run}","protocolVersion":"1.0","state":{state},"messages":[{messages}]{more}}}"#
    )
}

/// So many messages of a user and an agent in turn, the last of the user's.
fn messages(count: usize) -> String {
    let role = |n: usize| if (count - n) % 2 == 1 { "user" } else { "assistant" };
    let one =
        |n: usize| format!(r#"{{"id":"m{n}","role":"{}","content":"some words of number {n}"}}"#, role(n));
    (0..count).map(one).collect::<Vec<_>>().join(",")
}

/// So many keys of state.
fn state(count: usize, value: usize) -> String {
    let one = |n: usize| format!(r#""key{n}":{{"value":{value},"text":"words"}}"#);
    format!("{{{}}}", (0..count).map(one).collect::<Vec<_>>().join(","))
}
