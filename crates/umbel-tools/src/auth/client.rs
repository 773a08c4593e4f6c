//! Who asks for tokens.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use umbel_core::{Result, ToolError};
use umbel_jwt::SigningKey;

use super::random;
use crate::http::{Request, encode, header};
use crate::secret::Secret;

/// How long what a client signs about itself is good for, in seconds.
const ASSERTION: i64 = 300;
const JWT_BEARER: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";

/// A program as an authorization server knows it: its client.
///
/// Without a secret or a key it is a public client, which says its id and proves nothing.
#[derive(Clone, Debug)]
pub struct OAuthClient {
    id: String,
    proof: Proof,
    in_body: bool,
}

/// How a client proves who it is.
#[derive(Clone, Debug)]
enum Proof {
    None,
    Secret(Secret),
    Key(Arc<SigningKey>),
}

impl OAuthClient {
    /// A client by its id.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), proof: Proof::None, in_body: false }
    }

    /// With a secret, sent in a header (`client_secret_basic`).
    pub fn secret(mut self, secret: impl Into<Secret>) -> Self {
        self.proof = Proof::Secret(secret.into());
        self
    }

    /// Sends the secret in the body (`client_secret_post`), for servers that want it there.
    pub fn secret_in_body(mut self) -> Self {
        self.in_body = true;
        self
    }

    /// With a private key, which signs who asks and is sent nowhere (`private_key_jwt`, RFC 7523): one of RSA, P-256 or Ed25519 in
    /// PEM form. The server knows its public half, perhaps by this id.
    pub fn private_key(mut self, pem: impl Into<Secret>, key_id: Option<&str>) -> Result<Self> {
        let key = SigningKey::from_pem(pem.into().reveal(), key_id.map(str::to_owned))?;
        self.proof = Proof::Key(Arc::new(key));
        Ok(self)
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether it can prove who it is: by a secret or a key, which is for one server and no other.
    pub fn has_proof(&self) -> bool {
        !matches!(self.proof, Proof::None)
    }

    /// Says in a request who asks the server of that name, and when.
    pub(super) fn sign(
        &self,
        request: &mut Request,
        form: &mut Vec<(&str, String)>,
        server: &str,
        now: f64,
    ) -> Result<(), ToolError> {
        if let (Proof::Secret(secret), false) = (&self.proof, self.in_body) {
            let pair = format!("{}:{}", encode(&self.id), encode(secret.reveal()));
            let (name, value) = header("authorization", &format!("Basic {}", STANDARD.encode(pair)))?;
            request.own.insert(name, value);
            return Ok(());
        }
        form.push(("client_id", self.id.clone()));
        match &self.proof {
            Proof::None => {}
            Proof::Secret(secret) => form.push(("client_secret", secret.reveal().to_owned())),
            Proof::Key(key) => {
                let (begin, end) = (now as i64, now as i64 + ASSERTION);
                let claims = json!({"iss": self.id, "sub": self.id, "aud": server, "jti": random()?,
                    "iat": begin, "exp": end});
                form.push(("client_assertion_type", JWT_BEARER.to_owned()));
                form.push(("client_assertion", key.sign(&claims)?));
            }
        }
        Ok(())
    }
}
