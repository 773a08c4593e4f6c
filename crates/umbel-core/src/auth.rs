//! Credentials that tools and toolsets need: how they come about, what people are asked, and what a tool gets.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::credential::Credential;
use crate::error::{Error, ErrorKind, Result};
use crate::work::Work;

/// A credential that a tool or toolset needs.
///
/// Endpoints and secrets of the program are in the method, and come from nowhere else: nothing that is said in a session
/// changes them.
#[derive(Clone, Debug)]
pub struct AuthConfig {
    /// Its name in the credential store. Tools that name the same one share it. Names that begin with `_` are Umbel's own.
    pub credential: SmolStr,
    /// How it comes about.
    pub method: Arc<dyn AuthMethod>,
}

impl AuthConfig {
    /// A credential by its name in the store, and how it comes about.
    pub fn new(credential: impl Into<SmolStr>, method: impl AuthMethod + 'static) -> Self {
        Self { credential: credential.into(), method: Arc::new(method) }
    }

    /// An error if no credential can have that name.
    pub fn check(&self) -> Result<()> {
        if self.credential.is_empty() || self.credential.starts_with('_') {
            let message = format!(
                "a credential cannot be named `{}`: names are not empty, and those that begin with `_` are Umbel's own",
                self.credential
            );
            return Err(Error::new(ErrorKind::Build, message));
        }
        Ok(())
    }

    /// What people are shown of it, in the form of google-adk.
    pub fn shown(&self, exchanged: &Value) -> Value {
        let mut shown = json!({"authScheme": self.method.scheme(), "credentialKey": self.credential});
        if let (Some(shown), false) = (shown.as_object_mut(), exchanged.is_null()) {
            shown.insert("exchangedAuthCredential".to_owned(), exchanged.clone());
        }
        shown
    }
}

/// How a credential comes about: from the program, from a person, or from a service.
///
/// The runtime keeps what a method gives, per user and by the name in [`AuthConfig`], and renews, exchanges and revokes a
/// credential one at a time, in all processes that share a store. **Error messages reach models and logs: they must not hold secrets.** Times are seconds
/// since 1970.
pub trait AuthMethod: Send + Sync + fmt::Debug {
    /// What it is, as google-adk's `authScheme`. It is shown to people and written to the log: it holds no secret.
    fn scheme(&self) -> Value;

    /// The credential itself, if the program has it. Then nothing is kept, and nobody is asked.
    fn fixed(&self) -> Option<Credential> {
        None
    }

    /// What is to be done with what is kept. One that is about to expire should be renewed.
    fn standing(&self, kept: Option<&Credential>, now: f64) -> Standing;

    /// How the credential goes along with an HTTP request, if it does.
    fn http(&self, credential: &Credential) -> Option<HttpAuth>;

    /// A new credential that needs no person: from a refresh token, or from secrets of the program. `None` if there must be
    /// a person. An error leaves what is kept as it is.
    fn renew<'a>(&'a self, _kept: Option<&'a Credential>, _now: f64) -> Work<'a, Result<Option<Credential>>> {
        Work::done(Ok(None))
    }

    /// What a person is to be asked.
    fn ask(&self, _now: f64) -> Work<'_, Result<AuthRequest>> {
        let message = "this credential cannot be asked of people";
        Work::done(Err(Error::new(ErrorKind::Unsupported, message)))
    }

    /// The credential that a person's answer leads to, as it is to be kept. An error is told to the model, and the answer is
    /// gone: the next call asks anew.
    fn exchange<'a>(&'a self, answer: AuthAnswer, now: f64) -> Work<'a, Result<Credential>>;

    /// Tells the service that the credential is not used any more. Unless a method does so, the service is not told.
    fn revoke<'a>(&'a self, _kept: &'a Credential, _now: f64) -> Work<'a, Result<()>> {
        Work::done(Ok(()))
    }
}

/// What is to be done with a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It can be used.
    Ready,
    /// A new one can be had without a person.
    Renew,
    /// A person must give it.
    Ask,
}

/// What a person is asked who is to give a credential.
#[derive(Clone)]
pub struct AuthRequest {
    /// The question.
    pub message: String,
    /// What people are shown, as google-adk's `exchangedAuthCredential`: such as `{"authType": "oauth2", "oauth2":
    /// {"authUri": …, "state": …}}`. It is written to the log: it holds no secret.
    pub shown: Value,
    /// What an answer looks like, for those who make a form of it.
    pub schema: Option<Value>,
    /// What an answer must be. It is checked when it comes, and refused if it is otherwise.
    pub expects: Expects,
    /// What must not be seen and is needed once there is an answer: such as the verifier of PKCE. It is kept in the
    /// credential store until then.
    pub pending: Value,
    /// How long it may be answered; for ever unless said.
    pub expires_in: Option<Duration>,
}

impl fmt::Debug for AuthRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthRequest").field("message", &self.message).finish_non_exhaustive()
    }
}

/// What a person's answer must be. Known without the method, so that an answer can be checked in any process, before
/// anything is done with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Expects {
    /// The address that the browser was sent back to, with its query; or the code and state in it. What is kept of it are
    /// the query's parameters, `code` among them.
    Redirect {
        /// The address without its query.
        uri: String,
        /// What `state` must be.
        state: String,
        /// What `iss` must be, if it is there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        issuer: Option<String>,
    },
    /// Texts by name, such as `apiKey`, or `username` and `password`. What is kept is an object of these.
    Fields {
        /// The names.
        names: Vec<String>,
        /// Whether they go into a header as they are: then they are visible ASCII, and their ends are trimmed.
        #[serde(default)]
        ascii: bool,
    },
}

/// What became of a question: a person's answer, checked, and what was kept for it.
#[derive(Clone)]
pub struct AuthAnswer {
    /// What is left of the answer: see [`Expects`].
    pub given: Value,
    /// The [`AuthRequest::pending`] of the question.
    pub pending: Value,
}

impl AuthAnswer {
    /// A text that was given.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.given.get(name).and_then(Value::as_str)
    }
}

impl fmt::Debug for AuthAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthAnswer(…)")
    }
}

/// A credential as a tool gets it. Its debug form does not show it.
#[derive(Clone, Debug)]
pub struct Grant {
    credential: Credential,
    http: Option<HttpAuth>,
}

impl Grant {
    /// A credential as its method has it.
    pub fn new(method: &dyn AuthMethod, credential: Credential) -> Self {
        Self { http: method.http(&credential), credential }
    }

    /// The secret as it is kept.
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    /// How it goes along with an HTTP request, if it does.
    pub fn http(&self) -> Option<&HttpAuth> {
        self.http.as_ref()
    }
}

/// What of an HTTP request carries a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HttpPlace {
    /// A header.
    Header,
    /// A parameter of the query.
    Query,
    /// A cookie.
    Cookie,
}

/// How a credential goes along with an HTTP request. Its debug form does not show the value.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpAuth {
    /// What carries it.
    pub place: HttpPlace,
    /// The name of the header, parameter or cookie.
    pub name: SmolStr,
    value: String,
}

impl HttpAuth {
    /// A header, parameter or cookie with its value.
    pub fn new(place: HttpPlace, name: impl Into<SmolStr>, value: impl Into<String>) -> Self {
        Self { place, name: name.into(), value: value.into() }
    }

    /// `Authorization: Bearer …`.
    pub fn bearer(token: &str) -> Self {
        Self::new(HttpPlace::Header, "Authorization", format!("Bearer {token}"))
    }

    /// The value, not encoded for a query or a cookie: look at it as late as possible.
    pub fn expose(&self) -> &str {
        &self.value
    }
}

impl fmt::Debug for HttpAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpAuth({:?} {})", self.place, self.name)
    }
}
