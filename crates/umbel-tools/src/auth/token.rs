//! Tokens: what is kept of them, and how they are asked for.

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Url};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use umbel_core::{Credential, Error, ErrorKind, Result};

use super::client::OAuthClient;
use crate::http::{Http, Request};

/// A token that is good for less than this is renewed, in seconds: a call takes its time. One that is short-lived is renewed when a
/// tenth of its time is left.
const MARGIN: f64 = 60.0;
/// What is said to be good for longer is good until it is refused, in seconds: ten years.
const LONGEST: f64 = 315_360_000.0;

/// The codes of errors that are repeated: those of RFC 6749, 6750, 7009, 7591, 8628 and 8693, and of OpenID Connect. What else a
/// server says in their place may be what it was sent.
const CODES: [&str; 27] = [
    "access_denied",
    "account_selection_required",
    "authorization_pending",
    "consent_required",
    "expired_token",
    "insufficient_scope",
    "interaction_required",
    "invalid_client",
    "invalid_client_metadata",
    "invalid_grant",
    "invalid_redirect_uri",
    "invalid_request",
    "invalid_request_object",
    "invalid_request_uri",
    "invalid_scope",
    "invalid_software_statement",
    "invalid_target",
    "invalid_token",
    "login_required",
    "server_error",
    "slow_down",
    "temporarily_unavailable",
    "unapproved_software_statement",
    "unauthorized_client",
    "unsupported_grant_type",
    "unsupported_response_type",
    "unsupported_token_type",
];

/// Who gave tokens, to whom, and what for. They are used for nothing else.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Source {
    /// The issuer, or else the token URL.
    pub(super) server: String,
    /// The client, or the service account and in whose place it acts.
    pub(super) client: String,
    pub(super) scopes: Vec<String>,
    /// The services that they are for: `audience` and `resource`.
    pub(super) services: Vec<String>,
}

/// Tokens as they are kept, in google-adk's names.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Tokens {
    pub(super) access_token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refresh_token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id_token: Option<String>,
    /// Whom the id token is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) person: Option<String>,
    /// Seconds since 1970. Without it, they are good until they are refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<f64>,
    /// For how many seconds they were good when they came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires_in: Option<f64>,
    /// Where they come from. A text that somebody put there does not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<Source>,
    /// What is kept of those that these were exchanged for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) subject: Option<Value>,
}

impl Tokens {
    /// What is kept, if it comes from there. A text is a token that somebody put there.
    pub(super) fn read(kept: &Credential, source: &Source) -> Option<Self> {
        match kept.expose() {
            Value::String(token) => Some(Self { access_token: token.clone(), ..Self::default() }),
            kept => Self::deserialize(kept).ok().filter(|kept| kept.source.as_ref() == Some(source)),
        }
    }

    pub(super) fn keep(&self) -> Credential {
        Credential::new(json!(self))
    }

    /// Whether they are good for another moment.
    pub(super) fn is_good(&self, now: f64) -> bool {
        let margin = self.expires_in.map_or(MARGIN, |seconds| MARGIN.min(seconds / 10.0));
        self.expires_at.is_none_or(|end| end > now + margin)
    }

    /// Whether they are about to expire, and have not yet.
    pub(super) fn is_ending(&self, now: f64) -> bool {
        !self.is_good(now) && self.expires_at.is_some_and(|end| end > now)
    }
}

/// A client, and the name of the server that it asks.
pub(super) struct Asker<'a> {
    pub(super) client: &'a OAuthClient,
    pub(super) server: &'a str,
}

/// No tokens.
pub(super) struct Refusal {
    /// What the tokens were asked with counts no more: another sign-in may help.
    pub(super) is_stale: bool,
    pub(super) error: Error,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { is_stale: false, error }
    }
}

/// What a token endpoint answers.
#[derive(Deserialize)]
struct Answered {
    access_token: Option<String>,
    token_type: Option<String>,
    expires_in: Option<Value>,
    refresh_token: Option<String>,
    id_token: Option<String>,
    error: Option<String>,
}

/// Asks for tokens.
pub(super) async fn ask(
    http: &Http,
    url: &Url,
    asker: Option<&Asker<'_>>,
    form: Vec<(&str, String)>,
    now: f64,
) -> Result<Tokens, Refusal> {
    let host = host(url);
    let failed =
        |why: &str| Refusal::from(Error::new(ErrorKind::Other, format!("`{host}` gives no token: {why}")));
    let (status, body) = post(http, url, asker, form, now).await.map_err(|error| failed(error.message()))?;
    let answered: Answered = serde_json::from_slice(&body)
        .map_err(|_| failed(&format!("its answer is not in the form of OAuth (status {status})")))?;
    if let Some(code) = answered.error {
        let known = CODES.into_iter().find(|known| *known == code);
        let refusal = failed(&format!("it says `{}`", known.unwrap_or("error")));
        return Err(Refusal { is_stale: known == Some("invalid_grant"), ..refusal });
    }
    if !(200..300).contains(&status) {
        return Err(failed(&format!("it answers with the status {status}. Try again later")));
    }
    let is_plain = |token: &String| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let Some(access_token) = answered.access_token.filter(is_plain) else {
        return Err(failed("there is none in its answer that can be used"));
    };
    if !answered.token_type.is_none_or(|kind| kind.eq_ignore_ascii_case("bearer")) {
        return Err(failed("its token is not one of the type `Bearer`, and no other is understood"));
    }
    let expires_in = match answered.expires_in {
        None | Some(Value::Null) => None,
        Some(seconds) => {
            let seconds = seconds.as_f64().or_else(|| seconds.as_str()?.parse().ok());
            let seconds = seconds.filter(|seconds| *seconds >= 0.0);
            let Some(seconds) = seconds else {
                return Err(failed("it says that its token expires at a time that cannot be (`expires_in`)"));
            };
            // None at all is what servers say that do not know.
            (seconds > 0.0 && seconds <= LONGEST).then_some(seconds)
        }
    };
    let refresh_token = answered.refresh_token.filter(|token| !token.is_empty());
    let id_token = answered.id_token;
    let expires_at = expires_in.map(|seconds| now + seconds);
    Ok(Tokens { access_token, refresh_token, id_token, expires_at, expires_in, ..Tokens::default() })
}

/// Tells a revocation endpoint that a token is not used any more.
pub(super) async fn revoke(
    http: &Http,
    url: &Url,
    asker: &Asker<'_>,
    form: Vec<(&str, String)>,
    now: f64,
) -> Result<()> {
    let failed = |why: &str| {
        let message = format!("`{}` does not revoke the token: {why}", host(url));
        Error::new(ErrorKind::Other, message)
    };
    match post(http, url, Some(asker), form, now).await.map_err(|error| failed(error.message()))? {
        (200..=299, _) => Ok(()),
        (status, _) => Err(failed(&format!("it answers with the status {status}. Try again later"))),
    }
}

/// Sends a form.
async fn post(
    http: &Http,
    url: &Url,
    asker: Option<&Asker<'_>>,
    mut form: Vec<(&str, String)>,
    now: f64,
) -> Result<(u16, Vec<u8>)> {
    let mut request = Request::new(Method::POST, url.clone());
    if let Some(Asker { client, server }) = asker {
        client.sign(&mut request, &mut form, server, now).map_err(umbel_core::ToolError::into_error)?;
    }
    // An address knows how its query is written, which is how a form is.
    let written = Url::parse_with_params("http://form", form)
        .map_err(|error| Error::new(ErrorKind::Other, "it cannot be asked").with_source(error))?;
    request.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    request.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    request.body = Some(written.query().unwrap_or_default().as_bytes().to_vec());
    let fetched = http.fetch(&request).await.map_err(umbel_core::ToolError::into_error)?;
    Ok((fetched.status, fetched.body))
}

/// Who is asked, for messages.
pub(super) fn host(url: &Url) -> &str {
    url.host_str().unwrap_or_default()
}
