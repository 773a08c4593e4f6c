//! A model that says what it was told to say. For tests and demos.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use smol_str::SmolStr;
use umbel_core::FunctionCall;
use umbel_core::{
    BoxStream, Capabilities, Chunk, Content, Error, ErrorKind, Model, ModelErrorKind, ModelRequest, Object,
    Part, Provider, Response, Result, Role,
};

type Answer = Arc<dyn Fn(&ModelRequest) -> Vec<Result<Chunk>> + Send + Sync>;

/// A model that says what it was told to say: answers in order, or made from the request.
///
/// ```
/// use serde_json::json;
/// use umbel_runtime::ScriptedModel;
///
/// let model = ScriptedModel::new("demo")
///     .call("get_weather", json!({"city": "Paris"}))
///     .text("It is sunny.");
/// ```
#[derive(Clone)]
pub struct ScriptedModel {
    name: SmolStr,
    capabilities: Capabilities,
    script: Arc<Mutex<VecDeque<Vec<Result<Chunk, (ErrorKind, String)>>>>>,
    answer: Option<Answer>,
    /// What it was asked, if somebody wants to know.
    requests: Option<Arc<Mutex<Vec<ModelRequest>>>>,
}

impl ScriptedModel {
    /// A model with nothing to say yet.
    pub fn new(name: impl Into<SmolStr>) -> Self {
        Self {
            name: name.into(),
            capabilities: Capabilities::default(),
            script: Arc::default(),
            answer: None,
            requests: None,
        }
    }

    /// A model that makes its answer from the request.
    pub fn from_fn(
        name: impl Into<SmolStr>,
        answer: impl Fn(&ModelRequest) -> Vec<Result<Chunk>> + Send + Sync + 'static,
    ) -> Self {
        Self { answer: Some(Arc::new(answer)), ..Self::new(name) }
    }

    /// What it can do.
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Next it says this.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.response(Response::text(text))
    }

    /// Next it says this, a piece at a time.
    pub fn stream<T: Into<String>>(self, pieces: impl IntoIterator<Item = T>) -> Self {
        self.chunks(pieces.into_iter().map(|piece| Chunk::Text(piece.into())))
    }

    /// Next it calls a tool. Arguments must be an object; anything else is taken as none.
    pub fn call(self, name: impl Into<SmolStr>, args: serde_json::Value) -> Self {
        self.calls([(name.into(), args)])
    }

    /// Next it calls several tools at once.
    pub fn calls<N: Into<SmolStr>>(self, calls: impl IntoIterator<Item = (N, serde_json::Value)>) -> Self {
        let parts = calls.into_iter().map(|(name, args)| {
            let args = match args {
                serde_json::Value::Object(args) => args,
                _ => Object::new(),
            };
            Part::call(FunctionCall::new(name, args))
        });
        self.response(Response::new(Content::new(Role::Model, parts)))
    }

    /// Next it answers this.
    pub fn response(self, response: Response) -> Self {
        self.chunks([Chunk::Complete(response)])
    }

    /// Next it answers in these chunks.
    pub fn chunks(self, chunks: impl IntoIterator<Item = Chunk>) -> Self {
        self.push(chunks.into_iter().map(Ok).collect())
    }

    /// Next it fails.
    pub fn fail(self, message: impl Into<String>) -> Self {
        self.push(vec![Err((ErrorKind::Model(ModelErrorKind::Other), message.into()))])
    }

    /// Next it says some of this and then breaks off.
    pub fn break_off<T: Into<String>>(self, pieces: impl IntoIterator<Item = T>) -> Self {
        let mut step: Vec<_> = pieces.into_iter().map(|piece| Ok(Chunk::Text(piece.into()))).collect();
        step.push(Err((ErrorKind::StreamCut, "the model's answer broke off".to_owned())));
        self.push(step)
    }

    /// Remembers what it is asked from now on, as long as it lives: for tests, which look at [`requests`](Self::requests).
    pub fn recorded(self) -> Self {
        Self { requests: Some(self.requests.unwrap_or_default()), ..self }
    }

    /// What it was asked so far, if that is [recorded](Self::recorded).
    pub fn requests(&self) -> Vec<ModelRequest> {
        let requests = self.requests.as_ref();
        requests
            .map(|requests| requests.lock().unwrap_or_else(PoisonError::into_inner).clone())
            .unwrap_or_default()
    }

    fn push(self, step: Vec<Result<Chunk, (ErrorKind, String)>>) -> Self {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).push_back(step);
        self
    }

    fn next(&self, request: &ModelRequest) -> Vec<Result<Chunk>> {
        if let Some(requests) = &self.requests {
            requests.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
        }
        if let Some(answer) = &self.answer {
            return answer(request);
        }
        let step = self.script.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        match step {
            Some(step) => {
                let told = |(kind, message)| Error::new(kind, message);
                step.into_iter().map(|item| item.map_err(told)).collect()
            }
            None => {
                let message = format!("the script of `{}` is at its end: give it another answer", self.name);
                vec![Err(Error::new(ErrorKind::Model(ModelErrorKind::Other), message))]
            }
        }
    }
}

impl Model for ScriptedModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn provider(&self) -> Provider<'_> {
        Provider { name: "umbel", server: None }
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        Box::pin(futures::stream::iter(self.next(request)))
    }
}

impl fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScriptedModel({})", self.name)
    }
}
