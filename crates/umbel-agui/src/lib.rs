//! The AG-UI protocol 1.0: its events, messages and input on the wire, and the rules of their order.
//!
//! # Layout
//! - [`event`]: what a server says; [`message`]: the messages of a conversation; [`input`]: what a client asks for;
//!   [`capabilities`]: what an agent can do
//! - [`patch`]: RFC 6902, by which changes of state are told
//! - [`guard`]: the rules of order, enforced on what leaves
//! - [`sse`], [`proto`]: events as bytes
//! - [`translate`]: from the log to events; [`mod@messages`]: from the log to a conversation; [`inbound`]: the way back
//!
//! Nothing here does I/O, and nothing here knows how a run is driven.
//!
//! Three rules of the protocol hold for everything here: what is optional is left out and never null, names are in
//! camelCase, and what a reader does not know it ignores.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

use std::borrow::Borrow;

use serde_json::Value;

mod arguments;
pub mod capabilities;
mod cast;
mod chunk;
mod draft;
pub mod event;
pub mod guard;
pub mod inbound;
pub mod input;
mod mark;
mod media;
pub mod message;
pub mod messages;
mod owned;
pub mod patch;
mod preview;
pub mod proto;
mod questions;
pub mod sse;
#[cfg(feature = "testing")]
pub mod testing;
pub mod translate;

pub use capabilities::AgentCapabilities;
pub use cast::{Cast, Member, Prediction};
pub use draft::{By, Open, Shown};
pub use event::{
    AguiEvent, AguiInterrupt, EncryptedSubtype, EventKind, ReasoningRole, RunOutcome, SubagentOutcome,
    TextRole, TokenUsage, ToolResultContent, ToolRole,
};
pub use guard::{Guard, Refusal};
pub use inbound::{NewMessages, ResumeError, Turn, Waiting};
pub use input::{
    ContextItem, InputError, InputErrorKind, InputLimits, ResumeEntry, ResumeStatus, RunAgentInput, Tool,
};
pub use mark::InputMark;
pub use message::{
    ActivityMessage, AssistantMessage, ContentPart, FunctionCall, InstructionMessage, MediaPart, Message,
    MessageContent, PartSource, ReasoningMessage, TextPart, ToolCall, ToolMessage, UserMessage,
};
pub use messages::{Conversation, event_of, ids, messages};
pub use patch::PatchOp;
pub use questions::{answer_of, interrupt_on_the_wire};
pub use translate::{Ending, Translator};

/// The version of the protocol that is spoken here.
pub const PROTOCOL_VERSION: &str = "1.0";

/// Null counts as absent where the protocol has no null.
fn is_absent(value: &Option<impl Borrow<Value>>) -> bool {
    value.as_ref().is_none_or(|value| value.borrow().is_null())
}
