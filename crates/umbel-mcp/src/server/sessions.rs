//! Sessions of HTTP clients, and whose they are.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::Stream;
use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::common::server_side_http::{ServerSseMessage, SessionId};
use rmcp::transport::streamable_http_server::SessionManager;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError, SessionError,
};
use umbel_core::Caller;

use super::McpLimits;

tokio::task_local! {
    /// Who sent the request that is being answered.
    pub(super) static CALLER: Caller;
}

/// Sessions in memory, with their owners. A session of a client is no conversation: it holds what the client can do, and
/// its streams.
pub(super) struct Sessions {
    inner: LocalSessionManager,
    owners: Mutex<Owners>,
    limit: usize,
    per_user: usize,
}

#[derive(Default)]
struct Owners {
    by_id: HashMap<SessionId, Owner>,
    begun: u64,
}

struct Owner {
    caller: Caller,
    /// How many were begun before it.
    nth: u64,
}

impl Sessions {
    pub(super) fn new(limits: &McpLimits) -> Self {
        let mut inner = LocalSessionManager::default();
        inner.session_config.keep_alive = Some(limits.idle);
        inner.session_config.sse_retry = Some(Duration::from_secs(1));
        let (limit, per_user) = (limits.sessions, limits.sessions_per_user.max(1));
        Self { inner, owners: Mutex::default(), limit, per_user }
    }

    fn lock(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is no room for another one.
    pub(super) fn is_full(&self) -> bool {
        self.lock().by_id.len() >= self.limit
    }

    /// Whether that session is one of theirs.
    pub(super) fn is_of(&self, session: &str, caller: &Caller) -> bool {
        self.lock().by_id.get(session).is_some_and(|owner| owner.caller == *caller)
    }

    /// Notes whose a new session is, if there is room for it.
    fn own(&self, id: &SessionId, caller: Caller) -> bool {
        let mut owners = self.lock();
        if owners.by_id.len() >= self.limit {
            return false;
        }
        owners.begun += 1;
        let nth = owners.begun;
        owners.by_id.insert(id.clone(), Owner { caller, nth });
        true
    }

    /// The session of a user that is to make room for a new one.
    fn to_close(&self, caller: &Caller) -> Option<SessionId> {
        let owners = self.lock();
        let own = || owners.by_id.iter().filter(|(_, owner)| owner.caller == *caller);
        if own().count() < self.per_user {
            return None;
        }
        own().min_by_key(|(_, owner)| owner.nth).map(|(id, _)| id.clone())
    }
}

impl SessionManager for Sessions {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let nobody = |_| LocalSessionManagerError::SessionError(SessionError::SessionServiceTerminated);
        let caller = CALLER.try_with(Caller::clone).map_err(nobody)?;
        if let Some(first) = self.to_close(&caller) {
            self.close_session(&first).await?;
        }
        let (id, transport) = self.inner.create_session().await?;
        if self.own(&id, caller) {
            return Ok((id, transport));
        }
        self.inner.close_session(&id).await?;
        let full = std::io::Error::other("there are too many sessions");
        Err(LocalSessionManagerError::SessionError(SessionError::Io(full)))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.inner.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.inner.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.lock().by_id.remove(id);
        self.inner.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.inner.create_stream(id, message).await
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.inner.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.inner.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.inner.resume(id, last_event_id).await
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sessions({})", self.lock().by_id.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nobody_begins_a_session_when_all_are_taken() {
        let sessions = Sessions::new(&McpLimits { sessions: 1, ..McpLimits::default() });
        let begin = |user: &str| CALLER.scope(Caller::new(user), sessions.create_session());
        let (first, _transport) = begin("ann").await.unwrap();
        assert!(begin("bob").await.is_err());
        assert_eq!(sessions.inner.sessions.read().await.len(), 1);
        sessions.close_session(&first).await.unwrap();
        assert!(begin("bob").await.is_ok());
        assert!(sessions.create_session().await.is_err(), "nobody's");
    }
}
