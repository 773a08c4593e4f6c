//! Tokens that someone else issues and signs: JSON Web Tokens (RFC 7519).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::request::Parts;
use serde::Deserialize;
use serde_json::Value;
use umbel_core::{BoxFuture, Object, Result};

use crate::auth::{Auth, Principal, bearer_token};
use crate::jwks::{Algorithm, KeySet};
#[cfg(feature = "jwks-url")]
use crate::jwks_url::KeysAtUrl;
use crate::problem::Problem;
use crate::watched::Watched;

/// Tokens that an identity provider signs, checked with its public keys (a JWKS).
///
/// RS256, ES256 and EdDSA are understood. A token needs an expiry. One that names an audience is refused unless
/// [`audience`](Self::audience) says that it is meant for this server.
///
/// ```
/// use std::time::Duration;
/// use umbel_server::Jwt;
///
/// let keys = r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1",
///     "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
/// let auth = Jwt::from_json(keys)?
///     .issuer("https://login.example")
///     .audience("umbel")
///     .user_claim("email")
///     .leeway(Duration::from_secs(30));
/// # let _: &dyn umbel_server::Auth = &auth;
/// # Ok::<(), umbel_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Jwt {
    keys: Keys,
    issuer: Option<String>,
    audiences: Vec<String>,
    leeway: Duration,
    user_claim: String,
}

#[derive(Clone)]
enum Keys {
    Fixed(Arc<KeySet>),
    File(Arc<Watched<KeySet>>),
    #[cfg(feature = "jwks-url")]
    Url(Arc<KeysAtUrl>),
}

/// The head of a token.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// What must be understood beyond the standard. We understand nothing of the kind.
    crit: Option<Value>,
}

impl Jwt {
    /// With the keys of a JSON text.
    pub fn from_json(keys: &str) -> Result<Self> {
        Ok(Self::with(Keys::Fixed(Arc::new(KeySet::parse(keys)?))))
    }

    /// With the keys of a file, which is read again a second after it changes.
    pub fn from_file(path: impl Into<PathBuf>) -> Result<Self> {
        Ok(Self::with(Keys::File(Watched::open(path.into(), KeySet::parse)?)))
    }

    /// With the keys at an address, such as `https://login.example/.well-known/jwks.json`.
    ///
    /// They are asked for when the first token comes, every ten minutes, and when a token names a key that is not known
    /// yet; at most once in 30 seconds, whatever comes. If they cannot be had, the last ones count for a day. The address
    /// must be one of HTTPS, but for this machine's.
    #[cfg(feature = "jwks-url")]
    pub fn from_url(url: &str) -> Result<Self> {
        Ok(Self::with(Keys::Url(Arc::new(KeysAtUrl::new(url)?))))
    }

    fn with(keys: Keys) -> Self {
        let (leeway, user_claim) = (Duration::from_secs(60), "sub".to_owned());
        Self { keys, issuer: None, audiences: Vec::new(), leeway, user_claim }
    }

    /// Who must have issued a token (`iss`); anybody who has the keys unless told.
    pub fn issuer(mut self, issuer: impl Into<String>) -> Self {
        self.issuer = Some(issuer.into());
        self
    }

    /// For whom a token must be meant (`aud`). Told several times, any of them will do.
    pub fn audience(mut self, audience: impl Into<String>) -> Self {
        self.audiences.push(audience.into());
        self
    }

    /// How far clocks may be apart; a minute unless told.
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.leeway = leeway;
        self
    }

    /// The claim that names the user; `sub` unless told.
    pub fn user_claim(mut self, claim: impl Into<String>) -> Self {
        self.user_claim = claim.into();
        self
    }

    /// What a token says, if it is good.
    async fn claims(&self, token: &str) -> Result<Object, Problem> {
        let bad = || Problem::invalid_token("that is no signed token (JWT)");
        let (signed, signature) = token.rsplit_once('.').ok_or_else(bad)?;
        let (header, claims) = signed.split_once('.').ok_or_else(bad)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| bad());
        let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| bad())?;
        let (claims, signature) = (decode(claims)?, decode(signature)?);
        let Some(algorithm) = Algorithm::named(&header.alg).filter(|_| header.crit.is_none()) else {
            let message = "the token is signed in a way that is not accepted: RS256, ES256 and EdDSA are";
            return Err(Problem::invalid_token(message));
        };
        let id = header.kid.as_deref();
        let keys = match &self.keys {
            Keys::Fixed(keys) => keys.clone(),
            Keys::File(file) => file.get().await,
            #[cfg(feature = "jwks-url")]
            Keys::Url(url) => url.get(id).await?,
        };
        if !keys.verifies(algorithm, id, signed.as_bytes(), &signature) {
            return Err(Problem::invalid_token("the token is not signed by one of the keys that count here"));
        }
        serde_json::from_slice(&claims).map_err(|_| bad())
    }

    /// Whether the token counts here and now.
    fn check(&self, claims: &Object, now: f64) -> Result<(), Problem> {
        let refuse = |message: &str| Err(Problem::invalid_token(message));
        let leeway = self.leeway.as_secs_f64();
        let Some(expiry) = claims.get("exp") else { return refuse("the token has no expiry (`exp`)") };
        if !expiry.as_f64().is_some_and(|expiry| now < expiry + leeway) {
            return refuse("the token has expired: get a new one");
        }
        let has_begun = |begin: &Value| begin.as_f64().is_some_and(|begin| begin <= now + leeway);
        if !claims.get("nbf").is_none_or(has_begun) {
            return refuse("the token does not count yet (`nbf`)");
        }
        let issuer = claims.get("iss").and_then(Value::as_str);
        if self.issuer.is_some() && issuer != self.issuer.as_deref() {
            return refuse("the token has another issuer (`iss`)");
        }
        let meant = |name: &Value| self.audiences.iter().any(|own| Some(own.as_str()) == name.as_str());
        let is_meant = match claims.get("aud") {
            None => self.audiences.is_empty(),
            Some(Value::Array(names)) => names.iter().any(meant),
            Some(name) => meant(name),
        };
        if is_meant { Ok(()) } else { refuse("the token is meant for somebody else (`aud`)") }
    }

    fn principal_of(&self, claims: Object) -> Result<Principal, Problem> {
        let id = match claims.get(&self.user_claim) {
            Some(Value::String(name)) if !name.is_empty() => name.into(),
            Some(Value::Number(number)) => number.to_string().into(),
            _ => {
                let message = format!("the token does not say whose it is (`{}`)", self.user_claim);
                return Err(Problem::invalid_token(message));
            }
        };
        Ok(Principal { id, claims: Some(Arc::new(Value::Object(claims))) })
    }
}

impl Auth for Jwt {
    fn principal<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Result<Principal, Problem>> {
        Box::pin(async move {
            let claims = self.claims(bearer_token(head)?).await?;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.check(&claims, now.as_secs_f64())?;
            self.principal_of(claims)
        })
    }
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: &dyn fmt::Debug = match &self.keys {
            Keys::Fixed(keys) => keys,
            Keys::File(file) => file,
            #[cfg(feature = "jwks-url")]
            Keys::Url(url) => url,
        };
        f.debug_struct("Jwt").field("keys", keys).field("issuer", &self.issuer).finish_non_exhaustive()
    }
}
