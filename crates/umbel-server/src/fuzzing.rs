//! What fuzzers reach of this crate.

use crate::place::Place;
use crate::tokens::BearerTokens;

/// Reads the id of an event, as `Last-Event-ID` has it. Written again it is read as the same place.
pub fn place(text: &str) {
    let Ok(place) = text.parse::<Place>() else { return };
    let mut written = Vec::new();
    place.write(&mut written);
    let written = String::from_utf8(written).expect("an id is text");
    assert_eq!(written.parse::<Place>(), Ok(place), "{written}");
}

/// Reads a file of tokens.
pub fn tokens(text: &str) {
    if let Ok(tokens) = BearerTokens::from_text(text) {
        assert!(!tokens.is_empty());
    }
}
