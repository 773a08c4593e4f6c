//! The synthetic user turn for models that need one.

use std::sync::Arc;

use serde_json::json;
use umbel::{BoxError, Content, History};

use super::case::{Case, Checked};
use super::script::list;

pub(super) fn check(case: &Case) -> Result<Checked, BoxError> {
    let mut contents = History::new();
    for content in list(&case.input, "contents") {
        contents.push(serde_json::from_value::<Content>(content.clone())?);
    }
    contents.ensure_user_turn();
    let contents: Vec<&Arc<Content>> = contents.iter().collect();
    Ok(Checked::plain(case.expect.clone(), json!({"contents": contents})))
}
