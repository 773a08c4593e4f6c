//! What is sent to providers, and what is made of their answers: with bytes, without a network.

mod http;
mod openai_chat;
mod openai_responses;
mod server;
mod support;
