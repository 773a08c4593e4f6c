//! What an instruction with holes becomes.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use umbel::{
    ArtifactStore, BoxError, Chunk, ErrorKind, InMemoryArtifacts, LlmAgent, ModelRequest, Object, Part,
    Response, RunConfig, Runner, ScriptedModel, SessionKey,
};

use super::case::{Case, Checked};
use super::script::{object, text};
use super::tokens::Tokens;

/// The one session of a case.
const PLACE: (&str, &str, &str) = ("app", "user", "session");

pub(super) async fn check(case: &Case) -> Result<Checked, BoxError> {
    let agent = text(&case.input, "agent_name").ok_or("the input has no `agent_name`")?;
    let template = text(&case.input, "template").ok_or("the input has no `template`")?;
    let told: Arc<Mutex<String>> = Arc::default();
    let heard = told.clone();
    let model = ScriptedModel::from_fn("model", move |request: &ModelRequest| {
        let parts = request.instruction.parts().iter().filter(|part| part.source == "instruction");
        *heard.lock().unwrap_or_else(PoisonError::into_inner) = parts.map(|part| &*part.text).collect();
        vec![Ok(Chunk::Complete(Response::text("ok")))]
    });
    let root = LlmAgent::new(agent).model(model).instruction(template);
    // State comes with the message, since `temp:` keys live no longer than a run.
    let config = RunConfig { state_delta: object(&case.input, "state"), ..RunConfig::default() };
    let (app, user, session) = PLACE;
    let mut builder = Runner::builder(app, root).config(config);
    if case.input.get("artifact_service") != Some(&Value::Bool(false)) {
        builder = builder.artifacts(artifacts(&object(&case.input, "artifacts")).await?);
    }
    let runner = builder.build()?;
    let session = runner.create_session_with(user, session, Object::new()).await?;
    let actual = match runner.run(&session.key, "go").collect_events().await {
        Ok(_) => json!({"output": *told.lock().unwrap_or_else(PoisonError::into_inner)}),
        Err(error) => json!({"error": {"kind": kind(error.kind())}}),
    };
    let tokens = Tokens::of_tree(&json!({"name": agent}));
    Ok(Checked::Compare { expected: case.expect.clone(), actual, tokens })
}

async fn artifacts(files: &Object) -> Result<InMemoryArtifacts, BoxError> {
    let (app, user, session) = PLACE;
    let (store, key) = (InMemoryArtifacts::new(), SessionKey::new(app, user, session)?);
    for (name, part) in files {
        store.save(&key, name, serde_json::from_value::<Part>(part.clone())?).await?;
    }
    Ok(store)
}

/// The vectors' name for a kind of error.
fn kind(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::MissingState => "missing_state",
        ErrorKind::MissingArtifact => "missing_artifact",
        ErrorKind::NoArtifactStore => "no_artifact_service",
        other => other.code(),
    }
}
