//! The requests of a connection that wait for their answers, and who hears what a server says about them meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::RoleClient;
use rmcp::model::{
    ClientRequest, ClientResult, InputRequest, ProgressNotificationParam, ProgressToken, RequestId,
};
use rmcp::service::{InboundStreamOrigin, Peer, PeerRequestOptions, RequestHandle, ServiceError};
use smol_str::SmolStr;
use tokio::sync::{RwLock, Semaphore, mpsc, oneshot};

/// How much news of one request may wait to be heard.
const NEWS: usize = 64;
/// How many wishes of a server may wait over one connection.
const WISHES: usize = 8;
/// How many calls that nobody waits for any more a server may leave without an answer before a new connection is better.
const UNSETTLED: usize = 1_000;
/// How much of what a server says about how far it came is shown.
const SHOWN: usize = 1 << 10;

/// How long it may take to tell a server that nobody waits for an answer.
const TOLD: Duration = Duration::from_secs(5);

/// For whom a call is made: app and user.
pub(crate) type Caller = [SmolStr; 2];

/// What a server says about a request while it works on it.
pub(crate) enum News {
    /// How far it came.
    Progress(ProgressNotificationParam),
    /// It wants something first.
    Wish(Box<InputRequest>, oneshot::Sender<Result<ClientResult, ErrorData>>),
}

/// The requests of a connection that wait for their answers.
pub(crate) struct Calls {
    known: Mutex<Known>,
    /// One for each wish that may wait.
    wishes: Semaphore,
    /// Held for reading while a request is sent and not yet listed. Whoever waits to write knows that all are listed: a
    /// server may speak of a request before it is known here under which id it was sent.
    sending: RwLock<()>,
}

#[derive(Default)]
struct Known {
    open: Vec<Open>,
    /// Calls that nobody waits for any more, and that the server has not answered: it may still work on them, and ask.
    unsettled: Vec<(RequestId, Caller)>,
    /// The server has wanted something.
    wished: bool,
}

struct Open {
    id: RequestId,
    token: ProgressToken,
    /// For whom it is, if people can be asked about it.
    caller: Option<Caller>,
    news: mpsc::Sender<News>,
}

impl Default for Calls {
    fn default() -> Self {
        Self { known: Mutex::default(), wishes: Semaphore::new(WISHES), sending: RwLock::default() }
    }
}

impl Calls {
    /// Sends a request.
    pub(crate) async fn send<'a>(
        &'a self,
        peer: &Peer<RoleClient>,
        request: ClientRequest,
        options: PeerRequestOptions,
        caller: Option<Caller>,
    ) -> Result<Sent<'a>, ServiceError> {
        let _sending = self.sending.read().await;
        let handle = peer.send_request_with_option(request, options).await?;
        let (news, coming) = mpsc::channel(NEWS);
        let open = Open { id: handle.id.clone(), token: handle.progress_token.clone(), caller, news };
        self.lock().open.push(open);
        Ok(Sent { calls: self, handle: Some(handle), coming })
    }

    /// How many requests wait for their answers.
    pub(crate) fn count(&self) -> usize {
        self.lock().open.len()
    }

    /// A call is answered after all.
    pub(crate) fn settle(&self, id: &RequestId) {
        self.lock().unsettled.retain(|(unsettled, _)| unsettled != id);
    }

    /// Whether very many calls were never answered.
    pub(crate) fn is_worn(&self) -> bool {
        self.lock().unsettled.len() >= UNSETTLED
    }

    /// Whether the server asks now and then, and may still do so for calls of others that nobody waits for.
    pub(crate) fn may_ask_for_others(&self, caller: &Caller) -> bool {
        let known = self.lock();
        known.wished && known.unsettled.iter().any(|(_, other)| other != caller)
    }

    /// Tells how far a request came. What nobody hears in time is forgotten.
    pub(crate) async fn progress(&self, mut progress: ProgressNotificationParam) {
        if let Some(message) = &mut progress.message {
            message.truncate(message.floor_char_boundary(SHOWN));
            message.shrink_to_fit();
        }
        drop(self.sending.write().await);
        let known = self.lock();
        if let Some(open) = known.open.iter().find(|open| open.token == progress.progress_token) {
            let _ = open.news.try_send(News::Progress(progress));
        }
    }

    /// Asks whoever waits for the request that a server wants something for. Where a connection does not tell which one it
    /// is, it must be the only one, and the server must not be at work for somebody else: nobody may be asked in the place of
    /// another.
    pub(crate) async fn wish(
        &self,
        wish: InputRequest,
        origin: Option<&InboundStreamOrigin>,
    ) -> Result<ClientResult, ErrorData> {
        let refuse = |why: &'static str| ErrorData::invalid_request(why, None);
        let Ok(_place) = self.wishes.try_acquire() else {
            return Err(refuse("too much is wanted at once"));
        };
        drop(self.sending.write().await);
        let news = {
            let mut known = self.lock();
            known.wished = true;
            let asked = match origin {
                Some(InboundStreamOrigin::OutboundRequest(id)) => {
                    known.open.iter().find(|open| open.id == *id)
                }
                _ => known.only(),
            };
            asked.map(|open| open.news.clone())
        };
        let Some(news) = news else {
            return Err(refuse("it cannot be told which request this is for"));
        };
        let (reply, given) = oneshot::channel();
        let gone = || refuse("the request this was for is over");
        news.send(News::Wish(Box::new(wish), reply)).await.map_err(|_| gone())?;
        given.await.map_err(|_| gone())?
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// The only call that people can be asked about, if nothing else can be meant.
    fn only(&self) -> Option<&Open> {
        let mut calls = self.open.iter().filter_map(|open| Some((open, open.caller.as_ref()?)));
        let (only, caller) = calls.next()?;
        let is_clear = calls.next().is_none() && self.unsettled.iter().all(|(_, other)| other == caller);
        is_clear.then_some(only)
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
        let is_answered = handle.rx.is_terminated();
        let mut known = self.calls.lock();
        if let Some(place) = known.open.iter().position(|open| open.id == handle.id) {
            let caller = known.open.swap_remove(place).caller.filter(|_| !is_answered);
            known.unsettled.extend(caller.map(|caller| (handle.id.clone(), caller)));
        }
        drop(known);
        if is_answered || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        // A server that does not read any more keeps nobody waiting.
        let told = handle.cancel(Some("nobody waits for it any more".to_owned()));
        tokio::spawn(tokio::time::timeout(TOLD, told));
    }
}
