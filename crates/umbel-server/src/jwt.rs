//! Tokens that someone else issues and signs: JSON Web Tokens (RFC 7519).

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::request::Parts;
use serde_json::Value;
use smol_str::SmolStr;
use umbel_core::{BoxFuture, Error, Object, Result};
use umbel_jwt::{Expected, KeySet, Token};

use crate::auth::{Auth, Principal, bearer_token};
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
    expected: Expected,
    user_claim: String,
    scope_claim: Option<String>,
}

#[derive(Clone)]
enum Keys {
    Fixed(Arc<KeySet>),
    File(Arc<Watched<KeySet>>),
    #[cfg(feature = "jwks-url")]
    Url(Arc<KeysAtUrl>),
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
        Self { keys, expected: Expected::default(), user_claim: "sub".to_owned(), scope_claim: None }
    }

    /// Who must have issued a token (`iss`); anybody who has the keys unless told.
    pub fn issuer(mut self, issuer: impl Into<String>) -> Self {
        self.expected.issuer = Some(issuer.into());
        self
    }

    /// For whom a token must be meant (`aud`). Told several times, any of them will do.
    pub fn audience(mut self, audience: impl Into<String>) -> Self {
        self.expected.audiences.push(audience.into());
        self
    }

    /// How far clocks may be apart; a minute unless told.
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.expected.leeway = leeway;
        self
    }

    /// The claim that names the user; `sub` unless told.
    pub fn user_claim(mut self, claim: impl Into<String>) -> Self {
        self.user_claim = claim.into();
        self
    }

    /// The claim that says what the user may do, as a text with spaces or a list of [scopes](Principal::scopes), such as `scope`.
    /// Without it a token may do what everybody may; with it, one that lacks the claim may do nothing.
    pub fn scope_claim(mut self, claim: impl Into<String>) -> Self {
        self.scope_claim = Some(claim.into());
        self
    }

    /// What a token says, if it counts here and now.
    async fn claims(&self, token: &str) -> Result<Object, Problem> {
        let refuse = |error: Error| Problem::invalid_token(error.message());
        let token = Token::read(token).map_err(refuse)?;
        let keys = match &self.keys {
            Keys::Fixed(keys) => keys.clone(),
            Keys::File(file) => file.get().await,
            #[cfg(feature = "jwks-url")]
            Keys::Url(url) => url.get(token.key_id()).await?,
        };
        let claims = token.claims(&keys).map_err(refuse)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.expected.check(&claims, now.as_secs_f64()).map_err(refuse)?;
        Ok(claims)
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
        let scopes = self.scope_claim.as_ref().map(|claim| match claims.get(claim) {
            Some(Value::String(scopes)) => scopes.split_whitespace().map(SmolStr::from).collect(),
            Some(Value::Array(scopes)) => {
                scopes.iter().filter_map(Value::as_str).map(SmolStr::from).collect()
            }
            _ => Arc::default(),
        });
        Ok(Principal { id, claims: Some(Arc::new(Value::Object(claims))), scopes })
    }
}

impl Auth for Jwt {
    fn principal<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Result<Principal, Problem>> {
        Box::pin(async move { self.principal_of(self.claims(bearer_token(head)?).await?) })
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
        f.debug_struct("Jwt")
            .field("keys", keys)
            .field("issuer", &self.expected.issuer)
            .finish_non_exhaustive()
    }
}
