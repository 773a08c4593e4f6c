//! Asking people: what stands in the log of it, in the form of google-adk.

use std::sync::Arc;

use serde_json::json;
use umbel_core::{
    Confirmation, Content, Error, Event, FunctionCall, Interrupt, Object, Part, Parts, Question, Result,
    Role, Run, RunStep, ToolContext,
};

use super::function_calls::Executed;
use crate::text;

/// Emits the responses, and the questions to people that some of them raise. Gives the last event.
pub(super) async fn emit_with_questions(run: &Run, made: Executed) -> Result<Option<Arc<Event>>> {
    let Executed { event, asks, waiting, .. } = made;
    let Some(mut event) = event else { return Ok(None) };
    if asks.is_empty() {
        return run.emit(event).await.map(Some);
    }
    let settled =
        event.responses().any(|response| response.id.as_ref().is_none_or(|id| !waiting.contains(id)));
    if settled || event.content.is_none() {
        // Some calls have their results: the model shall see those once the others have theirs too.
        event.actions_mut().skip_summarization = None;
        run.emit(event).await?;
        emit_questions(run, asks).await.map(Some)
    } else {
        emit_questions(run, asks).await?;
        run.emit(event).await.map(Some)
    }
}

/// Asks people. The form of the questions in the log is that of google-adk.
pub(crate) async fn emit_questions(run: &Run, asks: Vec<Interrupt>) -> Result<Arc<Event>> {
    let mut ids = Vec::new();
    let parts = asks.iter().map(|asked| {
        let args = if is_for_credential(asked) { credential_args(asked) } else { confirmation_args(asked) };
        ids.push(asked.id.clone());
        Part::call(FunctionCall::new(asked.call_name(), args).with_id(asked.id.clone()))
    });
    let content = Content::new(Role::Model, parts.collect::<Parts>());
    let mut event = run.event().with_content(content);
    ids.sort();
    event.long_running_tool_ids = Some(Box::new(ids));
    run.emit_with(event, vec![RunStep::Asked { interrupts: Box::new(asks) }]).await
}

fn confirmation_args(asked: &Interrupt) -> Object {
    let confirmation = Confirmation {
        hint: asked.message.clone(),
        payload: asked.payload.clone(),
        ..Confirmation::default()
    };
    let mut args = Object::new();
    if let Some(call) = &asked.call {
        args.insert("originalFunctionCall".to_owned(), json!(call));
    }
    args.insert("toolConfirmation".to_owned(), json!(confirmation));
    if let Some(schema) = &asked.response_schema {
        args.insert("responseSchema".to_owned(), schema.clone());
    }
    args
}

/// What waits for the credential: a call, or a toolset under the name that google-adk gives it.
fn credential_args(asked: &Interrupt) -> Object {
    let call = asked.address.call.as_ref().map(|call| call.as_str());
    let waits = call.or(asked.address.layer.as_deref()).unwrap_or_default();
    let args = [
        ("functionCallId", json!(waits)),
        ("authConfig", json!(asked.payload)),
        ("message", json!(asked.message)),
    ];
    args.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn is_for_credential(asked: &Interrupt) -> bool {
    asked.reason == Question::CREDENTIAL
}

/// Notes in the actions of a call what it asks people.
pub(super) fn note(cx: &ToolContext, asks: &[Interrupt]) -> Result<()> {
    if let Some(asked) = asks.iter().find(|asked| !is_for_credential(asked)) {
        cx.request_confirmation(asked.message.clone().unwrap_or_default(), asked.payload.clone())?;
    }
    if let (Some(asked), Some(call)) = (asks.iter().find(|asked| is_for_credential(asked)), cx.call_id()) {
        let config = asked.payload.clone().unwrap_or_default();
        cx.actions(|actions| {
            actions.requested_auth_configs.get_or_insert_default().insert(call.to_string(), config);
        });
    }
    Ok(())
}

/// What stands in the place of the result of a call that asks these, or waits with another one.
pub(super) fn waits_for(asks: &[Interrupt], error: &Error) -> &'static str {
    match asks {
        [] if error.message() == text::NEEDS_CREDENTIAL => text::NEEDS_CREDENTIAL,
        [] => text::NEEDS_CONFIRMATION,
        asks if asks.iter().all(is_for_credential) => text::NEEDS_CREDENTIAL,
        _ => text::NEEDS_CONFIRMATION,
    }
}
