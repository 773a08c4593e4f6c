//! Private keys that sign tokens.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};
use umbel_core::{Error, ErrorKind, Result};

/// A private key that signs tokens: one of RSA with RS256, of P-256 with ES256, of Ed25519 with EdDSA.
pub struct SigningKey {
    pair: Pair,
    id: Option<String>,
}

enum Pair {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    /// A key in PEM form (PKCS#8; RSA also in its older form). Its id goes into the head of tokens.
    pub fn from_pem(pem: &str, id: Option<String>) -> Result<Self> {
        // What is wrong with it is not told in its own words: it is a secret.
        let refuse = || {
            let kinds = "RSA of 2048 bits or more, P-256 or Ed25519";
            let message = format!(
                "the private key cannot be used: it must be one of {kinds}, in the form that `openssl pkcs8 -topk8 -nodes` writes"
            );
            Error::new(ErrorKind::Build, message)
        };
        let text: String =
            pem.lines().filter(|line| !line.starts_with("-----")).flat_map(str::split_whitespace).collect();
        let der = STANDARD.decode(text).map_err(|_| refuse())?;
        let rsa = || RsaKeyPair::from_pkcs8(&der).or_else(|_| RsaKeyPair::from_der(&der)).ok();
        let p256 = || {
            let random = SystemRandom::new();
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &der, &random).ok()
        };
        // Without its public half, which is made from the private one, is how OpenSSL writes it.
        let ed25519 = || Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).ok();
        let pair = rsa().map(Pair::Rsa).or_else(|| p256().map(Pair::P256));
        let pair = pair.or_else(|| ed25519().map(Pair::Ed25519)).ok_or_else(refuse)?;
        Ok(Self { pair, id })
    }

    /// A token that says this.
    pub fn sign(&self, claims: &Value) -> Result<String> {
        let mut header = json!({"alg": self.pair.algorithm(), "typ": "JWT"});
        if let (Some(header), Some(id)) = (header.as_object_mut(), &self.id) {
            header.insert("kid".to_owned(), Value::String(id.clone()));
        }
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&header), encode(claims));
        let signature = self
            .pair
            .sign(signed.as_bytes())
            .map_err(|_| Error::new(ErrorKind::Other, "the token could not be signed"))?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

impl Pair {
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::P256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, ring::error::Unspecified> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)?;
                Ok(signature)
            }
            Self::P256(pair) => Ok(pair.sign(&random, message)?.as_ref().to_vec()),
            Self::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
        }
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
    use ring::signature::KeyPair;

    use super::*;
    use crate::{KeySet, Token};

    const RSA: &str = include_str!("../tests/rsa_key.pem");
    const P256: &str = include_str!("../tests/p256_key.pem");
    const ED25519: &str = include_str!("../tests/ed25519_key.pem");

    /// The public half of a key as it is published, with one bit changed if asked for.
    fn public(key: &SigningKey, is_changed: bool) -> KeySet {
        let encode = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            bytes[20] ^= u8::from(is_changed);
            URL_SAFE_NO_PAD.encode(bytes)
        };
        let jwk = match &key.pair {
            Pair::Rsa(pair) => {
                let public: ring::rsa::PublicKeyComponents<Vec<u8>> = pair.public().into();
                json!({"kty": "RSA", "kid": "k1", "n": encode(&public.n), "e": "AQAB"})
            }
            Pair::P256(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "kid": "k1", "crv": "P-256", "x": encode(x), "y": encode(y)})
            }
            Pair::Ed25519(pair) => {
                let x = encode(pair.public_key().as_ref());
                json!({"kty": "OKP", "kid": "k1", "crv": "Ed25519", "x": x})
            }
        };
        KeySet::parse(&json!({"keys": [jwk]}).to_string()).unwrap()
    }

    #[test]
    fn what_a_key_signs_is_checked_by_its_public_half_alone() {
        for pem in [RSA, P256, ED25519] {
            let key = SigningKey::from_pem(pem, Some("k1".into())).unwrap();
            let token = key.sign(&json!({"sub": "robot"})).unwrap();
            let read = Token::read(&token).unwrap();
            assert_eq!(read.key_id(), Some("k1"));
            assert_eq!(read.claims(&public(&key, false)).unwrap()["sub"], "robot");
            assert!(read.claims(&public(&key, true)).is_err());
        }
    }

    #[test]
    fn a_key_that_is_none_is_refused_without_being_shown() {
        for pem in ["hunter2", "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----", ""] {
            let error = SigningKey::from_pem(pem, None).unwrap_err();
            assert!(!format!("{error:?}").contains("hunter2"));
        }
        assert_eq!(format!("{:?}", SigningKey::from_pem(P256, None).unwrap()), "SigningKey(…)");
    }
}
