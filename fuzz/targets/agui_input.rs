//! Inputs of AG-UI clients.

#![no_main]

use umbel_agui::{InputLimits, RunAgentInput};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let limits = InputLimits::default();
    let Ok(input) = RunAgentInput::parse_within(bytes, &limits) else { return };
    let owned = input.into_owned();
    let again = serde_json::to_vec(&owned).expect("an input has a JSON form");
    let read = RunAgentInput::parse_within(&again, &limits).expect("what was read can be read again");
    assert_eq!((&read.thread_id, &read.run_id), (&owned.thread_id, &owned.run_id));
    assert_eq!(read.messages.len(), owned.messages.len());
});
