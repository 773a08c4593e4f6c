//! Tokens of Google Cloud.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use reqwest::Url;
use reqwest::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;
use umbel_core::{BoxFuture, Error, ErrorKind, ModelErrorKind, Result};
use umbel_jwt::SigningKey;

use crate::endpoint::{Secret, Timeouts, TokenSource, client, words};

/// Where tokens are to be good for.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// Where tokens come from, unless the credentials say otherwise.
const TOKEN_URI: &str = "https://oauth2.googleapis.com/token";

/// The metadata server of a machine at Google.
const METADATA: &str = "metadata.google.internal";

/// A token that is good for less than this is asked for anew: a request takes its time.
const MARGIN: Duration = Duration::from_secs(120);

/// How long to wait for a token.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most bytes of an answer with a token in it.
const MOST: usize = 64 << 10;

/// Credentials of Google Cloud: a service account, a person who has signed in, or the machine itself.
///
/// A token is kept until shortly before it expires, and asked for once, however many requests wait for it. Clones share
/// it. Nothing secret is shown anywhere.
///
/// ```
/// use umbel_models::GoogleCredentials;
///
/// let file = r#"{"type": "authorized_user", "client_id": "c", "client_secret": "hush", "refresh_token": "r",
///                "quota_project_id": "my-project"}"#;
/// let credentials = GoogleCredentials::from_json(file)?;
/// assert_eq!(credentials.project(), Some("my-project"));
/// assert!(!format!("{credentials:?}").contains("hush"));
/// # Ok::<(), umbel_core::Error>(())
/// ```
#[derive(Clone)]
pub struct GoogleCredentials {
    inner: Arc<Inner>,
}

struct Inner {
    grant: Grant,
    project: Option<String>,
    kept: Mutex<Option<Token>>,
}

/// What a token is given for.
enum Grant {
    ServiceAccount { email: String, key: Box<SigningKey>, token_uri: Url },
    Person { client_id: String, client_secret: Secret, refresh_token: Secret, token_uri: Url },
    Machine { host: String },
}

struct Token {
    secret: Secret,
    expires: SystemTime,
}

/// A file with credentials.
#[derive(Deserialize)]
struct File {
    #[serde(rename = "type", default)]
    kind: String,
    project_id: Option<String>,
    quota_project_id: Option<String>,
    client_email: Option<String>,
    private_key: Option<String>,
    private_key_id: Option<String>,
    token_uri: Option<String>,
    client_id: Option<String>,
    client_secret: Option<String>,
    refresh_token: Option<String>,
}

/// What a token server answers.
#[derive(Deserialize)]
struct Granted {
    access_token: Option<String>,
    expires_in: Option<f64>,
    error: Option<String>,
    error_description: Option<String>,
}

impl GoogleCredentials {
    /// The credentials in the text of a file: that of a service account, or of a person who has signed in with
    /// `gcloud auth application-default login`.
    pub fn from_json(text: &str) -> Result<Self> {
        // What is wrong with it is not said in its own words: there are secrets in it.
        let file: File =
            serde_json::from_str(text).map_err(|_| refused("they are no JSON object with texts in it"))?;
        let missing = |key: &str| refused(format!("`{key}` is missing"));
        let token_uri = Url::parse(file.token_uri.as_deref().unwrap_or(TOKEN_URI))
            .map_err(|_| refused("`token_uri` is no address"))?;
        let grant = match file.kind.as_str() {
            "service_account" => Grant::ServiceAccount {
                email: file.client_email.ok_or_else(|| missing("client_email"))?,
                key: Box::new(signing_key(file.private_key, file.private_key_id)?),
                token_uri,
            },
            "authorized_user" => Grant::Person {
                client_id: file.client_id.ok_or_else(|| missing("client_id"))?,
                client_secret: Secret(file.client_secret.ok_or_else(|| missing("client_secret"))?),
                refresh_token: Secret(file.refresh_token.ok_or_else(|| missing("refresh_token"))?),
                token_uri,
            },
            kind => {
                let known = "`service_account` and `authorized_user` can be used";
                return Err(refused(format!("they are of the type `{kind}`, and only {known}")));
            }
        };
        Ok(Self::new(grant, file.project_id.or(file.quota_project_id)))
    }

    /// The credentials in a file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|error| refused(format!("{}: {error}", path.display())).with_source(error))?;
        Self::from_json(&text)
    }

    /// The credentials of the machine, if it is one of Google's.
    pub fn from_machine() -> Self {
        Self::new(Grant::Machine { host: METADATA.to_owned() }, None)
    }

    /// The credentials of this place: the file that `GOOGLE_APPLICATION_CREDENTIALS` names, else that of
    /// `gcloud auth application-default login`, else those of the machine.
    pub fn from_environment() -> Result<Self> {
        Self::find(&|variable| std::env::var(variable).ok().filter(|value| !value.trim().is_empty()))
    }

    /// The same, with another environment.
    pub(crate) fn find(environment: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        if let Some(path) = environment("GOOGLE_APPLICATION_CREDENTIALS") {
            return Self::from_file(path);
        }
        let folder = environment("CLOUDSDK_CONFIG")
            .map(PathBuf::from)
            .or_else(|| environment("HOME").map(|home| Path::new(&home).join(".config/gcloud")))
            .or_else(|| environment("APPDATA").map(|data| Path::new(&data).join("gcloud")));
        let signed_in = folder.map(|folder| folder.join("application_default_credentials.json"));
        match signed_in.filter(|path| path.is_file()) {
            Some(path) => Self::from_file(path),
            None => {
                let host = environment("GCE_METADATA_HOST").unwrap_or_else(|| METADATA.to_owned());
                Ok(Self::new(Grant::Machine { host }, None))
            }
        }
    }

    fn new(grant: Grant, project: Option<String>) -> Self {
        Self { inner: Arc::new(Inner { grant, project, kept: Mutex::default() }) }
    }

    /// The project that the credentials belong to, if they say.
    pub fn project(&self) -> Option<&str> {
        self.inner.project.as_deref()
    }

    async fn ask(&self) -> Result<Token> {
        let grant = &self.inner.grant;
        let asked = SystemTime::now();
        let client =
            client(Timeouts::default().connect, None).map_err(|why| Error::new(ErrorKind::Build, why))?;
        let request = match grant {
            Grant::Machine { host } => {
                let path = "computeMetadata/v1/instance/service-accounts/default/token";
                client.get(format!("http://{host}/{path}")).header("metadata-flavor", "Google")
            }
            Grant::ServiceAccount { token_uri, .. } | Grant::Person { token_uri, .. } => {
                let kind = "application/x-www-form-urlencoded";
                client.post(token_uri.clone()).header(CONTENT_TYPE, kind).body(grant.form(asked)?)
            }
        };
        let exchange = async {
            let mut response = request.send().await?;
            let mut body = Vec::new();
            while let Some(bytes) = response.chunk().await? {
                body.extend_from_slice(&bytes);
                if body.len() > MOST {
                    break;
                }
            }
            Ok::<_, reqwest::Error>((response.status().as_u16(), body))
        };
        let unreachable = |why: String| {
            let hint = match grant {
                Grant::Machine { .. } => {
                    ". There are no other credentials: set GOOGLE_APPLICATION_CREDENTIALS to a file, or sign in with `gcloud auth application-default login`"
                }
                _ => "",
            };
            failed(ModelErrorKind::Transport, format!("{} cannot be reached: {why}{hint}", grant.server()))
        };
        let (status, body) = tokio::time::timeout(PATIENCE, exchange)
            .await
            .map_err(|_| unreachable(format!("no answer within {} s", PATIENCE.as_secs())))?
            .map_err(|error| unreachable(words(&error)))?;
        grant.token(status, &body, asked)
    }
}

impl Grant {
    /// Who gives the tokens, for messages.
    fn server(&self) -> String {
        match self {
            Self::ServiceAccount { token_uri, .. } | Self::Person { token_uri, .. } => {
                format!("the token server {}", token_uri.host_str().unwrap_or_default())
            }
            Self::Machine { host } => format!("the metadata server {host}"),
        }
    }

    /// What a token server is sent.
    fn form(&self, now: SystemTime) -> Result<String> {
        let assertion;
        let fields: &[(&str, &str)] = match self {
            Self::Machine { .. } => &[],
            Self::ServiceAccount { .. } => {
                assertion = self.assertion(now)?;
                &[("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"), ("assertion", &assertion)]
            }
            Self::Person {
                client_id, client_secret: Secret(secret), refresh_token: Secret(token), ..
            } => &[
                ("grant_type", "refresh_token"),
                ("client_id", client_id),
                ("client_secret", secret),
                ("refresh_token", token),
            ],
        };
        // An address knows how its query is written, which is how a form is.
        let written = Url::parse_with_params("http://form", fields)
            .map_err(|error| refused("they cannot be sent").with_source(error))?;
        Ok(written.query().unwrap_or_default().to_owned())
    }

    /// What a service account says of itself, signed with its key.
    fn assertion(&self, now: SystemTime) -> Result<String> {
        let Self::ServiceAccount { email, key, token_uri } = self else { return Ok(String::new()) };
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let claims =
            json!({"iss": email, "scope": SCOPE, "aud": token_uri.as_str(), "iat": now, "exp": now + 3600});
        key.sign(&claims).map_err(|_| refused("nothing can be signed with `private_key`"))
    }

    /// The token in an answer.
    fn token(&self, status: u16, body: &[u8], asked: SystemTime) -> Result<Token> {
        let read: Option<Granted> = serde_json::from_slice(body).ok();
        if let (200..=299, Some(Granted { access_token: Some(token), expires_in, .. })) = (status, &read) {
            let seconds = Duration::try_from_secs_f64(expires_in.unwrap_or(3600.0)).unwrap_or_default();
            let expires = asked.checked_add(seconds).unwrap_or(asked);
            return Ok(Token { secret: Secret(token.clone()), expires });
        }
        let kind = match status {
            408 | 429 | 500.. => ModelErrorKind::Overloaded,
            400..=499 => ModelErrorKind::Auth,
            _ => ModelErrorKind::Other,
        };
        let said = read.and_then(|read| Some((read.error?, read.error_description)));
        let why = match said {
            Some((error, Some(description))) => format!("{error}: {description}"),
            Some((error, None)) => error,
            None => "the answer has no token in it".to_owned(),
        };
        let message = format!("{} gives no token: {} ({status})", self.server(), self.without_secrets(&why));
        Err(failed(kind, message))
    }

    /// Words of a server, without what it was sent.
    fn without_secrets(&self, text: &str) -> String {
        match self {
            Self::Person { client_secret: Secret(secret), refresh_token: Secret(token), .. } => {
                let strike = |text: String, secret: &str| match secret {
                    "" => text,
                    secret => text.replace(secret, "***"),
                };
                strike(strike(text.to_owned(), secret), token)
            }
            Self::ServiceAccount { .. } | Self::Machine { .. } => text.to_owned(),
        }
    }
}

impl fmt::Debug for GoogleCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.inner.grant {
            Grant::ServiceAccount { email, .. } => write!(f, "GoogleCredentials(service account {email})"),
            Grant::Person { .. } => f.write_str("GoogleCredentials(a person)"),
            Grant::Machine { host } => write!(f, "GoogleCredentials(the machine, by {host})"),
        }
    }
}

impl TokenSource for GoogleCredentials {
    fn token(&self) -> BoxFuture<'_, Result<String>> {
        Box::pin(async {
            // Whoever comes while a token is on its way waits for that one.
            let mut kept = self.inner.kept.lock().await;
            let good_until = SystemTime::now() + MARGIN;
            if let Some(Token { secret: Secret(token), expires }) = &*kept
                && *expires > good_until
            {
                return Ok(token.clone());
            }
            let Token { secret: Secret(token), .. } = kept.insert(self.ask().await?);
            Ok(token.clone())
        })
    }
}

/// The key in the text of a file.
fn signing_key(pem: Option<String>, id: Option<String>) -> Result<SigningKey> {
    let pem = pem.ok_or_else(|| refused("`private_key` is missing"))?;
    SigningKey::from_pem(&pem, id).map_err(|_| refused("`private_key` is no RSA key"))
}

/// Credentials that are none.
fn refused(why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Build, format!("the credentials of Google Cloud cannot be used: {why}"))
}

/// A token that was not given.
fn failed(kind: ModelErrorKind, message: String) -> Error {
    Error::new(ErrorKind::Model(kind), message)
}
