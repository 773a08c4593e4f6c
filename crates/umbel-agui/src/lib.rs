//! The AG-UI protocol 1.0: its events, messages and input on the wire, and the rules of their order.
//!
//! # Layout
//! - [`event`]: what a server says; [`message`]: the messages of a conversation; [`input`]: what a client asks for;
//!   [`capabilities`]: what an agent can do
//! - [`patch`]: RFC 6902, by which changes of state are told
//! - [`guard`]: the rules of order, enforced on what leaves
//! - [`sse`]: events as bytes
//!
//! Nothing here does I/O, and nothing here knows how a run is driven.
//!
//! Three rules of the protocol hold for everything here: what is optional is left out and never null, names are in
//! camelCase, and what a reader does not know it ignores.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

pub mod capabilities;
mod chunk;
pub mod event;
pub mod guard;
pub mod input;
pub mod message;
mod owned;
pub mod patch;
pub mod sse;
#[cfg(feature = "testing")]
pub mod testing;

pub use capabilities::AgentCapabilities;
pub use event::{
    AguiEvent, AguiInterrupt, EncryptedSubtype, EventKind, ReasoningRole, RunOutcome, SubagentOutcome,
    TextRole, TokenUsage, ToolResultContent, ToolRole,
};
pub use guard::{Guard, Refusal};
pub use input::{
    ContextItem, InputError, InputErrorKind, InputLimits, ResumeEntry, ResumeStatus, RunAgentInput, Tool,
};
pub use message::{
    ActivityMessage, AssistantMessage, ContentPart, FunctionCall, InstructionMessage, MediaPart, Message,
    MessageContent, PartSource, ReasoningMessage, TextPart, ToolCall, ToolMessage, UserMessage,
};
pub use patch::PatchOp;

/// The version of the protocol that is spoken here.
pub const PROTOCOL_VERSION: &str = "1.0";
