//! Bytes that turns take in a database.

use serde_json::{Value, json};

use crate::turns::{Talk, runtime};

/// Text of one turn, what the user says and what is answered.
const TEXT: usize = 1_000;

/// Parts that must be the same size.
const PARTS: usize = 10;

/// Bytes of a turn in each tenth of so many turns of one session, and the text in it.
pub fn of_turns(url: &str, turns: usize) -> Value {
    let mut key = None;
    let mut sizes = Vec::new();
    for _ in 0..=PARTS {
        runtime().block_on(async {
            let half = "All work and no play makes a dull text. ".repeat(TEXT)[..TEXT / 2].to_owned();
            let talk = Talk::with(url, false, half.clone(), half).await;
            let key = match &key {
                Some(key) => key,
                None => key.insert(talk.session(0).await),
            };
            // The first round makes the tables and all that is there only once.
            let count = if sizes.is_empty() { turns / PARTS / 2 } else { turns / PARTS };
            talk.turns(key, count).await;
        });
        // The store is closed, so what SQLite had in its write-ahead log is in the file.
        sizes.push(runtime().block_on(size(url)));
    }
    let parts: Vec<u64> = sizes.windows(2).map(|pair| (pair[1] - pair[0]) / (turns / PARTS) as u64).collect();
    json!({ "text": TEXT, "bytes_per_turn": parts.iter().sum::<u64>() / PARTS as u64, "parts": parts })
}

async fn size(url: &str) -> u64 {
    let Some(path) = url.strip_prefix("sqlite:") else { return size_of_postgres(url).await };
    assert!(!std::path::Path::new(&format!("{path}-wal")).exists(), "the database was not closed");
    std::fs::metadata(path).unwrap().len()
}

/// Tables with their indices, after what the server does by itself now and then.
async fn size_of_postgres(url: &str) -> u64 {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute("VACUUM").await.unwrap();
    let sum = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relkind = 'r' AND relname LIKE 'umbel%'";
    let sum: i64 = client.query_one(sum, &[]).await.unwrap().get(0);
    sum.try_into().unwrap()
}
