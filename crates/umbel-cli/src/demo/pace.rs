//! A script that speaks no faster than a person can follow.

use std::time::Duration;

use futures::StreamExt;
use umbel::{BoxStream, Chunk, Model, ModelRequest, Provider, Result, ScriptedModel};

/// A scripted model that may pause before each piece of its answer.
#[derive(Debug)]
pub(super) struct Paced {
    script: ScriptedModel,
    pause: Option<Duration>,
}

impl Paced {
    pub(super) fn new(
        answer: impl Fn(&ModelRequest) -> Vec<Result<Chunk>> + Send + Sync + 'static,
        pause: Option<Duration>,
    ) -> Self {
        Self { script: ScriptedModel::from_fn("script", answer), pause }
    }
}

impl Model for Paced {
    fn name(&self) -> &str {
        self.script.name()
    }

    fn provider(&self) -> Provider<'_> {
        self.script.provider()
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let chunks = self.script.generate(request);
        let Some(pause) = self.pause.filter(|_| request.stream) else { return chunks };
        Box::pin(chunks.then(move |chunk| async move {
            tokio::time::sleep(pause).await;
            chunk
        }))
    }
}
