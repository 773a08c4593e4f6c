//! The contract of a code executor. No executor ships yet.

use crate::error::Result;
use crate::part::{CodeResult, ExecutableCode};
use crate::run::Run;
use crate::work::BoxFuture;

/// Runs code that a model wrote.
pub trait CodeExecutor: Send + Sync {
    /// Runs one block and says what it printed.
    fn execute<'a>(&'a self, run: &'a Run, code: &'a ExecutableCode) -> BoxFuture<'a, Result<CodeResult>>;
}
