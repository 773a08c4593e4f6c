//! Ids of events, and files of tokens.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    umbel_server::fuzzing::place(text);
    umbel_server::fuzzing::tokens(text);
});
