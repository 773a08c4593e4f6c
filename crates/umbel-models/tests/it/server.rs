//! A provider that answers what it was told to, over a real connection.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What a provider does with one request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Sends these bytes and closes.
    Send(Vec<u8>),
    /// Sends these bytes and says nothing more.
    Hang(Vec<u8>),
}

/// A provider on this machine.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Does these things, one for each request; the last one again and again.
    pub(crate) async fn start(acts: impl IntoIterator<Item = Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let (kept, acts) = (seen.clone(), acts.into_iter().collect::<Vec<_>>());
        tokio::spawn(async move {
            let mut acts = acts.into_iter().peekable();
            let mut last = None;
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                last = acts.next().or(last);
                tokio::spawn(serve(stream, last.clone().unwrap(), kept.clone()));
            }
        });
        Self { url, seen }
    }

    /// One that answers with this.
    pub(crate) async fn answering(status: &str, headers: &str, body: &str) -> Self {
        Self::start([Act::Send(answer(status, headers, body))]).await
    }

    /// The requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

/// An answer that ends where the connection does, if no header says otherwise.
pub(crate) fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}\r\n{body}").into_bytes()
}

async fn serve(mut stream: TcpStream, act: Act, seen: Arc<Mutex<Vec<String>>>) {
    let request = read_request(&mut stream).await;
    seen.lock().unwrap().push(request);
    match act {
        Act::Send(bytes) => {
            let _ = stream.write_all(&bytes).await;
        }
        Act::Hang(bytes) => {
            let _ = stream.write_all(&bytes).await;
            tokio::time::sleep(Duration::from_secs(600)).await;
        }
    }
}

/// A request with its body.
async fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let len = stream.read(&mut piece).await.unwrap_or(0);
        bytes.extend_from_slice(&piece[..len]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            if len == 0 {
                return text;
            }
            continue;
        };
        let lower = head.to_lowercase();
        let length =
            lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if len == 0 || body.len() >= length.unwrap_or(0) {
            return text;
        }
    }
}
