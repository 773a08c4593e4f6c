//! Which calls a layer takes together.

use std::fmt;
use std::sync::Arc;

use smol_str::{SmolStr, format_smolstr};
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
        let session = call.run().session_key();
        // The parts of a session's key have no NUL in them.
        match self {
            Self::All => SmolStr::new_static("all"),
            Self::App => format_smolstr!("app:{}", session.app()),
            Self::User => format_smolstr!("user:{}\0{}", session.app(), session.user()),
            Self::Session => {
                format_smolstr!("session:{}\0{}\0{}", session.app(), session.user(), session.id())
            }
            Self::Run => format_smolstr!(
                "run:{}\0{}\0{}\0{}",
                session.app(),
                session.user(),
                session.id(),
                call.run().id()
            ),
            Self::Tool => format_smolstr!("tool:{}", call.name()),
            Self::Custom(key) => format_smolstr!("custom:{}", key(call)),
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
