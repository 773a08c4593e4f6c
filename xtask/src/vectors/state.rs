//! Where state lives: operations on session stores, each of which must give the same.

use serde_json::Value;
use umbel::BoxError;
use umbel_stores::contract;

use super::case::{Case, Checked};
use super::script::list;
use crate::postgres;

pub(super) async fn check(case: &Case) -> Result<Checked, BoxError> {
    let expected = case.expect.get("in_memory").ok_or("the expectation has no `in_memory`")?;
    let folder = tempfile::tempdir()?;
    let file = format!("sqlite:{}", folder.path().join("state.db").display());
    let mut actual = Vec::new();
    for url in ["memory:".to_owned(), file].into_iter().chain(std::env::var(postgres::VARIABLE).ok()) {
        let stores = umbel_stores::open(&url).await?;
        actual.push(Value::Array(contract::perform(&*stores.sessions, list(&case.input, "ops")).await?));
    }
    let expected = vec![expected.clone(); actual.len()];
    Ok(Checked::plain(Value::Array(expected), Value::Array(actual)))
}
