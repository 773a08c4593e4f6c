//! What an MCP server has to read, by two tools.

use std::sync::{Arc, Weak};

use rmcp::model::{
    ClientRequest, ListResourceTemplatesRequest, ListResourcesRequest, PaginatedRequestParams,
    ReadResourceRequest, ReadResourceRequestParams, ServerResult,
};
use serde_json::{Value, json};
use umbel_core::{
    BoxFuture, Error, ErrorKind, Object, Result, Tool, ToolContext, ToolError, ToolOutput, ToolSpec,
    ToolValue,
};

use super::asking::{Asked, Asking};
use super::link::Failure;
use super::result;
use super::toolset::Inner;

/// The tools by which a model looks at what a server has.
pub(crate) fn tools(inner: &Arc<Inner>) -> [Arc<dyn Tool>; 2] {
    let (server, prefix) = (&inner.options.name, &inner.options.prefix);
    let spec = |name: &str, description: String, parameters: Value| {
        let mut spec = ToolSpec::new(format!("{prefix}{name}"), description, parameters);
        (spec.read_only, spec.timeout) = (true, Some(inner.options.limits.call));
        spec.confirm = inner.options.confirm.clone();
        spec
    };
    let page = json!({"type": "string", "description": "Where to go on, as the last list said."});
    let list = spec(
        "list_resources",
        format!("Lists what the server `{server}` has to read: addresses, and templates of addresses."),
        json!({"type": "object", "properties": {"cursor": page}}),
    );
    let uri =
        json!({"type": "string", "description": "The address, as it was listed or made from a template."});
    let read = spec(
        "read_resource",
        format!("Reads something that the server `{server}` has."),
        json!({"type": "object", "properties": {"uri": uri}, "required": ["uri"]}),
    );
    let toolset = Arc::downgrade(inner);
    [Arc::new(List { spec: list, toolset: toolset.clone() }), Arc::new(Read { spec: read, toolset })]
}

/// What becomes of a request that has no such answer.
fn without(inner: &Inner, answer: Result<ServerResult, Failure>) -> Result<ToolValue> {
    let server = &inner.options.name;
    match answer {
        Err(failure) => result::failed(server, failure),
        Ok(_) => {
            let message = format!("what the MCP server `{server}` answers is something else");
            Err(Error::new(ErrorKind::Tool, message))
        }
    }
}

fn text(args: &Object, name: &str) -> Option<String> {
    args.get(name).and_then(Value::as_str).map(str::to_owned)
}

struct List {
    spec: ToolSpec,
    toolset: Weak<Inner>,
}

impl List {
    async fn list(&self, cx: &ToolContext, cursor: Option<String>) -> Result<ToolValue> {
        let inner = Inner::of(&self.toolset)?;
        let page = || PaginatedRequestParams::default().with_cursor(cursor.clone());
        let request = |_: &Asked| {
            let request = ListResourcesRequest::with_param(page());
            ClientRequest::ListResourcesRequest(request)
        };
        let listed = match Asking::new(&inner, cx, true).ask(request).await {
            Ok(ServerResult::ListResourcesResult(listed)) => listed,
            answer => return without(&inner, answer),
        };
        let request = |_: &Asked| {
            let request = ListResourceTemplatesRequest::default();
            ClientRequest::ListResourceTemplatesRequest(request)
        };
        // Not all servers have templates.
        let templates = match Asking::new(&inner, cx, true).ask(request).await {
            Ok(ServerResult::ListResourceTemplatesResult(listed)) => listed.resource_templates,
            Err(Failure::Here(error)) if error.is_control() => return Err(error),
            _ => Vec::new(),
        };
        let resources: Vec<Value> = listed
            .resources
            .iter()
            .map(|one| json!({"uri": one.uri, "name": one.name, "description": one.description, "mimeType": one.mime_type}))
            .collect();
        let templates: Vec<Value> = templates
            .iter()
            .map(|one| json!({"uriTemplate": one.uri_template, "name": one.name, "description": one.description}))
            .collect();
        let mut value = json!({"resources": resources, "templates": templates});
        if let (Some(object), Some(next)) = (value.as_object_mut(), listed.next_cursor) {
            object.insert("nextCursor".to_owned(), json!(next));
        }
        Ok(limited(&inner, value, Vec::new()))
    }
}

/// A value as the model gets it, no longer than it may be.
fn limited(inner: &Inner, value: Value, parts: Vec<umbel_core::Part>) -> ToolValue {
    let mut room = inner.options.limits.result_bytes;
    let metadata = result::metadata(&inner.options.name);
    ToolValue { value: result::cut(value, &mut room), is_error: false, metadata, parts }
}

impl Tool for List {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move { Ok(self.list(cx, text(&args, "cursor")).await?.into()) })
    }
}

struct Read {
    spec: ToolSpec,
    toolset: Weak<Inner>,
}

impl Read {
    async fn read(&self, cx: &ToolContext, uri: String) -> Result<ToolValue> {
        let inner = Inner::of(&self.toolset)?;
        let request = |more: &Asked| {
            let mut params = ReadResourceRequestParams::new(uri.clone());
            params.input_responses.clone_from(&more.responses);
            params.request_state.clone_from(&more.state);
            ClientRequest::ReadResourceRequest(ReadResourceRequest::new(params))
        };
        let read = match Asking::new(&inner, cx, true).ask(request).await {
            Ok(ServerResult::ReadResourceResult(read)) => read,
            answer => return without(&inner, answer),
        };
        let mut parts = Vec::new();
        let contents: Vec<Value> =
            read.contents.iter().map(|one| result::resource(one, &mut parts)).collect();
        Ok(limited(&inner, json!({ "contents": contents }), parts))
    }
}

impl Tool for Read {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let Some(uri) = text(&args, "uri") else {
                return Err(ToolError::invalid_arguments("`uri` is missing: say what to read"));
            };
            Ok(self.read(cx, uri).await?.into())
        })
    }
}
