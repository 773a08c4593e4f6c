//! A connection on which a server cannot flood its client.

use std::sync::Arc;

use rmcp::RoleClient;
use rmcp::model::JsonRpcMessage;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::time::Instant;

use super::calls::Calls;

/// How many messages that nobody asked for may come at once.
const AT_ONCE: f64 = 1_000.0;
/// How many may come per second in the long run.
const PER_SECOND: f64 = 200.0;
/// A long message counts as one more for each so many bytes.
const WEIGHT: usize = 4 << 10;

/// How much of what a server says is heard.
pub(crate) struct Room {
    server: String,
    room: f64,
    since: Instant,
    dropped: u64,
}

impl Room {
    pub(crate) fn new(server: &str) -> Self {
        Self { server: server.to_owned(), room: AT_ONCE, since: Instant::now(), dropped: 0 }
    }

    /// Whether there is room for one more that weighs so much.
    pub(crate) fn takes(&mut self, weight: f64) -> bool {
        let now = Instant::now();
        let passed = now.duration_since(self.since).as_secs_f64();
        (self.room, self.since) = ((self.room + passed * PER_SECOND).min(AT_ONCE), now);
        if self.room < weight {
            self.dropped += 1;
            if self.dropped == 1 {
                tracing::warn!(target: "umbel::mcp", server = self.server, "it floods; what is too much is dropped");
            }
            return false;
        }
        if self.room >= AT_ONCE {
            // The flood is over, not just paused: the next one is told of, too.
            self.dropped = 0;
        }
        self.room -= weight;
        true
    }
}

/// A connection that drops notifications and requests of its server when too many come.
pub(crate) struct Steady<T> {
    inner: T,
    calls: Arc<Calls>,
    room: Room,
}

impl<T> Steady<T> {
    pub(crate) fn new(inner: T, server: &str, calls: Arc<Calls>) -> Self {
        Self { inner, calls, room: Room::new(server) }
    }
}

/// How many messages one counts as.
fn weight(message: &RxJsonRpcMessage<RoleClient>) -> f64 {
    /// Counts what is written.
    struct Bytes(usize);
    impl std::io::Write for Bytes {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut bytes = Bytes(0);
    // Nothing is lost if it cannot be written: it counts as one.
    let _ = serde_json::to_writer(&mut bytes, message);
    u32::try_from(1 + bytes.0 / WEIGHT).map_or(f64::INFINITY, f64::from)
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
            let answered = match &message {
                JsonRpcMessage::Response(answer) => Some(Some(&answer.id)),
                JsonRpcMessage::Error(answer) => Some(answer.id.as_ref()),
                _ => None,
            };
            if let Some(id) = answered.flatten() {
                self.calls.settle(id);
            }
            if answered.is_some() || self.room.takes(weight(&message)) {
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
        let mut steady = Steady::new(lines, "loud", Arc::default());
        let (mut told, mut answered) = (0, 0);
        while let Some(message) = steady.receive().await {
            match message {
                JsonRpcMessage::Response(_) => answered += 1,
                _ => told += 1,
            }
        }
        assert_eq!((told, answered), (1_000, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_told_of_once() {
        let mut room = Room::new("loud");
        let mut told = 0;
        for _ in 0..2 {
            for _ in 0..5_000 {
                let is_dropped = !room.takes(1.0);
                told += usize::from(is_dropped && room.dropped == 1);
                tokio::time::advance(std::time::Duration::from_millis(1)).await;
            }
            // It is quiet for a while.
            tokio::time::advance(std::time::Duration::from_secs(10)).await;
        }
        assert_eq!(told, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn long_messages_weigh_more() {
        let long = "x".repeat(400 << 10);
        let news = format!(
            "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{{\"level\":\"info\",\"data\":\"{long}\"}}}}\n"
        );
        let bytes = news.repeat(50).into_bytes();
        let lines = Lines::new(io::Cursor::new(bytes), tokio::io::sink(), 1 << 20, Ended::default());
        let mut steady = Steady::new(lines, "loud", Arc::default());
        let mut told = 0;
        while steady.receive().await.is_some() {
            told += 1;
        }
        assert_eq!(told, 9, "about 4 MiB");
    }
}
