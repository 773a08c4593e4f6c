//! Models at providers: one file for each format, behind a feature.
//!
//! | Format | Feature | File |
//! |---|---|---|
//! | Anthropic's Messages | `anthropic` | `anthropic/` |
//! | Responses: OpenAI | `openai` | `openai_responses.rs` |
//! | Chat completions: OpenAI, and all who speak like it | `openai` | `openai_chat.rs` |
//! | Gemini, by key and on Vertex | `gemini` | `gemini/` |
//! | Ollama's own | `ollama` | `ollama.rs` |
//!
//! A format is pure: it writes the bytes of a request and reads the bytes of an answer. All of them share what carries the
//! bytes ([`HttpModel`]), cuts streams into frames, puts answers together, says what a refusal means, and keeps what was
//! written before so that it need not be written again.

mod answer;
#[cfg(feature = "anthropic")]
mod anthropic;
mod arguments;
mod catalog;
mod conversation;
mod endpoint;
mod failure;
mod fragments;
mod frames;
#[cfg(feature = "gemini")]
mod gemini;
mod http_model;
mod json;
mod named;
#[cfg(feature = "ollama")]
mod ollama;
#[cfg(feature = "openai")]
mod openai_chat;
#[cfg(feature = "openai")]
mod openai_responses;
mod prices;
mod schema;
mod tape;
mod wire;

pub use catalog::{Catalog, ModelInfo};
pub use endpoint::{Timeouts, TokenSource};
#[cfg(feature = "gemini")]
pub use gemini::GoogleCredentials;
pub use http_model::HttpModel;
pub use named::{model, model_with};
pub use prices::{prices, prices_as_of};
pub use tape::Tape;
