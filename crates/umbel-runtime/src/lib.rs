//! The runtime of Umbel: runner, flow, agents, built-in tools and the scripted model.
//!
//! # Layout
//! - [`runner`]: puts agents, stores and settings together and drives runs
//! - [`agents`]: [`LlmAgent`], [`Sequential`], [`Parallel`], [`LoopAgent`], [`agent_fn`]
//! - [`flow`]: what an [`LlmAgent`] does: make a request, ask the model, act on its answer
//! - [`contents`]: from the log to what a model is sent
//! - [`aggregator`]: from chunks to a message
//! - [`tools`]: agents as tools, and small tools that most agents can use
//! - [`layers`]: what goes around tool calls
//! - [`plugin`], [`callbacks`]: what is called around all of that
//! - [`compaction`], [`planner`], [`template`], [`output_schema`], [`models`], [`text`]
//!
//! It knows `umbel-core` and nothing else of Umbel.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

pub mod agents;
pub mod aggregator;
pub mod callbacks;
pub mod compaction;
pub mod contents;
pub mod flow;
pub mod layers;
pub mod models;
pub mod output_schema;
pub mod planner;
pub mod plugin;
pub mod runner;
mod spans;
pub mod team;
pub mod template;
pub mod text;
pub mod tools;

pub use agents::{
    AgentFn, IncludeContents, LlmAgent, LoopAgent, Parallel, Sequential, agent_fn, run_sub_agent,
};
pub use compaction::{Compactor, Summariser};
pub use layers::{
    CacheStatus, Caching, CallScope, CircuitBreaker, Concurrency, Layered, Logging, Quota, RateLimit,
    Timeout, ToolHooks, ToolRetry, layer_fn, tower_layer,
};
pub use models::{RecordingModel, ReplayModel, ScriptedModel};
pub use planner::{PlanAndAct, Planner, ThinkingPlanner};
pub use plugin::Plugin;
pub use runner::{RunStream, Runner, RunnerBuilder};
pub use tools::{AgentTool, ExitLoop, LoadArtifacts, LoadMemory, PreloadMemory, RequestInput};
