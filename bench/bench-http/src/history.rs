//! Turns late in a conversation, of which clients send the whole each time.

use serde_json::{Value, json};

use crate::child::{Served, block_on, record};
use crate::client::{Client, Thread};

/// CPU of the turns around that number, in microseconds, and of the raw handler that parses the same requests.
pub fn turn(turns: usize, threads: usize) -> Value {
    let file = std::env::temp_dir().join(format!("bench-http-{}.json", std::process::id()));
    record("chat", &file);
    let umbel = Served::umbel("memory:");
    let raw = Served::raw(&file.display().to_string());
    let _ = std::fs::remove_file(file);
    let (mut ours, mut parse, mut read) = (0, 0, 0);
    block_on(async {
        let (mut client, mut other) =
            (Client::connect(umbel.address).await, Client::connect(raw.address).await);
        let mut all: Vec<Thread> = (0..threads).map(|n| Thread::new(format!("thread-{n:04}"))).collect();
        let mut bodies = Vec::new();
        for turn in 1..=turns {
            let before = umbel.cpu();
            bodies.clear();
            for thread in &mut all {
                let body = thread.ask();
                client.run("/chat", &body).await;
                thread.hear(&client.frames());
                bodies.push(body);
            }
            if turn == turns {
                ours = umbel.cpu() - before;
            }
        }
        // Once to warm up, then what counts.
        for path in ["/parse", "/parse", "/raw"] {
            let before = raw.cpu();
            for body in &bodies {
                other.run(path, body).await;
            }
            let used = raw.cpu() - before;
            if path == "/parse" { parse = used } else { read = used }
        }
        let each = |cpu: u64| cpu as f64 / 1_000.0 / threads as f64;
        let bytes = bodies.first().map_or(0, String::len);
        json!({ "umbel_us": each(ours), "parse_us": each(parse), "raw_us": each(read), "body_bytes": bytes })
    })
}
