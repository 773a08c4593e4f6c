//! Models of a simulated world: functions of the request, which terminate.

use std::sync::Arc;

use futures::{StreamExt, stream};
use serde_json::{Value, json};
use umbel::{
    BoxStream, Chunk, Content, Error, ErrorKind, FunctionCall, Model, ModelErrorKind, ModelRequest, Part,
    Parts, Response, Result, Role,
};

use super::ledger::{Ledger, digest_of};
use super::services::SimClock;
use super::world::{ModelMove, millis};

/// What every message of a person begins with.
pub(super) const SAYS: &str = "say";

/// A model that makes its moves one after the other, since the last message of a person.
#[derive(Clone, Debug)]
pub(super) struct MoveModel {
    pub(super) name: String,
    pub(super) moves: Arc<Vec<ModelMove>>,
    pub(super) ledger: Ledger,
    pub(super) clock: SimClock,
    /// Every message of a person is for this model.
    pub(super) is_alone: bool,
}

/// A digest of all that a model is sent.
fn digest_request(request: &ModelRequest) -> u64 {
    let contents: Vec<String> = request.contents.iter().map(|content| text_of(content)).collect();
    let tools: Vec<&str> = request.tools.specs().map(|spec| spec.name.as_str()).collect();
    digest_of(&(contents, tools))
}

fn text_of(content: &Content) -> String {
    serde_json::to_string(content).unwrap_or_default()
}

/// How many steps were made since the last message of a person.
fn progress(request: &ModelRequest) -> usize {
    let is_message = |content: &Content| !content.has_responses() && content.text().contains(SAYS);
    let all = request.contents.len();
    let last = request.contents.iter().enumerate().rfind(|(_, content)| is_message(content));
    let since = all - last.map_or(0, |(place, _)| place + 1);
    since.div_ceil(2)
}

fn calls(calls: impl IntoIterator<Item = (String, Value, Option<String>)>) -> Vec<Result<Chunk>> {
    let parts = calls.into_iter().map(|(name, args, id)| {
        let call = FunctionCall::new(name, args.as_object().cloned().unwrap_or_default());
        Part::call(match id {
            Some(id) => call.with_id(id.as_str()),
            None => call,
        })
    });
    let parts: Parts = parts.collect();
    vec![Ok(Chunk::Complete(Response::new(Content::new(Role::Model, parts))))]
}

fn fails() -> Vec<Result<Chunk>> {
    vec![Err(Error::new(ErrorKind::Model(ModelErrorKind::Other), "simulated failure of a model"))]
}

impl MoveModel {
    /// The message that is answered is among what the model is sent.
    fn check_message(&self, request: &ModelRequest) {
        let state = self.ledger.lock();
        let acts: Vec<u32> = state.acts.iter().flatten().copied().collect();
        drop(state);
        if let ([number], true) = (acts.as_slice(), self.is_alone) {
            let text = format!("{SAYS} {number}.");
            if !request.contents.iter().any(|content| content.text().contains(&text)) {
                self.ledger.violate("message-visible", format!("the model is not sent `{text}`"));
            } else if request.contents.last().is_some_and(|last| last.role == Some(Role::Model)) {
                self.ledger.violate("message-visible", format!("`{text}` is not the last message"));
            }
        }
    }

    fn answer(&self, request: &ModelRequest, digest: u64) -> (u64, Vec<Result<Chunk>>) {
        let step = progress(request);
        let last = ModelMove::SayText { pieces: 1, slow_ms: 0 };
        let chosen = self.moves.get(step).unwrap_or(&last);
        let chunks = match chosen {
            ModelMove::SayText { pieces, slow_ms } => {
                let text = format!("{} answers {step}", self.name);
                if *pieces <= 1 {
                    return (*slow_ms, vec![Ok(Chunk::Complete(Response::text(text)))]);
                }
                let pieces = (0..*pieces).map(|piece| Ok(Chunk::Text(format!("{text} {piece}. "))));
                return (*slow_ms, pieces.collect());
            }
            ModelMove::CallTools { tools, own_ids } => {
                calls(tools.iter().enumerate().map(|(place, tool)| {
                    let id = own_ids.then(|| format!("c{step}-{place}"));
                    (format!("t{tool}"), json!({}), id)
                }))
            }
            ModelMove::CallAgent(agent) => {
                let words = format!("{SAYS} from {}", self.name);
                calls([(format!("a{agent}"), json!({"goal": words, "request": words}), None)])
            }
            ModelMove::HandTo(agent) => {
                let args = json!({"agent_name": format!("a{agent}")});
                calls([("transfer_to_agent".to_owned(), args, None)])
            }
            ModelMove::FinishesTask => calls([("finish_task".to_owned(), json!({"result": "done"}), None)]),
            ModelMove::FailsAlways => fails(),
            ModelMove::FailsFirst if self.ledger.lock().failed_requests.insert(digest) => fails(),
            ModelMove::FailsFirst => vec![Ok(Chunk::Complete(Response::text("it works now")))],
            ModelMove::BreaksOff => {
                let error = Error::new(ErrorKind::StreamCut, "simulated break");
                vec![Ok(Chunk::Text("I was".to_owned())), Err(error)]
            }
        };
        (0, chunks)
    }
}

impl Model for MoveModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let digest = digest_request(request);
        let at = self.clock.elapsed();
        self.ledger.trace(at, "model", || {
            format!(
                "{} {digest:x} {:?}",
                self.name,
                request.contents.iter().map(|c| c.text()).collect::<Vec<_>>()
            )
        });
        self.ledger.lock().requests.push((self.name.clone(), digest));
        self.ledger.count("model.request");
        self.check_message(request);
        let (slow_ms, chunks) = self.answer(request, digest);
        if slow_ms == 0 {
            return Box::pin(stream::iter(chunks));
        }
        let slow = stream::iter(chunks).then(move |chunk| async move {
            tokio::time::sleep(millis(slow_ms)).await;
            chunk
        });
        Box::pin(slow)
    }
}
