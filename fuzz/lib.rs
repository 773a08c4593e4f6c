//! What must hold of every answer, whatever its bytes are.

use std::sync::OnceLock;

use umbel_core::{Chunk, Result};
use umbel_models::{HttpModel, model_with};

/// Reads an answer as the model of that name does. The first byte says how it comes: streamed or not, and in which pieces.
///
/// Nothing may panic. What comes of an answer must not hang on where it was split, it is whole at most once, and nothing
/// follows an error.
pub fn read(name: &str, bytes: &[u8]) {
    static MODEL: OnceLock<HttpModel> = OnceLock::new();
    let model = MODEL.get_or_init(|| model_with(name, |_| Some(key(name))).expect("the model is known"));
    let Some((how, answer)) = bytes.split_first() else { return };
    let (stream, size) = (how & 1 == 0, usize::from(how >> 1).max(1));
    let whole = model.read(stream, [answer]);
    let pieces = model.read(stream, answer.chunks(size));
    assert_eq!(shown(&whole), shown(&pieces), "in pieces of {size}");
    let ends = |chunk: &Result<Chunk>| matches!(chunk, Ok(Chunk::Complete(_)) | Err(_));
    let first = whole.iter().position(ends).expect("an answer ends");
    assert!(whole[first..].iter().skip(1).all(|chunk| chunk.is_err()), "something follows the end");
}

/// Addresses have to be some, and keys may be any.
fn key(name: &str) -> String {
    format!("http://localhost/{name}")
}

/// Ids that were made up are not the same each time.
fn shown(chunks: &[Result<Chunk>]) -> String {
    let mut text = format!("{chunks:?}");
    for prefix in ["call_", "adk-"] {
        let mut pieces = text.split(prefix);
        let mut out = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let made_up = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            out.push_str(piece.trim_start_matches(made_up));
        }
        text = out;
    }
    text
}
