//! Messages as lines, within bounds: what a server writes is measured before it is read.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};

use rmcp::RoleClient;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;

/// How many lines that are no messages a server may write between two that are.
const GARBAGE: usize = 1_000;

/// Why a connection ended, once that is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended(Arc<std::sync::Mutex<Option<Cause>>>);

/// Why a connection ended.
#[derive(Clone, Debug)]
pub(crate) struct Cause {
    pub(crate) words: String,
    /// A message was larger than it may be.
    pub(crate) is_too_large: bool,
}

impl Cause {
    /// A message had more than so many bytes.
    pub(crate) fn too_large(bytes: usize) -> Self {
        Self { words: format!("it sent a message of more than {bytes} bytes"), is_too_large: true }
    }
}

impl<T: Into<String>> From<T> for Cause {
    fn from(words: T) -> Self {
        Self { words: words.into(), is_too_large: false }
    }
}

impl Ended {
    /// Notes why. The first reason counts.
    pub(crate) fn note(&self, why: impl Into<Cause>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| why.into());
    }

    /// Why, if it is known.
    pub(crate) fn why(&self) -> Option<Cause> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It goes on all the same.
    pub(crate) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A connection whose messages are lines.
pub(crate) struct Lines {
    read: BufReader<Pin<Box<dyn AsyncRead + Send>>>,
    write: Arc<Mutex<Option<Pin<Box<dyn AsyncWrite + Send>>>>>,
    /// What was read of the line that comes. It stays here, since reading may be broken off at any time.
    line: Vec<u8>,
    bytes: usize,
    garbage: usize,
    ended: Ended,
}

impl Lines {
    /// A connection on which a message has at most so many bytes.
    pub(crate) fn new(
        read: impl AsyncRead + Send + 'static,
        write: impl AsyncWrite + Send + 'static,
        bytes: usize,
        ended: Ended,
    ) -> Self {
        let read: Pin<Box<dyn AsyncRead + Send>> = Box::pin(read);
        let write: Pin<Box<dyn AsyncWrite + Send>> = Box::pin(write);
        let write = Arc::new(Mutex::new(Some(write)));
        Self { read: BufReader::new(read), write, line: Vec::new(), bytes, garbage: 0, ended }
    }

    /// Reads up to the end of the line. `false` if there is none any more.
    async fn read_line(&mut self) -> bool {
        loop {
            let there = match self.read.fill_buf().await {
                Ok([]) => {
                    self.ended.note("it closed the connection");
                    return false;
                }
                Ok(there) => there,
                Err(error) => {
                    self.ended.note(format!("the connection broke: {error}"));
                    return false;
                }
            };
            let end = there.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(there.len(), |end| end + 1);
            if self.line.len() + taken > self.bytes {
                self.ended.note(Cause::too_large(self.bytes));
                return false;
            }
            self.line.extend_from_slice(there.get(..taken).unwrap_or_default());
            self.read.consume(taken);
            if end.is_some() {
                return true;
            }
        }
    }
}

impl Transport<RoleClient> for Lines {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (write, ended) = (self.write.clone(), self.ended.clone());
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut write = write.lock().await;
            let Some(write) = write.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
            let written = match write.write_all(&line).await {
                Ok(()) => write.flush().await,
                failed => failed,
            };
            if written.is_err() {
                ended.note("it closed the connection");
            }
            written
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            if !self.read_line().await {
                return None;
            }
            let message = serde_json::from_slice(&self.line);
            let is_blank = self.line.trim_ascii().is_empty();
            self.line.clear();
            self.line.shrink_to(64 << 10);
            match message {
                Ok(message) => {
                    self.garbage = 0;
                    return Some(message);
                }
                Err(_) if is_blank => {}
                // Some programs greet people on their output.
                Err(_) if self.garbage < GARBAGE => self.garbage += 1,
                Err(_) => {
                    self.ended.note("it writes what are no messages");
                    return None;
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.write.lock().await.take();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8], limit: usize) -> (usize, Option<String>) {
        let ended = Ended::default();
        let mut lines = Lines::new(io::Cursor::new(bytes.to_vec()), tokio::io::sink(), limit, ended.clone());
        let mut messages = 0;
        while lines.receive().await.is_some() {
            messages += 1;
        }
        (messages, ended.why().map(|why| why.words))
    }

    const PING: &[u8] = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n";

    #[tokio::test]
    async fn what_is_no_message_is_passed_over() {
        let bytes = [b"Welcome!\n\n{\"half\": \n" as &[u8], PING, b"\xff\xfe\n", PING].concat();
        assert_eq!(read(&bytes, 1 << 10).await, (2, Some("it closed the connection".to_owned())));
    }

    #[tokio::test]
    async fn a_message_that_is_too_long_ends_the_connection_before_it_is_read() {
        let bytes = [PING, b"{\"jsonrpc\":\"", &[b'x'; 2_000]].concat();
        let why = "it sent a message of more than 1024 bytes";
        assert_eq!(read(&bytes, 1 << 10).await, (1, Some(why.to_owned())));
    }

    #[tokio::test]
    async fn a_flood_of_what_are_no_messages_ends_the_connection() {
        let bytes = [&b"garbage\n".repeat(GARBAGE + 1) as &[u8], PING].concat();
        assert_eq!(read(&bytes, 1 << 10).await, (0, Some("it writes what are no messages".to_owned())));
    }

    #[tokio::test]
    async fn nesting_without_end_is_no_message() {
        let bytes = [&b"[".repeat(100_000) as &[u8], b"\n", PING].concat();
        assert_eq!(read(&bytes, 1 << 20).await.0, 1);
    }
}
