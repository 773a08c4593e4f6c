//! HTTP services as tools: one for each operation of an OpenAPI document.

mod document;
mod operation;
mod schema;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use reqwest::Url;
use reqwest::header::HeaderMap;
use serde_json::Value;
use smol_str::{SmolStr, ToSmolStr};
use umbel_core::{BoxFuture, Confirm, Error, ErrorKind, Result, Run, Tool, Toolset};

use self::document::{Document, Found, Place};
use self::operation::{Access, Operation};
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
    lookup: Option<Box<dyn FnOnce(Guard) -> Guard + Send>>,
    headers: Vec<(String, Secret)>,
    query: Vec<(String, Secret)>,
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
            headers: Vec::new(),
            query: Vec::new(),
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

    /// A host that may be asked besides those of the servers, such as one that redirects lead to.
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
        self.lookup = Some(Box::new(|guard| guard.lookup(lookup)));
        self
    }

    /// Sends a token with each request.
    pub fn bearer(self, token: &Secret) -> Self {
        self.header("Authorization", Secret::new(format!("Bearer {}", token.reveal()))).hides(token.clone())
    }

    /// Sends a header with each request.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sends a key in the address of each request, where the service wants it there.
    pub fn query_key(mut self, name: impl Into<String>, key: impl Into<Secret>) -> Self {
        self.query.push((name.into(), key.into()));
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

    /// A secret that is part of what is sent: it has no name of its own.
    fn hides(mut self, secret: Secret) -> Self {
        self.headers.push((String::new(), secret));
        self
    }

    /// Checks the document and makes the tools.
    pub fn build(mut self) -> Result<OpenApiTools> {
        let lookup = self.lookup.take();
        let document = Document::new(&self.document)?;
        let mut names = BTreeSet::new();
        let (mut found, mut skipped) = (Vec::new(), Vec::new());
        for mut operation in document.operations()? {
            operation.name = self.name_of(&operation, &mut names);
            if !self.wants(&operation) {
                continue;
            }
            match document.arguments(&operation, |place, name| self.says(place, name))? {
                Ok(arguments) => found.push((operation, arguments)),
                Err(why) if self.operations.contains(&operation.id) => return Err(operation.wrong(&why)),
                Err(why) => skipped.push((operation.name.clone(), why)),
            }
        }
        self.check_choice(&document)?;
        let guard = self.guard(&document, found.iter().map(|(operation, _)| operation))?;
        let guard = match lookup {
            Some(lookup) => lookup(guard),
            None => guard,
        };
        let access = Arc::new(self.access(guard)?);
        let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
        for (operation, arguments) in found {
            let base = self.base(&document, &operation)?;
            let confirm = match self.confirm {
                Some(Ask::All) => Confirm::Always,
                Some(Ask::Changes) if !operation.is_read() => Confirm::Always,
                _ => Confirm::Never,
            };
            tools.push(Arc::new(Operation::new(operation, arguments, base, confirm, access.clone())));
        }
        Ok(OpenApiTools { name: self.name, tools, skipped })
    }

    /// Whether a parameter is said here, and not by the model.
    fn says(&self, place: Place, name: &str) -> bool {
        match place {
            Place::Header => self.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)),
            Place::Query => self.query.iter().any(|(known, _)| known == name),
            Place::Path | Place::Cookie => false,
        }
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
        let wrong = |why: &str| {
            let place = pointer.as_ref().map(|pointer| format!(" at {pointer}")).unwrap_or_default();
            // A name and a password may stand before the host, and must not be shown.
            let shown = match (url.split_once("://"), url.rsplit_once('@')) {
                (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
                _ => url.clone(),
            };
            let message = format!("the server `{shown}`{place} {why}");
            Error::new(ErrorKind::Build, message)
        };
        let parsed = Url::parse(&url)
            .map_err(|_| wrong("is no whole address: name one that begins with https:// as the `server`"))?;
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(wrong("has a user's name or password in it: leave them out, and send a header"));
        }
        if !matches!(parsed.scheme(), "http" | "https") || !parsed.has_host() {
            return Err(wrong("is no http or https address"));
        }
        Ok(parsed)
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
        let has_secrets = !(self.headers.is_empty() && self.query.is_empty());
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
        Ok(guard)
    }

    /// What all operations share.
    fn access(&self, guard: Guard) -> Result<Access> {
        let mut own = HeaderMap::new();
        for (name, value) in self.headers.iter().filter(|(name, _)| !name.is_empty()) {
            let (name, value) = header(name, value.reveal())?;
            own.insert(name, value);
        }
        let secrets = self.headers.iter().chain(&self.query).map(|(_, secret)| secret.clone()).collect();
        Ok(Access { http: Http::new(guard, self.limits)?, own, query: self.query.clone(), secrets })
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
