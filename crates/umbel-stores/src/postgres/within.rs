//! Answers of the server within a time.

use std::future::Future;
use std::time::Duration;

use super::fault::Trouble;

tokio::task_local! {
    /// How long to wait for an answer in the work that is being done.
    static ANSWER_TIME: Duration;
}

/// Work in which each answer of the server may take that long.
pub(super) async fn scope<T>(time: Duration, work: impl Future<Output = T>) -> T {
    ANSWER_TIME.scope(time, work).await
}

/// What the server answers, if it does so in time.
pub(super) async fn answered<T>(
    work: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Trouble> {
    let time = ANSWER_TIME.try_with(|time| *time).unwrap_or(Duration::MAX);
    match tokio::time::timeout(time, work).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Trouble::Late(time)),
    }
}
