//! A connection on which a server cannot flood its client.

use rmcp::RoleClient;
use rmcp::model::JsonRpcMessage;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::time::Instant;

/// How many messages that nobody asked for may come at once.
const AT_ONCE: f64 = 1_000.0;
/// How many may come per second in the long run.
const PER_SECOND: f64 = 200.0;

/// A connection that drops notifications and requests of its server when too many come.
pub(crate) struct Steady<T> {
    inner: T,
    server: String,
    room: f64,
    since: Instant,
    dropped: u64,
}

impl<T> Steady<T> {
    pub(crate) fn new(inner: T, server: &str) -> Self {
        Self { inner, server: server.to_owned(), room: AT_ONCE, since: Instant::now(), dropped: 0 }
    }

    /// Whether there is room for one more.
    fn has_room(&mut self) -> bool {
        let now = Instant::now();
        let passed = now.duration_since(self.since).as_secs_f64();
        (self.room, self.since) = ((self.room + passed * PER_SECOND).min(AT_ONCE), now);
        if self.room < 1.0 {
            self.dropped += 1;
            if self.dropped == 1 {
                tracing::warn!(target: "umbel::mcp", server = self.server, "it floods; what is too much is dropped");
            }
            return false;
        }
        self.room -= 1.0;
        self.dropped = 0;
        true
    }
}

impl<T: Transport<RoleClient>> Transport<RoleClient> for Steady<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        self.inner.send(message)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            let message = self.inner.receive().await?;
            let is_answer = matches!(message, JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_));
            if is_answer || self.has_room() {
                return Some(message);
            }
            // A server that floods shall not keep others from their work.
            tokio::task::yield_now().await;
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::lines::{Ended, Lines};
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_notifications_is_dropped_and_answers_come_through() {
        let news = b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n".repeat(5_000);
        let answer = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n";
        let bytes = [&news as &[u8], answer].concat();
        let lines = Lines::new(io::Cursor::new(bytes), tokio::io::sink(), 1 << 10, Ended::default());
        let mut steady = Steady::new(lines, "loud");
        let (mut told, mut answered) = (0, 0);
        while let Some(message) = steady.receive().await {
            match message {
                JsonRpcMessage::Response(_) => answered += 1,
                _ => told += 1,
            }
        }
        assert_eq!((told, answered), (1_000, 1));
    }
}
