//! Private keys that sign tokens.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::{Value, json};
use umbel_core::{Error, ErrorKind, Result};

/// An RSA key that signs tokens with RS256.
pub struct SigningKey {
    pair: RsaKeyPair,
    id: Option<String>,
}

impl SigningKey {
    /// A key in PEM form, of 2048 bits or more. Its id goes into the head of tokens.
    pub fn from_pem(pem: &str, id: Option<String>) -> Result<Self> {
        // What is wrong with it is not told in its own words: it is a secret.
        let refuse = || Error::new(ErrorKind::Build, "the private key is no RSA key of 2048 bits or more");
        let text: String =
            pem.lines().filter(|line| !line.starts_with("-----")).flat_map(str::split_whitespace).collect();
        let der = STANDARD.decode(text).map_err(|_| refuse())?;
        let pair = RsaKeyPair::from_pkcs8(&der).or_else(|_| RsaKeyPair::from_der(&der));
        Ok(Self { pair: pair.map_err(|_| refuse())?, id })
    }

    /// A token that says this.
    pub fn sign(&self, claims: &Value) -> Result<String> {
        let mut header = json!({"alg": "RS256", "typ": "JWT"});
        if let (Some(header), Some(id)) = (header.as_object_mut(), &self.id) {
            header.insert("kid".to_owned(), Value::String(id.clone()));
        }
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&header), encode(claims));
        let mut signature = vec![0; self.pair.public().modulus_len()];
        self.pair
            .sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature)
            .map_err(|_| Error::new(ErrorKind::Other, "the token could not be signed"))?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// The key is not shown.
impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KeySet, Token};

    const PEM: &str = include_str!("../tests/rsa_key.pem");

    #[test]
    fn what_a_key_signs_is_checked_by_its_public_half_alone() {
        let key = SigningKey::from_pem(PEM, Some("k1".into())).unwrap();
        let token = key.sign(&json!({"sub": "robot"})).unwrap();
        let keys = |n: &[u8]| {
            let n = URL_SAFE_NO_PAD.encode(n);
            let set = json!({"keys": [{"kty": "RSA", "kid": "k1", "n": n, "e": "AQAB"}]});
            KeySet::parse(&set.to_string()).unwrap()
        };
        let public: ring::rsa::PublicKeyComponents<Vec<u8>> = key.pair.public().into();
        let read = Token::read(&token).unwrap();
        assert_eq!(read.key_id(), Some("k1"));
        assert_eq!(read.claims(&keys(&public.n)).unwrap()["sub"], "robot");
        let mut other = public.n;
        other[100] ^= 1;
        assert!(read.claims(&keys(&other)).is_err());
    }

    #[test]
    fn a_key_that_is_none_is_refused_without_being_shown() {
        for pem in ["hunter2", "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----", ""] {
            let error = SigningKey::from_pem(pem, None).unwrap_err();
            assert!(!format!("{error:?}").contains("hunter2"));
        }
        assert_eq!(format!("{:?}", SigningKey::from_pem(PEM, None).unwrap()), "SigningKey(…)");
    }
}
