//! What a client may ask of the server.

#![expect(
    deprecated,
    reason = "clients of today read log messages; the protocol gives this up, and nothing comes in its place"
)]

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use ::http::request::Parts;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, CompletionInfo,
    GetPromptRequestParams, GetPromptResponse, GetPromptResult, Implementation, ListPromptsResult,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, LoggingLevel, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Reference, Resource as McpResource,
    ResourceContents, ResourceTemplate, ServerCapabilities, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use smol_str::SmolStr;
use umbel_core::{Caller, Error, Part, Payload};

use super::McpLimits;
use super::call::Call;
use super::changes::{Changes, News, Watched, heard};
use super::offer::Offered;
use super::passing::Waiting;
use super::prompts::Prompt;
use super::resources::{Resource, Resources};
use super::result;

/// What a server offers, and what all its clients share.
pub(super) struct Catalog {
    pub(super) name: SmolStr,
    pub(super) version: String,
    pub(super) instructions: Option<String>,
    pub(super) offers: Vec<Offered>,
    pub(super) resources: Vec<Arc<dyn Resources>>,
    pub(super) changes: Changes,
    pub(super) prompts: Vec<Prompt>,
    /// Whether whoever calls may say that a call is to be made.
    pub(super) callers_confirm: bool,
    pub(super) limits: McpLimits,
}

/// The calls under way.
#[derive(Debug, Default)]
pub(super) struct Calls {
    by_caller: Mutex<HashMap<Caller, usize>>,
}

impl Calls {
    /// A place for a call, if there is one.
    pub(super) fn begin(&self, limits: &McpLimits, caller: &Caller) -> Option<Place<'_>> {
        let mut by_caller = self.by_caller.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = by_caller.values().sum();
        let own = by_caller.get(caller).copied().unwrap_or_default();
        if all >= limits.calls || own >= limits.calls_per_user {
            return None;
        }
        by_caller.insert(caller.clone(), own + 1);
        Some(Place { calls: self, caller: caller.clone() })
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.by_caller.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }
}

/// The place of a call, as long as it lives.
pub(super) struct Place<'a> {
    calls: &'a Calls,
    caller: Caller,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut by_caller = self.calls.by_caller.lock().unwrap_or_else(PoisonError::into_inner);
        match by_caller.get_mut(&self.caller) {
            Some(own) if *own > 1 => *own -= 1,
            _ => {
                by_caller.remove(&self.caller);
            }
        }
    }
}

/// What is offered at a time, and what stays whatever is offered.
#[derive(Clone)]
pub(super) struct Offering {
    catalog: Arc<RwLock<Arc<Catalog>>>,
    pub(super) calls: Arc<Calls>,
    pub(super) waiting: Arc<Waiting>,
}

impl Offering {
    pub(super) fn new(catalog: Arc<Catalog>) -> Self {
        let catalog = Arc::new(RwLock::new(catalog));
        Self { catalog, calls: Arc::default(), waiting: Arc::default() }
    }

    pub(super) fn now(&self) -> Arc<Catalog> {
        self.catalog.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Offers something else. Clients are told if they can see a difference.
    pub(super) fn replace(&self, catalog: &Arc<Catalog>) {
        let changes = catalog.changes.clone();
        let before = {
            let mut now = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
            changes.join(&now.changes);
            std::mem::replace(&mut *now, catalog.clone())
        };
        let tools =
            |catalog: &Catalog| catalog.offers.iter().map(|offer| offer.tool.clone()).collect::<Vec<_>>();
        let prompts = |catalog: &Catalog| catalog.prompts.iter().map(Prompt::listed).collect::<Vec<_>>();
        let has_tools = tools(&before) != tools(catalog);
        let has_prompts = prompts(&before) != prompts(catalog);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if has_tools {
                    changes.tell_news(News::Tools).await;
                }
                if has_prompts {
                    changes.tell_news(News::Prompts).await;
                }
            });
        }
    }
}

/// Answers one client.
#[derive(Clone)]
pub(super) struct Handler {
    offering: Offering,
    /// Who it is, if every request is theirs.
    caller: Option<Caller>,
    /// From which level on it wants to be told what goes on.
    level: Arc<Mutex<LoggingLevel>>,
    watched: Arc<Watched>,
}

impl Handler {
    pub(super) fn new(offering: Offering, caller: Option<Caller>) -> Self {
        Self { offering, caller, level: Arc::new(Mutex::new(LoggingLevel::Info)), watched: Arc::default() }
    }

    /// Who asks: the one that every request is of, or the one that the server found out.
    fn caller(&self, context: &RequestContext<RoleServer>) -> Result<Caller, ErrorData> {
        if let Some(caller) = &self.caller {
            return Ok(caller.clone());
        }
        let caller = context.extensions.get::<Parts>().and_then(|head| head.extensions.get::<Caller>());
        let nobody = || ErrorData::invalid_request("nobody knows who asks", None);
        caller.cloned().ok_or_else(nobody)
    }
}

/// What a client is told of a fault of ours: the log gets the whole of it.
fn internal(error: &Error) -> ErrorData {
    tracing::error!(code = error.kind().code(), "{error}");
    ErrorData::internal_error("that could not be read", None)
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        let catalog = self.offering.now();
        let mut capabilities = ServerCapabilities::builder().enable_logging().enable_tools().build();
        if !catalog.resources.is_empty() {
            let resources = capabilities.resources.get_or_insert_default();
            resources.subscribe = Some(true);
        }
        // What one client alone is served stays as it is.
        let may_change = self.caller.is_none().then_some(true);
        capabilities.tools.get_or_insert_default().list_changed = may_change;
        if !catalog.prompts.is_empty() {
            capabilities.prompts.get_or_insert_default().list_changed = may_change;
            capabilities.completions = Some(Default::default());
        }
        let server = Implementation::new(catalog.name.to_string(), catalog.version.clone());
        let mut info = ServerConfig::new(capabilities).with_server_info(server);
        info.instructions.clone_from(&catalog.instructions);
        info
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.offering.now().changes.watch(&self.watched, &context.peer);
    }

    fn accepted_subscription_filter(&self, wanted: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(heard(wanted))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let caller = self.caller(context.request_context())?;
        let catalog = self.offering.now();
        let Some(_watched) = catalog.changes.listen(context.sink(), &caller, &catalog.limits) else {
            return Err(ErrorData::invalid_request("too many streams are open: close some", None));
        };
        context.cancelled().await;
        Ok(())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let catalog = self.offering.now();
        let tools = catalog.offers.iter().map(|offer| offer.tool.clone());
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let catalog = self.offering.now();
        let offer = catalog.offers.iter().find(|offer| offer.name() == name)?;
        Some(offer.tool.clone())
    }

    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let caller = self.caller(&context)?;
        let catalog = self.offering.now();
        let Some(offer) = catalog.offers.iter().find(|offer| offer.name() == params.name) else {
            let names: Vec<&str> = catalog.offers.iter().map(Offered::name).collect();
            let message = format!("there is no tool `{}`. There are: {}", params.name, names.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        };
        let level = *self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let Offering { calls, waiting, .. } = &self.offering;
        let call =
            Call { catalog: &catalog, offer, calls, waiting, caller: &caller, context: &context, level };
        call.make(params).await
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let caller = self.caller(&context)?;
        let mut all: Vec<McpResource> = Vec::new();
        for resources in &self.offering.now().resources {
            let listed = resources.list(&caller).await.map_err(|error| internal(&error))?;
            for Resource { uri, name, description, mime_type } in listed {
                let mut resource = McpResource::new(uri, name);
                (resource.description, resource.mime_type) = (description, mime_type);
                all.push(resource);
            }
        }
        Ok(ListResourcesResult::with_all_items(all))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let catalog = self.offering.now();
        let patterns = catalog.resources.iter().flat_map(|resources| resources.patterns());
        let templates = patterns.map(|Resource { uri, name, description, mime_type }| {
            let mut template = ResourceTemplate::new(uri, name);
            (template.description, template.mime_type) = (description, mime_type);
            template
        });
        Ok(ListResourceTemplatesResult::with_all_items(templates.collect()))
    }

    async fn read_resource(
        &self,
        params: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let caller = self.caller(&context)?;
        for resources in &self.offering.now().resources {
            let read = resources.read(&caller, &params.uri).await.map_err(|error| internal(&error))?;
            let Some(contents) = read.and_then(|part| contents(&params.uri, &part)) else { continue };
            return Ok(ReadResourceResult::new(vec![contents]).into());
        }
        let message = format!("there is no resource `{}`", params.uri);
        Err(ErrorData::resource_not_found(message, None))
    }

    async fn subscribe(
        &self,
        params: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if !self.watched.add(params.uri) {
            return Err(ErrorData::invalid_request("too much is watched: stop watching something", None));
        }
        self.offering.now().changes.watch(&self.watched, &context.peer);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        params: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.watched.remove(&params.uri);
        Ok(())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let catalog = self.offering.now();
        Ok(ListPromptsResult::with_all_items(catalog.prompts.iter().map(Prompt::listed).collect()))
    }

    async fn get_prompt(
        &self,
        params: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let catalog = self.offering.now();
        let Some(prompt) = catalog.prompts.iter().find(|prompt| prompt.name == params.name) else {
            return Err(ErrorData::invalid_params(format!("there is no prompt `{}`", params.name), None));
        };
        let arguments = params.arguments.unwrap_or_default();
        let arguments: BTreeMap<String, String> =
            arguments.iter().map(|(name, value)| (name.clone(), umbel_core::json::render(value))).collect();
        let messages = prompt.messages(&arguments).map_err(|e| ErrorData::invalid_params(e, None))?;
        Ok(GetPromptResult::new(messages).into())
    }

    async fn complete(
        &self,
        params: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let Reference::Prompt(asked) = &params.r#ref else { return Ok(CompleteResult::default()) };
        let catalog = self.offering.now();
        let prompt = catalog.prompts.iter().find(|prompt| prompt.name == asked.name);
        let values = prompt.map(|prompt| prompt.complete(&params.argument.name, &params.argument.value));
        let info = CompletionInfo::new(values.unwrap_or_default());
        info.map(CompleteResult::new).map_err(|e| ErrorData::internal_error(e, None))
    }

    async fn set_level(
        &self,
        params: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        *self.level.lock().unwrap_or_else(PoisonError::into_inner) = params.level;
        Ok(())
    }
}

/// What is at an address, as clients get it.
fn contents(uri: &str, part: &Part) -> Option<ResourceContents> {
    match &part.payload {
        Payload::Text(text) => Some(ResourceContents::text(text.clone(), uri).with_mime_type("text/plain")),
        Payload::InlineData(blob) => {
            let mime = blob.mime_type.clone().unwrap_or_else(|| "application/octet-stream".to_owned());
            let text = result::is_text(&mime).then(|| String::from_utf8(blob.data.clone()).ok()).flatten();
            let contents = match text {
                Some(text) => ResourceContents::text(text, uri),
                None => ResourceContents::blob(result::base64(&blob.data), uri),
            };
            Some(contents.with_mime_type(mime))
        }
        _ => None,
    }
}
