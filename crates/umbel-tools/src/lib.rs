//! Tools that reach outside, HTTP services and commands, and a sandbox for code.
//!
//! | Tool | What it does | What keeps it in bounds |
//! |---|---|---|
//! | [`OpenApi`] | One tool for each operation of an HTTP service | [`Guard`]; time, size; secrets stay here |
//! | [`HttpGet`] | Reads a page | [`Guard`]; time, size |
//! | [`OAuth`] | Signs people and programs in, for tools that need it | PKCE; HTTPS; time, size |
//! | [`Command`] | Runs a program | No shell; a schema; a cleared environment; time, size |
//!
//! [`Sandbox`] makes what runs the code that models write: a child process without network, with a file system of its own.
//!
//! # Layout
//! - `guard.rs`: which addresses may be asked; `http.rs`: asking them
//! - `openapi/`: from a document to tools; `http_get.rs`
//! - `auth/`: credentials that a service gives
//! - `command.rs`: programs as tools; `program.rs`: how programs are started; `process.rs`: how processes end
//! - `sandbox/`: code that a model wrote
//! - `secret.rs`: what nobody must see

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod auth;
mod command;
mod guard;
mod http;
mod http_get;
mod openapi;
mod process;
mod program;
#[cfg(target_os = "linux")]
mod sandbox;
mod secret;

pub use self::auth::{OAuth, OAuthClient, OAuthMethod};
pub use self::command::{Command, CommandTool};
pub use self::guard::{Guard, Lookup, is_public};
pub use self::http::{HttpLimits, guarded_client};
pub use self::http_get::HttpGet;
pub use self::openapi::{OpenApi, OpenApiTools};
pub use self::process::Group as ProcessGroup;
pub use self::program::Program;
#[cfg(target_os = "linux")]
pub use self::sandbox::{Sandbox, SandboxExecutor, SandboxPool};
pub use self::secret::Secret;
