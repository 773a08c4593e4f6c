//! Old results that are taken out of a request.

use serde_json::{Value, json};
use umbel::handlers::{ClearResults, ContextEdit};
use umbel::{BoxError, CallId};

use super::summarise::{counter, history, shown, tokens};
use crate::vectors::case::{Case, Checked};
use crate::vectors::script::{flag, list, text};
use crate::vectors::tokens::Tokens;

pub(in crate::vectors) fn check(case: &Case) -> Result<Checked, BoxError> {
    let messages = list(&case.input, "messages");
    let history = history(messages)?;
    let earlier = messages.iter().filter(|message| flag(message, "cleared"));
    let earlier: Vec<CallId> =
        earlier.filter_map(|message| text(message, "call_id")).map(Into::into).collect();
    let (edited, cleared) = handler(&case.input)?.edit(&history, &earlier);
    let actual = json!({
        "tokens_before": tokens(&case.input, &history),
        "messages": shown(edited.iter()),
        "cleared": cleared,
    });
    let mut expected = case.expect.clone();
    // The oracle marks messages; with us the list of cleared calls tells.
    for message in expected.get_mut("messages").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(message) = message.as_object_mut() {
            message.retain(|key, _| key != "cleared" && key != "cleared_inputs");
        }
    }
    Ok(Checked::Compare { expected, actual, tokens: Tokens::default() })
}

fn handler(input: &Value) -> Result<ContextEdit, BoxError> {
    let edits = list(input, "edits").iter().map(edit).collect::<Result<Vec<_>, _>>()?;
    Ok(ContextEdit::of(edits).counter(counter(input)))
}

fn edit(edit: &Value) -> Result<ClearResults, BoxError> {
    let number = |key: &str| edit.get(key).and_then(Value::as_u64);
    let mut clear = number("trigger").map_or_else(ClearResults::default, ClearResults::above);
    if let Some(keep) = number("keep") {
        clear = clear.keep(usize::try_from(keep)?);
    }
    if let Some(tokens) = number("clear_at_least") {
        clear = clear.at_least(tokens);
    }
    if flag(edit, "clear_tool_inputs") {
        clear = clear.inputs();
    }
    if let Some(words) = text(edit, "placeholder") {
        clear = clear.placeholder(words);
    }
    Ok(clear.exclude(list(edit, "exclude_tools").iter().filter_map(Value::as_str)))
}
