//! The OAuth server of the tests, for those who sign in with a browser.
//!
//! `cargo run -p umbel-tools --example oauth_server`. It says where it listens; `/consent` (a page where people agree or say no),
//! `/token`, `/api` (wants a token) and `/shop` (wants a key) are there, and it knows the client `umbel-public`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, clippy::indexing_slicing)]

#[path = "../tests/it/oauth_server.rs"]
#[allow(dead_code, reason = "what tests alone need of it")]
mod oauth_server;

#[tokio::main]
async fn main() {
    let server = oauth_server::OAuthServer::start().await;
    println!("listening on {}", server.url(""));
    std::future::pending::<()>().await;
}
