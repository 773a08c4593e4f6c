//! The steps of a run: each time a model was asked, and what it was asked.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_agui::InputMark;
use umbel_core::{Event, ModelRequest, RunId, SessionKey};

use crate::app::Offered;
use crate::post::principal;
use crate::problem::Problem;
use crate::resolve::Asking;
use crate::routes::{answer, find_run, query};

/// `GET {agent}/runs/{run}/steps`.
pub(crate) async fn steps(
    State(offered): State<Offered>,
    Path(run): Path<SmolStr>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let (_, key, answers) = answers(&offered, &head, &run).await?;
    let steps = answers.iter().enumerate().map(|(index, event)| {
        let calls: Vec<&str> = event.calls().map(|call| call.name.as_str()).collect();
        json!({
            "step": index + 1, "agent": event.author(), "messageId": event.id, "timestamp": event.timestamp,
            "toolCalls": calls,
        })
    });
    let steps: Vec<Value> = steps.collect();
    Ok(answer(StatusCode::OK, &json!({"threadId": key.id(), "runId": run, "steps": steps})))
}

/// `GET {agent}/runs/{run}/steps/{step}/request`: what the model was asked, made from the log again.
pub(crate) async fn request(
    State(offered): State<Offered>,
    Path((run, step)): Path<(SmolStr, usize)>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let (offered, key, answers) = answers(&offered, &head, &run).await?;
    let event = step.checked_sub(1).and_then(|index| answers.get(index));
    let event = event.ok_or_else(|| Problem::not_found("step"))?;
    let asked = offered.endpoint.runner.request_before(&key, &event.id).await?;
    Ok(answer(StatusCode::OK, &form(&asked)))
}

/// What the models of a run answered, in order, with the agent and the thread of the run.
async fn answers(
    offered: &Offered,
    head: &Parts,
    run: &SmolStr,
) -> Result<(Offered, SessionKey, Vec<Arc<Event>>), Problem> {
    let asking = Asking { head, principal: &principal(head)?, input: None };
    let (offered, key) = find_run(offered, &asking, run, query(head, "thread").as_deref()).await?;
    let view = offered.endpoint.runner.session(&key).await?.ok_or_else(|| Problem::not_found("run"))?;
    let marked = view.events.iter().filter(|event| event.is_user());
    let marked = marked.filter(|event| InputMark::of(event).is_some_and(|mark| mark.run == *run));
    let runs: Vec<RunId> = marked.map(|event| event.run.clone()).collect();
    if runs.is_empty() {
        return Err(Problem::not_found("run"));
    }
    let is_answer = |event: &&Arc<Event>| {
        !event.is_user()
            && event.content.is_some()
            && event.responses().next().is_none()
            && runs.contains(&event.run)
    };
    Ok((offered, key, view.events.iter().filter(is_answer).cloned().collect()))
}

/// A request as JSON.
fn form(request: &ModelRequest) -> Value {
    let contents: Vec<_> = request.contents.iter().collect();
    let tools = request.tools.specs().map(
        |spec| json!({"name": spec.name, "description": spec.description, "parameters": spec.parameters}),
    );
    json!({
        "model": request.model,
        "instruction": request.instruction.text(),
        "contents": contents,
        "tools": tools.collect::<Vec<_>>(),
        "config": request.config,
        "outputSchema": request.output_schema,
    })
}
