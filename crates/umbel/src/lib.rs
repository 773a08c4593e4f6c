//! Umbel is an agent development kit: agents that call tools, and a runtime that keeps what they do in one log.
//!
//! # Table of contents
//!
//! - [Hello world](#hello-world)
//! - [Tools](#tools)
//! - [Sessions and state](#sessions-and-state)
//! - [Events and streaming](#events-and-streaming)
//! - [Agents that work together](#agents-that-work-together)
//! - [Structured answers](#structured-answers)
//! - [Asking a person](#asking-a-person)
//! - [Callbacks and plugins](#callbacks-and-plugins)
//! - [Models](#models)
//! - [Errors and limits](#errors-and-limits)
//! - [The guide](#the-guide)
//! - [Features](#features)
//!
//! # Hello world
//!
//! An agent has a model and an instruction. A [`Runner`] runs it on sessions. The [`ScriptedModel`] says what it was told
//! to say, so this runs anywhere, without a key:
//!
//! ```
//! use umbel::{LlmAgent, Result, Runner, ScriptedModel};
//!
//! #[tokio::main]
//! async fn main() -> Result<()> {
//!     let model = ScriptedModel::new("demo").text("Hello, Ann.");
//!     let agent = LlmAgent::new("greeter").model(model).instruction("Greet the user.");
//!     let runner = Runner::new("demo", agent)?;
//!     let session = runner.create_session("ann").await?;
//!
//!     let answer = runner.run(&session.key, "I am Ann.").text().await?;
//!     assert_eq!(answer, "Hello, Ann.");
//!     Ok(())
//! }
//! ```
//!
//! # Tools
//!
//! `#[tool]` makes a tool of a function. Its doc comment tells the model what it does, its arguments give the schema. Bad
//! arguments and errors go back to the model in words. See [`guide::tool`].
//!
//! ```
//! use serde_json::{Value, json};
//! use umbel::{LlmAgent, Runner, ScriptedModel, tool};
//!
//! /// Tells the weather of a city.
//! #[tool]
//! async fn get_weather(
//!     /// The city's name.
//!     city: String,
//! ) -> Value {
//!     json!({"city": city, "celsius": 18})
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> umbel::Result<()> {
//! let model = ScriptedModel::new("demo").call("get_weather", json!({"city": "Rome"})).text("18 °C.");
//! let runner = Runner::new("demo", LlmAgent::new("weather").model(model).tool(get_weather))?;
//! let session = runner.create_session("ann").await?;
//! let events = runner.run(&session.key, "How is Rome?").collect_events().await?;
//! assert_eq!(events.len(), 3); // The call, its response, the answer.
//! assert_eq!(events[2].text(), "18 °C.");
//! # Ok(())
//! # }
//! ```
//!
//! # Sessions and state
//!
//! A session is one conversation of one user. Its state is written by tools, callbacks and answers, and read by tools and
//! instructions. The prefix of a key says how far it reaches: `user:`, `app:`, `temp:`, or none for this session. See
//! [`guide::session_and_state`].
//!
//! ```
//! use serde_json::json;
//! use umbel::{LlmAgent, Runner, ScriptedModel, ToolContext, tool};
//!
//! /// Remembers the user's language.
//! #[tool]
//! async fn set_language(cx: &ToolContext, language: String) {
//!     cx.set_state("user:language", language);
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> umbel::Result<()> {
//! let model = ScriptedModel::new("demo").recorded().call("set_language", json!({"language": "Latin"})).text("Bene.");
//! let agent = LlmAgent::new("guide").model(model.clone()).instruction("Speak {user:language?}.").tool(set_language);
//! let runner = Runner::new("demo", agent)?;
//! let session = runner.create_session("ann").await?;
//! runner.run(&session.key, "Speak Latin with me.").text().await?;
//!
//! let told = model.requests()[1].instruction.text();
//! assert!(told.starts_with("Speak Latin."));
//! # Ok(())
//! # }
//! ```
//!
//! # Events and streaming
//!
//! A run is a stream of events. Whole events are stored before you see them; partial ones are previews. Every run ends
//! with one outcome. See [`guide::run`] and [`guide::event`].
//!
//! ```
//! use futures::StreamExt;
//! use umbel::{LlmAgent, Outcome, RunConfig, Runner, ScriptedModel};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> umbel::Result<()> {
//! let model = ScriptedModel::new("demo").stream(["One, ", "two, ", "three."]);
//! let runner = Runner::new("demo", LlmAgent::new("counter").model(model))?;
//! let session = runner.create_session("ann").await?;
//!
//! let config = RunConfig { streaming: true, ..RunConfig::default() };
//! let mut run = runner.run_with(&session.key, "Count.", config);
//! let (mut preview, mut whole) = (String::new(), String::new());
//! while let Some(event) = run.next().await {
//!     let event = event?;
//!     if event.is_partial() { &mut preview } else { &mut whole }.push_str(&event.text());
//! }
//! assert_eq!(preview, "One, two, three.");
//! assert_eq!(whole, preview);
//! assert_eq!(run.outcome(), Some(&Outcome::Finished));
//! # Ok(())
//! # }
//! ```
//!
//! # Agents that work together
//!
//! [`Sequential`], [`Parallel`] and [`LoopAgent`] run other agents. An [`LlmAgent`] hands over to agents below it, or calls
//! them as tools. [`agent_fn`] is plain code. See [`guide::agent`].
//!
//! ```
//! use umbel::{LlmAgent, Runner, ScriptedModel, Sequential};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> umbel::Result<()> {
//! let writer = LlmAgent::new("writer").model(ScriptedModel::new("w").text("It's warm.")).output_key("draft");
//! let editor = LlmAgent::new("editor").model(ScriptedModel::new("e").text("It is warm.")).instruction("Edit: {draft}");
//! let runner = Runner::new("press", Sequential::new("desk").agent(writer).agent(editor))?;
//! let session = runner.create_session("ann").await?;
//! assert_eq!(runner.run(&session.key, "How is Rome?").text().await?, "It is warm.");
//! # Ok(())
//! # }
//! ```
//!
//! # Structured answers
//!
//! An agent with an output type answers in that structure. See [`guide::flow`](guide::flow#output-schema).
//!
//! ```
//! use umbel::{LlmAgent, Runner, ScriptedModel};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct City {
//!     name: String,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> umbel::Result<()> {
//! let agent = LlmAgent::new("guide").model(ScriptedModel::new("demo").text(r#"{"name": "Rome"}"#)).output::<City>();
//! let runner = Runner::new("demo", agent)?;
//! let session = runner.create_session("ann").await?;
//! let city: City = runner.run(&session.key, "Where to?").output().await?;
//! assert_eq!(city.name, "Rome");
//! # Ok(())
//! # }
//! ```
//!
//! # Asking a person
//!
//! A tool with `confirm` does not run until a person agrees. The run ends as *interrupted*, with the question in the log,
//! and the answer is the next message, whenever it comes. See [`guide::interrupt`].
//!
//! ```
//! use futures::StreamExt;
//! use serde_json::json;
//! use umbel::{Content, FunctionResponse, LlmAgent, Object, Outcome, Part, Runner, ScriptedModel, tool};
//!
//! /// Deletes a file.
//! #[tool(confirm)]
//! async fn delete_file(name: String) -> String {
//!     format!("{name} is gone")
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> umbel::Result<()> {
//! let model = ScriptedModel::new("demo").call("delete_file", json!({"name": "a.txt"})).text("I left it.");
//! let runner = Runner::new("files", LlmAgent::new("clerk").model(model).tool(delete_file))?;
//! let session = runner.create_session("ann").await?;
//! let mut run = runner.run(&session.key, "Delete a.txt");
//! while let Some(event) = run.next().await {
//!     event?;
//! }
//! let Some(Outcome::Interrupted { interrupts }) = run.outcome() else { panic!("it should ask") };
//!
//! let no = Object::from_iter([("confirmed".to_owned(), false.into())]);
//! let no = FunctionResponse::new(Some(interrupts[0].id.clone()), "adk_request_confirmation", no);
//! let answer = runner.run(&session.key, Content::user(Part::response(no))).text().await?;
//! assert_eq!(answer, "I left it.");
//! # Ok(())
//! # }
//! ```
//!
//! # Callbacks and plugins
//!
//! Callbacks of an agent see and change model and tool calls. A [`Plugin`] has them for every agent of a runner. See
//! [`guide::flow`](guide::flow#callbacks).
//!
//! ```
//! use umbel::{LlmAgent, Plugin, Response, Runner, ScriptedModel};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> umbel::Result<()> {
//! let apology = Plugin::new("apology").on_model_error(|_cx, _request, _error| {
//!     Box::pin(async { Ok(Some(Response::text("Please try again later."))) })
//! });
//! let agent = LlmAgent::new("guide").model(ScriptedModel::new("demo").fail("no connection"));
//! let runner = Runner::builder("demo", agent).plugin(apology).build()?;
//! let session = runner.create_session("ann").await?;
//! assert_eq!(runner.run(&session.key, "Where to?").text().await?, "Please try again later.");
//! # Ok(())
//! # }
//! ```
//!
//! # Models
//!
//! A [`Model`] takes a request and gives a stream of chunks. Besides the scripted one there are a model that records
//! another and one that replays a recording, so that every agent can be tested offline. Models at providers come with the
//! feature `models`. See [`guide::model`] and [`guide::providers`].
//!
//! ```
//! use umbel::{BoxStream, Chunk, LlmAgent, Model, ModelRequest, Result, Runner};
//!
//! #[derive(Debug)]
//! struct Echo;
//!
//! impl Model for Echo {
//!     fn name(&self) -> &str {
//!         "echo"
//!     }
//!
//!     fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
//!         let said = request.contents.last().map(|content| content.text()).unwrap_or_default();
//!         Box::pin(futures::stream::iter([Ok(Chunk::Text(said))]))
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> umbel::Result<()> {
//! let runner = Runner::new("demo", LlmAgent::new("parrot").model(Echo))?;
//! let session = runner.create_session("ann").await?;
//! assert_eq!(runner.run(&session.key, "Hello").text().await?, "Hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Errors and limits
//!
//! There is one [`Error`], with a [kind](ErrorKind) to match on. What does not fit together is found when the runner is
//! built. Limits on model calls, depth, time and concurrency are on by default. See [`guide::run`](guide::run#errors).
//!
//! ```
//! use umbel::{ErrorKind, LlmAgent, RunConfig, RunLimits, Runner, ScriptedModel};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> umbel::Result<()> {
//! assert_eq!(Runner::new("demo", LlmAgent::new("guide")).unwrap_err().kind(), ErrorKind::Build);
//!
//! let limits = RunLimits { model_calls: 20, ..RunLimits::default() };
//! let config = RunConfig { limits, ..RunConfig::default() };
//! let agent = LlmAgent::new("guide").model(ScriptedModel::new("demo").break_off(["Ro"]));
//! let runner = Runner::builder("demo", agent).config(config).build()?;
//! let session = runner.create_session("ann").await?;
//! let error = runner.run(&session.key, "Where to?").text().await.unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::StreamCut);
//! assert!(error.is_retryable());
//! # Ok(())
//! # }
//! ```
//!
//! # The guide
//!
//! | Page | What it is about |
//! |---|---|
//! | [`guide::agent`] | Agents with a model, workflows, closures, teams |
//! | [`guide::run`] | Outcomes, streaming, cancelling, limits, configuration, errors |
//! | [`guide::event`] | Events and their JSON form |
//! | [`guide::session_and_state`] | Keys, scopes, versions, leases, stores, rewinding |
//! | [`guide::tool`] | `#[tool]`, closures, context, errors, confirmation, toolsets, built-in tools |
//! | [`guide::model`] | The contract of a model, chunks, scripting, recording |
//! | [`guide::flow`] | Processors, callbacks, function calls, schemas, transfer, compaction |
//! | [`guide::handler`] | Hooks, order, conflicts, errors, edits of the history, values, migration |
//! | [`guide::interrupt`] | Approval of calls, questions to people, answers, how runs go on |
//! | [`guide::layers`] | Layers around tools, prebuilt handlers, all defaults |
//! | [`guide::server`] | Agents offered to AG-UI front ends |
//!
//! Everything is re-exported here. [`core`] holds vocabulary and contracts, [`runtime`] what runs them.
//!
//! # Features
//!
//! | Name | Description | Default? |
//! |---|---|---|
//! | `sqlite` | `umbel::stores`: sessions, artifacts, memories and credentials in one file | No |
//! | `postgres` | The same on a server that many processes share | No |
//! | `server` | `umbel::server` and `umbel::agui`: agents offered to AG-UI front ends | No |
//! | `models` | `umbel::models`: models at OpenAI and all who speak like it, Anthropic, Gemini and Ollama | No |
//! | `mcp` | `umbel::mcp`: the tools of MCP servers for agents, and agents as an MCP server | No |
//! | `outside` | `umbel::outside`: tools for HTTP services, by OpenAPI and behind a guard, and for commands; a sandbox for code | No |
//! | `telemetry` | `umbel::telemetry`: traces and metrics by OpenTelemetry's conventions, sent by OTLP over HTTP | No |
//! | `jwks-url` | The server's tokens checked with keys from a web address | No |
//! | `studio` | Pages that show what agents do, served with them | No |
//! | `tls` | TLS for servers without a proxy | No |

pub mod guide;

#[cfg(feature = "server")]
pub use umbel_agui as agui;
pub use umbel_core as core;
pub use umbel_core::*;
pub use umbel_macros::{handler, tool};
#[cfg(feature = "mcp")]
pub use umbel_mcp as mcp;
#[cfg(feature = "models")]
pub use umbel_models as models;
pub use umbel_runtime as runtime;
pub use umbel_runtime::*;
#[cfg(feature = "server")]
pub use umbel_server as server;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use umbel_stores as stores;
#[cfg(feature = "telemetry")]
pub use umbel_telemetry as telemetry;
#[cfg(feature = "outside")]
pub use umbel_tools as outside;

/// What `#[tool]` expands to refers to these. Not for use by hand.
#[doc(hidden)]
pub mod macro_support {
    pub use schemars;
    pub use serde;
    pub use serde_json;
}

/// The example of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
