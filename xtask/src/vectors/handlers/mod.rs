//! Vectors of prebuilt handlers: whole runs with scripted models and tools, and pure functions.
//!
//! # Layout
//! - [`message`]: messages as vectors write them, and back
//! - [`scene`]: scripted models and tools, and what they saw; [`play`]: whole runs
//! - one module per kind

pub(super) mod context_edit;
pub(super) mod hitl;
pub(super) mod limits;
mod message;
pub(super) mod order;
pub(super) mod pii;
mod play;
pub(super) mod retry;
mod scene;
pub(super) mod summarise;
pub(super) mod todo;
pub(super) mod tool_select;

pub(super) use self::scene::model_failure;
