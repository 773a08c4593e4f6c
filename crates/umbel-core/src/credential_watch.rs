//! Whether a call has a user's credential: then what it answers is that user's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::auth::AuthConfig;
use crate::run::Run;
use crate::tool_context::ToolContext;

/// Tells a layer whether a call inside it obtained a credential of the user. Credentials of the program are everybody's.
#[derive(Debug, Default)]
pub struct CredentialWatch {
    is_used: AtomicBool,
    outer: Option<Arc<Self>>,
}

impl CredentialWatch {
    /// The context for the call, and what tells about it.
    pub fn begin(cx: &ToolContext) -> (ToolContext, Arc<Self>) {
        let inside = cx.with(Self { is_used: AtomicBool::new(false), outer: cx.extension::<Self>() });
        let watch = inside.extension::<Self>().unwrap_or_default();
        (inside, watch)
    }

    /// Whether a credential of the user was obtained.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Notes that a credential was obtained for a call.
    pub(crate) fn note_call(cx: &ToolContext, auth: &AuthConfig) {
        Self::note(cx.extension::<Self>(), auth);
    }

    /// Notes that a credential was obtained for a run, which may have been started by a call.
    pub(crate) fn note_run(run: &Run, auth: &AuthConfig) {
        Self::note(run.extension::<Self>(), auth);
    }

    fn note(mut watch: Option<Arc<Self>>, auth: &AuthConfig) {
        if auth.method.fixed().is_some() {
            return;
        }
        while let Some(inner) = watch {
            inner.is_used.store(true, Ordering::Release);
            watch = inner.outer.clone();
        }
    }
}
