//! The runtime of Umbel: runner, flow, agents, built-in tools and the scripted model.
//!
//! # Layout
//! - [`runner`]: puts agents, stores and settings together and drives runs
//! - [`SessionManager`]: finds, makes and deletes sessions, and writes their state
//! - [`agents`]: [`LlmAgent`], [`Sequential`], [`Parallel`], [`LoopAgent`], [`agent_fn`]
//! - [`flow`]: what an [`LlmAgent`] does: make a request, ask the model, act on its answer
//! - [`contents`]: from the log to what a model is sent
//! - [`aggregator`]: from chunks to a message
//! - [`tools`]: agents as tools, and small tools that most agents can use
//! - [`CodeExecution`]: how an agent has the code run that its model writes
//! - [`handlers`]: handlers that are ready to use; [`layers`]: those that go around tool calls; [`with`]: handlers from
//!   closures
//! - [`plugin`], [`legacy`], [`mod@per_run`]: other forms of a handler; [`explain`]: what came of all of them
//! - [`usage`]: what models took and what it costs
//! - [`eval`]: cases that agents are measured by; [`replay`]: sessions that are run again; [`StandIn`]
//! - [`backoff`], [`compaction`], [`planner`], [`template`], [`output_schema`], [`models`], [`text`]
//!
//! Of Umbel it knows `umbel-core`, and `#[handler]`.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod adk_stage;
pub mod agents;
pub mod aggregator;
pub mod backoff;
mod code;
pub mod compaction;
mod configure;
pub mod contents;
mod detailed;
pub mod eval;
pub mod explain;
pub mod flow;
pub mod handlers;
pub mod layers;
pub mod legacy;
pub mod models;
mod onion;
pub mod output_schema;
pub mod per_run;
pub mod planner;
pub mod plugin;
pub mod replay;
pub mod runner;
mod session_manager;
mod spans;
mod stand_in;
pub mod team;
pub mod template;
pub mod text;
pub mod tools;
pub mod usage;
pub mod with;

pub use agents::{
    AgentFn, IncludeContents, LlmAgent, LoopAgent, Parallel, Sequential, agent_fn, run_sub_agent,
};
pub use code::CodeExecution;
pub use compaction::{Compactor, ModelSummariser, Summariser};
pub use explain::Explanation;
pub use layers::{
    CacheStatus, Caching, CallScope, CircuitBreaker, Concurrency, Layered, Logging, Quota, RateLimit,
    Timeout, ToolHooks, ToolRetry, layer_fn, tower_layer,
};
pub use models::{RecordingModel, ReplayModel, ScriptedModel};
pub use per_run::{HandlerFactory, PerRun, per_run};
pub use planner::{PlanAndAct, Planner, ThinkingPlanner};
pub use plugin::Plugin;
pub use runner::{Recovered, RunStream, Runner, RunnerBuilder, Said, SessionView};
pub use session_manager::{SessionManager, Sweeper, Swept};
pub use stand_in::StandIn;
pub use tools::{AgentTool, ExitLoop, LoadArtifacts, LoadMemory, PreloadMemory, RequestInput, RunCode};
pub use usage::{Money, Price, Prices, Used};
