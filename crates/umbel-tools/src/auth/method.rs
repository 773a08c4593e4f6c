//! How tokens come about, are renewed and given up.

use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Url;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use umbel_core::{
    AuthAnswer, AuthMethod, AuthRequest, Credential, Error, ErrorKind, Expects, HttpAuth, Result, Standing,
    Work,
};
use umbel_jwt::SigningKey;

use super::client::OAuthClient;
use super::open_id::{Issuer, Published};
use super::token::{self, Asker, Refusal, Source, Tokens};
use super::{Endpoints, random, refuse};
use crate::http::Http;

/// How long what a service account signs is good for, in seconds.
const ASSERTION: i64 = 3_600;
const ID_TOKEN: &str = "urn:ietf:params:oauth:token-type:id_token";

/// A credential that an authorization server gives: see [`OAuth`](super::OAuth).
pub struct OAuthMethod {
    pub(super) kind: Kind,
    pub(super) places: Places,
    /// Who asks. A service account says so by what it signs.
    pub(super) client: Option<OAuthClient>,
    pub(super) scopes: Vec<String>,
    pub(super) parameters: Vec<(String, String)>,
    pub(super) question: Option<String>,
    pub(super) http: Http,
}

/// What tokens are given for.
pub(super) enum Kind {
    Code { redirect: String },
    Client,
    Exchange { subject: Arc<dyn AuthMethod>, token_type: String },
    Account { email: String, key: Arc<SigningKey>, person: Option<String> },
}

impl Kind {
    pub(super) fn code(redirect: String) -> Result<Self> {
        match Url::parse(&redirect) {
            Ok(url) if url.fragment().is_none() => Ok(Self::Code { redirect }),
            Ok(_) => Err(refuse("the redirect URI has a `#` in it: leave out what follows")),
            Err(_) => Err(refuse("the redirect URI is no whole address: it begins with such as https://")),
        }
    }
}

/// Who knows where the server is asked for what.
pub(super) enum Places {
    Known(Box<Endpoints>),
    Published(Box<Issuer>),
}

/// What must not be seen of a sign-in until the person is back.
struct SignIn {
    state: String,
    verifier: String,
    nonce: Option<String>,
}

impl SignIn {
    fn new(has_nonce: bool) -> Result<Self> {
        let nonce = if has_nonce { Some(random()?) } else { None };
        Ok(Self { state: random()?, verifier: random()?, nonce })
    }

    /// What the server is shown in the place of the verifier.
    fn challenge(&self) -> String {
        URL_SAFE_NO_PAD.encode(digest(&SHA256, self.verifier.as_bytes()))
    }
}

impl OAuthMethod {
    async fn endpoints(&self, now: f64) -> Result<Endpoints> {
        match &self.places {
            Places::Known(endpoints) => Ok(Endpoints::clone(endpoints)),
            Places::Published(issuer) => Ok(issuer.published(&self.http, now).await?.endpoints),
        }
    }

    /// What a request for a token says beside what it is for.
    fn form(&self, grant_type: &str, mut fields: Vec<(&'static str, String)>) -> Vec<(&str, String)> {
        fields.insert(0, ("grant_type", grant_type.to_owned()));
        let mut form: Vec<(&str, String)> = fields;
        if !matches!(self.kind, Kind::Account { .. }) && !self.scopes.is_empty() {
            form.push(("scope", self.scopes.join(" ")));
        }
        form.extend(self.parameters.iter().map(|(name, value)| (name.as_str(), value.clone())));
        form
    }

    async fn ask_for_tokens(&self, form: Vec<(&str, String)>, now: f64) -> Result<Tokens, Refusal> {
        let endpoints = self.endpoints(now).await?;
        let asker = self.asker(&endpoints);
        let tokens = token::ask(&self.http, &endpoints.token, asker.as_ref(), form, now).await?;
        Ok(Tokens { source: Some(self.source()), ..tokens })
    }

    /// Who asks, if not by what is asked for.
    fn asker<'a>(&'a self, endpoints: &'a Endpoints) -> Option<Asker<'a>> {
        // An issuer is whom the program names; what it publishes may lead elsewhere.
        let server = endpoints.issuer.as_deref().unwrap_or(endpoints.token.as_str());
        Some(Asker { client: self.client.as_ref()?, server })
    }

    /// Where its tokens come from.
    fn source(&self) -> Source {
        let server = match &self.places {
            Places::Known(endpoints) => endpoints.token.to_string(),
            Places::Published(issuer) => issuer.name.clone(),
        };
        let client = match (&self.kind, &self.client) {
            (Kind::Account { email, person: Some(person), .. }, _) => format!("{email} for {person}"),
            (Kind::Account { email, .. }, _) => email.clone(),
            (_, client) => client.as_ref().map(|client| client.id().to_owned()).unwrap_or_default(),
        };
        let mut scopes = self.scopes.clone();
        scopes.sort();
        let services = self.parameters.iter().filter(|(name, _)| name == "audience" || name == "resource");
        let mut services: Vec<String> = services.map(|(_, value)| value.clone()).collect();
        services.sort();
        Source { server, client, scopes, services }
    }

    /// What is kept, if it is this method's: what another server gave, or for something else, is as good as nothing.
    fn kept(&self, kept: &Credential) -> Option<Tokens> {
        Tokens::read(kept, &self.source())
    }

    /// The address where a person signs in.
    fn link(&self, authorize: &Url, redirect: &str, client: &str, sign_in: &SignIn) -> Url {
        let mut link = authorize.clone();
        {
            let mut query = link.query_pairs_mut();
            query.append_pair("response_type", "code").append_pair("client_id", client);
            query.append_pair("redirect_uri", redirect);
            if !self.scopes.is_empty() {
                query.append_pair("scope", &self.scopes.join(" "));
            }
            query.append_pair("state", &sign_in.state);
            query.append_pair("code_challenge", &sign_in.challenge());
            query.append_pair("code_challenge_method", "S256");
            if let Some(nonce) = &sign_in.nonce {
                query.append_pair("nonce", nonce);
            }
            for (name, value) in &self.parameters {
                query.append_pair(name, value);
            }
        }
        link
    }

    async fn ask_person(&self, redirect: &str, now: f64) -> Result<AuthRequest> {
        let endpoints = self.endpoints(now).await?;
        let (Some(authorize), Some(client)) = (&endpoints.authorize, &self.client) else {
            return Err(Error::new(ErrorKind::Unsupported, "nobody can sign in there"));
        };
        let says_who = matches!(self.places, Places::Published(_));
        let sign_in = SignIn::new(says_who)?;
        let link = self.link(authorize, redirect, client.id(), &sign_in);
        let kind = if says_who { "openIdConnect" } else { "oauth2" };
        let usual = || format!("Sign in at {} to go on.", token::host(authorize));
        let SignIn { state, verifier, nonce } = sign_in;
        Ok(AuthRequest {
            message: self.question.clone().unwrap_or_else(usual),
            shown: json!({"authType": kind, "oauth2": {
                "authUri": link.as_str(), "state": state, "redirectUri": redirect}}),
            schema: Some(json!({
                "type": "object",
                "properties": {"authResponseUri": {
                    "type": "string",
                    "description": "The whole address that the browser was sent back to after signing in.",
                }},
                "required": ["authResponseUri"],
            })),
            expects: Expects::Redirect { uri: redirect.to_owned(), state, issuer: endpoints.issuer },
            pending: json!({"verifier": verifier, "nonce": nonce}),
            expires_in: None,
        })
    }

    /// The tokens for a code.
    async fn redeem(&self, redirect: &str, answer: &AuthAnswer, now: f64) -> Result<Tokens> {
        let kept = |name: &str| answer.pending.get(name).and_then(Value::as_str);
        let (Some(code), Some(verifier)) = (answer.text("code"), kept("verifier")) else {
            let message = "what was kept of the sign-in is gone: sign in again";
            return Err(Error::new(ErrorKind::Other, message));
        };
        let mut form = vec![
            ("grant_type", "authorization_code".to_owned()),
            ("code", code.to_owned()),
            ("redirect_uri", redirect.to_owned()),
            ("code_verifier", verifier.to_owned()),
        ];
        form.extend(self.resources());
        let mut tokens = self.ask_for_tokens(form, now).await.map_err(|refusal| refusal.error)?;
        if let Places::Published(issuer) = &self.places {
            let published = issuer.published(&self.http, now).await?;
            tokens.person = Some(self.person(issuer, &published, &tokens, kept("nonce"), now).await?);
        }
        Ok(tokens)
    }

    /// Which services the token is for: said at every step (RFC 8707).
    fn resources(&self) -> impl Iterator<Item = (&'static str, String)> + '_ {
        let resources = self.parameters.iter().filter(|(name, _)| name == "resource");
        resources.map(|(_, value)| ("resource", value.clone()))
    }

    /// Whom the id token is about.
    async fn person(
        &self,
        issuer: &Issuer,
        published: &Published,
        tokens: &Tokens,
        nonce: Option<&str>,
        now: f64,
    ) -> Result<String> {
        let client = self.client.as_ref().map(OAuthClient::id).unwrap_or_default();
        let Some(token) = &tokens.id_token else {
            let message = format!("`{}` does not say who signed in: there is no id token", issuer.name);
            return Err(Error::new(ErrorKind::Other, message));
        };
        issuer.person(&self.http, published, token, client, nonce, now).await
    }

    /// New tokens for a refresh token. `None` if it counts no more.
    async fn refresh(&self, kept: Tokens, now: f64) -> Result<Option<Tokens>> {
        let Some(refresh_token) = kept.refresh_token else { return Ok(None) };
        let mut form =
            vec![("grant_type", "refresh_token".to_owned()), ("refresh_token", refresh_token.clone())];
        form.extend(self.resources());
        let mut tokens = match self.ask_for_tokens(form, now).await {
            Ok(tokens) => tokens,
            Err(refusal) if refusal.is_stale => return Ok(None),
            Err(refusal) => return Err(refusal.error),
        };
        // A server that does not rotate them says nothing about it.
        tokens.refresh_token = tokens.refresh_token.or(Some(refresh_token));
        // The refresh token that was used is gone: whatever comes now must not lose the new one.
        match self.checked(&tokens, now).await {
            Some(person) if kept.person.as_ref().is_some_and(|before| *before != person) => {
                tracing::warn!("a renewed id token is about somebody else: a person has to sign in again");
                return Ok(None);
            }
            Some(person) => tokens.person = Some(person),
            None => (tokens.id_token, tokens.person) = (kept.id_token, kept.person),
        }
        Ok(Some(tokens))
    }

    /// Whom a renewed id token is about; `None` if there is none, or it cannot be checked. Then the one before stays.
    async fn checked(&self, tokens: &Tokens, now: f64) -> Option<String> {
        let Places::Published(issuer) = &self.places else { return None };
        tokens.id_token.as_ref()?;
        let person = async {
            let published = issuer.published(&self.http, now).await?;
            self.person(issuer, &published, tokens, None, now).await
        };
        let failed = |error: Error| tracing::warn!("a renewed id token is not used: {}", error.message());
        person.await.map_err(failed).ok()
    }

    /// The token for what a service account signs.
    async fn signed(&self, email: &str, key: &SigningKey, person: Option<&str>, now: f64) -> Result<Tokens> {
        let audience = self.endpoints(now).await?.token;
        let begin = now as i64;
        let end = begin + ASSERTION;
        let mut claims = json!({"iss": email, "aud": audience.as_str(), "iat": begin, "exp": end});
        if let Some(claims) = claims.as_object_mut() {
            if !self.scopes.is_empty() {
                claims.insert("scope".to_owned(), self.scopes.join(" ").into());
            }
            claims.extend(person.map(|person| ("sub".to_owned(), person.into())));
        }
        let grant = "urn:ietf:params:oauth:grant-type:jwt-bearer";
        let form = self.form(grant, vec![("assertion", key.sign(&claims)?)]);
        self.ask_for_tokens(form, now).await.map_err(|refusal| refusal.error)
    }

    /// The token for that of another method, as it is kept.
    async fn exchanged(
        &self,
        subject: &dyn AuthMethod,
        token_type: &str,
        kept: &Credential,
        now: f64,
    ) -> Result<Tokens, Refusal> {
        let token = match token_type {
            ID_TOKEN => id_token(kept),
            _ => subject.http(kept).and_then(|http| Some(http.expose().strip_prefix("Bearer ")?.to_owned())),
        };
        let Some(token) = token else {
            let message = "there is no token of the kind that is to be exchanged";
            return Err(Error::new(ErrorKind::Other, message).into());
        };
        let grant = "urn:ietf:params:oauth:grant-type:token-exchange";
        let fields = vec![("subject_token", token), ("subject_token_type", token_type.to_owned())];
        let tokens = self.ask_for_tokens(self.form(grant, fields), now).await?;
        // What it was exchanged for is kept with it, and renewed when it must be.
        let subject = subject.fixed().is_none().then(|| kept.expose().clone());
        Ok(Tokens { subject, refresh_token: None, ..tokens })
    }

    /// The same, from what is kept of both.
    async fn exchanged_again(
        &self,
        subject: &dyn AuthMethod,
        token_type: &str,
        kept: Option<Tokens>,
        now: f64,
    ) -> Result<Option<Tokens>> {
        let before = kept.as_ref().and_then(|kept| kept.subject.clone()).map(Credential::new);
        let current = match subject.fixed() {
            Some(fixed) => Some(fixed),
            None => match subject.standing(before.as_ref(), now) {
                Standing::Ready => before.clone(),
                Standing::Renew => subject.renew(before.as_ref(), now).await?,
                Standing::Ask => None,
            },
        };
        let Some(current) = current else { return Ok(None) };
        match (self.exchanged(subject, token_type, &current, now).await, kept) {
            (Ok(tokens), _) => Ok(Some(tokens)),
            (Err(refusal), _) if refusal.is_stale && subject.fixed().is_none() => Ok(None),
            // What it is exchanged for is new and must not be lost. The rest stays as it was, to be exchanged next time.
            (Err(refusal), Some(kept)) if subject.fixed().is_none() && before.as_ref() != Some(&current) => {
                tracing::warn!("a renewed token is not exchanged yet: {}", refusal.error.message());
                Ok(Some(Tokens { subject: Some(current.expose().clone()), ..kept }))
            }
            (Err(refusal), _) => Err(refusal.error),
        }
    }

    async fn renewed(&self, kept: Option<&Credential>, now: f64) -> Result<Option<Tokens>> {
        let kept = kept.and_then(|kept| self.kept(kept));
        let ending = kept.clone().filter(|kept| kept.is_ending(now));
        match (self.had_anew(kept, now).await, ending) {
            // What is good for another moment is better than nothing.
            (Err(error), Some(ending)) => {
                tracing::warn!("a token is about to expire and not renewed yet: {}", error.message());
                Ok(Some(ending))
            }
            (renewed, _) => renewed,
        }
    }

    async fn had_anew(&self, kept: Option<Tokens>, now: f64) -> Result<Option<Tokens>> {
        match &self.kind {
            Kind::Code { .. } => match kept {
                Some(kept) => self.refresh(kept, now).await,
                None => Ok(None),
            },
            Kind::Client => {
                let form = self.form("client_credentials", Vec::new());
                let tokens = self.ask_for_tokens(form, now).await.map_err(|refusal| refusal.error)?;
                Ok(Some(Tokens { refresh_token: None, ..tokens }))
            }
            Kind::Account { email, key, person } => {
                self.signed(email, key, person.as_deref(), now).await.map(Some)
            }
            Kind::Exchange { subject, token_type } => {
                self.exchanged_again(&**subject, token_type, kept, now).await
            }
        }
    }

    async fn answered(&self, answer: AuthAnswer, now: f64) -> Result<Tokens> {
        match &self.kind {
            Kind::Code { redirect } => self.redeem(redirect, &answer, now).await,
            Kind::Exchange { subject, token_type } => {
                let subject_kept = subject.exchange(answer, now).await?;
                let exchanged = self.exchanged(&**subject, token_type, &subject_kept, now).await;
                exchanged.map_err(|refusal| refusal.error)
            }
            Kind::Client | Kind::Account { .. } => {
                Err(Error::new(ErrorKind::Unsupported, "nobody was asked for this credential"))
            }
        }
    }

    async fn give_up(&self, kept: &Credential, now: f64) -> Result<()> {
        let Some(tokens) = self.kept(kept) else {
            let message = "the token is another server's, or was given for something else: nobody is told";
            return Err(Error::new(ErrorKind::Other, message));
        };
        let told = match (&self.kind, &tokens.subject) {
            (Kind::Exchange { subject, .. }, Some(before)) => {
                subject.revoke(&Credential::new(before.clone()), now).await
            }
            _ => Ok(()),
        };
        self.give_up_own(tokens, now).await.and(told)
    }

    async fn give_up_own(&self, tokens: Tokens, now: f64) -> Result<()> {
        let endpoints = self.endpoints(now).await?;
        let (Some(url), Some(asker)) = (&endpoints.revoke, self.asker(&endpoints)) else {
            return Ok(());
        };
        // With a refresh token goes all that came of it.
        let (token, kind) = match tokens.refresh_token {
            Some(token) => (token, "refresh_token"),
            None => (tokens.access_token, "access_token"),
        };
        let form = vec![("token", token), ("token_type_hint", kind.to_owned())];
        token::revoke(&self.http, url, &asker, form, now).await
    }
}

/// The id token of a sign-in, as whatever method keeps it.
fn id_token(kept: &Credential) -> Option<String> {
    kept.expose().get("idToken")?.as_str().map(str::to_owned)
}

impl AuthMethod for OAuthMethod {
    fn scheme(&self) -> Value {
        let scopes = || -> Value {
            Value::Object(self.scopes.iter().map(|scope| (scope.clone(), json!(""))).collect())
        };
        match (&self.kind, &self.places) {
            (Kind::Exchange { subject, .. }, _) => subject.scheme(),
            (_, Places::Published(issuer)) => {
                let url = issuer.url.as_str();
                json!({"type": "openIdConnect", "openIdConnectUrl": url, "scopes": self.scopes})
            }
            (_, Places::Known(endpoints)) => {
                let token = endpoints.token.as_str();
                let mut flow = json!({"tokenUrl": token, "scopes": scopes()});
                let name = match (&endpoints.authorize, flow.as_object_mut()) {
                    (Some(url), Some(flow)) => {
                        flow.insert("authorizationUrl".to_owned(), url.as_str().into());
                        "authorizationCode"
                    }
                    _ => "clientCredentials",
                };
                json!({"type": "oauth2", "flows": {name: flow}})
            }
        }
    }

    fn standing(&self, kept: Option<&Credential>, now: f64) -> Standing {
        let kept = kept.and_then(|kept| self.kept(kept));
        if kept.as_ref().is_some_and(|kept| kept.is_good(now)) {
            return Standing::Ready;
        }
        match &self.kind {
            Kind::Client | Kind::Account { .. } => Standing::Renew,
            Kind::Code { .. } if kept.as_ref().is_some_and(|kept| kept.refresh_token.is_some()) => {
                Standing::Renew
            }
            Kind::Code { .. } => Standing::Ask,
            Kind::Exchange { subject, .. } if subject.fixed().is_some() => Standing::Renew,
            Kind::Exchange { subject, .. } => {
                let before = kept.and_then(|kept| kept.subject).map(Credential::new);
                match subject.standing(before.as_ref(), now) {
                    Standing::Ask => Standing::Ask,
                    Standing::Ready | Standing::Renew => Standing::Renew,
                }
            }
        }
    }

    fn http(&self, credential: &Credential) -> Option<HttpAuth> {
        self.kept(credential).map(|tokens| HttpAuth::bearer(&tokens.access_token))
    }

    fn renew<'a>(&'a self, kept: Option<&'a Credential>, now: f64) -> Work<'a, Result<Option<Credential>>> {
        Work::later(async move { Ok(self.renewed(kept, now).await?.map(|tokens| tokens.keep())) })
    }

    fn ask(&self, now: f64) -> Work<'_, Result<AuthRequest>> {
        match &self.kind {
            Kind::Code { redirect } => Work::later(self.ask_person(redirect, now)),
            Kind::Exchange { subject, .. } => subject.ask(now),
            Kind::Client | Kind::Account { .. } => {
                let message = "this credential needs no person, and could not be had";
                Work::done(Err(Error::new(ErrorKind::Unsupported, message)))
            }
        }
    }

    fn exchange<'a>(&'a self, answer: AuthAnswer, now: f64) -> Work<'a, Result<Credential>> {
        Work::later(async move { Ok(self.answered(answer, now).await?.keep()) })
    }

    fn revoke<'a>(&'a self, kept: &'a Credential, now: f64) -> Work<'a, Result<()>> {
        Work::later(self.give_up(kept, now))
    }
}

/// No secret is shown.
impl fmt::Debug for OAuthMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OAuthMethod({})", self.scheme())
    }
}
