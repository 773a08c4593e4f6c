//! Which calls a layer takes together.

use std::fmt;
use std::sync::Arc;

use smol_str::{SmolStr, SmolStrBuilder};
use umbel_core::ToolCall;

/// Which calls a layer takes together: those that share an answer, or a limit.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum CallScope {
    /// All calls.
    #[default]
    All,
    /// Those of one app: a tenant.
    App,
    /// Those of one user of an app.
    User,
    /// Those of one session.
    Session,
    /// Those of one run.
    Run,
    /// Those of one tool.
    Tool,
    /// Those for which this gives the same.
    Custom(Arc<dyn Fn(&ToolCall<'_>) -> SmolStr + Send + Sync>),
}

impl CallScope {
    /// A scope of one's own: calls for which `key` gives the same are taken together.
    pub fn custom(key: impl Fn(&ToolCall<'_>) -> SmolStr + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(key))
    }

    /// A text that is the same for calls that are taken together. Two scopes never give the same.
    pub fn key(&self, call: &ToolCall<'_>) -> SmolStr {
        let mut key = SmolStrBuilder::new();
        // The parts of a session's key have no NUL in them, and what is custom is the last part.
        self.parts(call, |part| {
            key.push_str(part);
            key.push('\0');
        });
        key.finish()
    }

    /// What the key is made of, part by part.
    pub(super) fn parts(&self, call: &ToolCall<'_>, mut part: impl FnMut(&str)) {
        let session = call.run().session_key();
        match self {
            Self::All => part("all"),
            Self::App => ["app", session.app()].into_iter().for_each(part),
            Self::User => ["user", session.app(), session.user()].into_iter().for_each(part),
            Self::Session => {
                ["session", session.app(), session.user(), session.id()].into_iter().for_each(part);
            }
            Self::Run => {
                let run = call.run().id().as_str();
                ["run", session.app(), session.user(), session.id(), run].into_iter().for_each(part);
            }
            Self::Tool => ["tool", call.name()].into_iter().for_each(part),
            Self::Custom(key) => ["custom", &key(call)].into_iter().for_each(part),
        }
    }
}

impl fmt::Debug for CallScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "All",
            Self::App => "App",
            Self::User => "User",
            Self::Session => "Session",
            Self::Run => "Run",
            Self::Tool => "Tool",
            Self::Custom(_) => "Custom(…)",
        })
    }
}
