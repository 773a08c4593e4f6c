//! One operation as a tool.

use std::sync::Arc;

use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Method, Url};
use serde_json::Value;
use umbel_core::{
    AuthConfig, BoxFuture, Confirm, Grant, Interrupt, Object, Result, Standing, Tool, ToolContext, ToolError,
    ToolOutput, ToolSpec, ToolValue,
};

use super::document::{Arguments, Found, Parameter, Place};
use crate::http::{Http, Request, encode};
use crate::secret::Secret;

/// What all operations of a service share.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) http: Http,
    /// Secrets of the program that must not come back.
    pub(super) secrets: Vec<Secret>,
}

/// One operation as a tool.
pub(super) struct Operation {
    spec: ToolSpec,
    method: Method,
    base: Url,
    path: String,
    parameters: Vec<Parameter>,
    body: Option<String>,
    /// What goes along with each request.
    auth: Vec<AuthConfig>,
    access: Arc<Access>,
}

impl Operation {
    pub(super) fn new(
        found: Found<'_>,
        arguments: Arguments,
        base: Url,
        confirm: Confirm,
        auth: Vec<AuthConfig>,
        access: Arc<Access>,
    ) -> Self {
        let Arguments { parameters, body, schema } = arguments;
        let mut spec = ToolSpec::new(found.name.clone(), found.words(), schema);
        spec.read_only = found.is_read();
        spec.idempotent = found.is_read() || matches!(found.method, Method::PUT | Method::DELETE);
        spec.confirm = confirm;
        // Whoever has to be asked is asked before the call is made.
        spec.auth = auth.iter().find(|auth| auth.method.fixed().is_none()).cloned();
        let Found { method, path, .. } = found;
        Self { spec, method, base, path: path.to_owned(), parameters, body, auth, access }
    }

    /// Sends the request for a call. What the service refuses is renewed and sent once more, or else asked for anew.
    async fn send(&self, cx: &ToolContext, args: &Object) -> Result<ToolValue, ToolError> {
        let mut grants = Vec::with_capacity(self.auth.len());
        for auth in &self.auth {
            grants.push(cx.credential(auth).await?);
        }
        let mut answered = self.access.http.send(self.request(args, &grants)?).await?;
        if !answered.is_refused {
            return Ok(answered.value);
        }
        // Which one is meant, nobody says. What needs no person comes first, so that nobody is asked for a good one.
        let (mut others, mut is_renewed) = (Vec::new(), false);
        for (at, (auth, grant)) in self.auth.iter().zip(&mut grants).enumerate() {
            if auth.method.fixed().is_some() {
                continue;
            }
            // Those that could be renewed once they had expired.
            match auth.method.standing(Some(grant.credential()), f64::INFINITY) {
                Standing::Renew => {
                    *grant = cx.credential_refused(auth, grant).await?;
                    is_renewed = true;
                }
                Standing::Ready | Standing::Ask => others.push(at),
            }
        }
        if is_renewed {
            answered = self.access.http.send(self.request(args, &grants)?).await?;
        }
        if !answered.is_refused {
            return Ok(answered.value);
        }
        let Some(at) = least_asked(cx, &self.auth, &others) else { return Ok(answered.value) };
        if let (Some(auth), Some(grant)) = (self.auth.get(at), grants.get_mut(at)) {
            *grant = cx.credential_refused(auth, grant).await?;
        }
        Ok(self.access.http.send(self.request(args, &grants)?).await?.value)
    }

    /// The request for a call.
    fn request(&self, args: &Object, grants: &[Grant]) -> Result<Request, ToolError> {
        let required = self.spec.parameters.get("required").and_then(Value::as_array).into_iter().flatten();
        for name in required.filter_map(Value::as_str) {
            if args.get(name).is_none_or(Value::is_null) {
                return Err(ToolError::invalid_arguments(format!(
                    "the mandatory argument `{name}` is missing"
                )));
            }
        }
        let mut request = Request::new(self.method.clone(), self.url(args)?);
        for (parameter, value) in self.given(args) {
            match parameter.place {
                Place::Path | Place::Query => {}
                Place::Header => {
                    let (name, value) = open_header(parameter, value)?;
                    request.headers.insert(name, value);
                }
                Place::Cookie => {
                    request.add_cookie(&parameter.name, &joined(value))?;
                }
            }
        }
        request
            .headers
            .insert("accept", HeaderValue::from_static("application/json, text/*;q=0.8, */*;q=0.5"));
        if let Some(body) = self.body.as_ref().and_then(|name| args.get(name)).filter(|body| !body.is_null())
        {
            request.headers.insert("content-type", HeaderValue::from_static("application/json"));
            request.body = Some(serde_json::to_vec(body)?);
        }
        request.secrets = self.access.secrets.clone();
        for (auth, grant) in self.auth.iter().zip(grants) {
            request.carry(auth, grant)?;
        }
        Ok(request)
    }

    /// The parameters that have a value.
    fn given<'a>(&'a self, args: &'a Object) -> impl Iterator<Item = (&'a Parameter, &'a Value)> {
        self.parameters.iter().filter_map(|parameter| {
            let value = args.get(&parameter.argument).filter(|value| !value.is_null())?;
            Some((parameter, value))
        })
    }

    fn url(&self, args: &Object) -> Result<Url, ToolError> {
        let mut path = self.path.clone();
        for (parameter, value) in self.given(args).filter(|(parameter, _)| parameter.place == Place::Path) {
            let value = joined(value);
            // Encoded, it is one part of the path; but not to each server and proxy that decodes it on its way.
            if decoded(&value).split(['/', '\\']).any(is_step) {
                return Err(ToolError::invalid_arguments(STEP));
            }
            path = path.replace(&format!("{{{}}}", parameter.name), &encode(&value));
        }
        let empty = |path: &str| path.split('/').filter(|part| part.is_empty()).count();
        if path.split('/').any(is_step) || empty(&path) > empty(&self.path) {
            return Err(ToolError::invalid_arguments(STEP));
        }
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        {
            let mut query = url.query_pairs_mut();
            for (parameter, value) in
                self.given(args).filter(|(parameter, _)| parameter.place == Place::Query)
            {
                for (name, value) in pairs(parameter, value) {
                    query.append_pair(&name, &value);
                }
            }
        }
        if url.query() == Some("") {
            url.set_query(None);
        }
        Ok(url)
    }
}

impl Tool for Operation {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move { Ok(self.send(cx, &args).await?.into()) })
    }
}

/// The credential that people were asked for the least often for this call: they are asked for one at a time.
fn least_asked(cx: &ToolContext, auth: &[AuthConfig], suspects: &[usize]) -> Option<usize> {
    let answers = cx.run().values().answers(cx.run().source());
    let times = |name: &str| {
        let is_about = |asked: &Interrupt| {
            asked.credential() == Some(name) && asked.address.call.as_ref() == cx.call_id()
        };
        answers.iter().filter(|(asked, _)| is_about(asked)).count()
    };
    let suspects = suspects.iter().copied().filter_map(|at| Some((at, auth.get(at)?)));
    suspects.min_by_key(|(_, auth)| times(&auth.credential)).map(|(at, _)| at)
}

/// A header that a model may say.
fn open_header(parameter: &Parameter, value: &Value) -> Result<(HeaderName, HeaderValue), ToolError> {
    let argument = &parameter.argument;
    let wrong =
        || ToolError::invalid_arguments(format!("`{argument}` has characters that headers cannot have"));
    let name: HeaderName = parameter.name.parse().map_err(|_| wrong())?;
    Ok((name, HeaderValue::from_str(&joined(value)).map_err(|_| wrong())?))
}

/// What a model is told that would leave the place which the document names, or mean another one by an empty part.
const STEP: &str = "a part of the path is empty, `.` or `..`: give the real value";

/// Whether a part of a path leads elsewhere.
fn is_step(part: &str) -> bool {
    matches!(part, "." | "..")
}

/// A value as whoever decodes it too often reads it, as far as steps go.
fn decoded(value: &str) -> String {
    let mut value = value.to_ascii_lowercase();
    // Decoded once more it is shorter, so this ends.
    while ["%25", "%2e", "%2f", "%5c"].iter().any(|code| value.contains(code)) {
        value = value.replace("%25", "%").replace("%2e", ".").replace("%2f", "/").replace("%5c", "\\");
    }
    value
}

/// A value as one text: elements of lists with commas between them.
fn joined(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(joined).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// A parameter of the query, as pairs.
fn pairs(parameter: &Parameter, value: &Value) -> Vec<(String, String)> {
    let name = &parameter.name;
    match value {
        Value::Array(values) if parameter.explode => {
            values.iter().map(|value| (name.clone(), joined(value))).collect()
        }
        Value::Object(fields) if parameter.deep => {
            fields.iter().map(|(key, value)| (format!("{name}[{key}]"), joined(value))).collect()
        }
        Value::Object(fields) if parameter.explode => {
            fields.iter().map(|(key, value)| (key.clone(), joined(value))).collect()
        }
        value => vec![(name.clone(), joined(value))],
    }
}
