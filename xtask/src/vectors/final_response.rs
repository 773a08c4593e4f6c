//! Whether an event is an agent's last word of a turn.

use serde_json::json;
use umbel::{BoxError, Event};

use super::case::{Case, Checked};

pub(super) fn check(case: &Case) -> Result<Checked, BoxError> {
    let event = case.input.get("event").ok_or("the input has no `event`")?;
    let event: Event = serde_json::from_value(event.clone())?;
    Ok(Checked::plain(case.expect.clone(), json!({"final": event.is_final()})))
}
