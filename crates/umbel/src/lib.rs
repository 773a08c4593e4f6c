//! Umbel: an agent development kit.

pub mod guide;

pub use umbel_core as core;
pub use umbel_core::*;
pub use umbel_macros::tool;
pub use umbel_runtime as runtime;
pub use umbel_runtime::*;

/// What `#[tool]` expands to refers to these. Not for use by hand.
#[doc(hidden)]
pub mod macro_support {
    pub use schemars;
    pub use serde;
    pub use serde_json;
}
