//! From the chunks of a stream to previews and one whole message.

use serde_json::{Value, json};
use umbel::aggregator::Aggregator;
use umbel::{BoxError, CountingIds, Response};

use super::case::{Case, Checked};
use super::script::list;

pub(super) fn check(case: &Case) -> Result<Checked, BoxError> {
    // The aggregator of older versions, which loses the order of parts, is not offered.
    if case.input.get("progressive") == Some(&Value::Bool(false)) {
        return Ok(Checked::Skipped);
    }
    let (ids, mut fold) = (CountingIds::default(), Aggregator::new());
    let mut responses = Vec::new();
    for chunk in list(&case.input, "chunks") {
        let mut response = Response::from_generate_content(chunk.clone())?;
        fold.fold(&mut response, &ids);
        response.partial = Some(true);
        responses.push(response);
    }
    Ok(Checked::plain(case.expect.clone(), json!({"responses": responses, "closed": fold.close()})))
}
