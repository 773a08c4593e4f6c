//! OpenID Connect: what an issuer publishes, and who its id tokens are about.

use std::sync::{Mutex, PoisonError};

use reqwest::{Method, Url};
use serde::Deserialize;
use serde_json::Value;
use umbel_core::{Error, ErrorKind, Result, ToolError};
use umbel_jwt::{Expected, KeySet, Token};

use super::token::host;
use super::{Endpoints, address};
use crate::guard::Guard;
use crate::http::{Http, Request};

/// How long a discovery document counts, in seconds.
const FRESH: f64 = 3_600.0;

/// Whoever signs people in.
#[derive(Debug)]
pub(super) struct Issuer {
    pub(super) name: String,
    /// Where its discovery document is.
    pub(super) url: Url,
    /// Where tokens are given up, if the program says so.
    revoke: Option<Url>,
    /// What it said, and when.
    known: Mutex<Option<(Published, f64)>>,
}

/// What an issuer publishes.
#[derive(Clone, Debug)]
pub(super) struct Published {
    pub(super) endpoints: Endpoints,
    keys: Url,
}

#[derive(Deserialize)]
struct Document {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    revocation_endpoint: Option<String>,
    jwks_uri: String,
}

impl Issuer {
    pub(super) fn new(name: String, revoke: Option<Url>, guard: &Guard) -> Result<Self> {
        let url = format!("{}/.well-known/openid-configuration", name.trim_end_matches('/'));
        let url = address("issuer", &url, guard)?;
        Ok(Self { name, url, revoke, known: Mutex::default() })
    }

    /// Where it is asked for what.
    pub(super) async fn published(&self, http: &Http, now: f64) -> Result<Published> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((published, _)) = known.filter(|(_, since)| (0.0..FRESH).contains(&(now - since))) {
            return Ok(published);
        }
        let published = self.discover(http).await?;
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some((published.clone(), now));
        Ok(published)
    }

    async fn discover(&self, http: &Http) -> Result<Published> {
        let failed = |why: &str| {
            let message = format!("`{}` cannot be used to sign in: {why}", host(&self.url));
            Error::new(ErrorKind::Other, message)
        };
        let body = get(http, &self.url).await.map_err(|error| failed(error.message()))?;
        let document: Document = serde_json::from_slice(&body)
            .map_err(|_| failed("it has no discovery document with all that is needed"))?;
        // With or without a slash at its end, the document is at the same place. What counts is how the issuer writes it.
        let plain = |name: &str| name.strip_suffix('/').unwrap_or(name).to_owned();
        if plain(&document.issuer) != plain(&self.name) {
            return Err(failed("its discovery document names another issuer. Check how it is written"));
        }
        let wrong = |error: Error| failed(error.message());
        let place = |what: &str, url: &str| address(what, url, http.guard()).map_err(wrong);
        let revoke = match &self.revoke {
            Some(url) => Some(url.clone()),
            None => document.revocation_endpoint.map(|url| place("revocation_endpoint", &url)).transpose()?,
        };
        Ok(Published {
            endpoints: Endpoints {
                authorize: Some(place("authorization_endpoint", &document.authorization_endpoint)?),
                token: place("token_endpoint", &document.token_endpoint)?,
                revoke,
                issuer: Some(document.issuer),
            },
            keys: place("jwks_uri", &document.jwks_uri)?,
        })
    }

    /// Whom an id token is about, if it is good.
    pub(super) async fn person(
        &self,
        http: &Http,
        published: &Published,
        token: &str,
        client: &str,
        nonce: Option<&str>,
        now: f64,
    ) -> Result<String> {
        let failed = |why: &str| {
            let message = format!("the id token of `{}` is refused: {why}", host(&self.url));
            Error::new(ErrorKind::Other, message)
        };
        let wrong = |error: Error| failed(error.message());
        let token = Token::read(token).map_err(wrong)?;
        // People seldom sign in, so keys are not kept: those that count are those that are there now.
        let keys = get(http, &published.keys).await.map_err(wrong)?;
        let keys = std::str::from_utf8(&keys).map_err(|_| failed("its keys cannot be read"))?;
        let claims = token.claims(&KeySet::parse(keys).map_err(wrong)?).map_err(wrong)?;
        let (issuer, audiences) = (published.endpoints.issuer.clone(), vec![client.to_owned()]);
        Expected { issuer, audiences, ..Expected::default() }.check(&claims, now).map_err(wrong)?;
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if nonce.is_some() && text("nonce") != nonce {
            return Err(failed("it belongs to another sign-in (`nonce`)"));
        }
        if claims.contains_key("azp") && text("azp") != Some(client) {
            return Err(failed("it was given to somebody else (`azp`)"));
        }
        text("sub").map(str::to_owned).ok_or_else(|| failed("it does not say whom it is about (`sub`)"))
    }
}

/// What is at an address, whole.
async fn get(http: &Http, url: &Url) -> Result<Vec<u8>> {
    let fetched = http.fetch(&Request::new(Method::GET, url.clone())).await.map_err(ToolError::into_error)?;
    match fetched.status {
        200 => Ok(fetched.body),
        status => Err(Error::new(ErrorKind::Other, format!("it answers with the status {status}"))),
    }
}
