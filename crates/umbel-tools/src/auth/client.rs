//! Who asks for tokens.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use umbel_core::{Result, ToolError};

use crate::http::{Request, encode, header};
use crate::secret::Secret;

/// A program as an authorization server knows it: its client.
///
/// Without a secret it is a public client, which says its id and proves nothing.
#[derive(Clone, Debug)]
pub struct OAuthClient {
    pub(super) id: String,
    secret: Option<Secret>,
    in_body: bool,
}

impl OAuthClient {
    /// A client by its id.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), secret: None, in_body: false }
    }

    /// With a secret, sent in a header (`client_secret_basic`).
    pub fn secret(mut self, secret: impl Into<Secret>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Sends the secret in the body (`client_secret_post`), for servers that want it there.
    pub fn secret_in_body(mut self) -> Self {
        self.in_body = true;
        self
    }

    /// Says in a request who asks.
    pub(super) fn sign(
        &self,
        request: &mut Request,
        form: &mut Vec<(&str, String)>,
    ) -> Result<(), ToolError> {
        match &self.secret {
            Some(secret) if !self.in_body => {
                let pair = format!("{}:{}", encode(&self.id), encode(secret.reveal()));
                let (name, value) = header("authorization", &format!("Basic {}", STANDARD.encode(pair)))?;
                request.own.insert(name, value);
            }
            secret => {
                form.push(("client_id", self.id.clone()));
                form.extend(secret.iter().map(|secret| ("client_secret", secret.reveal().to_owned())));
            }
        }
        Ok(())
    }
}
