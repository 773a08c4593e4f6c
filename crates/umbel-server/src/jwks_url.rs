//! Keys of tokens that are kept at an address: asked for seldom, kept for a while.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use http::StatusCode;
use reqwest::{Client, Url};
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::Verifier;
use umbel_core::{Error, ErrorKind, Result};

use crate::jwks::KeySet;
use crate::problem::Problem;

/// How long an answer may take, and how many bytes it may have.
const PATIENCE: Duration = Duration::from_secs(5);
const BYTES: usize = 1 << 20;

/// The keys at an address.
pub(crate) struct KeysAtUrl {
    url: Url,
    client: Client,
    pace: Pace,
    held: RwLock<Held>,
    /// Whoever has it asks.
    asking: tokio::sync::Mutex<()>,
}

/// How often keys are asked for.
#[derive(Clone, Copy, Debug)]
struct Pace {
    /// At most so often, whatever comes.
    between: Duration,
    /// So old may keys be before they are asked for again.
    fresh: Duration,
    /// So old may they be at all.
    good: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        let fresh = Duration::from_secs(600);
        Self { between: Duration::from_secs(30), fresh, good: Duration::from_secs(86_400) }
    }
}

/// What is known.
#[derive(Debug, Default)]
struct Held {
    keys: Option<(Arc<KeySet>, Instant)>,
    /// When they were asked for last, with or without an answer.
    asked: Option<Instant>,
}

impl KeysAtUrl {
    pub(crate) fn new(url: &str) -> Result<Self> {
        let refuse = |message: String| Error::new(ErrorKind::Build, message);
        let url = Url::parse(url).map_err(|error| refuse(format!("{url} is no address: {error}")))?;
        let is_here = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        if url.scheme() != "https" && !(url.scheme() == "http" && is_here) {
            let message =
                format!("keys from {url} could be anybody's: use an address that begins with https");
            return Err(refuse(message));
        }
        let client = client().map_err(|why| refuse(format!("keys cannot be fetched: {why}")))?;
        let (held, asking) = (RwLock::default(), tokio::sync::Mutex::new(()));
        Ok(Self { url, client, pace: Pace::default(), held, asking })
    }

    /// The keys, asked for if they are old, or if none has that name.
    pub(crate) async fn get(&self, id: Option<&str>) -> Result<Arc<KeySet>, Problem> {
        let known = self.known();
        let fits = |keys: &KeySet| id.is_none_or(|id| keys.knows(id));
        match &known {
            Some((keys, age)) if fits(keys) && *age < self.pace.fresh => return Ok(keys.clone()),
            // They will do while somebody else asks.
            Some((keys, _)) if fits(keys) => {
                let Ok(_turn) = self.asking.try_lock() else { return Ok(keys.clone()) };
                self.ask().await;
            }
            _ => {
                let _turn = self.asking.lock().await;
                // Somebody may have asked in the meantime.
                if !self.known().is_some_and(|(keys, _)| fits(&keys)) {
                    self.ask().await;
                }
            }
        }
        self.known().map(|(keys, _)| keys).ok_or_else(|| {
            let message = "tokens cannot be checked at the moment: try again soon";
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "AUTH_UNAVAILABLE", message);
            Problem { retry_after: Some(self.pace.between.as_secs().max(1)), ..problem }
        })
    }

    /// The keys that are at hand, and how old they are.
    fn known(&self) -> Option<(Arc<KeySet>, Duration)> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let (keys, since) = held.keys.as_ref()?;
        let age = since.elapsed();
        (age < self.pace.good).then(|| (keys.clone(), age))
    }

    /// Asks for the keys, unless that was done a moment ago.
    async fn ask(&self) {
        {
            let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
            if held.asked.is_some_and(|asked| asked.elapsed() < self.pace.between) {
                return;
            }
            held.asked = Some(Instant::now());
        }
        match self.fetch().await {
            Ok(keys) => {
                let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
                held.keys = Some((Arc::new(keys), Instant::now()));
            }
            Err(why) => tracing::error!(url = %self.url, "keys of tokens could not be fetched: {why}"),
        }
    }

    async fn fetch(&self) -> std::result::Result<KeySet, Box<dyn std::error::Error + Send + Sync>> {
        let mut response = self.client.get(self.url.clone()).send().await?.error_for_status()?;
        if response.status() != StatusCode::OK {
            return Err(format!("the answer was {}", response.status()).into());
        }
        let mut body = Vec::new();
        while let Some(bytes) = response.chunk().await? {
            body.extend_from_slice(&bytes);
            if body.len() > BYTES {
                return Err("the answer is too long".into());
            }
        }
        Ok(KeySet::parse(std::str::from_utf8(&body)?)?)
    }
}

/// An HTTPS client that trusts whom the operating system trusts.
fn client() -> std::result::Result<Client, Box<dyn std::error::Error>> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Verifier::new(provider.clone())?);
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    // Whoever answers with another address does not get to choose whom we trust.
    let redirect = reqwest::redirect::Policy::none();
    Ok(Client::builder().tls_backend_preconfigured(tls).redirect(redirect).timeout(PATIENCE).build()?)
}

impl fmt::Debug for KeysAtUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url)
    }
}
