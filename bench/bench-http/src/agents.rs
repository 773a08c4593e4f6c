//! The agents that Umbel serves here, with scripted models.

use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::{
    BoxStream, Chunk, Content, FunctionCall, LlmAgent, Model, ModelRequest, Object, Part, Response, Result,
    tool,
};

/// Pieces of a chat, as in the other benchmarks.
pub const CHUNKS: usize = 50;
pub const CHUNK: &str = "sunny ok ";

/// The pause between two pieces of a chat at a pace.
pub const PACE: Duration = Duration::from_millis(1);

/// What a model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Script {
    /// Says it all at once, in 50 pieces.
    Chat,
    /// The same, with a pause before each piece, so that each goes out by itself.
    Paced,
    /// Calls a tool, then answers.
    Tool,
    /// Never says anything.
    Wait,
}

#[derive(Debug)]
struct Scripted(Script);

impl Model for Scripted {
    fn name(&self) -> &str {
        "fake"
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let answered = request.contents.last().is_some_and(|content| content.has_responses());
        let chat = || futures::stream::iter((0..CHUNKS).map(|_| Ok(Chunk::Text(CHUNK.into()))));
        match self.0 {
            Script::Chat => Box::pin(chat()),
            Script::Paced => Box::pin(chat().then(|chunk| async {
                tokio::time::sleep(PACE).await;
                chunk
            })),
            Script::Tool if !answered => {
                let args = Object::from_iter([("city".to_owned(), json!("Paris"))]);
                let call = FunctionCall::new("get_weather", args).with_id("call-1");
                let call = Chunk::Complete(Response::new(Content::model(Part::call(call))));
                futures::stream::iter([Ok(call)]).boxed()
            }
            Script::Tool => {
                futures::stream::iter([Ok(Chunk::Complete(Response::text("It is sunny.")))]).boxed()
            }
            Script::Wait => futures::stream::pending().boxed(),
        }
    }
}

/// Current weather of a city.
#[tool]
async fn get_weather(city: String) -> Value {
    json!({ "city": city, "celsius": 18, "sky": "sunny" })
}

/// All agents, by path.
pub fn all() -> Vec<(&'static str, LlmAgent)> {
    let agent = |name: &str, script| {
        LlmAgent::new(name).model(Scripted(script)).instruction("You are a helpful weather assistant.")
    };
    vec![
        ("/chat", agent("chat", Script::Chat)),
        ("/paced", agent("paced", Script::Paced)),
        ("/tool", agent("tool", Script::Tool).tool(get_weather)),
        ("/wait", agent("wait", Script::Wait)),
    ]
}
