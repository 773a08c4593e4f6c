//! Rows of logs.

#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| {
    umbel_stores::fuzzing::entry(true, text);
    umbel_stores::fuzzing::entry(false, text);
});
