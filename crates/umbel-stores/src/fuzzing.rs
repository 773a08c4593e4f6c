//! What fuzzers reach of this crate.

use umbel_core::{LogEntry, SessionKey};

use crate::entries::{Prepared, decode};

/// Reads a row of a log, writes it as it would be written now, and reads that. What was read twice is the same.
pub fn entry(is_event: bool, body: &str) {
    let Ok(key) = SessionKey::new("a", "u", "s") else { return };
    let Ok(read) = decode(&key, 1, is_event.then_some(0.0), body) else { return };
    // A preview is not stored, and what is too deep is refused.
    let Ok(written) = Prepared::new(std::slice::from_ref(&read)) else { return };
    let [row] = written.rows.as_slice() else { return };
    let again = decode(&key, 1, row.time, &row.body).expect("what was written can be read");
    let Ok(twice) = Prepared::new(std::slice::from_ref(&again)) else { panic!("it was written before") };
    assert_eq!(row.body, twice.rows.first().expect("a row").body);
    if let (LogEntry::Event(read), LogEntry::Event(again)) = (&read, &again) {
        assert_eq!(read.id, again.id);
    }
}
