//! A model that says what a function tells it to, at a pace.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use umbel::{
    BoxStream, Chunk, Content, FunctionCall, Model, ModelRequest, Object, Part, Response, Result, Role,
};

type Answer = dyn Fn(&ModelRequest) -> Vec<Result<Chunk>> + Send + Sync;

/// A model that says what a function tells it to.
#[derive(Clone)]
pub(crate) struct Script {
    answer: Arc<Answer>,
    pause: Duration,
}

impl Script {
    pub(crate) fn new(answer: impl Fn(&ModelRequest) -> Vec<Result<Chunk>> + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer), pause: Duration::ZERO }
    }

    /// The same, pausing before each piece.
    pub(crate) fn pause(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }
}

impl Model for Script {
    fn name(&self) -> &str {
        "script"
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let (chunks, pause) = (stream::iter((self.answer)(request)), self.pause);
        if pause.is_zero() {
            return Box::pin(chunks);
        }
        Box::pin(chunks.then(move |chunk| async move {
            tokio::time::sleep(pause).await;
            chunk
        }))
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Script")
    }
}

/// Text in pieces of a few characters.
pub(crate) fn say(text: &str) -> Vec<Result<Chunk>> {
    let letters: Vec<char> = text.chars().collect();
    let mut chunks: Vec<_> = letters.chunks(6).map(|piece| Ok(Chunk::Text(piece.iter().collect()))).collect();
    let mut last = Response { content: None, ..Response::text("") };
    last.meta_mut().usage_metadata = serde_json::from_value(serde_json::json!({
        "promptTokenCount": 10, "candidatesTokenCount": letters.len(), "totalTokenCount": 10 + letters.len()
    }))
    .ok();
    last.meta_mut().model_version = Some("script-1".into());
    chunks.push(Ok(Chunk::Delta(last)));
    chunks
}

/// Calls of tools, all at once.
pub(crate) fn call(calls: impl IntoIterator<Item = (&'static str, serde_json::Value)>) -> Vec<Result<Chunk>> {
    let parts = calls.into_iter().map(|(name, args)| {
        let args: Object = args.as_object().cloned().unwrap_or_default();
        Part::call(FunctionCall::new(name, args))
    });
    let content = Content::new(Role::Model, parts.collect::<Vec<_>>());
    vec![Ok(Chunk::Complete(Response::new(content)))]
}

/// What tools answered to the last calls.
pub(crate) fn results(request: &ModelRequest) -> Vec<String> {
    let Some(last) = request.contents.last() else { return Vec::new() };
    last.responses().map(|response| serde_json::to_string(&response.response).unwrap_or_default()).collect()
}

/// All that users said, in order.
pub(crate) fn said(request: &ModelRequest) -> Vec<String> {
    let users = request.contents.iter().filter(|content| content.role == Some(Role::User));
    users.map(|content| content.text()).filter(|text| !text.is_empty()).collect()
}
