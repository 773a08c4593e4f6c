//! Who may ask: the security schemes of a document, and what the program gives for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use smol_str::format_smolstr;
use umbel_core::{AuthConfig, Error, ErrorKind, HttpPlace, PlainAuth, Result};

use super::document::{Document, Found, Place, escape, wrong};
use crate::auth::{OAuth, OAuthClient};
use crate::guard::Lookup;
use crate::secret::Secret;

/// What the program gives for a security scheme.
#[derive(Clone)]
pub(super) enum Given {
    Credential(AuthConfig),
    SignIn(OAuthClient, String),
    Client(OAuthClient),
    Secret(Secret),
    Person,
}

/// Where the service and its authorization server are.
pub(super) struct Around<'a> {
    /// The service's host: whose the credentials are.
    pub(super) host: String,
    pub(super) private: &'a [String],
    pub(super) lookup: Option<&'a Arc<dyn Lookup>>,
}

/// The credentials for the schemes of a document, by the scheme's name.
#[derive(Default)]
pub(super) struct Schemes(BTreeMap<String, AuthConfig>);

impl Schemes {
    pub(super) fn read(
        document: &Document<'_>,
        given: &[(String, Given)],
        operations: &[Found<'_>],
        around: &Around<'_>,
    ) -> Result<Self> {
        let mut schemes = BTreeMap::new();
        for (name, given) in given {
            let pointer = format!("#/components/securitySchemes/{}", escape(name));
            let Some(scheme) = document.scheme(name)? else {
                let known = document.scheme_names().join(", ");
                let message =
                    format!("the OpenAPI document has no security scheme `{name}`. There are: {known}");
                return Err(Error::new(ErrorKind::Build, message));
            };
            let scopes: BTreeSet<&str> = operations
                .iter()
                .flat_map(|operation| document.requirements(operation))
                .flat_map(|needed| needed.get(name.as_str()).cloned().unwrap_or_default())
                .collect();
            // Who has a key of one service must not show it to another.
            let credential = format_smolstr!("{}/{name}", around.host);
            let reader = Reader { scheme, pointer: &pointer, scopes, around };
            let auth = match given {
                Given::Credential(auth) => auth.clone(),
                Given::Secret(secret) => AuthConfig::new(credential, reader.plain()?.fixed(secret.reveal())),
                Given::Person => AuthConfig::new(credential, reader.plain()?),
                Given::SignIn(client, redirect) => {
                    AuthConfig::new(credential, reader.sign_in(client, redirect)?.build()?)
                }
                Given::Client(client) => AuthConfig::new(credential, reader.client(client)?.build()?),
            };
            schemes.insert(name.clone(), auth);
        }
        Ok(Self(schemes))
    }

    /// What an operation is sent with: of all that the document would have, the first that the program gives. To send nothing, where
    /// that will do, is the last choice.
    pub(super) fn of(&self, document: &Document<'_>, operation: &Found<'_>) -> Vec<AuthConfig> {
        let known = |needed: &BTreeMap<&str, Vec<&str>>| {
            !needed.is_empty() && needed.keys().all(|name| self.0.contains_key(*name))
        };
        let chosen = document.requirements(operation).into_iter().find(known).unwrap_or_default();
        chosen.keys().filter_map(|name| self.0.get(*name).cloned()).collect()
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &AuthConfig> {
        self.0.values()
    }

    /// Whether a parameter is that of a key, and not the model's to say.
    pub(super) fn says(&self, place: Place, name: &str) -> bool {
        self.0.values().any(|auth| carries(auth, place, name))
    }
}

/// Whether a credential goes along as that parameter.
pub(super) fn carries(auth: &AuthConfig, place: Place, name: &str) -> bool {
    let scheme = auth.method.scheme();
    let text = |key: &str| scheme.get(key).and_then(Value::as_str);
    match (place, text("type"), text("in")) {
        (Place::Header, Some("apiKey"), Some("header")) => {
            text("name").is_some_and(|own| own.eq_ignore_ascii_case(name))
        }
        (Place::Query, Some("apiKey"), Some("query")) | (Place::Cookie, Some("apiKey"), Some("cookie")) => {
            text("name") == Some(name)
        }
        _ => false,
    }
}

/// A scheme of the document, with what is needed to make a credential of it.
struct Reader<'a> {
    scheme: &'a Value,
    pointer: &'a str,
    scopes: BTreeSet<&'a str>,
    around: &'a Around<'a>,
}

impl Reader<'_> {
    fn text(&self, pointer: &str) -> Option<&str> {
        self.scheme.pointer(pointer).and_then(Value::as_str)
    }

    /// A secret that is used as it is.
    fn plain(&self) -> Result<PlainAuth> {
        let http = self.text("/scheme").map(str::to_ascii_lowercase);
        let place = match self.text("/in") {
            Some("header") => Some(HttpPlace::Header),
            Some("query") => Some(HttpPlace::Query),
            Some("cookie") => Some(HttpPlace::Cookie),
            _ => None,
        };
        match (self.text("/type"), http.as_deref(), place, self.text("/name")) {
            (Some("apiKey"), _, Some(place), Some(name)) => Ok(PlainAuth::api_key(place, name)),
            (Some("http"), Some("bearer"), ..) => Ok(PlainAuth::bearer()),
            (Some("http"), Some("basic"), ..) => Ok(PlainAuth::basic()),
            _ => Err(wrong(self.pointer, "this is no key, token or password that can be used as it is")),
        }
    }

    /// People sign in.
    fn sign_in(&self, client: &OAuthClient, redirect: &str) -> Result<OAuth> {
        let flow = |key: &str| self.text(&format!("/flows/authorizationCode/{key}"));
        let oauth = match (self.text("/type"), flow("authorizationUrl"), flow("tokenUrl")) {
            (Some("oauth2"), Some(authorize), Some(token)) => {
                OAuth::code(client.clone(), authorize, token, redirect)
            }
            (Some("openIdConnect"), ..) => {
                let url = self.text("/openIdConnectUrl").unwrap_or_default();
                let Some(issuer) = url.strip_suffix("/.well-known/openid-configuration") else {
                    let why = "`openIdConnectUrl` does not end in `/.well-known/openid-configuration`";
                    return Err(wrong(self.pointer, why));
                };
                OAuth::open_id(client.clone(), issuer, redirect)
            }
            _ => return Err(wrong(self.pointer, "nobody can sign in by it: it has no `authorizationCode`")),
        };
        Ok(self.set_up(oauth))
    }

    /// The program signs in.
    fn client(&self, client: &OAuthClient) -> Result<OAuth> {
        match (self.text("/type"), self.text("/flows/clientCredentials/tokenUrl")) {
            (Some("oauth2"), Some(token)) => {
                Ok(self.set_up(OAuth::client_credentials(client.clone(), token)))
            }
            _ => {
                let why = "a program cannot sign in by it: it has no `clientCredentials`";
                Err(wrong(self.pointer, why))
            }
        }
    }

    fn set_up(&self, mut oauth: OAuth) -> OAuth {
        for scope in &self.scopes {
            oauth = oauth.scope(*scope);
        }
        for host in self.around.private {
            oauth = oauth.allow_private(host);
        }
        match self.around.lookup {
            Some(lookup) => oauth.lookup(lookup.clone()),
            None => oauth,
        }
    }
}

impl<'a> Document<'a> {
    /// A security scheme by its name.
    fn scheme(&self, name: &str) -> Result<Option<&'a Value>> {
        let Some(scheme) = self.root.pointer("/components/securitySchemes").and_then(|all| all.get(name))
        else {
            return Ok(None);
        };
        let pointer = format!("#/components/securitySchemes/{}", escape(name));
        Ok(Some(self.follow(scheme, &pointer)?.0))
    }

    fn scheme_names(&self) -> Vec<&'a str> {
        let all = self.root.pointer("/components/securitySchemes").and_then(Value::as_object);
        all.into_iter().flat_map(|all| all.keys().map(String::as_str)).take(20).collect()
    }

    /// What an operation wants: one of these, each of them schemes with their scopes.
    fn requirements(&self, operation: &Found<'a>) -> Vec<BTreeMap<&'a str, Vec<&'a str>>> {
        let all = operation.operation.get("security").or_else(|| self.root.get("security"));
        let all = all.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object);
        let scopes = |scopes: &'a Value| -> Vec<&'a str> {
            scopes.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
        };
        all.map(|one| one.iter().map(|(name, needed)| (name.as_str(), scopes(needed))).collect()).collect()
    }
}
