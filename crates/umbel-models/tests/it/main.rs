//! What is sent to providers, and what is made of their answers: with bytes, without a network.

mod http;
mod openai_chat;
mod server;
mod support;
