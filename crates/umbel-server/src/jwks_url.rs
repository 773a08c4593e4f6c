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
use umbel_jwt::KeySet;

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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Publishes a key of a name that can be changed; nothing if it has none. Counts who asks.
    #[derive(Default)]
    struct Issuer {
        name: Mutex<&'static str>,
        asked: AtomicUsize,
    }

    impl Issuer {
        async fn start(name: &'static str, pace: Pace) -> (Arc<Self>, KeysAtUrl) {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            let issuer = Arc::new(Self { name: Mutex::new(name), ..Self::default() });
            let publisher = issuer.clone();
            tokio::spawn(async move {
                loop {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    publisher.asked.fetch_add(1, Ordering::SeqCst);
                    let _ = stream.read(&mut [0; 4096]).await;
                    let answer = publisher.answer();
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            });
            let keys = KeysAtUrl { pace, ..KeysAtUrl::new(&url).unwrap() };
            (issuer, keys)
        }

        fn answer(&self) -> String {
            let name = *self.name.lock().unwrap();
            if name.is_empty() {
                return "HTTP/1.1 500 Oh\r\nconnection: close\r\n\r\n".to_owned();
            }
            let key = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
            let body =
                format!(r#"{{"keys": [{{"kty": "OKP", "crv": "Ed25519", "kid": "{name}", "x": "{key}"}}]}}"#);
            format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        }

        fn change(&self, name: &'static str) {
            *self.name.lock().unwrap() = name;
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::SeqCst)
        }
    }

    const DAY: Duration = Duration::from_secs(86_400);

    #[tokio::test]
    async fn a_name_that_is_not_known_is_asked_for_but_not_all_the_time() {
        let pace = Pace { between: Duration::from_millis(300), fresh: DAY, good: DAY };
        let (issuer, keys) = Issuer::start("a", pace).await;
        assert!(keys.get(Some("a")).await.unwrap().knows("a"));
        issuer.change("b");
        assert!(!keys.get(Some("b")).await.unwrap().knows("b"), "a moment later");
        assert_eq!(issuer.asked(), 1);
        tokio::time::sleep(pace.between).await;
        let many = futures::future::join_all((0..8).map(|_| keys.get(Some("b")))).await;
        assert!(many.iter().all(|keys| keys.as_ref().unwrap().knows("b")));
        assert_eq!(issuer.asked(), 2);
    }

    #[tokio::test]
    async fn old_keys_are_asked_for_again_and_count_if_there_are_no_others() {
        let pace = Pace { between: Duration::ZERO, fresh: Duration::ZERO, good: DAY };
        let (issuer, keys) = Issuer::start("a", pace).await;
        assert!(keys.get(None).await.unwrap().knows("a"));
        issuer.change("b");
        assert!(keys.get(Some("a")).await.unwrap().knows("b"));
        issuer.change("");
        assert!(keys.get(Some("b")).await.unwrap().knows("b"));
        assert_eq!(issuer.asked(), 3);
    }

    #[tokio::test]
    async fn keys_that_are_too_old_count_no_more() {
        let pace = Pace { between: Duration::ZERO, fresh: Duration::ZERO, good: Duration::from_millis(200) };
        let (issuer, keys) = Issuer::start("a", pace).await;
        assert!(keys.get(Some("a")).await.is_ok());
        issuer.change("");
        tokio::time::sleep(pace.good).await;
        assert_eq!(keys.get(Some("a")).await.unwrap_err().code, "AUTH_UNAVAILABLE");
    }

    #[test]
    fn the_pace_is_as_documented() {
        let Pace { between, fresh, good } = Pace::default();
        assert_eq!([between, fresh, good].map(|time| time.as_secs()), [30, 600, 86_400]);
    }
}
