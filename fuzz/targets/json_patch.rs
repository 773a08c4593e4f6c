//! Patches, and differences of values.

#![no_main]

use serde_json::Value;
use umbel_agui::PatchOp;
use umbel_agui::patch::{apply, diff};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let mut next = || lines.next().unwrap_or_default();
    let (base, target) = (serde_json::from_slice::<Value>(next()), serde_json::from_slice::<Value>(next()));
    let (Ok(base), Ok(target)) = (base, target) else { return };
    let patch = diff(&base, &target, "");
    let mut changed = base.clone();
    apply(&mut changed, &patch).expect("a difference can be applied");
    assert_eq!(changed, target);
    // A patch of somebody else's may be any.
    if let Ok(patch) = serde_json::from_slice::<Vec<PatchOp>>(next()) {
        let mut changed = base.clone();
        let _ = apply(&mut changed, &patch);
    }
});
