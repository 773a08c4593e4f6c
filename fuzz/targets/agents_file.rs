//! Files of agents.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| umbel_cli::fuzzing::agents(text));
