//! Transactions that wrote something, as the database itself counts them.

use crate::turns::{Talk, runtime};

/// The transactions that so many turns wrote.
pub fn of_turns(url: &str, scenario: &str, count: usize) -> u64 {
    runtime().block_on(async {
        let talk = Talk::open(url, scenario).await;
        let key = talk.session(0).await;
        talk.turns(&key, 1).await;
        let before = so_far(url).await;
        talk.turns(&key, count).await;
        so_far(url).await - before
    })
}

/// The transactions that were written to a database so far.
pub async fn so_far(url: &str) -> u64 {
    match url.strip_prefix("sqlite:") {
        Some(path) => of_sqlite(path),
        None => of_postgres(url).await,
    }
}

/// The index of SQLite's write-ahead log counts the transactions in it: `iChange` of its format, which stands at byte 8.
fn of_sqlite(path: &str) -> u64 {
    let index = std::fs::read(format!("{path}-shm")).unwrap();
    u64::from(u32::from_ne_bytes(index[8..12].try_into().unwrap()))
}

/// PostgreSQL numbers the transactions that write; those that only read get no number.
async fn of_postgres(url: &str) -> u64 {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let next = "SELECT txid_snapshot_xmax(txid_current_snapshot())";
    let next: i64 = client.query_one(next, &[]).await.unwrap().get(0);
    next.try_into().unwrap()
}
