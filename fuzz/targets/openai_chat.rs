//! Answers that speak like this provider, and bytes that hardly do.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| umbel_fuzz::read("openai-chat/m", bytes));
