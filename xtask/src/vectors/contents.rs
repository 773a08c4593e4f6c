//! From session events to what a model is sent.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel::contents::{build, place};
use umbel::{BoxError, Content, ContentsView, Event, History};

use super::case::{Case, Checked};
use super::script::{flag, list, text};
use super::tokens::Tokens;

pub(super) fn check(case: &Case) -> Result<Checked, BoxError> {
    // Vectors try to forge our marks, so inputs have tokens too.
    let input = Tokens::default().fill(&case.input);
    let view = ContentsView {
        branch: text(&input, "branch").map(Into::into),
        isolation_scope: text(&input, "isolation_scope").map(Into::into),
        single_turn: text(&input, "mode") == Some("single_turn"),
        current_turn_only: text(&input, "include_contents") == Some("none"),
        keep_client_ids: flag(&input, "preserve_function_call_ids"),
        foreign_thoughts: flag(&input, "include_thoughts_from_other_agents"),
        ..ContentsView::new(text(&input, "agent_name").ok_or("the input has no `agent_name`")?)
    };
    let events =
        list(&input, "events").iter().map(|event| Ok(Arc::new(serde_json::from_value(event.clone())?)));
    let events = events.collect::<Result<umbel::List<Arc<Event>>, BoxError>>()?;
    let said = input.get("user_content").filter(|content| !content.is_null()).cloned();
    let said = said.map(serde_json::from_value::<Content>).transpose()?.map(Arc::new);
    let mut history: History = build(&view, &events, said.as_ref()).into_iter().collect();
    let (context, turn) =
        (contents(&input, "model_input_context")?, contents(&input, "instruction_contents")?);
    place(&mut history, &context, said.as_ref(), &turn);
    let history: Vec<&Arc<Content>> = history.iter().collect();
    Ok(Checked::plain(case.expect.clone(), json!({"contents": history})))
}

fn contents(input: &Value, key: &str) -> Result<Vec<Arc<Content>>, BoxError> {
    list(input, key).iter().map(|content| Ok(Arc::new(serde_json::from_value(content.clone())?))).collect()
}
