//! Writing down what a model answers, and answering from what was written down.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use umbel_core::{
    BoxStream, Capabilities, Chunk, Error, ErrorKind, Model, ModelErrorKind, ModelRequest, Provider,
    Response, Result,
};

/// One answer of a model, as it is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Take {
    /// A digest of the request.
    pub request: String,
    /// The chunks, in order.
    pub chunks: Vec<TakeChunk>,
}

/// One chunk, as it is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TakeChunk {
    /// More of the message.
    Delta(Response),
    /// The whole message.
    Complete(Response),
    /// What came so far is void.
    Restart,
    /// The model failed.
    Failed {
        /// The kind of error, [`ErrorKind::code`](umbel_core::ErrorKind::code).
        code: SmolStr,
        /// What happened, in words.
        message: String,
        /// After how many seconds it is worth another try, if the model told.
        #[serde(default, rename = "retryAfter", skip_serializing_if = "Option::is_none")]
        retry_after: Option<f64>,
    },
}

impl TakeChunk {
    fn of(chunk: &Result<Chunk>) -> Self {
        match chunk {
            Ok(Chunk::Complete(response)) => Self::Complete(response.clone()),
            Ok(chunk) => chunk.clone().into_delta().map_or(Self::Restart, Self::Delta),
            Err(error) => Self::Failed {
                code: error.kind().code().into(),
                message: error.message().to_owned(),
                retry_after: error.retry_after().map(|after| after.as_secs_f64()),
            },
        }
    }

    fn play(self) -> Result<Chunk> {
        match self {
            Self::Delta(response) => Ok(Chunk::Delta(response)),
            Self::Complete(response) => Ok(Chunk::Complete(response)),
            Self::Restart => Ok(Chunk::Restart),
            Self::Failed { code, message, retry_after } => {
                let other = ErrorKind::Model(ModelErrorKind::Other);
                let error = Error::new(ErrorKind::from_code(&code).unwrap_or(other), message);
                // A number that is no time was not written by us.
                let after = retry_after.and_then(|after| Duration::try_from_secs_f64(after).ok());
                Err(after.into_iter().fold(error, Error::with_retry_after))
            }
        }
    }
}

/// A digest of what a model is asked, so that the same question gets the same answer. It is FNV-1a, written out: a
/// recording has to be found again by any later build.
fn digest(request: &ModelRequest) -> String {
    let mut digest: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |text: &str| {
        for byte in text.bytes().chain([0xff]) {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    add(&request.instruction.text());
    for content in &request.contents {
        add(&serde_json::to_string(content).unwrap_or_default());
    }
    for spec in request.tools.specs() {
        add(&spec.name);
    }
    format!("{digest:016x}")
}

/// Writes down what another model answers.
#[derive(Clone)]
pub struct RecordingModel {
    model: Arc<dyn Model>,
    takes: Arc<Mutex<Vec<Take>>>,
}

impl RecordingModel {
    /// Listens to a model.
    pub fn new(model: impl Model + 'static) -> Self {
        Self { model: Arc::new(model), takes: Arc::default() }
    }

    /// What was written down, one answer a line, as JSON.
    pub fn to_json_lines(&self) -> Result<String> {
        let takes = self.takes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = String::new();
        for take in takes.iter() {
            let line = serde_json::to_string(take).map_err(|e| {
                Error::new(ErrorKind::Other, "an answer cannot be written down").with_source(e)
            })?;
            lines.push_str(&line);
            lines.push('\n');
        }
        Ok(lines)
    }
}

impl Model for RecordingModel {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.model.capabilities()
    }

    fn provider(&self) -> Provider<'_> {
        self.model.provider()
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let take = Take { request: digest(request), chunks: Vec::new() };
        let takes = self.takes.clone();
        let place = {
            let mut takes = takes.lock().unwrap_or_else(PoisonError::into_inner);
            takes.push(take);
            takes.len() - 1
        };
        Box::pin(self.model.generate(request).inspect(move |chunk| {
            let mut takes = takes.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(take) = takes.get_mut(place) {
                take.chunks.push(TakeChunk::of(chunk));
            }
        }))
    }
}

impl fmt::Debug for RecordingModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordingModel({:?})", self.model)
    }
}

/// Answers from what was written down. A question that was not asked then is an error.
#[derive(Clone)]
pub struct ReplayModel {
    name: String,
    capabilities: Capabilities,
    takes: Arc<Mutex<HashMap<String, VecDeque<Take>>>>,
}

impl ReplayModel {
    /// Reads what a [`RecordingModel`] wrote down.
    pub fn from_json_lines(name: impl Into<String>, lines: &str) -> Result<Self> {
        let mut takes: HashMap<String, VecDeque<Take>> = HashMap::new();
        for (number, line) in lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let take: Take = serde_json::from_str(line).map_err(|e| {
                let message = format!("line {} of the recording cannot be read: {e}", number + 1);
                Error::new(ErrorKind::Corrupt, message)
            })?;
            takes.entry(take.request.clone()).or_default().push_back(take);
        }
        Ok(Self {
            name: name.into(),
            capabilities: Capabilities::default(),
            takes: Arc::new(Mutex::new(takes)),
        })
    }

    /// What the recorded model could do.
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }
}

impl Model for ReplayModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let digest = digest(request);
        let mut takes = self.takes.lock().unwrap_or_else(PoisonError::into_inner);
        let chunks = match takes.get_mut(&digest).and_then(VecDeque::pop_front) {
            Some(take) => take.chunks.into_iter().map(TakeChunk::play).collect(),
            None => {
                let message =
                    format!("the recording has no answer to this request ({digest}): record it again");
                vec![Err(Error::new(ErrorKind::Model(ModelErrorKind::Other), message))]
            }
        };
        Box::pin(futures::stream::iter(chunks))
    }
}

impl fmt::Debug for ReplayModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplayModel({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScriptedModel;

    #[tokio::test]
    async fn a_recorded_failure_keeps_its_kind() {
        let recorder = RecordingModel::new(ScriptedModel::new("m").break_off(["half"]));
        let request = ModelRequest::new("m");
        let first: Vec<_> = recorder.generate(&request).collect().await;
        let replay = ReplayModel::from_json_lines("m", &recorder.to_json_lines().unwrap()).unwrap();
        let again: Vec<_> = replay.generate(&request).collect().await;
        let last =
            |items: &[Result<Chunk>]| items.last().and_then(|item| item.as_ref().err().map(Error::kind));
        assert_eq!((last(&first), last(&again)), (Some(ErrorKind::StreamCut), Some(ErrorKind::StreamCut)));
    }

    #[tokio::test]
    async fn a_recorded_failure_keeps_each_kind_and_when_to_try_again() {
        let kinds = [
            ModelErrorKind::Auth,
            ModelErrorKind::RateLimited,
            ModelErrorKind::Overloaded,
            ModelErrorKind::ContextTooLong,
            ModelErrorKind::Refused,
            ModelErrorKind::BadRequest,
            ModelErrorKind::Transport,
            ModelErrorKind::Other,
        ];
        for kind in kinds {
            for after in [None, Some(Duration::from_millis(1_500))] {
                let fails = move |_: &ModelRequest| {
                    let error = Error::new(ErrorKind::Model(kind), "no");
                    vec![Err(after.into_iter().fold(error, Error::with_retry_after))]
                };
                let recorder = RecordingModel::new(ScriptedModel::from_fn("m", fails));
                let request = ModelRequest::new("m");
                let _: Vec<_> = recorder.generate(&request).collect().await;
                let replay = ReplayModel::from_json_lines("m", &recorder.to_json_lines().unwrap()).unwrap();
                let error = replay.generate(&request).next().await.unwrap().unwrap_err();
                assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Model(kind), after));
                assert_eq!(error.message(), "no");
            }
        }
    }

    #[tokio::test]
    async fn a_failure_of_an_older_or_strange_recording_is_replayed_as_far_as_it_is_known() {
        let digest = digest(&ModelRequest::new("m"));
        for (failed, kind) in [
            (r#"{"code":"MODEL_AUTH","message":"no"}"#, ModelErrorKind::Auth),
            (r#"{"code":"UNHEARD_OF","message":"no"}"#, ModelErrorKind::Other),
            (r#"{"code":"MODEL_AUTH","message":"no","retryAfter":-1.0}"#, ModelErrorKind::Auth),
        ] {
            let line = format!(r#"{{"request":"{digest}","chunks":[{{"failed":{failed}}}]}}"#);
            let replay = ReplayModel::from_json_lines("m", &line).unwrap();
            let error = replay.generate(&ModelRequest::new("m")).next().await.unwrap().unwrap_err();
            assert_eq!((error.kind(), error.retry_after()), (ErrorKind::Model(kind), None));
        }
    }

    #[test]
    fn the_digest_of_a_request_does_not_change_from_build_to_build() {
        assert_eq!(digest(&ModelRequest::new("m")), "af64724c8602eb6e");
    }
}
