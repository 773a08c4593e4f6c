//! What is sent to providers, and what is made of their answers: with bytes, without a network.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]
// Values that are written where they are used read better without a sign before them.
#![allow(clippy::needless_pass_by_value)]

mod anthropic;
mod gemini;
mod http;
mod ollama;
mod openai_chat;
mod openai_compatible;
mod openai_responses;
mod prices;
mod server;
mod support;
mod vertex;
