//! How plan-and-act rewrites a response.

use serde_json::json;
use umbel::{BoxError, Part, PlanAndAct, Planner};

use super::case::{Case, Checked};
use super::script::list;

pub(super) fn check(case: &Case) -> Result<Checked, BoxError> {
    let parts = list(&case.input, "parts").iter().cloned().map(serde_json::from_value);
    let parts: Vec<Part> = parts.collect::<Result<_, _>>()?;
    let rewritten = PlanAndAct.rewrite(&parts);
    let rewritten = rewritten.as_deref();
    Ok(Checked::plain(case.expect.clone(), json!({"parts": rewritten})))
}
