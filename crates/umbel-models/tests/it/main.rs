//! What is sent to providers, and what is made of their answers: with bytes, without a network.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod anthropic;
mod gemini;
mod http;
mod ollama;
mod openai_chat;
mod openai_responses;
mod server;
mod support;
mod vertex;
