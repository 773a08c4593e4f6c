//! Events in the binary form.

#![no_main]

use umbel_agui::{AguiEvent, proto};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(event) = serde_json::from_slice::<AguiEvent<'static>>(bytes) else { return };
    let mut out = Vec::new();
    if proto::write_frame(&mut out, &event).is_ok() {
        let length = u32::from_be_bytes(out[..4].try_into().expect("four bytes"));
        assert_eq!(length as usize, out.len() - 4);
    }
    let json = serde_json::to_vec(&event).expect("an event has a JSON form");
    serde_json::from_slice::<AguiEvent<'static>>(&json).expect("what was read can be read again");
});
