//! The requests of a connection that wait for their answers, and who hears what a server says about them meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rmcp::ErrorData;
use rmcp::RoleClient;
use rmcp::model::{
    ClientRequest, ClientResult, InputRequest, ProgressNotificationParam, ProgressToken, RequestId,
};
use rmcp::service::{InboundStreamOrigin, Peer, PeerRequestOptions, RequestHandle, ServiceError};
use tokio::sync::{RwLock, mpsc, oneshot};

/// How much news of one request may wait to be heard.
const NEWS: usize = 64;

/// What a server says about a request while it works on it.
pub(crate) enum News {
    /// How far it came.
    Progress(ProgressNotificationParam),
    /// It wants something first.
    Wish(Box<InputRequest>, oneshot::Sender<Result<ClientResult, ErrorData>>),
}

/// The requests of a connection that wait for their answers.
#[derive(Default)]
pub(crate) struct Calls {
    open: Mutex<Vec<Open>>,
    /// Held for reading while a request is sent and not yet listed. Whoever waits to write knows that all are listed: a
    /// server may speak of a request before it is known here under which id it was sent.
    sending: RwLock<()>,
}

struct Open {
    id: RequestId,
    token: ProgressToken,
    news: mpsc::Sender<News>,
}

impl Calls {
    /// Sends a request.
    pub(crate) async fn send<'a>(
        &'a self,
        peer: &Peer<RoleClient>,
        request: ClientRequest,
        options: PeerRequestOptions,
    ) -> Result<Sent<'a>, ServiceError> {
        let _sending = self.sending.read().await;
        let handle = peer.send_request_with_option(request, options).await?;
        let (news, coming) = mpsc::channel(NEWS);
        let open = Open { id: handle.id.clone(), token: handle.progress_token.clone(), news };
        self.lock().push(open);
        Ok(Sent { calls: self, handle: Some(handle), coming })
    }

    /// How many requests wait for their answers.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Tells how far a request came. What nobody hears in time is forgotten.
    pub(crate) async fn progress(&self, progress: ProgressNotificationParam) {
        drop(self.sending.write().await);
        let open = self.lock();
        if let Some(open) = open.iter().find(|open| open.token == progress.progress_token) {
            let _ = open.news.try_send(News::Progress(progress));
        }
    }

    /// Asks whoever waits for the request that a server wants something for. Where a connection does not tell which one it
    /// is, it must be the only one: nobody may be asked in the place of another.
    pub(crate) async fn wish(
        &self,
        wish: InputRequest,
        origin: Option<&InboundStreamOrigin>,
    ) -> Result<ClientResult, ErrorData> {
        drop(self.sending.write().await);
        let news = {
            let open = self.lock();
            let asked = match origin {
                Some(InboundStreamOrigin::OutboundRequest(id)) => open.iter().find(|open| open.id == *id),
                _ => match open.as_slice() {
                    [only] => Some(only),
                    _ => None,
                },
            };
            asked.map(|open| open.news.clone())
        };
        let refuse = |why: &'static str| ErrorData::invalid_request(why, None);
        let Some(news) = news else {
            return Err(refuse("it cannot be told which request this is for"));
        };
        let (reply, given) = oneshot::channel();
        let gone = || refuse("the request this was for is over");
        news.send(News::Wish(Box::new(wish), reply)).await.map_err(|_| gone())?;
        given.await.map_err(|_| gone())?
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was sent. If it is dropped before it is answered, the server is told.
pub(crate) struct Sent<'a> {
    calls: &'a Calls,
    /// Absent once it is answered.
    pub(crate) handle: Option<RequestHandle<RoleClient>>,
    /// What the server says about it.
    pub(crate) coming: mpsc::Receiver<News>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        self.calls.lock().retain(|open| open.id != handle.id);
        if handle.rx.is_terminated() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        tokio::spawn(handle.cancel(Some("nobody waits for it any more".to_owned())));
    }
}
