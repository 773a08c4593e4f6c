//! An AG-UI server for Umbel agents.
//!
//! A run is an object of the server: it goes on whoever looks, what it says is kept for a while and can be made from the
//! log later, and a `POST` only begins it and looks. A thread is a session.
//!
//! # Layout
//! - [`Server`]: agents at paths, put together; [`AgentEndpoint`]: an agent as it is offered
//! - [`Auth`]: who asks; [`Problem`]: what a client is told when something is wrong
//! - in `post.rs` what a request comes to, in `plan.rs` what is to be done, in `drive.rs` how it is done, in `replay.rs`
//!   how it is told again from the log; `live.rs` and `runs.rs` are the runs at hand

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod app;
mod auth;
mod body;
mod capabilities;
mod drive;
mod emitter;
mod endpoint;
mod gate;
mod live;
mod metrics;
mod place;
mod plan;
mod post;
mod problem;
mod replay;
mod routes;
mod runs;
mod server;
mod steps;

pub use auth::{Auth, Principal};
pub use endpoint::{AgentEndpoint, ClientInput, SameThread};
pub use live::Disconnect;
pub use problem::Problem;
pub use runs::ServerLimits;
pub use server::{Server, Service};
