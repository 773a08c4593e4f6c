//! A signed token, and what it must say.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;
use umbel_core::{Error, ErrorKind, Object, Result};

use crate::keys::{Algorithm, KeySet};

/// A token as it came: nothing that it says counts before a key has checked it.
#[derive(Debug)]
pub struct Token<'a> {
    signed: &'a str,
    algorithm: Algorithm,
    key_id: Option<String>,
    claims: Vec<u8>,
    signature: Vec<u8>,
}

/// The head of a token.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// What must be understood beyond the standard. We understand nothing of the kind.
    crit: Option<Value>,
}

impl<'a> Token<'a> {
    /// Reads a token that is signed in a way that is accepted.
    pub fn read(token: &'a str) -> Result<Self> {
        let (signed, signature) = token.rsplit_once('.').ok_or_else(no_token)?;
        let (header, claims) = signed.split_once('.').ok_or_else(no_token)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| no_token());
        let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| no_token())?;
        let (claims, signature) = (decode(claims)?, decode(signature)?);
        let Some(algorithm) = Algorithm::named(&header.alg).filter(|_| header.crit.is_none()) else {
            let message = "the token is signed in a way that is not accepted: RS256, ES256 and EdDSA are";
            return Err(refuse(message));
        };
        Ok(Self { signed, algorithm, key_id: header.kid, claims, signature })
    }

    /// Which key is said to have signed it.
    pub fn key_id(&self) -> Option<&str> {
        self.key_id.as_deref()
    }

    /// What it says, if one of these keys signed it.
    pub fn claims(&self, keys: &KeySet) -> Result<Object> {
        if !keys.verifies(self.algorithm, self.key_id(), self.signed.as_bytes(), &self.signature) {
            return Err(refuse("the token is not signed by one of the keys that count here"));
        }
        serde_json::from_slice(&self.claims).map_err(|_| no_token())
    }
}

fn no_token() -> Error {
    refuse("that is no signed token (JWT)")
}

fn refuse(message: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, message)
}

/// What a token must say to count.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Who must have issued it (`iss`); anybody who has the keys if it is `None`.
    pub issuer: Option<String>,
    /// For whom it must be meant (`aud`); any of them will do. A token that names an audience needs one of them here.
    pub audiences: Vec<String>,
    /// How far clocks may be apart; a minute.
    pub leeway: Duration,
}

impl Default for Expected {
    fn default() -> Self {
        Self { issuer: None, audiences: Vec::new(), leeway: Duration::from_secs(60) }
    }
}

impl Expected {
    /// Whether a token counts here and now, in seconds since 1970.
    pub fn check(&self, claims: &Object, now: f64) -> Result<()> {
        let refuse = |message: &str| Err(refuse(message));
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
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_must_be_meant_for_us_by_whom_we_trust_and_now() {
        let expected = Expected {
            issuer: Some("https://login.example".into()),
            audiences: vec!["me".into()],
            leeway: Duration::from_secs(10),
        };
        let good = json!({"iss": "https://login.example", "aud": ["you", "me"], "exp": 100, "nbf": 50});
        assert!(expected.check(good.as_object().unwrap(), 109.0).is_ok());
        for (key, value, now, said) in [
            ("exp", Value::Null, 60.0, "expired"),
            ("exp", json!("100"), 60.0, "expired"),
            ("exp", json!(100), 110.0, "expired"),
            ("nbf", json!(71), 60.0, "nbf"),
            ("iss", json!("https://evil.example"), 60.0, "iss"),
            ("aud", json!("you"), 60.0, "aud"),
            ("aud", json!([["me"]]), 60.0, "aud"),
        ] {
            let mut claims = good.as_object().unwrap().clone();
            claims.insert(key.to_owned(), value);
            let error = expected.check(&claims, now).unwrap_err();
            assert!(error.message().contains(said), "{key}: {error}");
        }
    }

    #[test]
    fn texts_that_are_no_tokens_are_refused() {
        let header = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let none = header(json!({"alg": "none"}));
        let shared = header(json!({"alg": "HS256"}));
        let critical = header(json!({"alg": "RS256", "crit": ["b64"]}));
        for text in ["", ".", "..", "a.b.c", "e30.e30.", "é.e30.e30"] {
            assert!(Token::read(text).is_err(), "{text}");
        }
        for head in [none, shared, critical] {
            let error = Token::read(&format!("{head}.e30.AAAA")).map(|_| ()).unwrap_err();
            assert!(error.message().contains("not accepted"), "{error}");
        }
    }
}
