//! A model that picks the tools for a request.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::handlers::{OnParsingFailure, ToolSelect};
use umbel::{BoxError, BoxStream, Chunk, Error, Model, ModelRequest, Result, text as words};

use super::message::settle;
use super::play::{Play, both_ways};
use super::scene::{Scene, SceneModel};
use crate::vectors::case::{Case, Checked};
use crate::vectors::script::{flag, list, text};
use crate::vectors::tokens::Tokens;

pub(in crate::vectors) async fn check(case: &Case) -> Result<Checked, BoxError> {
    both_ways(case, once).await
}

async fn once(case: &Case, streaming: bool) -> Result<Checked, BoxError> {
    let (scene, selecting) = (Scene::new(&case.input), Scene::new(&Value::Null));
    let selections = list(&case.input, "selections").iter().map(|answer| json!({"text": answer.to_string()}));
    let selections: Vec<Value> = selections.collect();
    let selector = Arc::new(SceneModel::new("selector", &selections, &selecting));
    let main = SceneModel::new("main", list(&case.input, "model"), &scene);
    let mut select = handler(&case.input)?;
    let agent = if flag(&case.input, "separate_selector") {
        select = select.model(selector);
        scene.agent(&case.input, main)?
    } else {
        scene.agent(&case.input, TwoMinds { main, selector })?
    };
    let play = Play::new(agent.handler(select), streaming)?;
    let messages = list(&case.input, "messages");
    let played = play.run("t1", messages).await?;
    let (seen, asked) = (scene.seen(), selecting.seen().asked);
    let choices = asked.iter().map(|(_, request, _)| {
        request.output_schema.as_deref()?.pointer("/properties/tools/items/enum").cloned()
    });
    let user = asked.iter().map(|(_, request, _)| request.contents.last().map(|content| content.text()));
    let mut actual = json!({
        "outcome": if played.error.is_some() { "error" } else { "ok" },
        "selector_calls": asked.len(),
        "selector_choices": choices.collect::<Vec<_>>(),
        "selector_user_text": user.collect::<Vec<_>>(),
        "model_tools": seen.tools(),
        "ran": seen.ran(),
    });
    let mut expected = case.expect.clone();
    if let Some(actual) = actual.as_object_mut() {
        match &played.error {
            Some(error) => actual.insert("error".to_owned(), shown(error, &expected)),
            None => {
                let said = played.messages.get(messages.len()..).unwrap_or_default();
                actual.insert("messages".to_owned(), said.into())
            }
        };
    }
    if let (Some(wanted), Some(got)) = (expected.get_mut("messages"), actual.get_mut("messages")) {
        settle(wanted, got);
    }
    Ok(Checked::Compare { expected, actual, tokens: Tokens::default() })
}

fn handler(input: &Value) -> Result<ToolSelect, BoxError> {
    let names = |list: &[Value]| list.iter().filter_map(Value::as_str).map(Into::into).collect::<Vec<_>>();
    let mut select = ToolSelect::new().always_include(names(list(input, "always_include")));
    if let Some(max) = input.get("max_tools").and_then(Value::as_u64) {
        select = select.max_tools(usize::try_from(max)?);
    }
    if let Some(retries) = input.get("max_retries").and_then(Value::as_u64) {
        select = select.max_retries(u32::try_from(retries)?);
    }
    let then = match input.get("on_parsing_failure") {
        None => OnParsingFailure::Error,
        Some(Value::Array(tools)) => OnParsingFailure::Tools(names(tools)),
        Some(Value::String(word)) => match word.as_str() {
            "error" => OnParsingFailure::Error,
            "none" => OnParsingFailure::NoTools,
            "all" => OnParsingFailure::AllTools,
            other => return Err(format!("there is no way `{other}` to go on").into()),
        },
        Some(other) => return Err(format!("there is no way {other} to go on").into()),
    };
    Ok(select.on_parsing_failure(then))
}

/// An error as the vector writes it, if it says what it should of the names that the vector expects.
fn shown(error: &Error, expected: &Value) -> Value {
    let wanted = expected.get("error").cloned().unwrap_or_default();
    let names: Vec<&str> = list(&wanted, "names").iter().filter_map(Value::as_str).collect();
    let attempts = expected.get("selector_calls").and_then(Value::as_u64).unwrap_or_default();
    let said = match text(&wanted, "kind") {
        Some("always_include_missing") => words::select_missing(&names),
        Some("invalid_selection") => words::select_unknown(&names),
        Some("malformed_selection") => words::select_malformed(u32::try_from(attempts).unwrap_or_default()),
        _ => String::new(),
    };
    if said == error.message() { wanted } else { json!(error.message()) }
}

/// The agent's own model, which picks tools too. It has another script for that.
#[derive(Debug)]
struct TwoMinds {
    main: SceneModel,
    selector: Arc<SceneModel>,
}

impl Model for TwoMinds {
    fn name(&self) -> &str {
        self.main.name()
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        if request.output_schema.is_some() {
            return self.selector.generate(request);
        }
        self.main.generate(request)
    }
}
