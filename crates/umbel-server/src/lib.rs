//! An AG-UI server for Umbel agents.
//!
//! A run is an object of the server: it goes on whoever looks, what it says is kept for a while and can be made from the
//! log later, and a `POST` only begins it and looks. A thread is a session.
//!
//! # Layout
//! - [`Server`]: agents at paths, put together; [`AgentEndpoint`]: an agent as it is offered
//! - [`Listener`]: where it listens: TCP, a unix socket, or with the feature `tls` TLS over TCP
//! - [`Auth`]: who asks, by [`BearerTokens`], by [`Jwt`], or by a closure ([`auth_fn`])
//! - [`Server::mount`]: services of others, such as an MCP server; [`ProtectedResource`]: where tokens come from
//! - [`Problem`]: what a client is told when something is wrong
//! - [`Traces`]: where the time of runs goes, recorded
//! - [`Sweep`]: when sessions that nobody comes back to are deleted
//! - in `post.rs` what a request comes to, in `plan.rs` what is to be done, in `drive.rs` how it is done, in `replay.rs`
//!   how it is told again from the log; `live.rs` and `runs.rs` are the runs at hand
//! - in `gate.rs` what every request passes first; `connections.rs` and `rates.rs`: how many there may be, and how often

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod agents;
mod app;
mod apps;
mod auth;
mod body;
mod brought;
mod capabilities;
mod connections;
mod drive;
mod emitter;
mod endpoint;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod gate;
#[cfg(feature = "jwks-url")]
mod jwks_url;
mod jwt;
mod listener;
mod live;
mod metrics;
mod mount;
mod panics;
mod paths;
mod patience;
mod place;
mod plan;
mod post;
mod problem;
mod protected;
mod quotas;
mod rates;
mod recover;
mod refrain;
mod replay;
mod resolve;
mod routes;
mod runs;
mod server;
mod state;
mod steps;
#[cfg(feature = "studio")]
mod studio;
mod sweep;
mod thread_events;
mod thread_list;
mod threads;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
mod trace;
mod watched;

pub use auth::{Auth, Principal, auth_fn, bearer_token};
pub use brought::run_config_of;
pub use endpoint::{AgentEndpoint, ClientInput, SameThread};
pub use jwt::Jwt;
pub use listener::Listener;
pub use live::Disconnect;
pub use problem::Problem;
pub use protected::ProtectedResource;
pub use resolve::Asking;
pub use runs::ServerLimits;
pub use server::{Server, Service};
pub use sweep::Sweep;
#[cfg(feature = "tls")]
pub use tls::Tls;
pub use tokens::BearerTokens;
pub use trace::{TraceLimits, Traces};
