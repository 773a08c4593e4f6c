//! Turns of an agent on a store.

use std::sync::Arc;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use umbel::{
    BoxStream, Chunk, Content, Event, FunctionCall, LlmAgent, LogEntry, Model, ModelRequest, Object, Part,
    Response, Result, Runner, SessionKey, Source, tool,
};

// The words of the other benchmarks. They are not taken from the harness: that is built twice, with and without counting.
const PROMPT: &str = "What is the weather in Paris today, and should I bring an umbrella?";
const INSTRUCTION: &str = "You are a helpful weather assistant. Be brief and precise.";
const ANSWER: &str = "It is 18 degrees and mostly sunny in Paris today with a light breeze from the west. \
There is a ten percent chance of rain in the evening, so an umbrella is not needed, but a thin jacket is a good idea after sunset.";

/// Answers always the same, after a call of a tool where it is to make one.
#[derive(Debug)]
struct Answering {
    answer: String,
    calls: bool,
}

impl Model for Answering {
    fn name(&self) -> &str {
        "fake"
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let answered = request.contents.last().is_some_and(|content| content.has_responses());
        let response = if self.calls && !answered {
            let args = Object::from_iter([("city".to_owned(), json!("Paris"))]);
            Response::new(Content::model(Part::call(
                FunctionCall::new("get_weather", args).with_id("call-1"),
            )))
        } else {
            Response::text(self.answer.as_str())
        };
        Box::pin(futures::stream::iter([Ok(Chunk::Complete(response))]))
    }
}

/// Current weather of a city.
#[tool]
async fn get_weather(city: String) -> Value {
    json!({ "city": city, "celsius": 18, "sky": "sunny" })
}

/// Turns that are all the same.
pub struct Talk {
    runner: Runner,
    prompt: String,
    answer: String,
}

impl Talk {
    /// Turns of a scenario (`text`, `tool`) with the texts that all benchmarks have.
    pub async fn open(url: &str, scenario: &str) -> Self {
        let calls = match scenario {
            "text" => false,
            "tool" => true,
            other => panic!("`{other}` is neither text nor tool"),
        };
        Self::with(url, calls, PROMPT.to_owned(), ANSWER.to_owned()).await
    }

    /// Turns in which just this is said.
    pub async fn with(url: &str, calls: bool, prompt: String, answer: String) -> Self {
        let sessions = umbel_stores::open(url).await.unwrap().sessions;
        let agent = LlmAgent::new("weather").instruction(INSTRUCTION).tool(get_weather);
        let agent = agent.model(Answering { answer: answer.clone(), calls });
        let runner = Runner::builder("bench", agent).sessions(sessions).build().unwrap();
        Self { runner, prompt, answer }
    }

    /// A new session in which so many messages were said.
    pub async fn session(&self, messages: usize) -> SessionKey {
        let key = self.runner.create_session("user").await.unwrap().key;
        let entries = (0..messages).map(|index| {
            let (source, content) = match index % 2 {
                0 => (Source::user(), Content::user(self.prompt.as_str())),
                _ => (Arc::new(Source::new("weather")), Content::model(self.answer.as_str())),
            };
            let mut event = Event::new(format!("run-{}", index / 2).into(), source).with_content(content);
            event.id = format!("event-{index}").into();
            event.timestamp = index as f64;
            LogEntry::Event(Arc::new(event))
        });
        self.runner.sessions().commit(&key, None, entries.collect()).await.unwrap();
        key
    }

    /// So many turns, and whether each gave what it should.
    pub async fn turns(&self, key: &SessionKey, count: usize) {
        for _ in 0..count {
            let mut events = self.runner.run(key, self.prompt.as_str());
            let mut text = 0;
            while let Some(event) = events.next().await {
                text += event.unwrap().text().len();
            }
            assert_eq!(text, self.answer.len());
        }
    }
}

/// One thread for the runs; those of the store come on top.
pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// So many turns of a session that has so many messages and is kept at hand.
pub fn main(url: &str, scenario: &str, messages: usize, count: usize) {
    runtime().block_on(async {
        let talk = Talk::open(url, scenario).await;
        let key = talk.session(messages).await;
        // The first turn takes the session in.
        talk.turns(&key, 1 + count).await;
    });
}
