//! What was said between us and a provider, written down and played again.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::StreamExt;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use umbel_core::{BoxStream, Error, ErrorKind, ModelErrorKind, Object, Result};

use crate::answer::MINTED_PREFIX;

/// Requests to a provider and its answers, byte by byte. For tests without a network.
///
/// Keys are never on it: no header of a request is, and wherever a key stands in a body it is struck out. Of an answer
/// those headers are kept that tell how to read it. Clones share the tape.
///
/// ```
/// use umbel_models::{Tape, model};
///
/// # fn main() -> umbel_core::Result<()> {
/// let tape = Tape::from_json(r#"{"exchanges": []}"#)?;
/// let model = model("http://localhost:8080/v1#smol")?.replay(&tape);
/// assert!(tape.is_played());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Tape {
    inner: Arc<Mutex<Inner>>,
    replays: bool,
}

#[derive(Default)]
struct Inner {
    exchanges: Vec<Exchange>,
    /// Which of them were played.
    played: Vec<bool>,
}

/// A request and its answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Exchange {
    path: String,
    request: Value,
    status: u16,
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    headers: Object,
    /// The answer, in the pieces in which it came.
    answer: Vec<Piece>,
    /// The connection broke before the end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    cut: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    Bytes { base64: String },
}

#[derive(Serialize, Deserialize)]
struct File {
    exchanges: Vec<Exchange>,
}

/// Headers of an answer that are kept.
const KEPT_HEADERS: [&str; 5] =
    ["content-type", "retry-after", "retry-after-ms", "request-id", "x-request-id"];

/// What stands where a key was.
const STRUCK_OUT: &str = "***";

/// What is to be done with a request.
pub(crate) enum Recording {
    /// It is answered from the tape.
    Replay(Result<Played>),
    /// It is sent, and written down.
    Record(Take),
}

/// An answer from a tape.
pub(crate) struct Played {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: BoxStream<'static, Result<Bytes>>,
}

impl Tape {
    /// An empty tape, to record on.
    pub fn new() -> Self {
        Self::default()
    }

    /// A tape that was written down.
    pub fn from_json(text: &str) -> Result<Self> {
        let unreadable = |error| Error::new(ErrorKind::Corrupt, format!("the tape cannot be read: {error}"));
        let File { exchanges } = serde_json::from_str(text).map_err(unreadable)?;
        let inner = Inner { played: vec![false; exchanges.len()], exchanges };
        Ok(Self { inner: Arc::new(Mutex::new(inner)), replays: false })
    }

    /// The tape as it is written down.
    pub fn to_json(&self) -> String {
        let exchanges = self.lock().exchanges.clone();
        let mut text = serde_json::to_string_pretty(&File { exchanges }).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Whether all of it was played.
    pub fn is_played(&self) -> bool {
        self.lock().played.iter().all(|played| *played)
    }

    /// How many requests are on it.
    pub fn len(&self) -> usize {
        self.lock().exchanges.len()
    }

    /// Whether nothing is on it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn replaying(&self) -> Self {
        Self { inner: self.inner.clone(), replays: true }
    }

    pub(crate) fn is_replaying(&self) -> bool {
        self.replays
    }

    pub(crate) fn begin(&self, path: &str, body: &[u8], secrets: Vec<String>) -> Recording {
        let text = strike_out(&String::from_utf8_lossy(body), &secrets);
        let request = serde_json::from_str(&text).unwrap_or(Value::String(text));
        if self.replays {
            return Recording::Replay(self.play(path, &request));
        }
        let exchange = Exchange { path: path.to_owned(), request, ..Exchange::default() };
        Recording::Record(Take { tape: self.clone(), exchange, secrets, rest: Vec::new(), ended: false })
    }

    /// The answer to a request: the first that was not played yet.
    fn play(&self, path: &str, request: &Value) -> Result<Played> {
        let mut inner = self.lock();
        let Inner { exchanges, played } = &mut *inner;
        let wanted = without_minted(request);
        let fits = |exchange: &Exchange| exchange.path == path && without_minted(&exchange.request) == wanted;
        let found =
            exchanges.iter().zip(played.iter_mut()).find(|(exchange, played)| !**played && fits(exchange));
        let Some((exchange, played)) = found else {
            let message =
                format!("the tape has no answer to this request to {path}: {}", crate::json::text(request));
            return Err(Error::new(ErrorKind::Model(ModelErrorKind::Other), message));
        };
        *played = true;
        let mut headers = HeaderMap::new();
        for (name, value) in &exchange.headers {
            let value = value.as_str().and_then(|value| HeaderValue::from_str(value).ok());
            if let (Ok(name), Some(value)) = (HeaderName::try_from(name.as_str()), value) {
                headers.insert(name, value);
            }
        }
        let mut pieces: Vec<Result<Bytes>> =
            exchange.answer.iter().map(|piece| piece.bytes().map(Bytes::from)).collect();
        if exchange.cut {
            pieces.push(Err(Error::new(ErrorKind::StreamCut, "the answer broke off, on the tape too")));
        }
        Ok(Played { status: exchange.status, headers, body: Box::pin(futures::stream::iter(pieces)) })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tape").field("exchanges", &self.len()).field("replays", &self.replays).finish()
    }
}

impl Piece {
    fn bytes(&self) -> Result<Vec<u8>> {
        match self {
            Self::Text(text) => Ok(text.clone().into_bytes()),
            Self::Bytes { base64 } => STANDARD.decode(base64).map_err(|error| {
                Error::new(ErrorKind::Corrupt, "bytes on the tape are not base64").with_source(error)
            }),
        }
    }
}

/// A request in which ids that we made up ourselves are numbered in their order: those of another run are others.
fn without_minted(request: &Value) -> String {
    let text = crate::json::text(request);
    let (mut out, mut seen) = (String::with_capacity(text.len()), Vec::new());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(MINTED_PREFIX) {
        let (head, behind) = rest.split_at(at + MINTED_PREFIX.len());
        out.push_str(head);
        rest = behind;
        let id = behind.get(..16).filter(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if let Some(id) = id {
            let number = seen.iter().position(|known| *known == id).unwrap_or_else(|| {
                seen.push(id);
                seen.len() - 1
            });
            out.push_str(&number.to_string());
            rest = behind.get(16..).unwrap_or_default();
        }
    }
    out + rest
}

pub(crate) fn strike_out(text: &str, secrets: &[String]) -> String {
    secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, STRUCK_OUT))
}

/// An exchange that is being written down. It is on the tape once it is over, however it ends.
pub(crate) struct Take {
    tape: Tape,
    exchange: Exchange,
    secrets: Vec<String>,
    /// Bytes of a character that is not complete yet.
    rest: Vec<u8>,
    ended: bool,
}

impl Take {
    pub(crate) fn record(
        mut self,
        status: u16,
        headers: &HeaderMap,
        body: BoxStream<'static, Result<Bytes>>,
    ) -> BoxStream<'static, Result<Bytes>> {
        self.exchange.status = status;
        for name in KEPT_HEADERS {
            if let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) {
                self.exchange.headers.insert(name.to_owned(), strike_out(value, &self.secrets).into());
            }
        }
        Box::pin(futures::stream::unfold((self, body), |(mut take, mut body)| async move {
            let next = body.next().await;
            match &next {
                Some(Ok(bytes)) => take.add(bytes),
                Some(Err(_)) => {}
                None => take.ended = true,
            }
            next.map(|next| (next, (take, body)))
        }))
    }

    fn add(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let valid = match std::str::from_utf8(&self.rest) {
            Ok(text) => text.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => 0,
        };
        if valid > 0 {
            let rest = self.rest.split_off(valid);
            let text = String::from_utf8(std::mem::replace(&mut self.rest, rest)).unwrap_or_default();
            self.exchange.answer.push(Piece::Text(strike_out(&text, &self.secrets)));
        } else if self.rest.len() >= 4 {
            let base64 = STANDARD.encode(std::mem::take(&mut self.rest));
            self.exchange.answer.push(Piece::Bytes { base64 });
        }
    }
}

impl Drop for Take {
    fn drop(&mut self) {
        if self.exchange.status == 0 {
            return;
        }
        if !self.rest.is_empty() {
            let base64 = STANDARD.encode(&self.rest);
            self.exchange.answer.push(Piece::Bytes { base64 });
        }
        self.exchange.cut = !self.ended;
        let mut inner = self.tape.lock();
        inner.exchanges.push(std::mem::take(&mut self.exchange));
        inner.played.push(false);
    }
}
