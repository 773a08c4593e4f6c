//! Key sets, and tokens that are held against them.

#![no_main]

use umbel_jwt::{Expected, KeySet, Token};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let (keys, token) = text.split_once('\n').unwrap_or((text, text));
    let keys = KeySet::parse(keys);
    let Ok(token) = Token::read(token) else { return };
    let _ = token.key_id();
    if let Ok(keys) = keys
        && let Ok(claims) = token.claims(&keys)
    {
        let _ = Expected::default().check(&claims, 1e9);
    }
});
