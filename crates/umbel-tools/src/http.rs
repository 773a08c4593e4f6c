//! Asking HTTP services, behind a [`Guard`].

use std::error::Error as StdError;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use reqwest::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, COOKIE, HeaderMap, HeaderName, HeaderValue, LOCATION,
};
use reqwest::{Client, Method, Response, StatusCode, Url};
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::Verifier;
use serde_json::{Value, json};
use umbel_core::{
    AuthConfig, Error, ErrorKind, Grant, HttpPlace, Result, ToolError, ToolValue, TraceContext,
};

use crate::guard::Guard;
use crate::secret::{Secret, hide, hide_in};

/// How much a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// For all of it, redirects included; 30 s.
    pub time: Duration,
    /// Bytes of the answer that are read; 256 KiB. The rest is left out, and the model is told.
    pub bytes: usize,
    /// Redirects that are followed; 5. Each is looked at like the first address.
    pub redirects: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self { time: Duration::from_secs(30), bytes: 256 << 10, redirects: 5 }
    }
}

/// Asks HTTP services, as far as a guard lets it.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    client: Client,
    guard: Guard,
    limits: HttpLimits,
}

/// What is to be sent.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    /// Headers that are for the host they were given for, and for no other.
    pub(crate) own: HeaderMap,
    pub(crate) body: Option<Vec<u8>>,
    /// Parameters of the address that show who asks, by name.
    in_query: Vec<(String, Secret)>,
    /// Whatever of these comes back is taken out.
    pub(crate) secrets: Vec<Secret>,
}

/// What came back.
pub(crate) struct Answered {
    /// `{"status": …, "body": …}`.
    pub(crate) value: ToolValue,
    /// Whether the one who was asked refused who asked (401). Who asks is not shown where a redirect leads to another host, or
    /// leaves a key out of the address.
    pub(crate) is_refused: bool,
}

/// What came back, whole.
pub(crate) struct Fetched {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(method: Method, url: Url) -> Self {
        let (headers, own) = (HeaderMap::new(), HeaderMap::new());
        Self { method, url, headers, own, body: None, in_query: Vec::new(), secrets: Vec::new() }
    }

    /// Puts a credential where it belongs, and sees to it that it does not come back.
    pub(crate) fn carry(&mut self, auth: &AuthConfig, grant: &Grant) -> Result<(), ToolError> {
        let Some(carried) = grant.http() else {
            let message = format!("the credential `{}` cannot be sent with a request", auth.credential);
            return Err(ToolError::new(message));
        };
        let value = carried.expose();
        match carried.place {
            HttpPlace::Header => {
                let (name, value) = header(&carried.name, value)?;
                self.own.insert(name, value);
            }
            HttpPlace::Query => {
                self.url.query_pairs_mut().append_pair(&carried.name, value);
                self.in_query.push((carried.name.to_string(), Secret::from(value)));
            }
            HttpPlace::Cookie => self.add_cookie(&carried.name, value)?,
        }
        let token = value.split_once(' ').map_or(value, |(_, token)| token);
        let password = grant.credential().expose().get("password").and_then(Value::as_str);
        self.secrets.extend([Some(value), Some(token), password].into_iter().flatten().map(Secret::from));
        Ok(())
    }

    /// One more cookie. A key may be among them, so they are for that host alone.
    pub(crate) fn add_cookie(&mut self, name: &str, value: &str) -> Result<(), ToolError> {
        let before = self.own.get(COOKIE).and_then(|before| before.to_str().ok());
        let before = before.map(|before| format!("{before}; ")).unwrap_or_default();
        let wrong = |_| ToolError::invalid_arguments("a cookie has characters that cookies cannot have");
        let all = format!("{before}{name}={}", encode(value));
        let mut all = HeaderValue::from_str(&all).map_err(wrong)?;
        all.set_sensitive(true);
        self.own.insert(COOKIE, all);
        Ok(())
    }
}

impl Http {
    pub(crate) fn new(guard: Guard, limits: HttpLimits) -> Result<Self> {
        let client = guarded_client(&guard, limits.time)?;
        Ok(Self { client, guard, limits })
    }

    /// Where it may ask.
    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Sends a request and gives what came back.
    pub(crate) async fn send(&self, request: Request) -> Result<Answered, ToolError> {
        match tokio::time::timeout(self.limits.time, self.follow(request)).await {
            Ok(answered) => answered,
            Err(_) => {
                let seconds = self.limits.time.as_secs_f64();
                Err(ToolError::new(format!("no answer within {seconds} s: try again later, or ask for less")))
            }
        }
    }

    async fn follow(&self, mut request: Request) -> Result<Answered, ToolError> {
        let mut is_there = true;
        for _ in 0..=self.limits.redirects {
            let response = self.send_once(&request).await?;
            let is_read = matches!(request.method, Method::GET | Method::HEAD);
            let is_redirect = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let next = response.headers().get(LOCATION).and_then(|next| next.to_str().ok());
            let Some(next) = next.filter(|_| is_read && is_redirect) else {
                let is_refused = is_there && response.status() == StatusCode::UNAUTHORIZED;
                let value = self.read(response, &request.secrets).await?;
                return Ok(Answered { value, is_refused });
            };
            let next = request.url.join(next).map_err(|_| ToolError::new("a redirect leads nowhere"))?;
            if request.url.scheme() == "https" && next.scheme() != "https" {
                let message = "a redirect leads from https to http, and such are not followed";
                return Err(ToolError::new(message));
            }
            if next.origin() != request.url.origin() {
                request.own.clear();
                is_there = false;
            }
            // An address that a redirect names has the parameters that it names, and no others.
            is_there &= request.in_query.iter().all(|(name, value)| has(&next, name, value));
            request.url = next;
        }
        let times = self.limits.redirects;
        Err(ToolError::new(format!("it was redirected more than {times} times")))
    }

    async fn send_once(&self, request: &Request) -> Result<Response, ToolError> {
        self.guard.check_url(&request.url)?;
        let mut headers = request.headers.clone();
        // What is the host's own counts more than what a model says.
        for (name, value) in &request.own {
            headers.insert(name, value.clone());
        }
        let mut sent = self.client.request(request.method.clone(), request.url.clone()).headers(headers);
        if let Some(context) = TraceContext::current() {
            sent = context.headers().fold(sent, |sent, (name, value)| sent.header(name, value));
        }
        if let Some(body) = &request.body {
            sent = sent.body(body.clone());
        }
        sent.send().await.map_err(|error| ToolError::new(words(&error)))
    }

    /// Sends a request and gives what came back, whole or not at all. Redirects are not followed: whoever sends a secret names
    /// the one that gets it.
    pub(crate) async fn fetch(&self, request: &Request) -> Result<Fetched, ToolError> {
        let exchange = async {
            let mut response = self.send_once(request).await?;
            let status = response.status().as_u16();
            if matches!(status, 300..=399) {
                return Err(ToolError::new("it leads elsewhere, and redirects are not followed there"));
            }
            match self.body(&mut response).await? {
                (_, true) => Err(Error::new(ErrorKind::TooLarge, "the answer is too long").into()),
                (body, false) => Ok(Fetched { status, body }),
            }
        };
        match tokio::time::timeout(self.limits.time, exchange).await {
            Ok(fetched) => fetched,
            Err(_) => {
                let seconds = self.limits.time.as_secs_f64();
                Err(ToolError::new(format!("no answer within {seconds} s: try again later")))
            }
        }
    }

    /// Reads an answer, as far as it may go.
    async fn read(&self, mut response: Response, secrets: &[Secret]) -> Result<ToolValue, ToolError> {
        let status = response.status();
        let kind = header_text(&response, &CONTENT_TYPE);
        let (body, is_cut) = self.body(&mut response).await?;
        let mut value = json!({"status": status.as_u16(), "body": body_value(&body, &kind, is_cut, secrets)});
        if let Some(object) = value.as_object_mut().filter(|_| is_cut) {
            object.insert("truncated".to_owned(), Value::Bool(true));
        }
        let is_error = status.is_client_error() || status.is_server_error();
        Ok(ToolValue { is_error, ..ToolValue::from(value) })
    }

    /// The bytes of an answer as far as they may go, and whether there are more.
    async fn body(&self, response: &mut Response) -> Result<(Vec<u8>, bool), ToolError> {
        let encoding = header_text(response, &CONTENT_ENCODING);
        if !matches!(encoding.as_str(), "" | "identity") {
            return Err(ToolError::new(format!(
                "the answer is packed (`{encoding}`), which nobody asked for"
            )));
        }
        let mut body = Vec::new();
        while let Some(bytes) = response.chunk().await.map_err(|error| ToolError::new(words(&error)))? {
            let room = self.limits.bytes - body.len();
            body.extend_from_slice(bytes.get(..room).unwrap_or(&bytes));
            if bytes.len() > room {
                return Ok((body, true));
            }
        }
        Ok((body, false))
    }
}

/// Whether an address has a parameter.
fn has(url: &Url, name: &str, value: &Secret) -> bool {
    url.query_pairs().any(|(known, given)| known == name && given == value.reveal())
}

/// A header of an answer.
fn header_text(response: &Response, name: &HeaderName) -> String {
    response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// A body as the model gets it: JSON as it is, text as text, and of anything else what it is.
fn body_value(body: &[u8], kind: &str, is_cut: bool, secrets: &[Secret]) -> Value {
    if body.is_empty() {
        return Value::Null;
    }
    let text = match std::str::from_utf8(body) {
        Ok(text) => text,
        // A character may have been cut in two.
        Err(error) if is_cut && error.error_len().is_none() => body
            .get(..error.valid_up_to())
            .and_then(|whole| std::str::from_utf8(whole).ok())
            .unwrap_or_default(),
        Err(_) => {
            let kind = if kind.is_empty() { "unknown type" } else { kind };
            let words = format!("({} bytes of {kind}, which is not text)", body.len());
            return Value::String(hide(&words, secrets, false));
        }
    };
    match serde_json::from_str(text) {
        Ok(json) if !is_cut => hide_in(json, secrets),
        _ => Value::String(hide(text, secrets, is_cut)),
    }
}

/// A client that connects only where a guard lets it, within that time. It follows no redirects: whoever asks looks at each
/// address first.
pub fn guarded_client(guard: &Guard, connect: Duration) -> Result<Client> {
    let tls = TLS.clone().map_err(|message| Error::new(ErrorKind::Build, message))?;
    Client::builder()
        .tls_backend_preconfigured(tls)
        .dns_resolver(Arc::new(guard.clone()))
        .redirect(reqwest::redirect::Policy::none())
        // A proxy would look names up by itself, and go where nobody looked.
        .no_proxy()
        .connect_timeout(connect)
        .user_agent(concat!("umbel/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| Error::new(ErrorKind::Build, format!("no connections can be made: {error}")))
}

/// A header that is shown nowhere.
pub(crate) fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue)> {
    let refuse = |message: String| Error::new(ErrorKind::Build, message);
    let wrong = |_| refuse(format!("`{name}` is no name of a header"));
    let header: HeaderName = name.parse().map_err(wrong)?;
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| refuse(format!("the header `{name}` has characters that headers cannot have")))?;
    value.set_sensitive(true);
    Ok((header, value))
}

/// A text as part of a path or a form: all but what means nothing anywhere is written as `%` forms.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Whether a model may say what a header of this name has.
pub(crate) fn is_open(name: &HeaderName) -> bool {
    const OWN: [&str; 14] = [
        "accept",
        "accept-encoding",
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "te",
        "traceparent",
        "tracestate",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    ];
    let name_text = name.as_str();
    !(OWN.contains(&name_text)
        || name_text.starts_with("proxy-")
        || name_text.starts_with("x-forwarded")
        || name_text == "forwarded"
        || *name == AUTHORIZATION
        || *name == COOKIE)
}

/// What went wrong, down to the cause. Addresses may have keys in them, so they are left out.
fn words(error: &reqwest::Error) -> String {
    let mut cause: &dyn StdError = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    if let Some(refused) = cause.downcast_ref::<Error>() {
        return refused.message().to_owned();
    }
    if error.is_timeout() {
        "it took too long: try again later".to_owned()
    } else if std::ptr::eq(cause, error as &dyn StdError) {
        "the connection failed".to_owned()
    } else {
        format!("the connection failed: {cause}")
    }
}

/// Whom connections trust: all that the operating system trusts. Read once.
static TLS: LazyLock<Result<ClientConfig, String>> = LazyLock::new(|| {
    let make = || -> Result<ClientConfig, Box<dyn StdError>> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(Verifier::new(provider.clone())?);
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(config)
    };
    make().map_err(|error| format!("no connections can be made: {error}"))
});
