//! So many calls at once.

use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use umbel_core::{Error, ErrorKind, Handler, Hooks, NextTool, Result, ToolCall, ToolResult, Work};

use super::held::{Held, Holdings};
use super::nested::{holding, is_held};
use super::{CallScope, at_end, wait};
use crate::text;

/// Lets so many calls run at once. The others wait, first come first served; with [`max_wait`](Self::max_wait) they are
/// refused after a while, with [`ErrorKind::RateLimited`].
///
/// A streamed result counts until its last item. A call that is made on behalf of one that counts already, by an agent
/// that was called as a tool, does not count again: it would wait for itself.
#[derive(Debug)]
pub struct Concurrency {
    limit: usize,
    scope: CallScope,
    max_wait: Option<Duration>,
    running: Arc<Holdings<SmolStr, Arc<Semaphore>>>,
}

/// The right to run.
struct Permit {
    _permit: OwnedSemaphorePermit,
    _held: Held<SmolStr, Arc<Semaphore>>,
}

impl Concurrency {
    /// So many calls at once, at least one.
    pub fn new(limit: usize) -> Result<Self> {
        if limit == 0 || limit > Semaphore::MAX_PERMITS {
            let message =
                format!("{limit} calls at once cannot be: give at least one, and not all there are");
            return Err(Error::new(ErrorKind::Build, message));
        }
        Ok(Self { limit, scope: CallScope::All, max_wait: None, running: Holdings::new() })
    }

    /// Which calls share the limit.
    pub fn per(mut self, scope: CallScope) -> Self {
        self.scope = scope;
        self
    }

    /// Refuses a call that waited for so long; zero refuses at once, [`Duration::MAX`] never.
    pub fn max_wait(mut self, wait: Duration) -> Self {
        self.max_wait = Some(wait);
        self
    }

    async fn enter(&self, call: &ToolCall<'_>, key: SmolStr) -> Result<Permit> {
        let held = self.running.hold(key, || Arc::new(Semaphore::new(self.limit)));
        let acquire = Arc::clone(&held).acquire_owned();
        let refused = || Error::new(ErrorKind::RateLimited, text::too_many_at_once(call.name(), self.limit));
        let permit = match self.max_wait {
            None => acquire.await,
            Some(wait) => tokio::time::timeout(wait, acquire).await.map_err(|_| refused())?,
        };
        // The semaphore is never closed.
        Ok(Permit { _permit: permit.map_err(|_| refused())?, _held: held })
    }
}

impl Handler for Concurrency {
    fn name(&self) -> &str {
        "concurrency"
    }

    fn hooks(&self) -> Hooks {
        Hooks::WRAP_TOOL
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        let key = self.scope.key(&call);
        if is_held(call.cx, &self.running, &key) {
            return Work::later(next.call(call));
        }
        Work::later(async move {
            let permit = wait(call.run(), self.enter(&call, key.clone())).await??;
            let cx = holding(call.cx, &self.running, key);
            let result = next.call(call.with_context(&cx)).await;
            at_end(result, move |end| {
                drop(permit);
                std::future::ready(end)
            })
            .await
        })
    }
}
