//! A server on a free port, and a client that reads frames as they come.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use umbel_server::{Listener, Service};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that listens.
pub(crate) struct Host {
    pub(crate) service: Service,
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Host {
    /// Serves until it is dropped.
    pub(crate) async fn start(service: Service) -> Self {
        Self::start_until(service, std::future::pending()).await
    }

    /// Serves until it is told to stop.
    pub(crate) async fn start_until(
        service: Service,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self::start_at(service, address, listener.into(), stop)
    }

    /// The same where that listens.
    pub(crate) fn start_at(
        service: Service,
        address: SocketAddr,
        listener: Listener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let serving = service.clone().serve(listener, stop);
        let task = tokio::spawn(async move { serving.await.unwrap() });
        Self { service, address, task }
    }

    /// Sends a request and gives what comes back, as soon as its head is there.
    pub(crate) async fn send(&self, request: http::request::Builder, body: impl Into<Bytes>) -> Reply {
        self.connection().await.send(request, body).await
    }

    /// A connection on which requests can follow each other.
    pub(crate) async fn connection(&self) -> Connection {
        Connection::over(TcpStream::connect(self.address).await.unwrap(), &self.address.to_string()).await
    }

    /// Done once it has stopped.
    pub(crate) async fn finished(mut self) {
        (&mut self.task).await.unwrap();
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Request::builder().method(Method::GET).uri(path), "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        let request = Request::builder().method(Method::POST).uri(path);
        self.send(request.header("content-type", "application/json"), body.to_string()).await
    }
}

/// A connection to a server.
pub(crate) struct Connection {
    sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
    /// The name by which the server is asked.
    name: String,
}

impl Connection {
    pub(crate) async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        name: &str,
    ) -> Self {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { sender, name: name.to_owned() }
    }

    pub(crate) async fn send(&mut self, request: http::request::Builder, body: impl Into<Bytes>) -> Reply {
        let request = request.header("host", &self.name);
        let request = request.body(Full::new(body.into())).unwrap();
        let response = within(self.sender.send_request(request)).await.unwrap();
        let (head, body) = response.into_parts();
        Reply { head, body, read: Vec::new() }
    }

    pub(crate) async fn post(&mut self, path: &str, body: &Value) -> Reply {
        let request = Request::builder().method(Method::POST).uri(path);
        self.send(request.header("content-type", "application/json"), body.to_string()).await
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What came back, read as far as one wants. Dropped, it hangs up.
pub(crate) struct Reply {
    pub(crate) head: http::response::Parts,
    body: Incoming,
    read: Vec<u8>,
}

/// A frame of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SseFrame {
    /// All of it, as it came.
    pub(crate) text: String,
    pub(crate) id: String,
    pub(crate) event: Value,
}

impl SseFrame {
    pub(crate) fn kind(&self) -> &str {
        self.event["type"].as_str().unwrap()
    }
}

impl Reply {
    pub(crate) fn status(&self) -> StatusCode {
        self.head.status
    }

    /// More of the body. `None` if there is no more, an error if the connection broke.
    async fn more(&mut self) -> Result<Option<()>, hyper::Error> {
        match within(self.body.frame()).await {
            Some(frame) => {
                self.read.extend_from_slice(frame?.data_ref().unwrap());
                Ok(Some(()))
            }
            None => Ok(None),
        }
    }

    /// What comes next of the body, as it comes.
    pub(crate) async fn chunk(&mut self) -> Option<String> {
        self.more().await.unwrap()?;
        Some(String::from_utf8(std::mem::take(&mut self.read)).unwrap())
    }

    /// The next frame that says something. `None` at the end, an error if the connection broke.
    pub(crate) async fn try_next(&mut self) -> Result<Option<SseFrame>, hyper::Error> {
        loop {
            while let Some(end) = self.read.windows(2).position(|pair| pair == b"\n\n") {
                let bytes: Vec<u8> = self.read.drain(..end + 2).collect();
                let text = String::from_utf8(bytes).unwrap();
                if text.starts_with(':') {
                    continue;
                }
                return Ok(Some(frame(text)));
            }
            if self.more().await?.is_none() {
                assert!(self.read.is_empty(), "a stream ends with a whole frame");
                return Ok(None);
            }
        }
    }

    pub(crate) async fn next(&mut self) -> Option<SseFrame> {
        self.try_next().await.unwrap()
    }

    /// All frames, to the end.
    pub(crate) async fn frames(mut self) -> Vec<SseFrame> {
        assert_eq!(self.status(), StatusCode::OK, "{}", self.text().await);
        let mut frames = Vec::new();
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }

    /// The body as text, unless it is a stream.
    pub(crate) async fn text(&mut self) -> String {
        let kind = self.head.headers.get("content-type").map(|kind| kind.to_str().unwrap());
        if kind == Some("text/event-stream") {
            return String::new();
        }
        while self.more().await.unwrap().is_some() {}
        String::from_utf8(self.read.clone()).unwrap()
    }

    pub(crate) async fn json(mut self) -> Value {
        serde_json::from_str(&self.text().await).unwrap()
    }
}

/// Reads until something was said that ends so.
pub(crate) async fn read_until(reply: &mut Reply, ending: &str) -> Vec<SseFrame> {
    let mut frames = Vec::new();
    loop {
        let frame = reply.next().await.unwrap_or_else(|| panic!("nobody said {ending}: {frames:#?}"));
        let is_last = frame.event["delta"].as_str().is_some_and(|delta| delta.ends_with(ending));
        frames.push(frame);
        if is_last {
            return frames;
        }
    }
}

fn frame(text: String) -> SseFrame {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
    let (id, data) = (field("id: "), field("data: "));
    let event: Value = serde_json::from_str(&data).unwrap();
    umbel_agui::testing::record(&event).unwrap();
    SseFrame { text, id, event }
}

/// The same, unless it takes for ever.
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes too long")
}

/// A request for a run, with one message.
pub(crate) fn input(thread: &str, run: &str, text: &str) -> Value {
    json!({
        "threadId": thread,
        "runId": run,
        "protocolVersion": "1.0",
        "messages": [{"id": format!("m-{run}"), "role": "user", "content": text}],
    })
}
