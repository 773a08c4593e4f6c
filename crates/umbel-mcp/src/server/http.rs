//! The server over HTTP, as a service that others mount.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use http_body::Body;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, ErrorCode, ErrorData};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use umbel_core::{Caller, Deadline};

use super::McpServer;
use super::handler::{Catalog, Handler, Offering};
use super::sessions::{CALLER, Sessions};

const SESSION: &str = "mcp-session-id";

/// How often calls under way are looked at when the service closes.
const LOOK: Duration = Duration::from_millis(20);

/// An MCP server over HTTP (streamable HTTP): a `tower` service, to be mounted in a server that finds out who asks and puts
/// that as a [`Caller`] into the request's extensions, as `umbel_server::Server::mount` does. Clones are the same service.
///
/// A request of nobody is refused. A session belongs to whoever began it: to others it is not there.
#[derive(Clone)]
pub struct McpService {
    inner: StreamableHttpService<Handler, Sessions>,
    sessions: Arc<Sessions>,
    offering: Offering,
    /// Set when nothing is to begin any more.
    draining: CancellationToken,
    /// Set when all streams are to end.
    closing: CancellationToken,
}

/// What clients get.
type Answer = Response<BoxBody<Bytes, Infallible>>;

impl McpService {
    pub(super) fn new(catalog: Arc<Catalog>) -> Self {
        let sessions = Arc::new(Sessions::new(&catalog.limits));
        let closing = CancellationToken::new();
        // Whoever mounts the service has looked where requests come from, and for which host they are.
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .with_max_request_body_bytes(catalog.limits.message_bytes)
            .with_sse_retry(Some(Duration::from_secs(1)))
            .with_cancellation_token(closing.clone());
        let offering = Offering::new(catalog);
        let offered = offering.clone();
        let handler = move || Ok(Handler::new(offered.clone(), None));
        let inner = StreamableHttpService::new(handler, sessions.clone(), config);
        Self { inner, sessions, offering, draining: CancellationToken::new(), closing }
    }

    /// Takes another server in the place of what is offered, such as one with agents that were changed. Sessions of clients
    /// stay, and calls under way go on as they began. How many sessions there may be stays as it was. If it does not fit
    /// together, all stays.
    pub fn replace(&self, server: McpServer) -> umbel_core::Result<()> {
        self.offering.replace(&server.catalog()?);
        Ok(())
    }

    /// Lets nothing begin any more, gives calls under way that long to end, and then ends all streams. Clients may still say
    /// what belongs to a call under way, such as what a person answered.
    pub async fn close(&self, time: Duration) {
        self.draining.cancel();
        let until = Deadline::after(time);
        while self.offering.calls.count() > 0 && !until.is_past() {
            tokio::time::sleep(LOOK).await;
        }
        self.closing.cancel();
    }

    async fn answer<B>(self, request: Request<B>) -> Result<Answer, Refusal>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (head, body) = request.into_parts();
        let refuse = |status, message| Err(Refusal::new(status, ErrorCode::INVALID_REQUEST, message));
        let Some(caller) = head.extensions.get::<Caller>().cloned() else {
            return refuse(StatusCode::UNAUTHORIZED, "nobody knows who asks");
        };
        if self.closing.is_cancelled() {
            return Err(Refusal::busy("the server is about to stop"));
        }
        let session = session_of(&head.headers);
        if session.is_some_and(|session| !self.sessions.is_of(session, &caller)) {
            let message = "there is no such session: begin a new one with `initialize`";
            return refuse(StatusCode::NOT_FOUND, message);
        }
        let body = read(body, self.offering.now().limits.message_bytes).await?;
        if head.method == Method::POST
            && let ClientJsonRpcMessage::Request(asks) = check(&body)?
        {
            if self.draining.is_cancelled() {
                return Err(Refusal::busy("the server is about to stop"));
            }
            let begins = session.is_none() && matches!(asks.request, ClientRequest::InitializeRequest(_));
            if begins && self.sessions.is_full() {
                return Err(Refusal::busy("there are too many sessions: try again later"));
            }
        }
        let request = Request::from_parts(head, Full::new(body));
        Ok(CALLER.scope(caller, self.inner.handle(request)).await)
    }
}

/// The session that a request names.
fn session_of(headers: &HeaderMap) -> Option<&str> {
    headers.get(SESSION).map(|session| session.to_str().unwrap_or_default())
}

/// Why a request is not answered.
struct Refusal {
    status: StatusCode,
    code: ErrorCode,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, code: ErrorCode, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    /// It may be tried again later.
    fn busy(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::INTERNAL_ERROR, message)
    }

    /// What the client gets.
    fn answer(self) -> Answer {
        let error = ErrorData::new(self.code, self.message, None);
        let body = json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string();
        let mut response = Response::new(Full::new(Bytes::from(body)).boxed());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(5));
        }
        response
    }
}

/// Reads a message that is not too long.
async fn read<B>(body: B, limit: usize) -> Result<Bytes, Refusal>
where
    B: Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("the message is longer than {limit} bytes");
            Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::INVALID_REQUEST, message))
        }
        Err(_) => {
            Err(Refusal::new(StatusCode::BAD_REQUEST, ErrorCode::INVALID_REQUEST, "the message broke off"))
        }
    }
}

/// The message that a body is; what is none is refused.
fn check(body: &[u8]) -> Result<ClientJsonRpcMessage, Refusal> {
    let error = match serde_json::from_slice::<ClientJsonRpcMessage>(body) {
        Ok(message) => return Ok(message),
        Err(error) => error,
    };
    let is_json = serde_json::from_slice::<Value>(body).is_ok();
    let (code, what) = match is_json {
        true => (ErrorCode::INVALID_REQUEST, "is not one that a client may send"),
        false => (ErrorCode::PARSE_ERROR, "is no JSON"),
    };
    Err(Refusal::new(StatusCode::BAD_REQUEST, code, format!("the message {what}: {error}")))
}

impl<B> tower_service::Service<Request<B>> for McpService
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.answer(request).await.unwrap_or_else(Refusal::answer)) })
    }
}

impl fmt::Debug for McpService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "McpService({}, {:?})", self.offering.now().name, self.sessions)
    }
}
