//! Servers that the tests play: they note what they are asked, and answer as they are told.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// How a stub answers.
#[derive(Clone)]
pub(crate) enum Answer {
    /// With this status, type and body.
    Say(u16, &'static str, String),
    /// That it is too busy for so many seconds.
    Busy(u64),
    /// With a success that has no end.
    Flood,
    /// With a success that comes byte by byte.
    Drip,
    /// Not at all.
    Hang,
}

/// A server on a free port, on a thread of its own, so that tests may block.
pub(crate) struct Stub {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Stub {
    /// One that always answers like this.
    pub(crate) fn start(answer: Answer) -> Self {
        Self::start_by(move |_, _| answer.clone())
    }

    /// One that answers depending on how often it was asked before, and for which path.
    pub(crate) fn start_by(answer: impl Fn(usize, &str) -> Answer + Clone + Send + 'static) -> Self {
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (notes, (told, heard)) = (asked.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(listener.local_addr().unwrap()).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(serve(stream, notes.clone(), answer.clone()));
                }
            });
        });
        Self { address: heard.recv().unwrap(), asked }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    notes: Arc<Mutex<Vec<Asked>>>,
    answer: impl Fn(usize, &str) -> Answer,
) -> Option<()> {
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            match bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                Some(end) => break end,
                None if stream.read_buf(&mut bytes).await.ok()? == 0 => return None,
                None => {}
            }
        };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let path = lines.next()?.split(' ').nth(1)?.to_owned();
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length: usize = length.map_or(0, |(_, length)| length.parse().unwrap());
        while bytes.len() < end + 4 + length {
            if stream.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
        }
        let body = bytes[end + 4..end + 4 + length].to_vec();
        bytes.drain(..end + 4 + length);
        let answer = {
            let mut notes = notes.lock().unwrap();
            let answer = answer(notes.len(), &path);
            notes.push(Asked { path, headers, body });
            answer
        };
        match answer {
            Answer::Busy(seconds) => {
                let head =
                    format!("HTTP/1.1 429 Busy\r\nretry-after: {seconds}\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(head.as_bytes()).await.ok()?;
            }
            Answer::Flood => {
                stream.write_all(b"HTTP/1.1 200 Said\r\n\r\n").await.ok()?;
                loop {
                    stream.write_all(&[0x12; 1 << 16]).await.ok()?;
                }
            }
            Answer::Drip => {
                stream.write_all(b"HTTP/1.1 200 Said\r\ncontent-length: 100000\r\n\r\n").await.ok()?;
                loop {
                    stream.write_all(b"x").await.ok()?;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            Answer::Say(status, kind, body) => {
                let head = format!(
                    "HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all(format!("{head}{body}").as_bytes()).await.ok()?;
            }
            Answer::Hang => tokio::time::sleep(Duration::from_secs(600)).await,
        }
    }
}
