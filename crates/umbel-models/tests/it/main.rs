//! What is sent to providers, and what is made of their answers: with bytes, without a network.

mod anthropic;
mod gemini;
mod http;
mod ollama;
mod openai_chat;
mod openai_responses;
mod server;
mod support;
mod vertex;
