//! Credentials that a service gives: OAuth 2, OpenID Connect, service accounts.

mod client;
mod method;
mod open_id;
mod token;

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Url;
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;
use umbel_core::{AuthMethod, Error, ErrorKind, Result};
use umbel_jwt::SigningKey;

pub use self::client::OAuthClient;
pub use self::method::OAuthMethod;
use self::method::{Kind, Places};
use self::open_id::Issuer;
use crate::guard::{Guard, Lookup};
use crate::http::{Http, HttpLimits};

/// Where tokens of Google's service accounts come from, unless their file says otherwise.
const GOOGLE: &str = "https://oauth2.googleapis.com/token";

/// Parameters that have a meaning of their own, and cannot be given as others.
const OWN: [&str; 19] = [
    "assertion",
    "client_assertion",
    "client_assertion_type",
    "client_id",
    "client_secret",
    "code",
    "code_challenge",
    "code_challenge_method",
    "code_verifier",
    "grant_type",
    "nonce",
    "redirect_uri",
    "refresh_token",
    "response_type",
    "scope",
    "state",
    "subject_token",
    "subject_token_type",
    "token",
];

/// A credential that an authorization server gives, in the making.
///
/// | | Who is asked | For |
/// |---|---|---|
/// | [`code`](Self::code) | A person signs in, with PKCE and state | What belongs to a person |
/// | [`open_id`](Self::open_id) | The same, by an issuer that publishes where it is asked | The same |
/// | [`client_credentials`](Self::client_credentials) | Nobody | What belongs to the program |
/// | [`token_exchange`](Self::token_exchange) | Whoever the other method asks | A service behind another one |
/// | [`service_account`](Self::service_account) | Nobody | Google, and who does as it does |
///
/// ```
/// use umbel_core::AuthConfig;
/// use umbel_tools::{OAuth, OAuthClient, Secret};
///
/// let client = OAuthClient::new("my-app").secret(Secret::new("hush"));
/// let calendar = OAuth::code(
///     client,
///     "https://login.example/authorize",
///     "https://login.example/token",
///     "https://my-app.example/callback",
/// )
/// .scope("calendar.read")
/// .revocation_url("https://login.example/revoke")
/// .build()?;
/// let auth = AuthConfig::new("calendar", calendar);
/// assert_eq!(auth.method.scheme()["type"], "oauth2");
/// # Ok::<(), umbel_core::Error>(())
/// ```
///
/// Addresses must be public ones of HTTPS, unless [`allow_private`](Self::allow_private) says otherwise. Tokens are renewed a
/// minute before they expire, short-lived ones when a tenth of their time is left, and are used only with the server, client, scopes
/// and services that they were given for. No secret is in any message.
pub struct OAuth {
    grant: Grant,
    client: Option<OAuthClient>,
    scopes: Vec<String>,
    parameters: Vec<(String, String)>,
    revocation_url: Option<String>,
    issuer: Option<String>,
    question: Option<String>,
    private: Vec<String>,
    lookup: Option<Arc<dyn Lookup>>,
    limits: HttpLimits,
}

/// What tokens are given for.
enum Grant {
    Code { authorize: String, token: String, redirect: String },
    OpenId { issuer: String, redirect: String },
    Client { token: String },
    Exchange { token: String, subject: Arc<dyn AuthMethod>, kind: String },
    Account { key: String, person: Option<String> },
}

/// Where an authorization server is asked for what.
#[derive(Clone, Debug)]
struct Endpoints {
    /// Where people sign in, if they do.
    authorize: Option<Url>,
    token: Url,
    revoke: Option<Url>,
    /// Its name, if it publishes one.
    issuer: Option<String>,
}

/// A service account as its file has it.
#[derive(Deserialize)]
struct AccountFile {
    client_email: String,
    private_key: String,
    private_key_id: Option<String>,
    token_uri: Option<String>,
}

impl OAuth {
    /// A person signs in at one address and comes back to another with a code, for which there is a token (RFC 6749), with
    /// PKCE (RFC 7636). The redirect URI must be known to the server.
    pub fn code(
        client: OAuthClient,
        authorize_url: impl Into<String>,
        token_url: impl Into<String>,
        redirect_uri: impl Into<String>,
    ) -> Self {
        let (authorize, token) = (authorize_url.into(), token_url.into());
        Self::new(Grant::Code { authorize, token, redirect: redirect_uri.into() }, Some(client))
    }

    /// The same with OpenID Connect: the issuer publishes where it is asked, and says by a signed token who signed in. The
    /// scope `openid` is asked for.
    pub fn open_id(client: OAuthClient, issuer: impl Into<String>, redirect_uri: impl Into<String>) -> Self {
        let grant = Grant::OpenId { issuer: issuer.into(), redirect: redirect_uri.into() };
        Self::new(grant, Some(client)).scope("openid")
    }

    /// The program asks for itself (client credentials, RFC 6749). The client needs a secret or a key.
    pub fn client_credentials(client: OAuthClient, token_url: impl Into<String>) -> Self {
        Self::new(Grant::Client { token: token_url.into() }, Some(client))
    }

    /// A token is exchanged for another (RFC 8693): what the other method gives, be it that a person signs in or that the program
    /// has it. That one must give a bearer token.
    pub fn token_exchange(
        client: OAuthClient,
        token_url: impl Into<String>,
        subject: impl AuthMethod + 'static,
    ) -> Self {
        let kind = "urn:ietf:params:oauth:token-type:access_token".to_owned();
        let grant = Grant::Exchange { token: token_url.into(), subject: Arc::new(subject), kind };
        Self::new(grant, Some(client))
    }

    /// A service account signs for a token (RFC 7523). The text is that of its key file in Google's form, JSON with
    /// `client_email` and `private_key`.
    pub fn service_account(key_file: impl Into<String>) -> Self {
        Self::new(Grant::Account { key: key_file.into(), person: None }, None)
    }

    fn new(grant: Grant, client: Option<OAuthClient>) -> Self {
        Self {
            grant,
            client,
            scopes: Vec::new(),
            parameters: Vec::new(),
            revocation_url: None,
            issuer: None,
            question: None,
            private: Vec::new(),
            lookup: None,
            limits: HttpLimits { redirects: 0, ..HttpLimits::default() },
        }
    }

    /// What the token is to be good for. Several are asked for together.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scopes.push(scope.into());
        self
    }

    /// For whom the token is to be, for servers that want to know (`audience`).
    pub fn audience(self, audience: impl Into<String>) -> Self {
        self.parameter("audience", audience)
    }

    /// The service that the token is for (`resource`, RFC 8707).
    pub fn resource(self, resource: impl Into<String>) -> Self {
        self.parameter("resource", resource)
    }

    /// What a person is to do even if they are signed in already, such as `consent` or `login`.
    pub fn prompt(self, prompt: impl Into<String>) -> Self {
        self.parameter("prompt", prompt)
    }

    /// Another parameter: of the address where a person signs in, or else of the request for a token.
    pub fn parameter(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.parameters.push((name.into(), value.into()));
        self
    }

    /// What kind of token is exchanged; an access token unless told. For `urn:ietf:params:oauth:token-type:id_token` it is the id
    /// token of a sign-in.
    pub fn subject_token_type(mut self, name: impl Into<String>) -> Self {
        if let Grant::Exchange { kind, .. } = &mut self.grant {
            *kind = name.into();
        }
        self
    }

    /// The person in whose place a service account acts (`sub`), where it may.
    pub fn act_for(mut self, name: impl Into<String>) -> Self {
        if let Grant::Account { person, .. } = &mut self.grant {
            *person = Some(name.into());
        }
        self
    }

    /// Where tokens are given up (RFC 7009). An issuer of OpenID Connect publishes it: what is said here comes before that.
    pub fn revocation_url(mut self, url: impl Into<String>) -> Self {
        self.revocation_url = Some(url.into());
        self
    }

    /// The server's name, where its addresses are given one by one: an answer that says to be another server's (`iss`, RFC 9207) is
    /// refused, and a client with a key signs for that name instead of the token URL. With OpenID Connect it is known.
    pub fn issuer(mut self, name: impl Into<String>) -> Self {
        self.issuer = Some(name.into());
        self
    }

    /// What people are asked, in your words.
    pub fn question(mut self, question: impl Into<String>) -> Self {
        self.question = Some(question.into());
        self
    }

    /// A host that may be on this machine or in its network, and may be asked without TLS.
    pub fn allow_private(mut self, host: impl Into<String>) -> Self {
        self.private.push(host.into());
        self
    }

    /// Finds addresses of names in another way than this machine does.
    pub fn lookup(mut self, lookup: impl Lookup + 'static) -> Self {
        self.lookup = Some(Arc::new(lookup));
        self
    }

    /// How much a request may take. Redirects are never followed.
    pub fn limits(mut self, limits: HttpLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Checks all that can be checked before anybody is asked.
    pub fn build(self) -> Result<OAuthMethod> {
        if let Some((name, _)) = self.parameters.iter().find(|(name, _)| OWN.contains(&name.as_str())) {
            return Err(refuse(format!(
                "the parameter `{name}` has a meaning of its own and cannot be given"
            )));
        }
        if self.client.as_ref().is_some_and(|client| client.id().is_empty()) {
            return Err(refuse("the client has no id: the authorization server gives it one"));
        }
        // Whom a secret is sent to is named by the program, or by the issuer that it names.
        let mut guard = Guard::new(["*"]);
        for host in &self.private {
            guard = guard.allow_private(host);
        }
        if let Some(lookup) = self.lookup {
            guard = guard.lookup(lookup);
        }
        let revoke = self.revocation_url.map(|url| address("revocation URL", &url, &guard)).transpose()?;
        let known = |authorize: Option<Url>, token: &str| -> Result<Places> {
            let token = address("token URL", token, &guard)?;
            let (revoke, issuer) = (revoke.clone(), self.issuer.clone());
            Ok(Places::Known(Box::new(Endpoints { authorize, token, revoke, issuer })))
        };
        let (kind, places) = match self.grant {
            Grant::Code { authorize, token, redirect } => {
                let authorize = address("authorization URL", &authorize, &guard)?;
                (Kind::code(redirect)?, known(Some(authorize), &token)?)
            }
            Grant::OpenId { issuer, redirect } => {
                let issuer = Issuer::new(issuer, revoke.clone(), &guard)?;
                (Kind::code(redirect)?, Places::Published(Box::new(issuer)))
            }
            Grant::Client { token } => (Kind::Client, known(None, &token)?),
            Grant::Exchange { token, subject, kind } => {
                (Kind::Exchange { subject, token_type: kind }, known(None, &token)?)
            }
            Grant::Account { key, person } => {
                // What is wrong with it is not said in its own words: there is a key in it.
                let file: AccountFile = serde_json::from_str(&key).map_err(|_| {
                    let needed = "a JSON object with `client_email` and `private_key`";
                    refuse(format!("the key file of the service account is not {needed}"))
                })?;
                let key = SigningKey::from_pem(&file.private_key, file.private_key_id)?;
                let token = file.token_uri.as_deref().unwrap_or(GOOGLE);
                (Kind::Account { email: file.client_email, key: Arc::new(key), person }, known(None, token)?)
            }
        };
        Ok(OAuthMethod {
            kind,
            places,
            client: self.client,
            scopes: self.scopes,
            parameters: self.parameters,
            question: self.question,
            http: Http::new(guard, self.limits)?,
        })
    }
}

impl fmt::Debug for OAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OAuth")
    }
}

fn refuse(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Build, message)
}

/// A text that nobody can guess.
fn random() -> Result<String> {
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Error::new(ErrorKind::Other, "this machine gives no random numbers"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// An address that secrets may be sent to.
fn address(what: &str, url: &str, guard: &Guard) -> Result<Url> {
    let wrong = |why: &str| refuse(format!("the {what} {why}"));
    let url = Url::parse(url).map_err(|_| wrong("is no web address"))?;
    guard.check_url(&url).map_err(|error| wrong(&format!("cannot be used: {}", error.message())))?;
    if url.scheme() != "https" && !guard.is_private(&url) {
        return Err(wrong("is one of http, where others can read along: use one that begins with https"));
    }
    if url.fragment().is_some() {
        return Err(wrong("has a `#` in it: leave out what follows"));
    }
    Ok(url)
}
