//! One connection to a server, and what is asked over it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{
    ClientRequest, ErrorCode, ErrorData, PingRequest, ProtocolVersion, RequestMetaObject, ServerPeerInfo,
    ServerResult, SubscriptionFilter,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, PeerRequestOptions, RunningService, ServiceError,
};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, InsufficientScopeError, StreamableHttpClientTransportConfig,
};
use rmcp::transport::{DynamicTransportError, Transport};
use rmcp::{ClientServiceExt, RoleClient};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};
use umbel_core::{Deadline, Error, ErrorKind, Result, TraceContext};

use super::attend::Attendant;
use super::calls::{Calls, News};
use super::handler::{Grants, Handler};
use super::http::{Bearer, Failed};
use super::lines::{Cause, Ended, Lines};
use super::result::short;
use super::stdio::Process;
use super::steady::Steady;
use super::toolset::{Place, Protocol, ToolsetLimits};

/// The error by which a server says that a person must first go to an address.
const GO_THERE_FIRST: ErrorCode = ErrorCode(-32042);

/// How long a server that did not answer in time may take to show that it lives.
const LIVES: Duration = Duration::from_secs(5);
/// How long is waited until a server is asked again to tell of changes, if it stops doing so; each time twice as long.
const LISTEN_AGAIN: Duration = Duration::from_secs(1);
/// How long is waited at most.
const LISTEN_LATEST: Duration = Duration::from_secs(60);

/// Why a request has no result.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection ended.
    Ended(String),
    /// The connection ended since the server sent a message that is too large.
    TooLarge(String),
    /// There is no connection.
    Unreachable(String),
    /// Nothing came in time.
    Late(Duration),
    /// The server refuses it.
    Refused(ErrorData),
    /// The server wants to know who asks; what it says about it.
    Stranger(String),
    /// A person must first go to these addresses.
    GoThereFirst(Vec<serde_json::Value>),
    /// Something here does not let it go on: a question, a cancellation.
    Here(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Here(error)
    }
}

impl Failure {
    fn ended(why: Cause) -> Self {
        if why.is_too_large { Self::TooLarge(why.words) } else { Self::Ended(why.words) }
    }

    /// In words, for whoever asked.
    pub(crate) fn into_error(self, server: &str) -> Error {
        let (kind, message) = match self {
            Self::Here(error) => return error,
            Self::Ended(why) => (
                ErrorKind::Tool,
                format!(
                    "the MCP server `{server}` went away: {}. What came of the call is not known: look \
                     before you try it again",
                    short(&why)
                ),
            ),
            Self::TooLarge(why) => (
                ErrorKind::TooLarge,
                format!(
                    "the MCP server `{server}` was cut off: {}. Ask it for less, or raise `message_bytes`",
                    short(&why)
                ),
            ),
            Self::Unreachable(why) => {
                (ErrorKind::Tool, format!("the MCP server `{server}` cannot be reached: {}", short(&why)))
            }
            Self::Late(time) => {
                let seconds = time.as_secs_f64();
                (ErrorKind::Timeout, format!("the MCP server `{server}` did not answer within {seconds} s"))
            }
            Self::Refused(error) => {
                (ErrorKind::Tool, format!("the MCP server `{server}` refuses: {}", short(&error.message)))
            }
            Self::Stranger(_) => {
                let message =
                    format!("the MCP server `{server}` wants to know who asks: give it a credential");
                (ErrorKind::Denied, message)
            }
            Self::GoThereFirst(_) => {
                (ErrorKind::Tool, format!("the MCP server `{server}` asks for a visit to its web page first"))
            }
        };
        Error::new(kind, message)
    }
}

/// A connection to a server.
pub(crate) struct Link {
    service: RunningService<RoleClient, Handler>,
    calls: Arc<Calls>,
    changes: Arc<AtomicU64>,
    ended: Ended,
    used: Mutex<Instant>,
    /// It is being found out whether the server still lives.
    is_watched: Arc<AtomicBool>,
    /// What the server wants comes with what it is for.
    tells_calls_apart: bool,
    /// Its place among the connections of a toolset.
    pub(crate) place: Option<OwnedSemaphorePermit>,
    /// Ends with the connection.
    _process: Option<Process>,
}

impl Link {
    /// Connects. Newer servers are asked what they speak; older ones shake hands.
    pub(crate) async fn open(
        server: &str,
        place: &Place,
        limits: &ToolsetLimits,
        grants: &Grants,
        protocol: Protocol,
        bearer: &Bearer,
    ) -> Result<Self, Failure> {
        let tried = Self::open_as(server, place, limits, grants, protocol, bearer).await;
        match tried {
            // Some servers stumble over the question what they speak.
            Err(Failure::Ended(_) | Failure::TooLarge(_) | Failure::Refused(_))
                if protocol == Protocol::Newest =>
            {
                Self::open_as(server, place, limits, grants, Protocol::Handshake, bearer).await
            }
            tried => tried,
        }
    }

    async fn open_as(
        server: &str,
        place: &Place,
        limits: &ToolsetLimits,
        grants: &Grants,
        protocol: Protocol,
        bearer: &Bearer,
    ) -> Result<Self, Failure> {
        let ended = Ended::default();
        let begin = Begin { server, grants, protocol, limits, ended: ended.clone() };
        let opened = match place {
            Place::Stdio(program) => {
                let (lines, process) = program.start(server, limits.message_bytes, ended)?;
                begin.on(lines, Some(process)).await
            }
            Place::Pipe(connect) => {
                let (read, write) = tokio::io::split(connect()?);
                begin.on(Lines::new(read, write, limits.message_bytes, ended), None).await
            }
            Place::Http(http) => {
                let client = http.client(limits.message_bytes, bearer.clone(), ended)?;
                let config = StreamableHttpClientTransportConfig::with_uri(http.url())
                    .max_sse_event_size(limits.message_bytes)
                    .max_concurrent_requests(limits.requests);
                begin.on(StreamableHttpClientTransport::with_client(client, config), None).await
            }
        };
        let mut link = opened?;
        link.tells_calls_apart = matches!(place, Place::Http(_));
        link.listen();
        Ok(link)
    }

    /// Has the server tell of changes, if that must be asked for.
    fn listen(&self) {
        let Some(info) = self.info() else { return };
        let tells = info.capabilities.tools.as_ref().is_some_and(|tools| tools.list_changed == Some(true));
        if info.protocol_version.has_initialize() || !tells {
            return;
        }
        let (peer, changes) = (self.service.peer().clone(), self.changes.clone());
        tokio::spawn(async move {
            let mut pause = LISTEN_AGAIN;
            while !peer.is_transport_closed() {
                let filter = SubscriptionFilter::builder().tools_list_changed().build();
                match peer.listen(filter).await {
                    Ok(mut news) => {
                        // Nobody told what changed while nobody listened, the first time included: tools may have been
                        // listed before.
                        changes.fetch_add(1, Ordering::AcqRel);
                        while let Ok(Some(_)) = news.next().await {
                            pause = LISTEN_AGAIN;
                            changes.fetch_add(1, Ordering::AcqRel);
                        }
                    }
                    // It does not tell: lists are made anew from time to time.
                    Err(ServiceError::McpError(_)) => return,
                    Err(_) => {}
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LISTEN_LATEST);
            }
        });
    }

    /// What the server says of itself.
    pub(crate) fn info(&self) -> Option<Arc<ServerPeerInfo>> {
        self.service.peer().peer_info()
    }

    /// Whether nothing can be asked over it any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.service.is_closed() || self.service.peer().is_transport_closed()
    }

    /// How often the server said that its tools are others now. A list that was asked for before it said so may be old.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// How long nobody has asked anything over it.
    pub(crate) fn idle(&self) -> Duration {
        if self.calls.count() > 0 {
            return Duration::ZERO;
        }
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Ends it.
    pub(crate) fn close(&self) {
        self.ended.note("it was closed here");
        self.service.cancellation_token().cancel();
    }

    /// Asks the server, and sees to what it wants meanwhile. Each sign of life gives it more time, up to a limit.
    pub(crate) async fn ask(
        &self,
        request: ClientRequest,
        attendant: &Attendant<'_>,
        patience: Duration,
        limit: Duration,
    ) -> Result<ServerResult, Failure> {
        self.touch();
        if !self.is_closed() {
            self.ended.forget();
        }
        let mut options = PeerRequestOptions::no_options();
        if let Some(context) = TraceContext::current() {
            let mut meta = RequestMetaObject::new();
            for (key, value) in context.headers() {
                meta.0.0.insert(key.to_owned(), value.into());
            }
            options = options.with_meta(meta);
        }
        let sent = self.calls.send(self.service.peer(), request, options, attendant.caller()).await;
        let mut sent = sent.map_err(|error| self.failure(error))?;
        let end = Deadline::after(limit);
        let mut late = Deadline::after(patience);
        let answer = loop {
            let Some(handle) = sent.handle.as_mut() else { break Err(ServiceError::TransportClosed) };
            tokio::select! {
                biased;
                news = sent.coming.recv() => match news {
                    Some(News::Progress(progress)) => attendant.progress(&progress).await,
                    Some(News::Wish(wish, reply)) => {
                        let _ = reply.send(attendant.fulfil(*wish).await?);
                    }
                    None => {}
                },
                answer = &mut handle.rx => break answer.unwrap_or(Err(ServiceError::TransportClosed)),
                () = late.earlier(end).wait() => {
                    self.see_whether_it_lives(patience);
                    return Err(Failure::Late(if end.is_past() { limit } else { patience }));
                }
            }
            late = Deadline::after(patience);
        };
        self.touch();
        answer.map_err(|error| self.failure(error))
    }

    /// Closes it if the server does not say anything any more, so that the next call connects anew.
    fn see_whether_it_lives(&self, patience: Duration) {
        if self.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let (peer, is_watched) = (self.service.peer().clone(), self.is_watched.clone());
        let (ended, token) = (self.ended.clone(), self.service.cancellation_token());
        tokio::spawn(async move {
            let ping = ClientRequest::PingRequest(PingRequest::default());
            // A server that does not know the question lives, too.
            let said = timeout(LIVES.min(patience), peer.send_request(ping)).await;
            if said.is_err() {
                ended.note("it does not say anything any more");
                token.cancel();
            }
            is_watched.store(false, Ordering::Release);
        });
    }

    /// Whether a call for that one needs another connection: over this one the server may ask for a call of somebody else,
    /// and cannot say so, or it has left very many calls without an answer.
    pub(crate) fn is_taken(&self, attendant: &Attendant<'_>) -> bool {
        let caller = attendant.caller().filter(|_| !self.tells_calls_apart);
        self.calls.is_worn() || caller.is_some_and(|caller| self.calls.may_ask_for_others(&caller))
    }

    fn failure(&self, error: ServiceError) -> Failure {
        match error {
            ServiceError::McpError(error) if error.code == GO_THERE_FIRST => {
                let there =
                    error.data.as_ref().and_then(|data| data.get("elicitations")?.as_array().cloned());
                Failure::GoThereFirst(there.unwrap_or_default())
            }
            ServiceError::McpError(error) => Failure::Refused(error),
            ServiceError::TransportSend(error) => transport_failure(&error, &self.ended),
            ServiceError::UnexpectedResponse => Failure::Ended("what it answers is no result".to_owned()),
            ServiceError::Cancelled { .. } => Failure::Ended("it was taken back".to_owned()),
            _ => Failure::ended(self.ended.why().unwrap_or_else(|| "the connection is closed".into())),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close();
    }
}

/// How a connection begins.
struct Begin<'a> {
    server: &'a str,
    grants: &'a Grants,
    protocol: Protocol,
    limits: &'a ToolsetLimits,
    ended: Ended,
}

impl Begin<'_> {
    async fn on<T>(self, transport: T, process: Option<Process>) -> Result<Link, Failure>
    where
        T: Transport<RoleClient> + 'static,
    {
        let (calls, changes) = (Arc::<Calls>::default(), Arc::<AtomicU64>::default());
        let handler = Handler {
            server: self.server.to_owned(),
            grants: self.grants.clone(),
            calls: calls.clone(),
            changes: changes.clone(),
        };
        let lifecycle = match self.protocol {
            Protocol::Handshake => ClientLifecycleMode::Initialize,
            Protocol::Newest => ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::LATEST],
                legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
            },
        };
        let steady = Steady::new(transport, self.server, calls.clone());
        let limit = self.limits.connect;
        let service = match timeout(limit, handler.serve_with_lifecycle(steady, lifecycle)).await {
            Ok(Ok(service)) => service,
            Ok(Err(error)) => return Err(begin_failure(&error, &self.ended)),
            Err(_) => return Err(Failure::Late(limit)),
        };
        let used = Mutex::new(Instant::now());
        Ok(Link {
            service,
            calls,
            changes,
            ended: self.ended,
            used,
            is_watched: Arc::default(),
            tells_calls_apart: false,
            place: None,
            _process: process,
        })
    }
}

/// Why a connection did not come about.
fn begin_failure(error: &ClientInitializeError, ended: &Ended) -> Failure {
    match error {
        ClientInitializeError::TransportError { error, .. } => transport_failure(error, ended),
        ClientInitializeError::JsonRpcError(error) => Failure::Refused(error.clone()),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => begin_failure(fallback, ended),
        ClientInitializeError::ConnectionClosed(_) => {
            Failure::ended(ended.why().unwrap_or_else(|| "it closed the connection".into()))
        }
        ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
            let versions: Vec<&str> = server_supported.iter().map(ProtocolVersion::as_str).collect();
            Failure::Ended(format!("it speaks versions that are not known here: {}", versions.join(", ")))
        }
        _ => Failure::Ended("it does not begin a connection as MCP servers do".to_owned()),
    }
}

/// Why nothing could be sent, or nothing came back.
fn transport_failure(error: &DynamicTransportError, ended: &Ended) -> Failure {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error.error.as_ref());
    let mut deepest = String::new();
    while let Some(current) = cause {
        if let Some(stranger) = current.downcast_ref::<AuthRequiredError>() {
            return Failure::Stranger(stranger.www_authenticate_header.clone());
        }
        if let Some(stranger) = current.downcast_ref::<InsufficientScopeError>() {
            return Failure::Stranger(stranger.www_authenticate_header.clone());
        }
        if let Some(failed) = current.downcast_ref::<Failed>() {
            return Failure::ended(ended.why().unwrap_or_else(|| failed.0.clone()));
        }
        deepest = current.to_string();
        cause = current.source();
    }
    Failure::ended(ended.why().unwrap_or_else(|| deepest.into()))
}
