//! Tokens: what is kept of them, and how they are asked for.

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Url};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use umbel_core::{Credential, Error, ErrorKind, Result};

use super::client::OAuthClient;
use crate::http::{Http, Request};

/// A token that is good for less than this is renewed, in seconds: a call takes its time.
const MARGIN: f64 = 60.0;
/// What is said to be good for longer is good until it is refused, in seconds: ten years.
const LONGEST: f64 = 315_360_000.0;

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
    /// What is kept of those that these were exchanged for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) subject: Option<Value>,
}

impl Tokens {
    /// What is kept. A text is a token that somebody put there.
    pub(super) fn read(kept: &Credential) -> Option<Self> {
        match kept.expose() {
            Value::String(token) => Some(Self { access_token: token.clone(), ..Self::default() }),
            kept => Self::deserialize(kept).ok(),
        }
    }

    pub(super) fn keep(&self) -> Credential {
        Credential::new(json!(self))
    }

    /// Whether they are good for another moment.
    pub(super) fn is_good(&self, now: f64) -> bool {
        self.expires_at.is_none_or(|end| end > now + MARGIN)
    }
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
    client: Option<&OAuthClient>,
    form: Vec<(&str, String)>,
    now: f64,
) -> Result<Tokens, Refusal> {
    let host = host(url);
    let failed =
        |why: &str| Refusal::from(Error::new(ErrorKind::Other, format!("`{host}` gives no token: {why}")));
    let (status, body) = post(http, url, client, form).await.map_err(|error| failed(error.message()))?;
    let answered: Answered = serde_json::from_slice(&body)
        .map_err(|_| failed(&format!("its answer is not in the form of OAuth (status {status})")))?;
    if let Some(code) = answered.error {
        // No more than the code: what else it says may repeat what it was sent.
        let is_code = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let code = Some(code).filter(|code| code.len() <= 60 && code.chars().all(is_code));
        let refusal = failed(&format!("it says `{}`", code.as_deref().unwrap_or("error")));
        return Err(Refusal { is_stale: code.as_deref() == Some("invalid_grant"), ..refusal });
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
    let expires_at = match answered.expires_in {
        None | Some(Value::Null) => None,
        Some(seconds) => {
            let seconds = seconds.as_f64().or_else(|| seconds.as_str()?.parse().ok());
            let seconds = seconds.filter(|seconds| *seconds >= 0.0);
            let Some(seconds) = seconds else {
                return Err(failed("it says that its token expires at a time that cannot be (`expires_in`)"));
            };
            (seconds <= LONGEST).then_some(now + seconds)
        }
    };
    let refresh_token = answered.refresh_token.filter(|token| !token.is_empty());
    let id_token = answered.id_token;
    Ok(Tokens { access_token, refresh_token, id_token, expires_at, ..Tokens::default() })
}

/// Tells a revocation endpoint that a token is not used any more.
pub(super) async fn revoke(
    http: &Http,
    url: &Url,
    client: &OAuthClient,
    form: Vec<(&str, String)>,
) -> Result<()> {
    let failed = |why: &str| {
        let message = format!("`{}` does not revoke the token: {why}", host(url));
        Error::new(ErrorKind::Other, message)
    };
    match post(http, url, Some(client), form).await.map_err(|error| failed(error.message()))? {
        (200..=299, _) => Ok(()),
        (status, _) => Err(failed(&format!("it answers with the status {status}. Try again later"))),
    }
}

/// Sends a form.
async fn post(
    http: &Http,
    url: &Url,
    client: Option<&OAuthClient>,
    mut form: Vec<(&str, String)>,
) -> Result<(u16, Vec<u8>)> {
    let mut request = Request::new(Method::POST, url.clone());
    if let Some(client) = client {
        client.sign(&mut request, &mut form).map_err(umbel_core::ToolError::into_error)?;
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
