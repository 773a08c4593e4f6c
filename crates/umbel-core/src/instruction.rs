//! The system instruction: parts in order, each with who put it there.

use std::sync::Arc;

use smallvec::SmallVec;
use smol_str::SmolStr;

/// The system instruction of a request. Parts are shared and joined only when an adapter asks for the text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Instruction {
    parts: SmallVec<[InstructionPart; 2]>,
}

/// One part of an instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct InstructionPart {
    /// Who put it there: a processor, a tool, a handler.
    pub source: SmolStr,
    /// The words.
    pub text: Arc<str>,
}

impl Instruction {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part. An empty one is left out.
    pub fn push(&mut self, source: impl Into<SmolStr>, text: impl Into<Arc<str>>) {
        let text = text.into();
        if !text.is_empty() {
            self.parts.push(InstructionPart { source: source.into(), text });
        }
    }

    /// The parts in order.
    pub fn parts(&self) -> &[InstructionPart] {
        &self.parts
    }

    /// Drops all parts, to start afresh.
    pub fn clear(&mut self) {
        self.parts.clear();
    }

    /// The whole text: parts joined by a blank line.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(self.parts.iter().map(|part| part.text.len() + 2).sum());
        for part in &self.parts {
            if !text.is_empty() {
                text.push_str("\n\n");
            }
            text.push_str(&part.text);
        }
        text
    }
}
