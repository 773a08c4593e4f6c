//! The messages a model is sent.

use std::ops::Deref;
use std::sync::Arc;

use crate::content::{Content, Role};
use crate::list::List;

/// The messages a model is sent: a persistent sequence, so a clone shares and an append costs what it adds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History(List<Arc<Content>>);

/// What a model that needs a user's turn is told when there is none yet.
pub const BEGIN_TURN: &str = "Begin with the work that the system instruction describes.";

/// What such a model is told when the last turn was its own.
pub const CONTINUE_TURN: &str =
    "Go on with the work as instructed. If nothing is left to do, finish or sum up what was done.";

impl History {
    /// No messages.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a message at the end.
    pub fn push(&mut self, content: impl Into<Arc<Content>>) {
        self.0.push(content.into());
    }

    /// Puts messages before the one at `index`. Costs what stands behind it.
    pub fn insert(&mut self, index: usize, contents: impl IntoIterator<Item = Arc<Content>>) {
        self.0.insert(index, contents);
    }

    /// Puts a message in the place of another. Returns whether there was one.
    pub fn replace(&mut self, index: usize, content: impl Into<Arc<Content>>) -> bool {
        self.0.replace(index, content.into())
    }

    /// Puts messages in the place of those from `at` on, so many of them. Costs what stands behind `at`.
    pub fn splice(&mut self, at: usize, remove: usize, contents: impl IntoIterator<Item = Arc<Content>>) {
        self.0.splice(at, remove, contents);
    }

    /// Keeps the first `len` messages.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Where words for this turn belong: before the last run of plain user messages, but behind a tool's answer.
    pub fn turn_start(&self) -> usize {
        let plain = |content: &&Arc<Content>| content.role == Some(Role::User) && !content.has_responses();
        self.len() - self.iter().rev().take_while(plain).count()
    }

    /// Sees to it that the last turn is the user's, for models that refuse anything else.
    pub fn ensure_user_turn(&mut self) {
        match self.last().map(|content| content.role.clone()) {
            None => self.push(Content::user(BEGIN_TURN)),
            Some(Some(Role::User)) => {}
            Some(_) => self.push(Content::user(CONTINUE_TURN)),
        }
    }
}

impl Deref for History {
    type Target = List<Arc<Content>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl FromIterator<Arc<Content>> for History {
    fn from_iter<I: IntoIterator<Item = Arc<Content>>>(contents: I) -> Self {
        Self(contents.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a History {
    type Item = &'a Arc<Content>;
    type IntoIter = crate::list::Iter<'a, Arc<Content>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
