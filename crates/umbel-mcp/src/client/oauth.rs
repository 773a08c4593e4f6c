//! Signing in at an MCP server that says where that is done: RFC 9728 and 8414, registration of clients, PKCE, and tokens
//! that are good for that server alone.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Client;
use rmcp::transport::auth::{AuthorizationMetadata, OAuthClientConfig};
use rmcp::transport::{
    AuthError, AuthorizationManager, OAuthHttpClient, OAuthHttpClientError, OAuthHttpClientFuture,
    OAuthHttpRequest, WWWAuthenticateParams,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use umbel_core::{
    AuthAnswer, AuthMethod, AuthRequest, Credential, Error, ErrorKind, HttpAuth, Result, Standing, Work,
};
use umbel_tools::{Guard, OAuth, OAuthClient, OAuthMethod, Secret, guarded_client};

/// How long finding out where people sign in may take, for each request.
const TIME: Duration = Duration::from_secs(30);
/// Bytes of an answer on the way there.
const BYTES: usize = 256 << 10;
/// A token that is good for less than this is renewed, in seconds.
const MARGIN: f64 = 60.0;

tokio::task_local! {
    /// The credential that another one is wanted for, while it is got. What a server says to one user is no matter of others,
    /// so it is kept nowhere else.
    pub(crate) static REFUSED: Refused;
}

/// A credential that a server refused.
#[derive(Clone)]
pub(crate) struct Refused {
    /// What the server said about it.
    pub(crate) said: String,
    pub(crate) credential: Credential,
}

/// Signs people in at an MCP server, or at whom it names. The server says where; the program is registered there unless it is
/// known already.
///
/// ```
/// use umbel_mcp::client::{Http, McpOAuth, McpToolset};
///
/// let url = "https://docs.example.org/mcp";
/// let sign_in = McpOAuth::new(url, "https://my-app.example/callback").client_name("My app");
/// let tools = McpToolset::new("docs", Http::new(url)).oauth(sign_in);
/// ```
pub struct McpOAuth {
    server: String,
    redirect: String,
    name: String,
    client: Option<OAuthClient>,
    issuer: Option<String>,
    document: Option<String>,
    scopes: Vec<String>,
    by_itself: bool,
    private: Vec<String>,
}

/// What was found out about a server, and who the program is there.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    authorize: String,
    token: String,
    issuer: Option<String>,
    client: String,
    secret: Option<String>,
    secret_in_body: bool,
    scopes: Vec<String>,
    resource: String,
}

/// A credential as it is kept.
#[derive(Serialize, Deserialize)]
struct Kept {
    tokens: Value,
    found: Found,
}

impl McpOAuth {
    /// A server by its address, and where people come back to once they signed in.
    pub fn new(server: impl Into<String>, redirect_uri: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            redirect: redirect_uri.into(),
            name: "Umbel".to_owned(),
            client: None,
            issuer: None,
            document: None,
            scopes: Vec::new(),
            by_itself: false,
            private: Vec::new(),
        }
    }

    /// What people are told who asks them. `Umbel` unless said otherwise.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The program is known there already, by this id, and a secret if it has one. With a secret, name the
    /// [`issuer`](Self::issuer) too.
    pub fn client(self, id: impl Into<String>, secret: Option<&str>) -> Self {
        let client = OAuthClient::new(id);
        self.known_as(match secret {
            Some(secret) => client.secret(Secret::new(secret)),
            None => client,
        })
    }

    /// The program is known there already, as this client: with a secret, or with a private key. Then name the
    /// [`issuer`](Self::issuer) too.
    pub fn known_as(mut self, client: OAuthClient) -> Self {
        self.client = Some(client);
        self
    }

    /// The authorization server that the client is registered with, such as `https://login.example`. A secret or a key goes
    /// there and nowhere else: whom the MCP server names must be this one, and where tokens are given, it says itself.
    pub fn issuer(mut self, issuer: impl Into<String>) -> Self {
        self.issuer = Some(issuer.into());
        self
    }

    /// An address of HTTPS where the program says who it is, for servers that read such documents.
    pub fn client_document(mut self, url: impl Into<String>) -> Self {
        self.document = Some(url.into());
        self
    }

    /// What the token is to be good for. What the server asks for, unless said.
    pub fn scope(mut self, scope: impl Into<String>) -> Self {
        self.scopes.push(scope.into());
        self
    }

    /// The program signs in for itself (client credentials), and nobody is asked. It needs an id, and a secret or a key.
    pub fn by_itself(mut self) -> Self {
        self.by_itself = true;
        self
    }

    /// A host that may be on this machine or in its network, and may be asked without TLS.
    pub fn allow_private(mut self, host: impl Into<String>) -> Self {
        self.private.push(host.into());
        self
    }

    /// The scopes of a credential that was refused since it is not good for enough, and those that are wanted besides.
    fn step_up(&self, refused: &Refused) -> Option<(Vec<String>, Vec<String>)> {
        let url = reqwest::Url::parse(&self.server).ok()?;
        let said = WWWAuthenticateParams::parse(&refused.said, &url);
        let had = read(&refused.credential).filter(|_| said.is_insufficient_scope())?.found.scopes;
        let wanted = said.scope.iter().flat_map(|scope| scope.split_whitespace()).map(str::to_owned);
        let more = wanted.filter(|scope| !had.contains(scope)).collect();
        Some((had, more))
    }

    /// The issuer that the server names today, for people who decide whether it is the one that their client is registered with.
    pub async fn issuer_of_server(&self) -> Result<String> {
        let (_, found) = self.discover(&Arc::new(self.asker()?), None).await?;
        found.issuer.ok_or_else(|| refuse("it names no issuer"))
    }

    fn asker(&self) -> Result<Asker> {
        let guard = self.private.iter().fold(Guard::new(["*"]), |guard, host| guard.allow_private(host));
        Ok(Asker { client: guarded_client(&guard, TIME)?, guard, private: self.private.clone() })
    }

    /// What the server, and whom it names, publish about signing in.
    async fn discover(
        &self,
        http: &Arc<Asker>,
        refused: Option<&Refused>,
    ) -> Result<(AuthorizationManager, AuthorizationMetadata)> {
        let challenge = match refused.filter(|refused| !refused.said.is_empty()) {
            Some(refused) => Some(refused.said.clone()),
            None => http.challenge(&self.server).await,
        };
        let manager = AuthorizationManager::new_with_oauth_http_client(&self.server, http.clone()).await;
        let manager = manager.map_err(|error| failed(&error))?;
        let found = manager.resolve_metadata_from_challenge(challenge.as_deref()).await;
        Ok((manager, found.map_err(|error| failed(&error))?.metadata))
    }

    /// Finds out where people sign in, and who the program is there.
    async fn find(&self) -> Result<Found> {
        let issuer = self.named_issuer()?;
        let http = Arc::new(self.asker()?);
        let refused = REFUSED.try_with(Refused::clone).ok();
        let (mut manager, mut metadata) = self.discover(&http, refused.as_ref()).await?;
        if let Some(issuer) = issuer {
            self.check_issuer(metadata.issuer.as_deref())?;
            metadata = http.metadata_of(issuer).await?;
        }
        manager.set_metadata(metadata.clone());
        let scopes = match refused.and_then(|refused| self.step_up(&refused)) {
            Some((had, more)) => [had, more].concat(),
            None if self.scopes.is_empty() => manager.select_initial_scopes(&[]).await,
            None => self.scopes.clone(),
        };
        let named: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let client =
            self.become_client(&mut manager, &metadata, &named).await.map_err(|error| failed(&error))?;
        manager.configure_client(client.clone()).map_err(|error| failed(&error))?;
        // Looks at what the server publishes, and says what a token is to be good for.
        let url = manager.get_authorization_url(&named).await.map_err(|error| failed(&error))?;
        let url = reqwest::Url::parse(&url).map_err(|_| refuse("its address for signing in is none"))?;
        let resource =
            url.query_pairs().find(|(key, _)| key == "resource").map(|(_, value)| value.into_owned());
        Ok(Found {
            authorize: metadata.authorization_endpoint.clone(),
            token: metadata.token_endpoint.clone(),
            issuer: metadata.issuer.clone(),
            client: client.client_id,
            secret: client.client_secret,
            secret_in_body: wants_secret_in_body(&metadata),
            scopes,
            resource: resource.unwrap_or_else(|| self.server.clone()),
        })
    }

    /// Who the program is: known already, by a document that it publishes, or registered now.
    async fn become_client(
        &self,
        manager: &mut AuthorizationManager,
        metadata: &AuthorizationMetadata,
        scopes: &[&str],
    ) -> Result<OAuthClientConfig, AuthError> {
        let reads_documents = metadata.additional_fields.get("client_id_metadata_document_supported");
        let document = self.document.as_ref().filter(|_| reads_documents == Some(&Value::Bool(true)));
        if let Some(client) = &self.client {
            // What proves it is not told: tokens are not asked for in this way.
            return Ok(OAuthClientConfig::new(client.id(), &self.redirect));
        }
        match document {
            Some(document) => Ok(OAuthClientConfig::new(document, &self.redirect)),
            None => manager.register_client(&self.name, &self.redirect, scopes).await,
        }
    }

    /// Who alone may get what proves the client: an error if that is not known, none if nothing has to be proved.
    fn named_issuer(&self) -> Result<Option<&str>> {
        let proves = self.client.as_ref().is_some_and(OAuthClient::has_proof);
        match &self.issuer {
            None if proves => Err(Error::new(
                ErrorKind::InvalidInput,
                "the client of an MCP server has a secret or a key, and nobody says whose it is: name the issuer that the \
                 client is registered with",
            )),
            named => Ok(named.as_deref()),
        }
    }

    /// Refuses an issuer that the operator did not name.
    fn check_issuer(&self, found: Option<&str>) -> Result<()> {
        match self.named_issuer()? {
            Some(named) if found.is_none_or(|found| plain(found) != plain(named)) => {
                Err(refuse(&format!("it names another issuer than `{named}`")))
            }
            _ => Ok(()),
        }
    }

    /// How tokens come about there.
    fn method(&self, found: &Found) -> Result<OAuthMethod> {
        self.check_issuer(found.issuer.as_deref())?;
        let mut client = match (&self.client, &found.secret) {
            (Some(client), _) => client.clone(),
            (None, Some(secret)) => OAuthClient::new(&found.client).secret(Secret::new(secret.as_str())),
            (None, None) => OAuthClient::new(&found.client),
        };
        if found.secret_in_body {
            client = client.secret_in_body();
        }
        let mut oauth = if self.by_itself {
            OAuth::client_credentials(client, &found.token)
        } else {
            OAuth::code(client, &found.authorize, &found.token, &self.redirect)
        };
        oauth = found.scopes.iter().fold(oauth, |oauth, scope| oauth.scope(scope));
        oauth = self.private.iter().fold(oauth, |oauth, host| oauth.allow_private(host));
        oauth = found.issuer.iter().fold(oauth, |oauth, issuer| oauth.issuer(issuer));
        oauth.resource(&found.resource).build()
    }

    async fn renewed(&self, kept: Option<&Credential>, now: f64) -> Result<Option<Credential>> {
        let refused = REFUSED.try_with(Refused::clone).ok();
        let refused = refused.filter(|refused| kept == Some(&refused.credential));
        let step_up = refused.and_then(|refused| self.step_up(&refused));
        let kept = kept.and_then(read);
        let lacks = step_up.as_ref().is_some_and(|(_, more)| !more.is_empty());
        if step_up.is_some() && !lacks {
            let message =
                "the MCP server wants more than the token is good for, though it got what it asked for";
            return Err(Error::new(ErrorKind::Other, message));
        }
        let (found, tokens) = match kept {
            // A new token like the last one would not do.
            Some(_) if lacks && !self.by_itself => return Ok(None),
            Some(kept) if !lacks => (kept.found, Some(Credential::new(kept.tokens))),
            _ if self.by_itself => (self.find().await?, None),
            _ => return Ok(None),
        };
        let new = self.method(&found)?.renew(tokens.as_ref(), now).await?;
        Ok(new.map(|new| keep(&new, found)))
    }

    async fn ask_person(&self, now: f64) -> Result<AuthRequest> {
        let found = self.find().await?;
        let mut request = self.method(&found)?.ask(now).await?;
        request.pending = json!({"pending": request.pending, "found": found});
        Ok(request)
    }

    async fn answered(&self, answer: AuthAnswer, now: f64) -> Result<Credential> {
        let lost = || refuse("what was kept for the answer is gone");
        let found = answer.pending.get("found").ok_or_else(lost)?;
        let found = Found::deserialize(found).map_err(|_| lost())?;
        let pending = answer.pending.get("pending").cloned().unwrap_or_default();
        let answer = AuthAnswer { pending, ..answer };
        let tokens = self.method(&found)?.exchange(answer, now).await?;
        Ok(keep(&tokens, found))
    }
}

impl AuthMethod for McpOAuth {
    fn scheme(&self) -> Value {
        json!({"type": "oauth2", "flows": {}, "mcpServer": self.server})
    }

    fn standing(&self, kept: Option<&Credential>, now: f64) -> Standing {
        let Some(kept) = kept.and_then(read) else {
            return if self.by_itself { Standing::Renew } else { Standing::Ask };
        };
        let ends = kept.tokens.get("expiresAt").and_then(Value::as_f64);
        if ends.is_none_or(|ends| ends > now + MARGIN) {
            Standing::Ready
        } else if self.by_itself || kept.tokens.get("refreshToken").is_some_and(Value::is_string) {
            Standing::Renew
        } else {
            Standing::Ask
        }
    }

    fn http(&self, credential: &Credential) -> Option<HttpAuth> {
        let kept = read(credential)?;
        kept.tokens.get("accessToken").and_then(Value::as_str).map(HttpAuth::bearer)
    }

    fn renew<'a>(&'a self, kept: Option<&'a Credential>, now: f64) -> Work<'a, Result<Option<Credential>>> {
        Work::later(self.renewed(kept, now))
    }

    fn ask(&self, now: f64) -> Work<'_, Result<AuthRequest>> {
        Work::later(self.ask_person(now))
    }

    fn exchange<'a>(&'a self, answer: AuthAnswer, now: f64) -> Work<'a, Result<Credential>> {
        Work::later(self.answered(answer, now))
    }
}

/// No secret is shown.
impl fmt::Debug for McpOAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "McpOAuth({})", self.name)
    }
}

/// An issuer with or without a slash at its end is the same.
fn plain(issuer: &str) -> &str {
    issuer.strip_suffix('/').unwrap_or(issuer)
}

fn read(kept: &Credential) -> Option<Kept> {
    Kept::deserialize(kept.expose()).ok()
}

fn keep(tokens: &Credential, found: Found) -> Credential {
    Credential::new(json!(Kept { tokens: tokens.expose().clone(), found }))
}

fn refuse(why: &str) -> Error {
    Error::new(ErrorKind::Other, format!("the MCP server does not say how to sign in: {why}"))
}

/// What went wrong on the way. What servers said is not repeated: there may be secrets in it.
fn failed(error: &AuthError) -> Error {
    refuse(match error {
        AuthError::NoAuthorizationSupport => "it publishes nothing about it",
        AuthError::RegistrationFailed(_) => "it registers no clients by itself: give an id for one",
        AuthError::MetadataError(_) => "what it publishes does not fit together",
        AuthError::AuthorizationServerMismatch { .. } => "what it publishes is of another issuer",
        AuthError::OAuthError(_) => "it does not do what OAuth asks of it",
        _ => "it could not be found out",
    })
}

/// Whether a secret goes into the body, since nothing else is understood.
fn wants_secret_in_body(metadata: &AuthorizationMetadata) -> bool {
    let ways = metadata.additional_fields.get("token_endpoint_auth_methods_supported");
    let has = |way: &str| {
        ways.and_then(Value::as_array).is_some_and(|ways| ways.iter().any(|one| one.as_str() == Some(way)))
    };
    has("client_secret_post") && !has("client_secret_basic")
}

/// Asks on the way to where people sign in, behind a guard and within bounds.
struct Asker {
    client: Client,
    guard: Guard,
    private: Vec<String>,
}

impl Asker {
    /// An address that may be asked: without TLS only where that was said.
    fn check(&self, url: &str) -> Result<reqwest::Url> {
        let url = self.guard.check(url)?;
        let host = url.host_str().unwrap_or_default();
        let with_port = format!("{host}:{}", url.port_or_known_default().unwrap_or_default());
        let is_private = || self.private.iter().any(|known| [host, &with_port].contains(&known.as_str()));
        if url.scheme() == "https" || is_private() {
            return Ok(url);
        }
        Err(refuse("it leads to an address without TLS"))
    }

    /// What a server says to somebody it does not know.
    async fn challenge(&self, server: &str) -> Option<String> {
        let url = self.check(server).ok()?;
        let info = json!({"name": "umbel", "version": env!("CARGO_PKG_VERSION")});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info});
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let request = self.client.post(url).timeout(TIME).body(hello.to_string());
        let request = request.header("content-type", "application/json");
        let response = request.header("accept", "application/json, text/event-stream").send().await.ok()?;
        let said = response.headers().get("www-authenticate")?.to_str().ok()?;
        (response.status() == 401).then(|| said.to_owned())
    }

    /// What an issuer publishes at its own address.
    async fn metadata_of(&self, issuer: &str) -> Result<AuthorizationMetadata> {
        let unknown = || refuse(&format!("`{issuer}` does not publish where its tokens are given"));
        let url = self.check(issuer)?;
        let (origin, path) = (url.origin().ascii_serialization(), url.path().trim_end_matches('/'));
        let places = [
            format!("{origin}/.well-known/oauth-authorization-server{path}"),
            format!("{origin}/.well-known/openid-configuration{path}"),
            format!("{origin}{path}/.well-known/openid-configuration"),
        ];
        for place in places {
            let request = http::Request::get(&place).header("accept", "application/json").body(Vec::new());
            let Ok(answer) = self.ask(request.map_err(|_| unknown())?).await else { continue };
            let read = serde_json::from_slice::<AuthorizationMetadata>(answer.body()).ok();
            let is_its =
                |found: &AuthorizationMetadata| found.issuer.as_deref().map(plain) == Some(plain(issuer));
            if let Some(metadata) = read.filter(|found| answer.status().is_success() && is_its(found)) {
                return Ok(metadata);
            }
        }
        Err(unknown())
    }

    async fn ask(
        &self,
        request: http::Request<Vec<u8>>,
    ) -> Result<http::Response<Vec<u8>>, OAuthHttpClientError> {
        let (parts, body) = request.into_parts();
        let url = self.check(&parts.uri.to_string())?;
        let request = self.client.request(parts.method, url).headers(parts.headers).body(body).timeout(TIME);
        let mut response = request.send().await?;
        let mut body = Vec::new();
        while let Some(bytes) = response.chunk().await? {
            if body.len() + bytes.len() > BYTES {
                return Err("the answer is too long".into());
            }
            body.extend_from_slice(&bytes);
        }
        let mut answer = http::Response::new(body);
        *answer.status_mut() = response.status();
        *answer.headers_mut() = response.headers().clone();
        Ok(answer)
    }
}

impl OAuthHttpClient for Asker {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(self.ask(request.request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_without_tls_but_what_was_named() {
        let guard = Guard::new(["*"]).allow_private("127.0.0.1:8080");
        let client = guarded_client(&guard, TIME).unwrap();
        let asker = Asker { client, guard, private: vec!["127.0.0.1:8080".to_owned()] };
        assert!(asker.check("https://login.example/token").is_ok());
        assert!(asker.check("http://127.0.0.1:8080/token").is_ok());
        assert!(asker.check("http://login.example/token").is_err());
        assert!(asker.check("http://127.0.0.1:9090/token").is_err());
    }

    #[tokio::test]
    async fn what_a_server_wants_of_one_user_is_no_matter_of_the_others() {
        let oauth = McpOAuth::new("https://mcp.example/mcp", "https://app.example/back");
        let found = || Found {
            authorize: "https://login.example/authorize".to_owned(),
            token: "https://login.example/token".to_owned(),
            client: "c1".to_owned(),
            scopes: vec!["read".to_owned()],
            resource: "https://mcp.example/mcp".to_owned(),
            issuer: None,
            secret: None,
            secret_in_body: false,
        };
        let user = |token: &str| keep(&Credential::new(json!({"accessToken": token})), found());
        let (ann, ben) = (user("of-ann"), user("of-ben"));
        let said = "Bearer error=\"insufficient_scope\", scope=\"read\"".to_owned();
        let refused = || Refused { said: said.clone(), credential: ann.clone() };
        assert!(REFUSED.scope(refused(), oauth.renewed(Some(&ben), 0.0)).await.is_ok());
        let error = REFUSED.scope(refused(), oauth.renewed(Some(&ann), 0.0)).await.unwrap_err();
        assert!(error.message().contains("wants more than the token is good for"), "{error}");
        assert!(oauth.renewed(Some(&ann), 0.0).await.is_ok(), "that was said of one request");
    }
}
