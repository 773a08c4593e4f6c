//! MCP servers at web addresses: streamable HTTP, within bounds.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorData, GetMeta, JsonRpcMessage, ServerJsonRpcMessage,
};
use rmcp::transport::common::http_header::{
    EVENT_STREAM_MIME_TYPE, HEADER_LAST_EVENT_ID, HEADER_SESSION_ID, JSON_MIME_TYPE,
};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, HttpStatusError, InsufficientScopeError, SseError, StreamableHttpClient,
    StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};
use umbel_core::trace_context::{TRACEPARENT, TRACESTATE};
use umbel_core::{Error, ErrorKind, HttpPlace, Result};
use umbel_tools::{Guard, Secret, guarded_client};

use super::lines::{Cause, Ended};

/// How long a connection to a server may take.
const CONNECT: Duration = Duration::from_secs(10);

/// An MCP server at a web address.
///
/// ```
/// use umbel_mcp::client::{Http, McpToolset};
///
/// let docs = Http::new("https://docs.example.org/mcp").header("x-team", "blue");
/// let tools = McpToolset::new("docs", docs);
/// ```
#[derive(Clone)]
pub struct Http {
    url: Arc<str>,
    headers: Vec<(String, Secret)>,
    guard: Option<Guard>,
}

impl Http {
    /// A server by its address.
    pub fn new(url: impl Into<Arc<str>>) -> Self {
        Self { url: url.into(), headers: Vec::new(), guard: None }
    }

    /// A header that goes with every request to the server, and is shown nowhere.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Which addresses may be asked. The host of the server's address alone, unless said otherwise.
    pub fn guard(mut self, guard: Guard) -> Self {
        self.guard = Some(guard);
        self
    }

    /// The server's address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its address without what may be secret in it: a user, a query.
    pub(crate) fn place(&self) -> String {
        let Ok(mut url) = Url::parse(&self.url) else { return self.url.to_string() };
        url.set_query(None);
        url.set_fragment(None);
        // Addresses that cannot have them have none.
        let _ = url.set_username("").and_then(|()| url.set_password(None));
        url.into()
    }

    /// What asks the server.
    pub(crate) fn client(&self, bytes: usize, bearer: Bearer, ended: Ended) -> Result<HttpClient> {
        let refuse = |why: String| Error::new(ErrorKind::Build, why);
        let url = Url::parse(&self.url)
            .map_err(|error| refuse(format!("`{}` is no web address: {error}", self.url)))?;
        let guard = match &self.guard {
            Some(guard) => guard.clone(),
            None => {
                let host = url.host_str().unwrap_or_default();
                let port = url.port_or_known_default().unwrap_or_default();
                Guard::new([host]).allow_private(&format!("{host}:{port}"))
            }
        };
        guard.check(url.as_str())?;
        let mut headers = HashMap::new();
        for (name, value) in &self.headers {
            let wrong = || refuse(format!("`{name}` is no name of a header"));
            let key: HeaderName = name.parse().map_err(|_| wrong())?;
            let mut value = HeaderValue::from_str(value.reveal()).map_err(|_| {
                refuse(format!("the header `{name}` has characters that headers cannot have"))
            })?;
            value.set_sensitive(true);
            headers.insert(key, value);
        }
        let (client, headers) = (guarded_client(&guard, CONNECT)?, Arc::new(headers));
        Ok(HttpClient { client, url, headers, bytes, bearer, ended })
    }
}

/// Headers and the address may hold secrets.
impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = Url::parse(&self.url).ok();
        let host = host.as_ref().and_then(|url| url.host_str()).unwrap_or("?");
        write!(f, "Http({host})")
    }
}

/// The credential that goes with requests now. It may change while a connection is open.
#[derive(Clone, Default)]
pub(crate) struct Bearer(Arc<Mutex<Option<(HttpPlace, String, HeaderValue)>>>);

impl Bearer {
    /// Sets it.
    pub(crate) fn set(&self, place: HttpPlace, name: &str, value: HeaderValue) -> Result<()> {
        if place == HttpPlace::Header && name.parse::<HeaderName>().is_err() {
            return Err(Error::new(ErrorKind::Build, format!("`{name}` is no name of a header")));
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((place, name.to_owned(), value));
        Ok(())
    }

    /// A request with it, be it in a header or in the address.
    fn put(&self, method: Method, mut url: Url, client: &Client) -> RequestBuilder {
        let Some((place, name, value)) = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone() else {
            return client.request(method, url);
        };
        let text = value.to_str().unwrap_or_default();
        match place {
            HttpPlace::Header => client.request(method, url).header(name, value),
            HttpPlace::Cookie => {
                client.request(method, url).header(http::header::COOKIE, format!("{name}={text}"))
            }
            HttpPlace::Query => {
                url.query_pairs_mut().append_pair(&name, text);
                client.request(method, url)
            }
        }
    }
}

/// Asks a server. What it answers is measured before it is read.
#[derive(Clone)]
pub(crate) struct HttpClient {
    client: Client,
    url: Url,
    headers: Arc<HashMap<HeaderName, HeaderValue>>,
    bytes: usize,
    bearer: Bearer,
    ended: Ended,
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) Cause);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.words)
    }
}

impl std::error::Error for Failed {}

type Answered<T> = std::result::Result<T, StreamableHttpError<Failed>>;

impl HttpClient {
    fn request(
        &self,
        method: Method,
        session: Option<Arc<str>>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> RequestBuilder {
        let request = self.bearer.put(method, self.url.clone(), &self.client);
        let mut request = request.header(ACCEPT, "application/json, text/event-stream");
        for (name, value) in self.headers.iter().map(|(name, value)| (name.clone(), value.clone())) {
            request = request.header(name, value);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        match session {
            Some(session) => request.header(HEADER_SESSION_ID, session.as_ref()),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Answered<Response> {
        let response = request
            .send()
            .await
            .map_err(|error| StreamableHttpError::Client(Failed(words(&error).into())))?;
        let status = response.status();
        let challenge = response.headers().get(WWW_AUTHENTICATE);
        let challenge = || challenge.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        if status == StatusCode::UNAUTHORIZED {
            return Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge())));
        }
        if status == StatusCode::FORBIDDEN {
            let error = InsufficientScopeError::new(challenge(), None);
            return Err(StreamableHttpError::InsufficientScope(error));
        }
        if status.is_redirection() {
            let message = "it redirects elsewhere, which is not followed: name the address it leads to";
            return Err(StreamableHttpError::Client(Failed(message.into())));
        }
        Ok(response)
    }

    /// A whole body, if it is no longer than it may be.
    async fn body(&self, mut response: Response) -> Answered<Vec<u8>> {
        let mut body = Vec::new();
        let failed = |error: reqwest::Error| StreamableHttpError::Client(Failed(words(&error).into()));
        while let Some(bytes) = response.chunk().await.map_err(failed)? {
            if body.len() + bytes.len() > self.bytes {
                return Err(StreamableHttpError::Client(Failed(Cause::too_large(self.bytes))));
            }
            body.extend_from_slice(&bytes);
        }
        Ok(body)
    }

    fn events(&self, response: Response) -> BoxStream<'static, std::result::Result<Sse, SseError>> {
        let ended = self.ended.clone();
        let bytes = bounded(response.bytes_stream(), self.bytes);
        // Whoever reads the stream only learns that it ended.
        let bytes = bytes.inspect(move |piece| {
            if let Err(failed) = piece {
                ended.note(failed.0.clone());
            }
        });
        SseStream::from_bytes_stream(bytes).boxed()
    }
}

/// A stream that fails where one of its events gets longer than it may be.
fn bounded(
    stream: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static,
    limit: usize,
) -> impl Stream<Item = std::result::Result<Bytes, Failed>> + Send {
    let (mut length, mut ends, mut is_over) = (0, 0, false);
    stream
        .map(move |bytes| {
            let bytes = bytes.map_err(|error| Failed(words(&error).into()))?;
            for byte in &bytes {
                // An event ends with an empty line.
                ends = match byte {
                    b'\n' => ends + 1,
                    b'\r' => ends,
                    _ => 0,
                };
                length = if ends >= 2 { 0 } else { length + 1 };
                is_over |= length > limit;
            }
            if is_over { Err(Failed(Cause::too_large(limit))) } else { Ok(bytes) }
        })
        .scan(false, |failed, item| {
            let is_last = std::mem::replace(failed, item.is_err());
            std::future::ready((!is_last).then_some(item))
        })
}

/// Whether a message wants an answer.
fn wants_answer(message: &ClientJsonRpcMessage) -> bool {
    matches!(message, JsonRpcMessage::Request(_))
}

/// What a server that does not know how connections begin nowadays says in the words of one that refuses.
fn refused_discovery(message: &ClientJsonRpcMessage, body: &[u8]) -> Option<ServerJsonRpcMessage> {
    let JsonRpcMessage::Request(request) = message else { return None };
    if !matches!(request.request, ClientRequest::DiscoverRequest(_)) {
        return None;
    }
    let error = match serde_json::from_slice(body) {
        Ok(ServerJsonRpcMessage::Error(error)) => error.error,
        _ => ErrorData::invalid_request("server/discover is not known", None),
    };
    Some(ServerJsonRpcMessage::error(error, Some(request.id.clone())))
}

impl StreamableHttpClient for HttpClient {
    type Error = Failed;

    async fn post_message(
        &self,
        _: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Answered<StreamableHttpPostResponse> {
        let has_session = session.is_some();
        let body = serde_json::to_vec(&message)?;
        let request = self.request(Method::POST, session, headers);
        let mut request = request.header(CONTENT_TYPE, JSON_MIME_TYPE).body(body);
        if let JsonRpcMessage::Request(sent) = &message {
            // Messages leave from a task of their own, which knows the trace by what they say.
            let meta = &sent.request.get_meta().0.0;
            for key in [TRACEPARENT, TRACESTATE] {
                if let Some(value) = meta.get(key).and_then(|value| value.as_str()) {
                    request = request.header(key, value);
                }
            }
        }
        let response = self.send(request).await?;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && has_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        let text = |name| response.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let kind = text(CONTENT_TYPE).unwrap_or_default().to_owned();
        let session = text(HeaderName::from_static("mcp-session-id")).map(str::to_owned);
        if !status.is_success() {
            let retry_after = text(http::header::RETRY_AFTER).map(str::to_owned);
            let body = self.body(response).await?;
            if !has_session
                && status.is_client_error()
                && let Some(refused) = refused_discovery(&message, &body)
            {
                return Ok(StreamableHttpPostResponse::Json(refused, None));
            }
            let said = match serde_json::from_slice(&body) {
                Ok(ServerJsonRpcMessage::Error(error)) => Some(error),
                _ => None,
            };
            // What is not about the request is about the session: many servers say so that they do not know it.
            let names_request = said.as_ref().is_some_and(|error| error.id.is_some());
            if status == StatusCode::BAD_REQUEST && has_session && !names_request {
                return Err(StreamableHttpError::SessionExpired);
            }
            return match (said, &message) {
                (Some(error), JsonRpcMessage::Request(sent)) => {
                    let id = error.id.unwrap_or_else(|| sent.id.clone());
                    let error = ServerJsonRpcMessage::error(error.error, Some(id));
                    Ok(StreamableHttpPostResponse::Json(error, session))
                }
                _ => Err(HttpStatusError::new(status.as_u16(), retry_after).into()),
            };
        }
        if kind.starts_with(EVENT_STREAM_MIME_TYPE) {
            return Ok(StreamableHttpPostResponse::Sse(self.events(response), session));
        }
        if !wants_answer(&message) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if !kind.starts_with(JSON_MIME_TYPE) {
            return Err(StreamableHttpError::UnexpectedContentType(Some(kind)));
        }
        let body = self.body(response).await?;
        match serde_json::from_slice(&body) {
            Ok(answer) => Ok(StreamableHttpPostResponse::Json(answer, session)),
            Err(_) => {
                Err(StreamableHttpError::UnexpectedServerResponse(Cow::from("what it answers is no message")))
            }
        }
    }

    async fn delete_session(
        &self,
        _: Arc<str>,
        session: Arc<str>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Answered<()> {
        self.send(self.request(Method::DELETE, Some(session), headers)).await?;
        Ok(())
    }

    async fn get_stream(
        &self,
        _: Arc<str>,
        session: Option<Arc<str>>,
        last: Option<String>,
        _: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Answered<BoxStream<'static, std::result::Result<Sse, SseError>>> {
        let mut request = self.request(Method::GET, session, headers);
        if let Some(last) = last {
            request = request.header(HEADER_LAST_EVENT_ID, last);
        }
        let response = self.send(request).await?;
        let status = response.status();
        let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if status == StatusCode::METHOD_NOT_ALLOWED {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        if !status.is_success() {
            return Err(HttpStatusError::new(status.as_u16(), None).into());
        }
        if !kind.is_some_and(|kind| kind.starts_with(EVENT_STREAM_MIME_TYPE)) {
            return Err(StreamableHttpError::UnexpectedContentType(kind.map(str::to_owned)));
        }
        Ok(self.events(response))
    }
}

/// What went wrong, down to the cause. Addresses may have keys in them, so they are left out.
fn words(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    match cause.downcast_ref::<Error>() {
        Some(refused) => refused.message().to_owned(),
        None if error.is_timeout() => "it took too long".to_owned(),
        None => format!("the connection failed: {cause}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pieces(chunks: &[&'static [u8]], limit: usize) -> (usize, Option<String>) {
        let chunks: Vec<_> = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk))).collect();
        let items: Vec<_> = bounded(futures::stream::iter(chunks), limit).collect().await;
        let good = items.iter().filter(|item| item.is_ok()).count();
        (good, items.into_iter().find_map(Result::err).map(|failed| failed.0.words))
    }

    #[tokio::test]
    async fn an_event_that_is_too_long_ends_its_stream_wherever_it_is_cut() {
        let why = Some("it sent a message of more than 10 bytes".to_owned());
        assert_eq!(pieces(&[b"data: 1\n\ndata: 2\r\n\r\ndata: 3\n\n"], 10).await, (1, None));
        assert_eq!(pieces(&[b"data: 1\n\n", b"data: 12", b"3456789", b"\n\n"], 10).await, (2, why.clone()));
        assert_eq!(pieces(&[b"12345678901"], 10).await, (0, why));
    }

    #[test]
    fn what_may_be_secret_in_an_address_does_not_make_it_another_place() {
        let place = |url: &str| Http::new(url).place();
        assert_eq!(place("https://ann:pw@host.example/mcp?key=1#x"), place("https://host.example/mcp?key=2"));
        assert_ne!(place("https://host.example/mcp"), place("https://host.example:8443/mcp"));
        assert_ne!(place("https://host.example/mcp"), place("https://host.example/other"));
    }

    #[test]
    fn neither_headers_nor_the_path_of_an_address_are_shown() {
        let server = Http::new("https://host.example/secret-path").header("x-key", "hunter2");
        assert_eq!(format!("{server:?}"), "Http(host.example)");
    }

    #[test]
    fn an_address_that_is_none_and_headers_that_are_none_are_refused() {
        let why = |server: Http| {
            server.client(1, Bearer::default(), Ended::default()).err().unwrap().message().to_owned()
        };
        assert!(why(Http::new("nowhere")).starts_with("`nowhere` is no web address"));
        assert_eq!(why(Http::new("http://a.example").header("a b", "c")), "`a b` is no name of a header");
        assert!(why(Http::new("http://a.example").header("a", "c\n")).contains("cannot have"));
        assert!(why(Http::new("http://a.example").guard(Guard::new(["b.example"]))).contains("a.example"));
    }
}
