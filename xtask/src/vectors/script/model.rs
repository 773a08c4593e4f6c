//! A model that says what its script says, and notes what it was asked.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use umbel::{
    BoxStream, Chunk, Content, Error, ErrorKind, Model, ModelErrorKind, ModelRequest, Object, Response,
    Result,
};

use super::{Log, Stage, flag, list, text};

/// A model that says what its script says. Each agent has its own.
pub(super) struct ScriptModel {
    agent: String,
    steps: Mutex<VecDeque<Value>>,
    log: Arc<Log>,
    streaming: bool,
}

impl ScriptModel {
    pub(super) fn new(agent: &str, script: &[Value], stage: &Stage) -> Self {
        Self {
            agent: agent.to_owned(),
            steps: Mutex::new(script.iter().cloned().collect()),
            log: stage.log().clone(),
            streaming: stage.streaming(),
        }
    }

    fn next(&self) -> Vec<Result<Chunk>> {
        let step = self.steps.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(step) = step else { return vec![Err(failure("the script is at its end"))] };
        let responses = list(&step, "responses");
        let last_whole = responses.iter().rposition(|response| !flag(response, "partial"));
        let chunk = |(index, response): (usize, &Value)| {
            let response: Response = serde_json::from_value(response.clone())
                .map_err(|e| failure(&format!("the script cannot be read: {e}")))?;
            // Pieces are pieces only if the whole comes too; otherwise they stand for themselves.
            let piece = self.streaming && response.partial == Some(true) && last_whole > Some(index);
            Ok(if piece { Chunk::Delta(response) } else { Chunk::Complete(response) })
        };
        let raised = text(&step, "raise").map(|message| Err(failure(message)));
        responses.iter().enumerate().map(chunk).chain(raised).collect()
    }
}

fn failure(message: &str) -> Error {
    Error::new(ErrorKind::Model(ModelErrorKind::Other), message)
}

impl Model for ScriptModel {
    fn name(&self) -> &str {
        "script"
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        self.log.note(format!("model:{}", self.agent));
        self.log.asked(shown(&self.agent, request));
        Box::pin(futures::stream::iter(self.next()))
    }
}

/// A request as vectors show it.
fn shown(agent: &str, request: &ModelRequest) -> Value {
    let contents: Vec<&Arc<Content>> = request.contents.iter().collect();
    let tools: Vec<&str> = request.tools.specs().map(|spec| spec.name.as_str()).collect();
    let mut shown = Object::new();
    shown.insert("agent".to_owned(), agent.into());
    shown.insert("contents".to_owned(), json!(contents));
    shown.insert("tools".to_owned(), json!(tools));
    let instruction = request.instruction.text();
    if !instruction.is_empty() {
        shown.insert("system_instruction".to_owned(), instruction.into());
    }
    if let Some(mime) = &request.config.response_mime_type {
        shown.insert("response_mime_type".to_owned(), mime.as_str().into());
    }
    Value::Object(shown)
}

impl fmt::Debug for ScriptModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptModel({})", self.agent)
    }
}
