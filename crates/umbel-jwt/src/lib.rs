//! Signed tokens (JWT, RFC 7519) and key sets (JWKS, RFC 7517). No I/O.
//!
//! [`Token`] is checked with a [`KeySet`], and what it says with [`Expected`]; [`SigningKey`] makes one. RS256, ES256 and EdDSA are
//! understood. Signatures with a shared secret are not, nor is none at all: who has a public key must not be able to sign.
//!
//! ```
//! use umbel_jwt::{Expected, KeySet, Token};
//!
//! let keys = KeySet::parse(
//!     r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "1",
//!         "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#,
//! )?;
//! assert!(keys.knows("1"));
//! // Not signed by that key.
//! let token = Token::read("eyJhbGciOiJFZERTQSIsImtpZCI6IjEifQ.e30.AAAA")?;
//! assert_eq!(token.key_id(), Some("1"));
//! assert!(token.claims(&keys).is_err());
//!
//! let expected = Expected { issuer: Some("https://login.example".into()), ..Expected::default() };
//! let claims = serde_json::json!({"iss": "https://login.example", "exp": 1_000});
//! assert!(expected.check(claims.as_object().unwrap(), 999.0).is_ok());
//! assert!(expected.check(claims.as_object().unwrap(), 2_000.0).is_err());
//! # Ok::<(), umbel_core::Error>(())
//! ```
//!
//! # Layout
//! - `token.rs`: a token, and what it must say; `keys.rs`: public keys; `sign.rs`: private ones

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod keys;
mod sign;
mod token;

pub use self::keys::KeySet;
pub use self::sign::SigningKey;
pub use self::token::{Expected, Token};
