//! A tool that reads pages.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use umbel_core::{
    AuthConfig, BoxFuture, Error, ErrorKind, Grant, Object, Result, Tool, ToolContext, ToolError, ToolOutput,
    ToolSpec, ToolValue,
};

use crate::guard::Guard;
use crate::http::{Http, HttpLimits, Request};

/// Reads what is at a web address, as far as a [`Guard`] lets it.
///
/// ```
/// use umbel_core::Tool;
/// use umbel_tools::{Guard, HttpGet};
///
/// let read = HttpGet::new(Guard::new(["docs.example.org"])).unwrap();
/// assert_eq!(read.spec().name, "http_get");
/// assert!(read.spec().read_only);
/// ```
#[derive(Clone, Debug)]
pub struct HttpGet {
    spec: ToolSpec,
    http: Http,
    /// Which host gets which credential.
    auth: Vec<(Guard, AuthConfig)>,
}

impl HttpGet {
    /// A tool named `http_get`, for the hosts that the guard knows, with the usual limits.
    pub fn new(guard: Guard) -> Result<Self> {
        Self::with_limits(guard, HttpLimits::default())
    }

    /// The same with other limits.
    pub fn with_limits(guard: Guard, limits: HttpLimits) -> Result<Self> {
        let parameters = json!({
            "type": "object",
            "properties": {"url": {"type": "string", "description": "The address, with https:// in front."}},
            "required": ["url"],
        });
        let mut spec = ToolSpec::new("http_get", "Reads what is at a web address.", parameters);
        (spec.read_only, spec.idempotent) = (true, true);
        Ok(Self { spec, http: Http::new(guard, limits)?, auth: Vec::new() })
    }

    /// Under another name.
    pub fn named(mut self, name: impl Into<smol_str::SmolStr>) -> Self {
        self.spec.name = name.into();
        self
    }

    /// With other words for the model.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.spec.description = description.into();
        self
    }

    /// Sends a credential along to one host, such as `docs.example.org` or `docs.example.org:8443`, and to no other: where a redirect
    /// leads elsewhere, it goes without. Whoever must be asked for it is asked when the model names that host.
    pub fn auth(mut self, host: &str, auth: AuthConfig) -> Result<Self> {
        if host.contains('*') {
            let message = format!("a credential is for one host: `{host}` stands for many");
            return Err(Error::new(ErrorKind::Build, message));
        }
        self.auth.push((Guard::new([host]), auth));
        Ok(self)
    }

    async fn get(&self, cx: &ToolContext, args: &Object) -> Result<ToolValue, ToolError> {
        let Some(url) = args.get("url").and_then(Value::as_str) else {
            return Err(ToolError::invalid_arguments("`url` is missing: name the address to read"));
        };
        let wrong = |error| ToolError::invalid_arguments(format!("`url` is no web address: {error}"));
        let url = reqwest::Url::parse(url).map_err(wrong)?;
        self.http.guard().check_url(&url)?;
        let Some((_, auth)) = self.auth.iter().find(|(host, _)| host.names(&url)) else {
            return Ok(self.http.send(Request::new(Method::GET, url)).await?.value);
        };
        if url.scheme() != "https" && !self.http.guard().is_private(&url) {
            let message = "a credential goes there, which others could read along: use https";
            return Err(ToolError::invalid_arguments(message));
        }
        let grant = cx.credential(auth).await?;
        let request = |grant: &Grant| {
            let mut request = Request::new(Method::GET, url.clone());
            request.carry(auth, grant).map(|()| request)
        };
        let answered = self.http.send(request(&grant)?).await?;
        if !answered.is_refused || auth.method.fixed().is_some() {
            return Ok(answered.value);
        }
        let another = cx.credential_refused(auth, &grant).await?;
        Ok(self.http.send(request(&another)?).await?.value)
    }
}

impl Tool for HttpGet {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move { Ok(self.get(cx, &args).await?.into()) })
    }
}
