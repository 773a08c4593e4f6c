//! What a server keeps: at its start, of a thread of one turn, and of a stream that waits.

use serde_json::{Value, json};

use crate::child::{Served, block_on};
use crate::client::{Client, one_turn};

/// Bytes of a server that has answered nothing yet.
pub fn at_start() -> Value {
    json!({ "bytes": Served::umbel("memory:").memory() })
}

/// Bytes per kept thread of one turn, a chat of 50 pieces. Frames of runs that are over have a bound of their own, and are
/// not kept here.
pub fn per_thread(count: usize) -> Value {
    let server = Served::start(&[], &["umbel", "memory:", "2", "0"]);
    block_on(async {
        let mut client = Client::connect(server.address).await;
        let mut run = async |from: usize, to: usize| {
            for n in from..to {
                client.run("/chat", &one_turn(format!("thread-{n:06}"))).await;
            }
        };
        // Until frames are forgotten they take room, which is used again: the first threads make that room.
        run(0, count).await;
        let before = server.memory();
        run(count, 3 * count).await;
        json!({ "bytes": (server.memory().saturating_sub(before)) / (2 * count) as u64 })
    })
}

/// Bytes per stream that waits for a model.
pub fn per_stream(count: usize) -> Value {
    let server = Served::umbel("memory:");
    block_on(async {
        let mut clients = Vec::new();
        Client::connect(server.address).await.run("/chat", &one_turn("thread".to_owned())).await;
        let before = server.memory();
        for n in 0..count {
            let mut client = Client::connect(server.address).await;
            client.send("/wait", &one_turn(format!("thread-{n:06}"))).await;
            client.first().await;
            clients.push(client);
        }
        json!({ "bytes": (server.memory().saturating_sub(before)) / count as u64 })
    })
}
