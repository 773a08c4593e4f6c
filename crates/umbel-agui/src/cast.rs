//! Who takes part in the runs of an agent, and what its front ends are shown.

use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::StateScope;

/// What does not change between the runs of an agent.
#[derive(Clone, Debug, Default)]
pub struct Cast {
    /// The agent at the top, whose words are nobody else's.
    pub root: SmolStr,
    /// The answer of the agent at the top is structured: it is told as the result of the run, and not as text.
    pub is_silent: bool,
    /// The others.
    pub others: Vec<Member>,
    /// Tools whose arguments foretell the state.
    pub predictions: Vec<Prediction>,
    /// Whether keys of the user and the app, with their prefixes, are shown as state.
    pub scoped_state: bool,
}

/// An agent below the top.
#[derive(Clone, Debug, Default)]
pub struct Member {
    /// Its name.
    pub name: SmolStr,
    /// What it is good for.
    pub description: Arc<str>,
    /// A workflow runs it: its turn is a step.
    pub is_step: bool,
    /// Its answer is structured, and not for people to read.
    pub is_silent: bool,
}

/// A tool whose argument is shown as state while it is still being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// The key of the state.
    pub state_key: SmolStr,
    /// The tool.
    pub tool: SmolStr,
    /// Its argument.
    pub argument: SmolStr,
}

impl Cast {
    pub(crate) fn member(&self, name: &str) -> Option<&Member> {
        self.others.iter().find(|member| member.name == name)
    }

    pub(crate) fn is_silent(&self, name: &str) -> bool {
        if name == self.root {
            self.is_silent
        } else {
            self.member(name).is_some_and(|member| member.is_silent)
        }
    }

    /// Whether a front end may see a key of the state, and write it.
    pub fn shows(&self, key: &str) -> bool {
        match StateScope::split(key).0 {
            StateScope::Session => !StateScope::is_internal(key),
            StateScope::User | StateScope::App => self.scoped_state,
            StateScope::Temp => false,
        }
    }
}
