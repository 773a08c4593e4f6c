//! The other end of the wire: a client of HTTP/1.1 that keeps its connection and reads streams to their end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// What a user says in each turn.
pub const PROMPT: &str = "What is the weather in Paris today, and should I bring an umbrella?";

/// The last chunk of a body. It cannot stand within one: events have no bare line breaks but between frames.
const LAST: &[u8] = b"\r\n0\r\n\r\n";

/// One connection.
pub struct Client {
    stream: TcpStream,
    request: Vec<u8>,
    answer: Vec<u8>,
}

/// How long one run took.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// To its first event.
    pub first: Duration,
    /// To its last.
    pub all: Duration,
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("an option of the socket");
        Self { stream, request: Vec::new(), answer: Vec::with_capacity(32 * 1024) }
    }

    /// Sends a request.
    pub async fn send(&mut self, path: &str, body: &str) {
        self.request.clear();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.request.extend_from_slice(head.as_bytes());
        self.request.extend_from_slice(body.as_bytes());
        self.stream.write_all(&self.request).await.expect("a server that reads");
    }

    async fn more(&mut self) {
        let read = self.stream.read_buf(&mut self.answer).await.expect("a server that answers");
        assert!(read > 0, "the server closed: {}", String::from_utf8_lossy(&self.answer));
    }

    /// Waits for the first event of an answer.
    pub async fn first(&mut self) {
        self.answer.clear();
        while !has_event(&self.answer) {
            self.more().await;
        }
        assert!(self.answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&self.answer));
    }

    /// One run from its request to the end of its stream.
    pub async fn run(&mut self, path: &str, body: &str) -> Took {
        let started = Instant::now();
        self.send(path, body).await;
        self.first().await;
        let first = started.elapsed();
        while !self.answer.ends_with(LAST) {
            self.more().await;
        }
        let took = Took { first, all: started.elapsed() };
        let end = self.answer.len().saturating_sub(400);
        let end = String::from_utf8_lossy(&self.answer[end..]);
        assert!(end.contains("RUN_FINISHED"), "the run did not finish: {end}");
        took
    }

    /// One request and its whole answer: its status and its body.
    pub async fn exchange(&mut self, method: &str, path: &str, body: &str) -> (u16, Vec<u8>) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await.expect("a server that reads");
        self.answer.clear();
        let head = loop {
            if let Some(end) = self.answer.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            self.more().await;
        };
        let text = String::from_utf8_lossy(&self.answer[..head]).to_ascii_lowercase();
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let length = text.split("content-length: ").nth(1).and_then(|rest| rest.split('\r').next());
        match length {
            Some(length) => {
                let length: usize = length.parse().expect("a length");
                while self.answer.len() < head + length {
                    self.more().await;
                }
            }
            None if status == 204 => {}
            None => {
                while !self.answer.ends_with(LAST) {
                    self.more().await;
                }
            }
        }
        (status, self.answer[head..].to_vec())
    }

    /// The frames of the last answer's body, as they came.
    pub fn frames(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.answer);
        let (_, mut rest) = text.split_once("\r\n\r\n").expect("a head");
        let mut frames = Vec::new();
        loop {
            let (size, more) = rest.split_once("\r\n").expect("a chunk");
            let size = usize::from_str_radix(size, 16).expect("a size");
            if size == 0 {
                return frames;
            }
            frames.push(more[..size].to_owned());
            rest = &more[size + 2..];
        }
    }
}

/// Whether the first event of a stream is there.
fn has_event(answer: &[u8]) -> bool {
    let find = |text: &[u8], what: &[u8]| text.windows(what.len()).position(|window| window == what);
    find(answer, b"\r\n\r\n").is_some_and(|head| find(&answer[head + 4..], b"\n\n").is_some())
}

/// The body of a request for the next turn of a thread, with all turns before it.
pub struct Thread {
    name: String,
    messages: String,
    turns: usize,
}

impl Thread {
    pub fn new(name: String) -> Self {
        Self { name, messages: String::new(), turns: 0 }
    }

    /// The request of the next turn.
    pub fn ask(&mut self) -> String {
        let (name, turn) = (&self.name, self.turns);
        self.turns += 1;
        let comma = if turn == 0 { "" } else { "," };
        self.messages += &format!(r#"{comma}{{"id":"{name}-q{turn}","role":"user","content":"{PROMPT}"}}"#);
        let messages = &self.messages;
        format!(
            r#"{{"threadId":"{name}","runId":"{name}-r{turn}","protocolVersion":"1.0","state":{{}},"messages":[{messages}],"tools":[],"context":[],"forwardedProps":{{}}}}"#
        )
    }

    /// Takes in what the agent said, under the id that the server gave it.
    pub fn hear(&mut self, frames: &[String]) {
        let all = frames.concat();
        let id = all.split(r#""messageId":""#).nth(1).and_then(|rest| rest.split('"').next());
        let id = id.map_or_else(|| format!("{}-a{}", self.name, self.turns), str::to_owned);
        let said = crate::agents::CHUNK.repeat(crate::agents::CHUNKS);
        self.messages += &format!(r#",{{"id":"{id}","role":"assistant","content":"{said}"}}"#);
    }
}

/// The request of a thread of one turn.
pub fn one_turn(name: String) -> String {
    Thread::new(name).ask()
}
