//! A server's questions to people, as questions of a run.

use std::sync::Arc;

use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction, ErrorData};
use serde_json::{Value, json};
use umbel_core::{Answer, BoxFuture, DecisionKind, Object, Question, Result, ToolContext};

use super::listed::digest;

/// How long a question may be, with what it asks for. Nobody reads more, and it is kept.
const QUESTION: usize = 64 << 10;

/// Answers questions of servers at once, in the place of people who are asked by the run.
pub(crate) type Answerer = Arc<dyn Fn(Question) -> BoxFuture<'static, Answer> + Send + Sync>;

/// Who answers questions of servers.
#[derive(Clone, Copy)]
pub(crate) struct People<'a> {
    pub(crate) cx: &'a ToolContext,
    pub(crate) server: &'a str,
    pub(crate) answerer: Option<&'a Answerer>,
}

impl People<'_> {
    /// What people said. If nobody was asked yet, the error ends the run with the question; the call is made again with the
    /// answer, and the server asks again. What they said counts for a question in the same words and for no other: what a
    /// server asks the second time is up to the server.
    async fn say(&self, question: Question) -> Result<Answer> {
        match self.answerer {
            Some(answerer) => Ok(answerer(question).await),
            None => ask_about(self.cx, question),
        }
    }
}

/// What people said to just this question about a call.
pub(crate) fn ask_about(cx: &ToolContext, question: Question) -> Result<Answer> {
    let Question { message, payload, response_schema, .. } = &question;
    let shown = digest(&json!([message, payload, response_schema]));
    cx.interrupt_about(&format!("mcp.{shown}"), question)
}

/// What people said to a server's question.
pub(crate) async fn ask(
    people: People<'_>,
    params: ElicitRequestParams,
) -> Result<Result<ElicitResult, ErrorData>> {
    match params {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            let schema = serde_json::to_value(&requested_schema).unwrap_or_default();
            if message.len() + schema.to_string().len() > QUESTION {
                return Ok(Err(too_long()));
            }
            form(people, &message, schema).await.map(Ok)
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => visit(people, &message, &url).await,
        _ => Ok(Err(ErrorData::invalid_params("that way of asking is not known here", None))),
    }
}

fn too_long() -> ErrorData {
    ErrorData::invalid_params(format!("a question may have {QUESTION} bytes"), None)
}

async fn form(people: People<'_>, message: &str, schema: Value) -> Result<ElicitResult> {
    let server = people.server;
    let question = Question::input(format!("The MCP server `{server}` asks: {message}"))
        .schema(schema.clone())
        .payload(json!({"mcpServer": server, "mode": "form"}));
    let answer = people.say(question).await?;
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
pub(crate) async fn visit(
    people: People<'_>,
    message: &str,
    url: &str,
) -> Result<Result<ElicitResult, ErrorData>> {
    let server = people.server;
    if message.len() + url.len() > QUESTION {
        return Ok(Err(too_long()));
    }
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
    let action = match people.say(question).await?.confirmed {
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
