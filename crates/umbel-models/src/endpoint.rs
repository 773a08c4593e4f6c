//! Where a provider is, and how to reach it.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Proxy, Url};
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::Verifier;
use umbel_core::{BoxFuture, BoxStream, Error, ErrorKind, ModelErrorKind, Provider, Result, TraceContext};

use crate::failure;
use crate::tape::{Played, Recording, Tape, strike_out};

/// The most bytes of a refusal that are read.
const REFUSAL_BYTES: usize = 64 << 10;

/// How long to wait for what: not at all with zero, without end with [`Duration::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection: 10 s.
    pub connect: Duration,
    /// For the beginning of the answer: 10 min. What is not streamed begins when it is complete.
    pub first_byte: Duration,
    /// Between two pieces of the answer: 2 min.
    pub between_bytes: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(600),
            between_bytes: Duration::from_secs(120),
        }
    }
}

/// Gives a token that is good for a while, such as those of Google Cloud.
pub trait TokenSource: fmt::Debug + Send + Sync {
    /// A token that is good now. Asked before each request, so keep it.
    fn token(&self) -> BoxFuture<'_, Result<String>>;
}

/// What shows who asks.
#[derive(Clone, Debug, Default)]
pub(crate) enum Key {
    #[default]
    None,
    /// Sent in a header of that name, as it is.
    Header(&'static str, Secret),
    /// Sent as `Authorization: Bearer …`.
    Bearer(Secret),
    Source(Arc<dyn TokenSource>),
}

/// Nobody sees it in a log.
#[derive(Clone)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A provider's address, and all it takes to send something there.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// Whose it is, for messages.
    pub(crate) provider: String,
    pub(crate) base: String,
    pub(crate) key: Key,
    pub(crate) headers: HeaderMap,
    pub(crate) timeouts: Timeouts,
    pub(crate) proxy: Option<String>,
    pub(crate) tape: Option<Tape>,
    client: Option<Client>,
    /// The host of the address, and its port.
    server: Option<(String, u16)>,
}

/// An answer that has begun.
pub(crate) struct Reply {
    pub(crate) is_json: bool,
    pub(crate) request_id: Option<String>,
    pub(crate) body: BoxStream<'static, Result<Bytes>>,
}

impl Endpoint {
    pub(crate) fn new(provider: impl Into<String>, base: impl Into<String>) -> Self {
        Self {
            provider: provider.into(),
            base: base.into(),
            key: Key::None,
            headers: HeaderMap::new(),
            timeouts: Timeouts::default(),
            proxy: None,
            tape: None,
            client: None,
            server: None,
        }
    }

    /// Checks the address and makes the client. It is this model's own: connections belong to the runtime they were made
    /// in, and models that share nothing else need not share that.
    pub(crate) fn open(&mut self) -> Result<()> {
        let refuse = |message: String| Error::new(ErrorKind::Build, message);
        let url = Url::parse(&self.base)
            .map_err(|error| refuse(format!("{} is no address: {error}", self.base)))?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(refuse(format!("{} is no address of a provider: use http or https", self.base)));
        }
        if let Key::Header(_, Secret(key)) | Key::Bearer(Secret(key)) = &self.key
            && HeaderValue::from_str(key).is_err()
        {
            let message = format!("the key of {} has characters that no key has", self.provider);
            return Err(refuse(message));
        }
        self.server = url.host_str().map(str::to_owned).zip(url.port_or_known_default());
        self.client = Some(client(self.timeouts.connect, self.proxy.as_deref()).map_err(refuse)?);
        Ok(())
    }

    /// Whose it is, for those who measure.
    pub(crate) fn provider(&self) -> Provider<'_> {
        let name = match self.provider.as_str() {
            // A server that speaks like OpenAI is told from it by its address.
            "openai" | "openai-chat" | "the server" => "openai",
            "gemini" | "google" => "gcp.gemini",
            "vertex" => "gcp.vertex_ai",
            "azure" => "azure.ai.openai",
            "mistral" => "mistral_ai",
            "xai" => "x_ai",
            same => same,
        };
        Provider { name, server: self.server.as_ref().map(|(host, port)| (host.as_str(), *port)) }
    }

    /// Sends a request and waits for the answer to begin. `token` becomes the token that is sent along, if a source gives it.
    pub(crate) async fn post(&self, path: &str, body: Vec<u8>, token: &mut Option<Secret>) -> Result<Reply> {
        // What is played again is sent nowhere.
        let is_sent = self.tape.as_ref().is_none_or(|tape| !tape.is_replaying());
        if let Key::Source(source) = &self.key
            && is_sent
        {
            *token = Some(Secret(source.token().await?));
        }
        let recording = match &self.tape {
            None => None,
            Some(tape) => match tape.begin(path, &body, self.secrets(token.as_ref())) {
                Recording::Replay(take) => {
                    let Played { status, headers, body } = take?;
                    return self.reply(status, &headers, body).await;
                }
                Recording::Record(take) => Some(take),
            },
        };
        let url = format!("{}{path}", self.base.trim_end_matches('/'));
        let client = self.client.as_ref().ok_or_else(|| self.failed("the model was not opened"))?;
        let mut request =
            client.post(url).headers(self.headers.clone()).header(CONTENT_TYPE, "application/json");
        if let Some(context) = TraceContext::current() {
            request = context.headers().fold(request, |request, (name, value)| request.header(name, value));
        }
        if let Key::Header(name, Secret(key)) = &self.key {
            request = request.header(HeaderName::from_static(name), sensitive(key)?);
        }
        let bearer = if let Key::Bearer(key) = &self.key { Some(key) } else { token.as_ref() };
        if let Some(Secret(key)) = bearer {
            request = request.header("authorization", sensitive(&format!("Bearer {key}"))?);
        }
        let waited = tokio::time::timeout(self.timeouts.first_byte, request.body(body).send()).await;
        let response = waited
            .map_err(|_| self.failed(format!("no answer within {} s", self.timeouts.first_byte.as_secs())))?
            .map_err(|error| self.failed(words(&error)))?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let provider = self.provider.clone();
        let body = response.bytes_stream().map(move |bytes| {
            bytes.map_err(|error| {
                let message = format!("{provider}: the answer broke off: {}", words(&error));
                Error::new(ErrorKind::StreamCut, message)
            })
        });
        match recording {
            None => self.reply(status, &headers, Box::pin(body)).await,
            Some(take) => self.reply(status, &headers, take.record(status, &headers, Box::pin(body))).await,
        }
    }

    /// What comes of an answer: it can be read, or it is a refusal.
    async fn reply(
        &self,
        status: u16,
        headers: &HeaderMap,
        mut body: BoxStream<'static, Result<Bytes>>,
    ) -> Result<Reply> {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        if (200..300).contains(&status) {
            let is_json = header("content-type").is_some_and(|kind| kind.starts_with("application/json"));
            let request_id = ["x-request-id", "request-id", "apim-request-id"].into_iter().find_map(header);
            return Ok(Reply { is_json, request_id: request_id.map(str::to_owned), body });
        }
        let mut refused = Vec::new();
        while refused.len() < REFUSAL_BYTES {
            let waited = tokio::time::timeout(self.timeouts.between_bytes, body.next()).await;
            // The status says enough if the words do not come.
            let Ok(Some(Ok(bytes))) = waited else { break };
            refused.extend_from_slice(&bytes);
        }
        Err(failure::refusal(&self.provider, status, headers, &String::from_utf8_lossy(&refused)))
    }

    /// A connection that failed.
    pub(crate) fn failed(&self, why: impl fmt::Display) -> Error {
        Error::new(ErrorKind::Model(ModelErrorKind::Transport), format!("{}: {why}", self.provider))
    }

    /// An error without secrets that the provider repeats in it, the token of the request among them: it goes to the log of the
    /// session.
    pub(crate) fn discreet(&self, error: Error, token: Option<&Secret>) -> Error {
        let secrets = self.secrets(token);
        if !secrets.iter().any(|secret| error.message().contains(secret)) {
            return error;
        }
        let told = Error::new(error.kind(), strike_out(error.message(), &secrets));
        match error.retry_after() {
            Some(after) => told.with_retry_after(after),
            None => told,
        }
    }

    /// What must never be written down. What is shorter is no secret, and would be found everywhere.
    fn secrets(&self, token: Option<&Secret>) -> Vec<String> {
        let key = match &self.key {
            Key::Header(_, key) | Key::Bearer(key) => Some(key),
            Key::None | Key::Source(_) => token,
        };
        let key = key.map(|Secret(key)| key.as_str());
        let names = ["auth", "key", "token", "secret", "cookie", "password"];
        let is_secret = |name: &HeaderName| names.iter().any(|word| name.as_str().contains(word));
        let headers = self.headers.iter().filter(|(name, _)| is_secret(name));
        let all = key.into_iter().chain(headers.filter_map(|(_, value)| value.to_str().ok()));
        all.filter(|secret| secret.len() >= 4).map(str::to_owned).collect()
    }
}

/// A header that is shown nowhere.
pub(crate) fn sensitive(value: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(value).map_err(|error| {
        Error::new(ErrorKind::Build, "a header has characters that headers cannot have").with_source(error)
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// What went wrong, down to the cause: a client says only that it failed to send. Addresses may have keys in them, so they
/// are left out.
pub(crate) fn words(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    if error.is_timeout() {
        "timed out".to_owned()
    } else if std::ptr::eq(cause, error as &dyn std::error::Error) {
        "the connection failed".to_owned()
    } else {
        cause.to_string()
    }
}

/// Whom connections trust: all that the operating system trusts. Read once.
static TLS: LazyLock<Result<ClientConfig, String>> = LazyLock::new(|| {
    let make = || -> Result<ClientConfig, Box<dyn std::error::Error>> {
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

/// A client that goes where the environment says proxies are, if it is not told.
pub(crate) fn client(connect: Duration, proxy: Option<&str>) -> Result<Client, String> {
    // A key is for the address it was given for.
    let redirect = reqwest::redirect::Policy::none();
    let builder = Client::builder().tls_backend_preconfigured(TLS.clone()?).redirect(redirect);
    let mut builder = builder.connect_timeout(connect).tcp_nodelay(true);
    let failed = |error| format!("no connections can be made: {error}");
    if let Some(proxy) = proxy {
        builder = builder.proxy(Proxy::all(proxy).map_err(failed)?);
    }
    builder.build().map_err(failed)
}
