//! A model at a provider.

use std::fmt;
use std::sync::Arc;

use futures::{FutureExt, StreamExt};
use reqwest::header::{HeaderName, HeaderValue};
use smol_str::SmolStr;
use umbel_core::{BoxStream, Capabilities, Chunk, Error, ErrorKind, Model, ModelRequest, Provider, Result};

use crate::answer::Answer;
use crate::endpoint::{Endpoint, Key, Reply, Secret, Timeouts, TokenSource, sensitive};
use crate::fragments::Fragments;
use crate::frames::{Frames, unreadable};
use crate::tape::Tape;
use crate::wire::{Reader, Wire};

/// How many bytes of requests are kept to be sent again: 32 MiB.
const FRAGMENT_BYTES: usize = 32 << 20;

/// A model at a provider. Made by name with [`model`](crate::model), or by a constructor of the format that it speaks.
///
/// Clones share their connections, and what they keep of requests.
#[derive(Clone)]
pub struct HttpModel {
    name: SmolStr,
    capabilities: Capabilities,
    shared: Arc<Shared>,
}

#[derive(Clone, Debug)]
struct Shared {
    wire: Arc<dyn Wire>,
    endpoint: Endpoint,
    fragments: Arc<Fragments>,
}

impl HttpModel {
    pub(crate) fn new(
        name: impl Into<SmolStr>,
        wire: impl Wire + 'static,
        endpoint: Endpoint,
    ) -> Result<Self> {
        let mut endpoint = endpoint;
        endpoint.open()?;
        let name = name.into();
        let capabilities = crate::catalog::capabilities(&endpoint.provider, &name, wire.capabilities());
        let fragments = Arc::new(Fragments::new(FRAGMENT_BYTES));
        let shared = Arc::new(Shared { wire: Arc::new(wire), endpoint, fragments });
        Ok(Self { name, capabilities, shared })
    }

    /// The same with another endpoint.
    fn changed(mut self, change: impl FnOnce(&mut Endpoint)) -> Result<Self> {
        let shared = Arc::make_mut(&mut self.shared);
        change(&mut shared.endpoint);
        shared.endpoint.open()?;
        Ok(self)
    }

    /// With this key instead of the one from the environment.
    pub fn api_key(self, key: impl Into<String>) -> Result<Self> {
        let secret = Secret(key.into());
        self.changed(|endpoint| {
            endpoint.key = match endpoint.key {
                Key::Header(name, _) => Key::Header(name, secret),
                _ => Key::Bearer(secret),
            };
        })
    }

    /// With tokens from there, for providers whose keys are good for a while only.
    pub fn token_source(self, source: impl TokenSource + 'static) -> Result<Self> {
        self.changed(|endpoint| endpoint.key = Key::Source(Arc::new(source)))
    }

    /// At this address. The path of the format is put behind it.
    pub fn base_url(self, url: impl Into<String>) -> Result<Self> {
        self.changed(|endpoint| endpoint.base = url.into())
    }

    /// With this header in each request. Its value is shown nowhere.
    pub fn header(self, name: &str, value: &str) -> Result<Self> {
        let message = || format!("`{name}` cannot be the name of a header");
        let name = HeaderName::try_from(name)
            .map_err(|error| Error::new(ErrorKind::Build, message()).with_source(error))?;
        let value: HeaderValue = sensitive(value)?;
        self.changed(|endpoint| {
            endpoint.headers.insert(name, value);
        })
    }

    /// Waiting so long.
    pub fn timeouts(self, timeouts: Timeouts) -> Result<Self> {
        self.changed(|endpoint| endpoint.timeouts = timeouts)
    }

    /// Through this proxy. Without it, the environment says whether there is one (`HTTPS_PROXY` and its like).
    pub fn proxy(self, url: impl Into<String>) -> Result<Self> {
        self.changed(|endpoint| endpoint.proxy = Some(url.into()))
    }

    /// Keeping so many bytes of requests, so that what was sent before is not written anew. 32 MiB unless told.
    pub fn fragment_bytes(mut self, bytes: usize) -> Self {
        Arc::make_mut(&mut self.shared).fragments = Arc::new(Fragments::new(bytes));
        self
    }

    /// With these abilities instead of those that are known of it.
    pub fn capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Writing down all that is said.
    pub fn record(mut self, tape: &Tape) -> Self {
        Arc::make_mut(&mut self.shared).endpoint.tape = Some(tape.clone());
        self
    }

    /// Answered from a tape, without a network.
    pub fn replay(mut self, tape: &Tape) -> Self {
        Arc::make_mut(&mut self.shared).endpoint.tape = Some(tape.replaying());
        self
    }

    /// The body that a request is sent with.
    pub fn body(&self, request: &ModelRequest) -> Vec<u8> {
        self.shared.wire.body(&self.named(request), &self.shared.fragments)
    }

    /// Reads an answer from its bytes, in whatever pieces they come: what [`generate`](Model::generate) makes of them.
    pub fn read<'a>(&self, stream: bool, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Result<Chunk>> {
        let mut intake = Intake::new(&*self.shared.wire, stream);
        let read = || {
            for piece in pieces {
                intake.feed(piece)?;
            }
            intake.end()
        };
        let end = read();
        let chunks = std::iter::from_fn(|| intake.answer.take_chunk()).map(Ok);
        chunks.chain(end.err().map(Err)).collect()
    }

    /// The request with this model's name: an agent may have asked by another, such as the one with the provider in it.
    fn named(&self, request: &ModelRequest) -> ModelRequest {
        ModelRequest { model: self.name.clone(), ..request.clone() }
    }
}

impl fmt::Debug for HttpModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpModel({} at {})", self.name, self.shared.endpoint.provider)
    }
}

impl Model for HttpModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn provider(&self) -> Provider<'_> {
        self.shared.endpoint.provider()
    }

    fn generate(&self, request: &ModelRequest) -> BoxStream<'static, Result<Chunk>> {
        let exchange = Exchange {
            stage: Stage::Ask(Box::new(self.named(request))),
            intake: Intake::new(&*self.shared.wire, request.stream),
            token: None,
            shared: self.shared.clone(),
        };
        Box::pin(futures::stream::unfold(exchange, |mut exchange| async move {
            let next = exchange.next().await?;
            Some((next, exchange))
        }))
    }
}

/// A request and its answer.
struct Exchange {
    shared: Arc<Shared>,
    stage: Stage,
    intake: Intake,
    /// The token that was sent along, if a source gave it.
    token: Option<Secret>,
}

enum Stage {
    Ask(Box<ModelRequest>),
    Read(BoxStream<'static, Result<bytes::Bytes>>),
    Over,
}

impl Exchange {
    async fn next(&mut self) -> Option<Result<Chunk>> {
        loop {
            if let Some(chunk) = self.intake.answer.take_chunk() {
                return Some(Ok(chunk));
            }
            if let Err(error) = self.go_on().await? {
                self.stage = Stage::Over;
                return Some(Err(self.shared.endpoint.discreet(error, self.token.as_ref())));
            }
        }
    }

    /// Asks, or reads some more. Nothing if all is said.
    async fn go_on(&mut self) -> Option<Result<()>> {
        let endpoint = &self.shared.endpoint;
        match &mut self.stage {
            Stage::Over => None,
            Stage::Ask(request) => {
                let path = self.shared.wire.path(request);
                let body = self.shared.wire.body(request, &self.shared.fragments);
                Some(endpoint.post(&path, body, &mut self.token).await.map(|reply: Reply| {
                    // Some answer a request for a stream with the whole.
                    self.intake.whole = self.intake.whole.take().or(reply.is_json.then(Vec::new));
                    if let Some(id) = reply.request_id {
                        self.intake.answer.tell("requestId", id);
                    }
                    self.stage = Stage::Read(reply.body);
                }))
            }
            Stage::Read(body) if self.intake.answer.is_finished() => {
                // A connection can be used again if the end of the answer was read.
                let _ = body.next().now_or_never();
                self.stage = Stage::Over;
                None
            }
            Stage::Read(body) => {
                let patience = endpoint.timeouts.between_bytes;
                let Ok(next) = tokio::time::timeout(patience, body.next()).await else {
                    let message = format!("{}: nothing came for {} s", endpoint.provider, patience.as_secs());
                    return Some(Err(Error::new(ErrorKind::StreamCut, message)));
                };
                Some(match next {
                    Some(Ok(bytes)) => self.intake.feed(&bytes),
                    Some(Err(error)) => Err(error),
                    None => {
                        self.stage = Stage::Over;
                        self.intake.end()
                    }
                })
            }
        }
    }
}

/// Reads an answer from bytes.
struct Intake {
    frames: Frames,
    /// All bytes so far, if the answer comes as a whole.
    whole: Option<Vec<u8>>,
    /// How many came.
    bytes: usize,
    reader: Box<dyn Reader>,
    answer: Answer,
}

/// The most bytes of an answer, whatever stands in it.
const ANSWER_BYTES: usize = 256 << 20;

impl Intake {
    fn new(wire: &dyn Wire, stream: bool) -> Self {
        Self {
            frames: Frames::new(wire.framing()),
            whole: (!stream).then(Vec::new),
            bytes: 0,
            reader: wire.reader(),
            answer: Answer::new(stream),
        }
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes = self.bytes.saturating_add(bytes.len());
        if self.bytes > ANSWER_BYTES {
            return Err(unreadable("the answer is too long"));
        }
        match &mut self.whole {
            Some(whole) => {
                whole.extend_from_slice(bytes);
                Ok(())
            }
            None => {
                let (reader, answer) = (&mut self.reader, &mut self.answer);
                let read = self.frames.feed(bytes, |event, data| match answer.is_finished() {
                    true => Ok(()),
                    false => reader.frame(event, data, answer),
                });
                // Whatever comes behind the end, the answer is there.
                if self.answer.is_finished() { Ok(()) } else { read }
            }
        }
    }

    fn end(&mut self) -> Result<()> {
        let (reader, answer) = (&mut self.reader, &mut self.answer);
        match self.whole.take() {
            Some(whole) => {
                // An answer that broke off is no JSON, and nobody's fault but the line's.
                let text = std::str::from_utf8(&whole).map_err(|error| match error.error_len() {
                    None => cut(),
                    Some(_) => unreadable("the answer is not UTF-8"),
                })?;
                reader.whole(text, answer).map_err(|error| match is_cut(text) {
                    true => cut().with_source(error),
                    false => error,
                })?;
            }
            None if answer.is_finished() => {}
            None => {
                self.frames.end(|event, data| reader.frame(event, data, answer))?;
                reader.end(answer)?;
            }
        }
        self.answer.check_end()
    }
}

fn cut() -> Error {
    Error::new(ErrorKind::StreamCut, "the answer of the model broke off")
}

/// Whether a text is the beginning of JSON, and not more.
fn is_cut(text: &str) -> bool {
    let read: Result<serde::de::IgnoredAny, _> = serde_json::from_str(text);
    // Of a number that ends too early it is only said where that is.
    let last = text.rsplit('\n').next().unwrap_or_default();
    let is_at_end = |error: &serde_json::Error| {
        error.column() >= last.len() && error.line() == text.matches('\n').count() + 1
    };
    read.is_err_and(|error| error.is_eof() || is_at_end(&error))
}
