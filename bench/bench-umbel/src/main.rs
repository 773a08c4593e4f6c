//! Umbel in its default configuration: LlmAgent + Runner + in-memory sessions, with a fake model.

mod onion;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use harness::*;
use serde_json::{Value, json};
use umbel::{
    BoxStream, Chunk, Content, FunctionCall, LlmAgent, Model, ModelRequest, Part, Response, RunConfig,
    Runner, Said, SessionKey, tool,
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
        while let Some(said) = events.said().await {
            let event = match said.unwrap() {
                Said::Event(event) => event,
                Said::Piece(piece) => {
                    turn.text_bytes += piece.text.len();
                    turn.text_items += 1;
                    continue;
                }
            };
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

/// A team of two: the first agent hands over, the second answers. Umbel's own row: peers have no such scenario.
struct TeamModel;

impl std::fmt::Debug for TeamModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TeamModel")
    }
}

impl Model for TeamModel {
    fn name(&self) -> &str {
        "fake"
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, umbel::Result<Chunk>> {
        let answered = request.contents.len() > 1;
        let response = if answered {
            Response::text(ANSWER)
        } else {
            let args = umbel::Object::from_iter([("agent_name".to_owned(), json!("weather"))]);
            Response::new(Content::model(Part::call(
                FunctionCall::new("transfer_to_agent", args).with_id("call-1"),
            )))
        };
        Box::pin(futures::stream::iter([Ok(Chunk::Complete(response))]))
    }
}

/// Exactly `n` runs of a team: open a session, one turn with a handing over, delete the session.
fn team(n: u64) {
    let weather = LlmAgent::new("weather").description("Knows the weather.").instruction(INSTRUCTION);
    let desk = LlmAgent::new("desk").model(TeamModel).instruction("Hand over.").sub_agent(weather);
    let runner = Runner::new("bench", desk).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for id in 0..n {
            let key =
                runner.create_session_with("user", id.to_string(), Default::default()).await.unwrap().key;
            let mut events = runner.run(&key, PROMPT);
            let mut text = 0;
            while let Some(event) = events.next().await {
                text += event.unwrap().text().len();
            }
            assert_eq!(text, ANSWER.len());
            runner.delete_session(&key).await.unwrap();
        }
    });
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str) {
        Some("team") => team(args[2].parse().expect("count")),
        Some("onion") => onion::main(&args[2..]),
        _ => harness::main::<Umbel>(),
    }
}
