//! The guide: one page per concept, each with examples that run.
//!
//! | Page | What it is about |
//! |---|---|
//! | [`agent`] | What runs: agents with a model, workflows, closures, teams |
//! | [`run`] | One message answered: outcomes, cancelling, limits, what is written |
//! | [`event`] | What the log holds and a reader gets: its form in JSON |
//! | [`session_and_state`] | Where conversations are kept: keys, scopes, versions, stores |
//! | [`tool`] | What a model can have done: functions, methods, closures, agents |
//! | [`credentials`] | Keys, passwords and sign-ins that tools need: asked for, kept, renewed, never shown |
//! | [`model`] | The contract of a model, the scripted one, recording and replaying |
//! | [`providers`] | Models at OpenAI, Anthropic, Google, Ollama and all who speak like them: what each can do |
//! | [`flow`] | What an agent with a model does, step by step, and how to change it |
//! | [`code_execution`] | Code that models write: what is run, files, approval, executors, the sandbox |
//! | [`handler`] | What extends agents and runs: hooks, order, conflicts, errors, and how to come from elsewhere |
//! | [`interrupt`] | Questions to people: approval of calls, answers, and how runs go on |
//! | [`layers`] | Layers around tools and prebuilt handlers, with all their defaults |
//! | [`server`] | Agents offered to AG-UI front ends: routes, threads, tools of clients, auth, errors, metrics |
//! | [`cli`] | The command `umbel`: all its commands, options and exit codes |
//! | [`operations`] | What goes wrong with databases, how it looks, and what to do about it |
//!
//! The folder `docs/` of the repository has more: a tutorial, how to write handlers, test offline, build front ends and deploy, and the
//! way from google-adk, Eino and LangChain. Their code is run with the programs of `examples/`.

#[doc = include_str!("../../../docs/agent.md")]
pub mod agent {}

#[doc = include_str!("../../../docs/run.md")]
pub mod run {}

#[doc = include_str!("../../../docs/event.md")]
pub mod event {}

#[doc = include_str!("../../../docs/session-and-state.md")]
pub mod session_and_state {}

#[doc = include_str!("../../../docs/tool.md")]
pub mod tool {}

#[doc = include_str!("../../../docs/credentials.md")]
pub mod credentials {}

#[doc = include_str!("../../../docs/model.md")]
pub mod model {}

/// With the feature `models`.
#[cfg_attr(feature = "models", doc = include_str!("../../../docs/models/README.md"))]
pub mod providers {
    /// With the feature `models`.
    #[cfg_attr(feature = "models", doc = include_str!("../../../docs/models/anthropic.md"))]
    pub mod anthropic {}

    /// With the feature `models`.
    #[cfg_attr(feature = "models", doc = include_str!("../../../docs/models/openai.md"))]
    pub mod openai {}

    /// With the feature `models`.
    #[cfg_attr(feature = "models", doc = include_str!("../../../docs/models/compatible.md"))]
    pub mod compatible {}

    /// With the feature `models`.
    #[cfg_attr(feature = "models", doc = include_str!("../../../docs/models/gemini.md"))]
    pub mod gemini {}

    /// With the feature `models`.
    #[cfg_attr(feature = "models", doc = include_str!("../../../docs/models/vertex.md"))]
    pub mod vertex {}

    /// With the feature `models`.
    #[cfg_attr(feature = "models", doc = include_str!("../../../docs/models/ollama.md"))]
    pub mod ollama {}
}

#[doc = include_str!("../../../docs/flow.md")]
pub mod flow {}

#[doc = include_str!("../../../docs/code-execution.md")]
pub mod code_execution {}

#[doc = include_str!("../../../docs/handler.md")]
pub mod handler {}

#[doc = include_str!("../../../docs/interrupt.md")]
pub mod interrupt {}

#[doc = include_str!("../../../docs/layers.md")]
pub mod layers {}

/// With the feature `server`.
#[cfg_attr(feature = "server", doc = include_str!("../../../docs/server.md"))]
pub mod server {}

#[doc = include_str!("../../../docs/cli.md")]
pub mod cli {}

#[doc = include_str!("../../../docs/operations.md")]
pub mod operations {}
