//! A server's questions to people, as questions of a run.

use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData};
use serde_json::{Value, json};
use umbel_core::{DecisionKind, Object, Question, Result, ToolContext};

/// What people said to a server's question. If nobody was asked yet, the error ends the run with the question; the call is
/// made again with the answer, and the server asks again.
pub(crate) fn ask(
    cx: &ToolContext,
    server: &str,
    params: ElicitRequestParams,
) -> Result<Result<ElicitResult, ErrorData>> {
    match params {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            let schema = serde_json::to_value(&requested_schema).unwrap_or_default();
            form(cx, server, &message, schema).map(Ok)
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => visit(cx, server, &message, &url),
        _ => Ok(Err(ErrorData::invalid_params("that way of asking is not known here", None))),
    }
}

fn form(cx: &ToolContext, server: &str, message: &str, schema: Value) -> Result<ElicitResult> {
    let question = Question::input(format!("The MCP server `{server}` asks: {message}"))
        .schema(schema.clone())
        .payload(json!({"mcpServer": server, "mode": "form"}));
    let answer = cx.interrupt(question)?;
    if !answer.confirmed {
        return Ok(ElicitResult::new(ElicitationAction::Decline));
    }
    let mut given = answer.payload.and_then(|given| given.as_object().cloned()).unwrap_or_default();
    fill(&mut given, &schema);
    Ok(ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(given)))
}

/// Puts in what a schema gives for fields that were left out.
fn fill(given: &mut Object, schema: &Value) {
    let fields = schema.get("properties").and_then(Value::as_object);
    for (name, field) in fields.into_iter().flatten() {
        if let Some(default) = field.get("default").filter(|_| !given.contains_key(name)) {
            given.insert(name.clone(), default.clone());
        }
    }
}

/// Asks a person to visit a page. What is said there is between them and the page.
pub(crate) fn visit(
    cx: &ToolContext,
    server: &str,
    message: &str,
    url: &str,
) -> Result<Result<ElicitResult, ErrorData>> {
    let is_page = reqwest::Url::parse(url).is_ok_and(|url| {
        matches!(url.scheme(), "http" | "https") && url.username().is_empty() && url.password().is_none()
    });
    if !is_page {
        return Ok(Err(ErrorData::invalid_params("that is no address of a page", None)));
    }
    let words = format!(
        "The MCP server `{server}` asks you to open a page: {message}\n{url}\nAgree when you have been there."
    );
    let question = Question::confirm(words)
        .decisions([DecisionKind::Approve, DecisionKind::Reject])
        .payload(json!({"mcpServer": server, "mode": "url", "url": url}));
    let action = match cx.interrupt(question)?.confirmed {
        true => ElicitationAction::Accept,
        false => ElicitationAction::Decline,
    };
    Ok(Ok(ElicitResult::new(action)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_were_left_out_get_what_the_schema_gives_for_them() {
        let schema = json!({"properties": {"a": {"default": 1}, "b": {"default": "x"}, "c": {}}});
        let mut given = Object::from_iter([("a".to_owned(), json!(7))]);
        fill(&mut given, &schema);
        assert_eq!(Value::Object(given), json!({"a": 7, "b": "x"}));
    }
}
