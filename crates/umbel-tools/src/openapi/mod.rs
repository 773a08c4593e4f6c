//! HTTP services as tools: one for each operation of an OpenAPI document.

mod document;
mod operation;
mod schema;
mod security;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use reqwest::Url;
use serde_json::Value;
use smol_str::{SmolStr, ToSmolStr};
use umbel_core::{
    AuthConfig, BoxFuture, Confirm, Error, ErrorKind, HttpPlace, PlainAuth, Result, Run, Tool, Toolset,
};

use self::document::{Document, Found, Place};
use self::operation::{Access, Operation};
use self::security::{Around, Given, Schemes, carries};
use crate::auth::OAuthClient;
use crate::guard::{Guard, Lookup};
use crate::http::{Http, HttpLimits, header};
use crate::secret::Secret;

/// The longest name that all providers take.
const LONGEST_NAME: usize = 64;

/// An HTTP service, described by an OpenAPI document (3.0 or 3.1, as JSON), in the making.
///
/// ```
/// use umbel_core::Tool;
/// use umbel_tools::OpenApi;
///
/// let document = r#"{
///     "openapi": "3.1.0",
///     "servers": [{"url": "https://pets.example.org/v1"}],
///     "paths": {"/pets/{id}": {"get": {
///         "operationId": "getPet",
///         "summary": "Tells about a pet.",
///         "parameters": [{"name": "id", "in": "path", "required": true, "schema": {"type": "integer"}}]
///     }}}
/// }"#;
/// let service = OpenApi::read(document).unwrap().build().unwrap();
/// let spec = service.tools()[0].spec().clone();
/// assert_eq!((spec.name.as_str(), spec.description.as_str()), ("getPet", "Tells about a pet."));
/// assert!(spec.read_only);
/// ```
///
/// Only the hosts of the document's servers are asked, and only at public addresses; see [`Guard`].
pub struct OpenApi {
    document: Value,
    name: SmolStr,
    prefix: SmolStr,
    operations: BTreeSet<String>,
    tags: BTreeSet<String>,
    server: Option<String>,
    hosts: Vec<String>,
    private: Vec<String>,
    lookup: Option<Arc<dyn Lookup>>,
    /// What goes with each request.
    credentials: Vec<AuthConfig>,
    /// What the program gives for the document's security schemes.
    given: Vec<(String, Given)>,
    /// Secrets of the program that must not come back.
    secrets: Vec<Secret>,
    limits: HttpLimits,
    confirm: Option<Ask>,
}

/// About which calls people are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    Changes,
    All,
}

impl OpenApi {
    /// A service by the text of its document.
    pub fn read(document: &str) -> Result<Self> {
        let document = serde_json::from_str(document).map_err(|error| {
            let looks_like_yaml = !document.trim_start().starts_with(['{', '[']);
            let hint = if looks_like_yaml {
                ". It looks like YAML: write it as JSON first, such as with `yq -o json`"
            } else {
                ""
            };
            Error::new(ErrorKind::Build, format!("the OpenAPI document is not JSON: {error}{hint}"))
        })?;
        Ok(Self::new(document))
    }

    /// A service by its document.
    pub fn new(document: Value) -> Self {
        Self {
            document,
            name: "openapi".into(),
            prefix: SmolStr::default(),
            operations: BTreeSet::new(),
            tags: BTreeSet::new(),
            server: None,
            hosts: Vec::new(),
            private: Vec::new(),
            lookup: None,
            credentials: Vec::new(),
            given: Vec::new(),
            secrets: Vec::new(),
            limits: HttpLimits::default(),
            confirm: None,
        }
    }

    /// Its name, for messages; `openapi` unless given.
    pub fn name(mut self, name: impl Into<SmolStr>) -> Self {
        self.name = name.into();
        self
    }

    /// What the names of all its tools begin with.
    pub fn prefix(mut self, prefix: impl Into<SmolStr>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Takes this operation, and no other that is not named too.
    pub fn operation(mut self, id: impl Into<String>) -> Self {
        self.operations.insert(id.into());
        self
    }

    /// Takes operations with this tag, and no others that are not named too.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.insert(tag.into());
        self
    }

    /// Where the service is, in the place of what the document says.
    pub fn server(mut self, url: impl Into<String>) -> Self {
        self.server = Some(url.into());
        self
    }

    /// A host that may be asked besides those of the servers, such as one that redirects lead to. An operation that the document has
    /// on such a host is sent with credentials there; on any other host than the service's own it is not.
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.hosts.push(host.into());
        self
    }

    /// A host that may be on this machine or in its network.
    pub fn allow_private(mut self, host: impl Into<String>) -> Self {
        self.private.push(host.into());
        self
    }

    /// Finds addresses of names in another way than this machine does.
    pub fn lookup(mut self, lookup: impl Lookup + 'static) -> Self {
        self.lookup = Some(Arc::new(lookup));
        self
    }

    /// Sends a token with each request.
    pub fn bearer(self, token: &Secret) -> Self {
        let method = PlainAuth::bearer().fixed(token.reveal());
        self.credential(AuthConfig::new("bearer token", method)).hides(token.clone())
    }

    /// Sends a header with each request.
    pub fn header(self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.fixed(HttpPlace::Header, &name.into(), value.into())
    }

    /// Sends a key in the address of each request, where the service wants it there.
    pub fn query_key(self, name: impl Into<String>, key: impl Into<Secret>) -> Self {
        self.fixed(HttpPlace::Query, &name.into(), key.into())
    }

    fn fixed(self, place: HttpPlace, name: &str, secret: Secret) -> Self {
        let what = if place == HttpPlace::Header { "header" } else { "key" };
        let method = PlainAuth::api_key(place, name).fixed(secret.reveal());
        self.credential(AuthConfig::new(format!("{what} `{name}`"), method)).hides(secret)
    }

    /// Sends a credential with each request, whatever the document says. One that the service refuses (401) is renewed, or
    /// asked for anew, and sent once more.
    pub fn credential(mut self, auth: AuthConfig) -> Self {
        self.credentials.push(auth);
        self
    }

    /// A credential for a security scheme of the document: it is sent with the operations that want it.
    pub fn security(self, scheme: impl Into<String>, auth: AuthConfig) -> Self {
        self.gives(scheme.into(), Given::Credential(auth))
    }

    /// People sign in, by a security scheme of the type `oauth2` with a code, or `openIdConnect`. Where, and what for, the
    /// document says.
    pub fn sign_in(
        self,
        scheme: impl Into<String>,
        client: OAuthClient,
        redirect_uri: impl Into<String>,
    ) -> Self {
        self.gives(scheme.into(), Given::SignIn(client, redirect_uri.into()))
    }

    /// The program signs in, by a security scheme of the type `oauth2` with client credentials.
    pub fn sign_in_as_program(self, scheme: impl Into<String>, client: OAuthClient) -> Self {
        self.gives(scheme.into(), Given::Client(client))
    }

    /// The secret for a security scheme: an API key, or a bearer token.
    pub fn secret(self, scheme: impl Into<String>, secret: impl Into<Secret>) -> Self {
        let secret = secret.into();
        self.gives(scheme.into(), Given::Secret(secret.clone())).hides(secret)
    }

    /// People are asked for the secret of a security scheme: an API key, a bearer token, or a name with a password.
    pub fn ask_for(self, scheme: impl Into<String>) -> Self {
        self.gives(scheme.into(), Given::Person)
    }

    fn gives(mut self, scheme: String, given: Given) -> Self {
        self.given.push((scheme, given));
        self
    }

    /// How much a request may take.
    pub fn limits(mut self, limits: HttpLimits) -> Self {
        self.limits = limits;
        self
    }

    /// People are asked before each call.
    pub fn confirm(mut self) -> Self {
        self.confirm = Some(Ask::All);
        self
    }

    /// People are asked before each call that is not just reading.
    pub fn confirm_changes(mut self) -> Self {
        self.confirm = Some(Ask::Changes);
        self
    }

    fn hides(mut self, secret: Secret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// Checks the document and makes the tools.
    pub fn build(self) -> Result<OpenApiTools> {
        let document = Document::new(&self.document)?;
        let (mut names, mut wanted) = (BTreeSet::new(), Vec::new());
        for mut operation in document.operations()? {
            operation.name = self.name_of(&operation, &mut names);
            if self.wants(&operation) {
                wanted.push(operation);
            }
        }
        self.check_choice(&document)?;
        let home = self.home(&document, &wanted)?;
        let schemes = self.schemes(&document, &wanted, home.as_ref())?;
        self.check_credentials(&schemes)?;
        let is_ours = |place, name: &str| self.says(place, name) || schemes.says(place, name);
        let (mut found, mut skipped) = (Vec::new(), Vec::new());
        for operation in wanted {
            let kept_back = self.kept_back(&document, &operation, &schemes, home.as_ref())?;
            let arguments = match kept_back {
                Some(why) => Err(why),
                None => document.arguments(&operation, is_ours)?,
            };
            match arguments {
                Ok(arguments) => found.push((operation, arguments)),
                Err(why) if self.operations.contains(&operation.id) => return Err(operation.wrong(&why)),
                Err(why) => skipped.push((operation.name.clone(), why)),
            }
        }
        let guard = self.guard(&document, found.iter().map(|(operation, _)| operation))?;
        let access = Arc::new(Access { http: Http::new(guard, self.limits)?, secrets: self.secrets.clone() });
        let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
        for (operation, arguments) in found {
            let base = self.base(&document, &operation)?;
            let confirm = match self.confirm {
                Some(Ask::All) => Confirm::Always,
                Some(Ask::Changes) if !operation.is_read() => Confirm::Always,
                _ => Confirm::Never,
            };
            let auth = [self.credentials.clone(), schemes.of(&document, &operation)].concat();
            tools.push(Arc::new(Operation::new(operation, arguments, base, confirm, auth, access.clone())));
        }
        Ok(OpenApiTools { name: self.name, tools, skipped })
    }

    /// The credentials for the document's security schemes.
    fn schemes(
        &self,
        document: &Document<'_>,
        operations: &[Found<'_>],
        home: Option<&Url>,
    ) -> Result<Schemes> {
        let Some(base) = home.filter(|_| !self.given.is_empty()) else { return Ok(Schemes::default()) };
        let port = base.port().map(|port| format!(":{port}")).unwrap_or_default();
        let host = format!("{}{port}", base.host_str().unwrap_or_default());
        let around = Around { host, private: &self.private, lookup: self.lookup.as_ref() };
        Schemes::read(document, &self.given, operations, &around)
    }

    /// Where the service is, if there are credentials: it is the one they are for. What the document says of itself counts, or else
    /// of its first operation.
    fn home(&self, document: &Document<'_>, operations: &[Found<'_>]) -> Result<Option<Url>> {
        let has_credentials = !(self.credentials.is_empty() && self.given.is_empty());
        let Some(first) = operations.first().filter(|_| has_credentials) else { return Ok(None) };
        match (&self.server, document.own_server()?) {
            (None, Some((url, pointer))) => address(&url, Some(&pointer)).map(Some),
            _ => self.base(document, first).map(Some),
        }
    }

    /// Why an operation cannot be a tool: a document must not lead credentials to whatever host it names.
    fn kept_back(
        &self,
        document: &Document<'_>,
        operation: &Found<'_>,
        schemes: &Schemes,
        home: Option<&Url>,
    ) -> Result<Option<String>> {
        let Some(home) = home else { return Ok(None) };
        if self.credentials.is_empty() && schemes.of(document, operation).is_empty() {
            return Ok(None);
        }
        let base = self.base(document, operation)?;
        if home.origin() == base.origin() || Guard::new(&self.hosts).names(&base) {
            return Ok(None);
        }
        let host = base.host_str().unwrap_or_default();
        Ok(Some(format!(
            "it is at `{host}`, not where the service is, and would get its credentials: `allow_host` says that it may"
        )))
    }

    /// What the program has must be such that it can be sent.
    fn check_credentials(&self, schemes: &Schemes) -> Result<()> {
        for auth in self.credentials.iter().chain(schemes.all()) {
            auth.check()?;
            let Some(fixed) = auth.method.fixed() else { continue };
            match auth.method.http(&fixed) {
                Some(carried) if carried.place == HttpPlace::Header => {
                    header(&carried.name, carried.expose())?;
                }
                Some(_) => {}
                None => {
                    let why = "has characters that cannot be sent, or nothing in it";
                    return Err(Error::new(ErrorKind::Build, format!("the {} {why}", auth.credential)));
                }
            }
        }
        Ok(())
    }

    /// Whether a parameter is said here, and not by the model.
    fn says(&self, place: Place, name: &str) -> bool {
        self.credentials.iter().any(|auth| carries(auth, place, name))
    }

    fn wants(&self, operation: &Found<'_>) -> bool {
        let any = self.operations.is_empty() && self.tags.is_empty();
        any || self.operations.contains(&operation.id)
            || operation.tags.iter().any(|tag| self.tags.contains(*tag))
    }

    /// A choice that nothing fits is a mistake.
    fn check_choice(&self, document: &Document<'_>) -> Result<()> {
        let there = document.operations()?;
        let ids: BTreeSet<&str> = there.iter().map(|operation| operation.id.as_str()).collect();
        let tags: BTreeSet<&str> =
            there.iter().flat_map(|operation| operation.tags.iter().copied()).collect();
        let missing = |what: &str, name: &str, known: &BTreeSet<&str>| {
            let known = known.iter().take(20).copied().collect::<Vec<_>>().join(", ");
            let message = format!("the OpenAPI document has no {what} `{name}`. There are: {known}");
            Err(Error::new(ErrorKind::Build, message))
        };
        if let Some(name) = self.operations.iter().find(|name| !ids.contains(name.as_str())) {
            return missing("operation", name, &ids);
        }
        match self.tags.iter().find(|tag| !tags.contains(tag.as_str())) {
            Some(tag) => missing("tag", tag, &tags),
            None => Ok(()),
        }
    }

    /// A name that models can call, and no other tool of the service has.
    fn name_of(&self, operation: &Found<'_>, taken: &mut BTreeSet<SmolStr>) -> SmolStr {
        let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
        let name: String = self.prefix.chars().chain(operation.id.chars()).map(allowed).collect();
        let cut = |room: usize| name.get(..name.len().min(room)).unwrap_or_default();
        let mut unique = cut(LONGEST_NAME).to_smolstr();
        for number in 2.. {
            if taken.insert(unique.clone()) {
                break;
            }
            unique = smol_str::format_smolstr!("{}_{number}", cut(LONGEST_NAME - 8));
        }
        unique
    }

    /// Where an operation is: what comes before its path.
    fn base(&self, document: &Document<'_>, operation: &Found<'_>) -> Result<Url> {
        let (url, pointer) = match &self.server {
            Some(server) => (server.clone(), None),
            None => document.server(operation)?,
        };
        address(&url, pointer.as_deref())
    }

    /// Where the operations may ask.
    fn guard<'a>(
        &self,
        document: &Document<'_>,
        operations: impl Iterator<Item = &'a Found<'a>>,
    ) -> Result<Guard> {
        let mut guard = Guard::new(&self.hosts);
        for host in &self.private {
            guard = guard.allow_private(host);
        }
        let has_secrets = !(self.credentials.is_empty() && self.given.is_empty());
        for operation in operations {
            let base = self.base(document, operation)?;
            if has_secrets && base.scheme() == "http" && !guard.is_private(&base) {
                let message = format!(
                    "`{}` would get a key over http, where others can read it: use an https address",
                    base.host_str().unwrap_or_default()
                );
                return Err(Error::new(ErrorKind::Build, message));
            }
            if let (Some(host), Some(port)) = (base.host_str(), base.port_or_known_default()) {
                guard = guard.allow(&format!("{host}:{port}"));
            }
        }
        Ok(match &self.lookup {
            Some(lookup) => guard.lookup(lookup.clone()),
            None => guard,
        })
    }
}

impl fmt::Debug for OpenApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenApi({})", self.name)
    }
}

/// The tools of an HTTP service.
#[derive(Clone)]
pub struct OpenApiTools {
    name: SmolStr,
    tools: Vec<Arc<dyn Tool>>,
    skipped: Vec<(SmolStr, String)>,
}

impl OpenApiTools {
    /// One for each operation, in the document's order.
    pub fn tools(&self) -> &[Arc<dyn Tool>] {
        &self.tools
    }

    /// Operations that cannot be tools, each with the reason.
    pub fn skipped(&self) -> &[(SmolStr, String)] {
        &self.skipped
    }
}

impl Toolset for OpenApiTools {
    fn name(&self) -> &str {
        &self.name
    }

    fn tools<'a>(&'a self, _: &'a Run) -> BoxFuture<'a, Result<Vec<Arc<dyn Tool>>>> {
        Box::pin(std::future::ready(Ok(self.tools.clone())))
    }
}

impl fmt::Debug for OpenApiTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.tools.iter().map(|tool| &tool.spec().name).collect();
        f.debug_struct("OpenApiTools")
            .field("name", &self.name)
            .field("tools", &names)
            .finish_non_exhaustive()
    }
}

/// The address of a server, and where it stands in the document.
fn address(url: &str, pointer: Option<&str>) -> Result<Url> {
    let wrong = |why: &str| {
        let place = pointer.map(|pointer| format!(" at {pointer}")).unwrap_or_default();
        // A name and a password may stand before the host, and must not be shown.
        let shown = match (url.split_once("://"), url.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
            _ => url.to_owned(),
        };
        let message = format!("the server `{shown}`{place} {why}");
        Error::new(ErrorKind::Build, message)
    };
    let parsed = Url::parse(url)
        .map_err(|_| wrong("is no whole address: name one that begins with https:// as the `server`"))?;
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(wrong("has a user's name or password in it: leave them out, and send a header"));
    }
    if !matches!(parsed.scheme(), "http" | "https") || !parsed.has_host() {
        return Err(wrong("is no http or https address"));
    }
    Ok(parsed)
}
