//! Models at providers: one file for each format, behind a feature.
//!
//! | Format | Feature | File |
//! |---|---|---|
//! | Chat completions: OpenAI, and all who speak like it | `openai` | `openai_chat.rs` |
//!
//! A format is pure: it writes the bytes of a request and reads the bytes of an answer. All of them share what carries the
//! bytes ([`HttpModel`]), cuts streams into frames, puts answers together, says what a refusal means, and keeps what was
//! written before so that it need not be written again.

mod answer;
mod arguments;
mod catalog;
mod conversation;
mod endpoint;
mod failure;
mod fragments;
mod frames;
mod http_model;
mod json;
mod named;
#[cfg(feature = "openai")]
mod openai_chat;
mod schema;
mod tape;
mod wire;

pub use catalog::{Catalog, ModelInfo};
pub use endpoint::{Timeouts, TokenSource};
pub use http_model::HttpModel;
pub use named::{model, model_with};
pub use tape::Tape;
