//! A tool that reads pages.

use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use umbel_core::{BoxFuture, Object, Result, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};

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
        Ok(Self { spec, http: Http::new(guard, limits)? })
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

    async fn get(&self, args: &Object) -> Result<ToolOutput, ToolError> {
        let Some(url) = args.get("url").and_then(Value::as_str) else {
            return Err(ToolError::invalid_arguments("`url` is missing: name the address to read"));
        };
        let wrong = |error| ToolError::invalid_arguments(format!("`url` is no web address: {error}"));
        let url = reqwest::Url::parse(url).map_err(wrong)?;
        Ok(self.http.send(Request::new(Method::GET, url)).await?.into())
    }
}

impl Tool for HttpGet {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        _: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move { self.get(&args).await })
    }
}
