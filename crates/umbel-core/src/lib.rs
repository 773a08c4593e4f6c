//! Vocabulary and contracts of Umbel.
//!
//! # Layout
//! - [`part`], [`content`], [`event`], [`actions`]: what is said and done; JSON forms are google-adk's
//! - [`state`], [`session`], [`log`], [`store`], [`in_memory`]: where it is kept; [`title`], [`weight`]: what a list and a
//!   cache need to know of it
//! - [`list`], [`history`]: sequences that share
//! - [`model`], [`response`], [`instruction`]: the contract of a model
//! - [`tool`], [`tool_context`]: the contract of a tool; [`function_tool`]: tools from closures
//! - [`agent`], [`callbacks`], [`run`], [`config`], [`view`]: the contract of an agent, and a run as it sees it
//! - [`artifact`], [`memory`], [`credential`]: the other stores
//! - [`code`]: the contract of what runs code that a model wrote
//! - [`handler`]: what extends agents and runs; [`onion`]: calls on their way through the layers; [`plan`], [`turn`],
//!   [`transcript`], [`values`]: what handlers work on
//! - [`interrupt`]: a pause with a question
//! - [`trace_context`]: which trace work is a part of; [`conventions`]: the names of spans, attributes and metrics
//!
//! Nothing here does I/O, and nothing here knows how a run is driven: that is `umbel-runtime`.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

pub mod actions;
pub mod agent;
pub mod artifact;
pub mod auth;
pub mod callbacks;
pub mod caller;
pub mod cancel;
pub mod clock;
pub mod code;
pub mod config;
pub mod content;
pub mod context;
pub mod conventions;
pub mod credential;
pub mod credential_manager;
mod credential_turn;
pub mod credential_watch;
pub mod deadline;
mod detached;
pub mod error;
pub mod event;
mod expects;
pub mod extensions;
pub mod function_tool;
pub mod handler;
pub mod history;
pub mod id;
pub mod in_memory;
pub mod instruction;
pub mod interrupt;
pub mod json;
pub mod json_schema;
pub mod list;
pub mod log;
pub mod memory;
pub mod model;
pub mod onion;
pub mod part;
pub mod partial_arg;
pub mod piece;
pub mod plain_auth;
pub mod plan;
pub mod response;
pub mod run;
pub mod session;
pub mod spawn_on_drop;
pub mod state;
pub mod store;
pub mod title;
pub mod tool;
pub mod tool_context;
pub mod trace_context;
pub mod transcript;
pub mod turn;
pub mod values;
pub mod view;
pub mod weight;
pub mod work;

pub use actions::{Actions, Compaction, Confirmation, ModelUsage};
pub use agent::{AfterOrder, Agent, AgentKind, AgentTree, Extending, Mode, NodeId, TransferPolicy};
pub use artifact::{ArtifactStore, InMemoryArtifacts};
pub use auth::{
    AuthAnswer, AuthConfig, AuthMethod, AuthRequest, Expects, Grant, HttpAuth, HttpPlace, Standing,
};
pub use callbacks::{AgentCallback, Callbacks};
pub use caller::Caller;
pub use cancel::{CancelReason, CancelToken, SafePoint};
pub use clock::{Clock, SteppingClock, SystemClock};
pub use code::{CodeExecutor, CodeFile, CodeInput, CodeOutcome, CodeOutput, CodeSpec, CodeWords, Fence};
pub use config::{OtherBuilds, RunConfig, RunLimits, ToolErrors, UnfinishedCalls};
pub use content::{Content, Parts, Role};
pub use context::Context;
pub use credential::{Credential, CredentialStore, InMemoryCredentials};
pub use credential_manager::{CredentialManager, GivenAuth, PendingAuth};
pub use credential_watch::CredentialWatch;
pub use deadline::Deadline;
pub use error::{BoxError, Error, ErrorKind, ModelErrorKind, Result};
pub use event::{Event, Meta, Source, Usage};
pub use extensions::Extensions;
pub use function_tool::{Dep, FunctionTool};
pub use handler::{Handler, Hooks, Jump, Step};
pub use history::History;
pub use id::{CallId, CountingIds, EventId, IdKind, Ids, RandomIds, RunId};
pub use in_memory::InMemorySessions;
pub use instruction::Instruction;
pub use interrupt::{Address, Answer, Asker, DecisionKind, Interrupt, Question, Raised};
pub use json::Object;
pub use list::List;
pub use log::{
    AgentDone, CallFinished, Continued, Edited, Failure, Kept, LogEntry, Outcome, RunStep, live_entries,
};
pub use memory::{InMemoryMemory, MemoryEntry, MemoryStore};
pub use model::{
    Capabilities, Chunk, Effort, GenerateConfig, Model, ModelRequest, Provider, Thinking, ToolChoice,
};
pub use onion::{
    ChunkStream, Guarded, LayerPlace, ModelCall, ModelEnd, NextModel, NextTool, ToolCall, ToolEnd, ToolResult,
};
pub use part::{Blob, CodeResult, ExecutableCode, FileData, FunctionCall, FunctionResponse, Part, Payload};
pub use partial_arg::PartialArg;
pub use piece::Piece;
pub use plain_auth::PlainAuth;
pub use plan::{
    AgentPlan, AgentTurn, InstructionPlan, InstructionProvider, PlannedPart, Words, provided, template,
};
pub use response::Response;
pub use run::{Emit, Emitted, Journal, Run, RunParts, Services};
pub use session::{Session, SessionKey};
pub use spawn_on_drop::SpawnOnDrop;
pub use state::{State, StateScope};
pub use store::{
    Abandoned, EventFilter, Idle, IdleFilter, Lease, NewSession, OpenQuestion, SessionStore, Versions,
};
pub use tool::{
    Confirm, Tool, ToolError, ToolItem, ToolMeta, ToolOutput, ToolSet, ToolSpec, ToolStream, ToolValue,
    Toolset,
};
pub use tool_context::{CallMade, InnerLayers, ToolContext};
pub use trace_context::{RequestTrace, SpanContent, TraceContext, Tracer, set_tracer, tracer};
pub use transcript::{Edit, Transcript};
pub use turn::ModelTurn;
pub use values::{Replay, RunValues};
pub use view::ContentsView;
pub use work::{BoxFuture, BoxStream, Work};
