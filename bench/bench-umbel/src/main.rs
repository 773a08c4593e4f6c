//! Umbel in its default configuration: LlmAgent + Runner + in-memory sessions, with a fake model.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use harness::*;
use serde_json::{Value, json};
use umbel::{
    BoxStream, Chunk, Content, FunctionCall, LlmAgent, Model, ModelRequest, Part, Response, RunConfig, Runner, SessionKey,
    tool,
};

#[derive(Debug)]
struct FakeModel {
    scenario: Scenario,
    seen: Arc<AtomicUsize>,
}

impl Model for FakeModel {
    fn name(&self) -> &str {
        "fake"
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, umbel::Result<Chunk>> {
        self.seen.store(request.contents.len(), Ordering::Relaxed);
        let answered = request.contents.last().is_some_and(|content| content.has_responses());
        let chunks = match self.scenario {
            Scenario::Tool if !answered => {
                let args = umbel::Object::from_iter([("city".to_owned(), json!("Paris"))]);
                let call = FunctionCall::new("get_weather", args).with_id("call-1");
                vec![Ok(Chunk::Complete(Response::new(Content::model(Part::call(call)))))]
            }
            Scenario::Stream => (0..CHUNKS).map(|_| Ok(Chunk::Text(CHUNK.into()))).collect(),
            _ => vec![Ok(Chunk::Complete(Response::text(ANSWER)))],
        };
        Box::pin(futures::stream::iter(chunks))
    }
}

/// Current weather of a city.
#[tool]
async fn get_weather(city: String) -> Value {
    json!({ "city": city, "celsius": 18, "sky": "sunny" })
}

struct Umbel {
    runner: Runner,
    seen: Arc<AtomicUsize>,
    streaming: bool,
}

impl Peer for Umbel {
    const NAME: &'static str = "umbel";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    type Session = SessionKey;

    fn build(scenario: Scenario) -> Self {
        let seen = Arc::new(AtomicUsize::new(0));
        let model = FakeModel { scenario, seen: seen.clone() };
        let mut agent = LlmAgent::new("weather").model(model).instruction(INSTRUCTION);
        if scenario == Scenario::Tool {
            agent = agent.tool(get_weather);
        }
        let streaming = scenario == Scenario::Stream;
        let config = RunConfig { streaming, ..RunConfig::default() };
        let runner = Runner::builder("bench", agent).config(config).build().unwrap();
        Self { runner, seen, streaming }
    }

    async fn open(&self, id: u64) -> SessionKey {
        self.runner.create_session_with("user", id.to_string(), Default::default()).await.unwrap().key
    }

    async fn turn(&self, session: &SessionKey) -> Turn {
        let mut events = self.runner.run(session, PROMPT);
        let mut turn = Turn { text_bytes: 0, text_items: 0, tool_calls: 0 };
        while let Some(event) = events.next().await {
            let event = event.unwrap();
            let Some(content) = &event.content else { continue };
            for part in &content.parts {
                // The folded event repeats the whole answer: a reader who saw the pieces counts those.
                match part.as_text() {
                    Some(text) if event.is_partial() == self.streaming => {
                        turn.text_bytes += text.len();
                        turn.text_items += 1;
                    }
                    _ if part.as_response().is_some() => turn.tool_calls += 1,
                    _ => {}
                }
            }
        }
        turn
    }

    async fn close(&self, session: SessionKey) {
        self.runner.delete_session(&session).await.unwrap();
    }

    fn messages_seen(&self) -> usize {
        self.seen.load(Ordering::Relaxed)
    }
}

fn main() {
    harness::main::<Umbel>();
}
