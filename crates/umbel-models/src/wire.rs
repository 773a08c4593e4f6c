//! The contract of a wire format.

use std::fmt;

use umbel_core::{Capabilities, ModelRequest, Result};

use crate::answer::Answer;
use crate::fragments::Fragments;
use crate::frames::Framing;

/// How a provider speaks: what is sent to it, and how its answers are read. There is no connection in it, so that all of it
/// can be tested with bytes alone.
pub(crate) trait Wire: fmt::Debug + Send + Sync {
    /// What is put behind the base address.
    fn path(&self, request: &ModelRequest) -> String;

    /// The body of a request.
    fn body(&self, request: &ModelRequest, fragments: &Fragments) -> Vec<u8>;

    /// How its streams are cut into frames.
    fn framing(&self) -> Framing {
        Framing::Sse
    }

    /// Reads one answer.
    fn reader(&self) -> Box<dyn Reader>;

    /// What this format can do, whatever the model.
    fn capabilities(&self) -> Capabilities;
}

/// Reads one answer.
pub(crate) trait Reader: fmt::Debug + Send {
    /// Takes a frame of a stream. The one that says that all is said finishes the answer.
    fn frame(&mut self, event: &str, data: &str, answer: &mut Answer) -> Result<()>;

    /// Takes an answer that came as a whole, and finishes it.
    fn whole(&mut self, body: &str, answer: &mut Answer) -> Result<()>;

    /// The stream has ended. An answer that is complete but for its end mark may be finished.
    fn end(&mut self, _answer: &mut Answer) -> Result<()> {
        Ok(())
    }
}
