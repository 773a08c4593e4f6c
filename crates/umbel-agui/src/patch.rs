//! JSON Patch (RFC 6902): how changes of state are told.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One step of a patch. Paths are JSON Pointers (RFC 6901).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum PatchOp {
    /// Puts a value at a key, or into an array in front of what is there; `-` is its end.
    Add {
        /// Where.
        path: String,
        /// What.
        value: Value,
    },
    /// Takes away what is there.
    Remove {
        /// Where.
        path: String,
    },
    /// Puts a value in place of what is there.
    Replace {
        /// Where.
        path: String,
        /// What.
        value: Value,
    },
    /// Takes what is in one place to another.
    Move {
        /// Where it was.
        from: String,
        /// Where it goes.
        path: String,
    },
    /// Puts what is in one place into another, too.
    Copy {
        /// Where it is.
        from: String,
        /// Where it goes.
        path: String,
    },
    /// Fails the patch unless a value is there.
    Test {
        /// Where.
        path: String,
        /// What.
        value: Value,
    },
}
