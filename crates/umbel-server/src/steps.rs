//! The steps of a run: each time a model was asked, and what it was asked.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_agui::InputMark;
use umbel_core::{Event, List, ModelRequest, RunConfig, RunId, SessionKey};

use crate::app::Offered;
use crate::brought::Brought;
use crate::post::principal;
use crate::problem::Problem;
use crate::quotas::Reserved;
use crate::resolve::Asking;
use crate::routes::{Looked, Named, answer, find_run, query};

/// What the models of a run answered, in order, with the agent and the thread of the run.
pub(crate) struct Steps {
    pub(crate) offered: Offered,
    pub(crate) key: SessionKey,
    /// The run as the log calls it: one that answered questions and brought a message is two there.
    pub(crate) runs: Vec<RunId>,
    events: List<Arc<Event>>,
    pub(crate) answers: Vec<Arc<Event>>,
    pub(crate) reserved: Reserved,
}

impl Steps {
    pub(crate) async fn of(offered: &Offered, head: &Parts, run: &SmolStr) -> Result<Self, Problem> {
        let principal = principal(head)?;
        offered.app.check_inspect(&principal)?;
        let asking = Asking { head, principal: &principal, input: None };
        let (thread, mut looked) = (query(&head.uri, "thread"), Looked::new());
        let (offered, key) = find_run(offered, &asking, run, thread.as_deref(), &mut looked).await?;
        let reserved = offered.reserve(&principal, &key).await?;
        let view = offered.endpoint.runner.session(&key).await?.ok_or_else(|| Problem::not_found("run"))?;
        let marked = view.events.iter().filter(|event| event.is_user());
        let marked = marked.filter(|event| InputMark::of(event).is_some_and(|mark| mark.run == *run));
        let mut runs: Vec<RunId> = marked.map(|event| event.run.clone()).collect();
        runs.dedup();
        if runs.is_empty() {
            return Err(Problem::not_found("run"));
        }
        let is_answer = |event: &&Arc<Event>| event.is_answer() && runs.contains(&event.run);
        let answers = view.events.iter().filter(is_answer).cloned().collect();
        Ok(Self { offered, key, runs, events: view.events, answers, reserved })
    }
}

/// `GET {agent}/runs/{run}/steps`.
pub(crate) async fn steps(
    State(offered): State<Offered>,
    Named(run): Named,
    request: Request,
) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let Steps { key, answers, reserved, .. } = Steps::of(&offered, &head, &run).await?;
    let steps = answers.iter().enumerate().map(|(index, event)| {
        let calls = event.calls().cloned().chain(event.code_call());
        let calls: Vec<SmolStr> = calls.map(|call| call.name).collect();
        json!({
            "step": index + 1, "agent": event.author(), "messageId": event.id, "timestamp": event.timestamp,
            "toolCalls": calls,
        })
    });
    let steps: Vec<Value> = steps.collect();
    Ok(reserved.hold(answer(StatusCode::OK, &json!({"threadId": key.id(), "runId": run, "steps": steps}))))
}

/// `GET {agent}/runs/{run}/steps/{step}/request`: what the model was asked, made from the log again.
pub(crate) async fn request(
    State(offered): State<Offered>,
    Path((run, step)): Path<(SmolStr, usize)>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let Steps { offered, key, events, answers, reserved, .. } = Steps::of(&offered, &head, &run).await?;
    let event = step.checked_sub(1).and_then(|index| answers.get(index));
    let event = event.ok_or_else(|| Problem::not_found("step"))?;
    let endpoint = &offered.endpoint;
    let mut leaves_out = vec![
        "what `wrap_model` made of it",
        "what `before_model` changed besides the conversation",
        "`temp:` state, such as the client's context",
    ];
    let mut config = RunConfig::clone(endpoint.runner.config());
    match Brought::of(&events, event) {
        Some(brought) => brought.give(&endpoint.runner, &mut config),
        None => leaves_out.push("the client's tools and instruction, which were too large to be kept"),
    }
    if endpoint.config.is_some() {
        leaves_out.push("what `run_config` made of the run");
    }
    let asked = endpoint.runner.request_before_with(&key, &event.id, config).await?;
    Ok(reserved.hold(answer(StatusCode::OK, &form(&asked, &leaves_out))))
}

/// A request as JSON, with what is known to be missing in it.
fn form(request: &ModelRequest, leaves_out: &[&str]) -> Value {
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
        "leavesOut": leaves_out,
    })
}
