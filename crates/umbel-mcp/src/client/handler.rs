//! What a client answers when its server asks or tells something.

// Logging, roots and sampling are on their way out of the protocol, and in use.
#![expect(deprecated)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rmcp::model::{
    ClientCapabilities, ClientConfig, ClientResult, CreateMessageRequestMethod, CreateMessageRequestParams,
    CreateMessageResult, ElicitRequestParams, ElicitResult, ElicitationCapability,
    ElicitationCreateRequestMethod, FormElicitationCapability, Implementation, InputRequest, ListRootsResult,
    LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProtocolVersion, Request, Root,
    RootsCapabilities, SamplingCapability, UrlElicitationCapability,
};
use rmcp::service::{InboundStreamOrigin, NotificationContext, RequestContext};
use rmcp::{ClientHandler, ErrorData, RoleClient};

use super::calls::Calls;

/// How much of one message to the log is kept.
const LOGGED: usize = 4 << 10;

/// What a client lets its server do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grants {
    pub(crate) elicitation: bool,
    pub(crate) sampling: bool,
    pub(crate) roots: Vec<(String, Option<String>)>,
}

impl Grants {
    /// The folders that a server is told of.
    pub(crate) fn roots(&self) -> ListRootsResult {
        let root = |(uri, name): &(String, Option<String>)| {
            let root = Root::new(uri.clone());
            name.iter().fold(root, |root, name| root.with_name(name.clone()))
        };
        ListRootsResult::new(self.roots.iter().map(root).collect())
    }
}

/// Answers a server.
pub(crate) struct Handler {
    pub(crate) server: String,
    pub(crate) grants: Grants,
    pub(crate) calls: Arc<Calls>,
    /// How often the server said that its tools are others now.
    pub(crate) changes: Arc<AtomicU64>,
}

impl Handler {
    async fn wish(
        &self,
        wish: InputRequest,
        context: &RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        let given = self.calls.wish(wish, context.extensions.get::<InboundStreamOrigin>());
        tokio::select! {
            given = given => given,
            () = context.ct.cancelled() => Err(ErrorData::invalid_request("it was taken back", None)),
        }
    }
}

fn unexpected<T>(_: ClientResult) -> Result<T, ErrorData> {
    Err(ErrorData::internal_error("something else was asked", None))
}

impl ClientHandler for Handler {
    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        if !self.grants.sampling {
            return Err(ErrorData::method_not_found::<CreateMessageRequestMethod>());
        }
        let wish = InputRequest::CreateMessage(Request::new(params));
        match self.wish(wish, &context).await? {
            ClientResult::CreateMessageResult(message) => Ok(*message),
            other => unexpected(other),
        }
    }

    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        Ok(self.grants.roots())
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        if !self.grants.elicitation {
            return Err(ErrorData::method_not_found::<ElicitationCreateRequestMethod>());
        }
        let wish = InputRequest::Elicitation(Request::new(params));
        match self.wish(wish, &context).await? {
            ClientResult::ElicitResult(result) => Ok(result),
            other => unexpected(other),
        }
    }

    async fn on_progress(&self, progress: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.calls.progress(progress).await;
    }

    async fn on_logging_message(
        &self,
        message: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let mut text = message.data.to_string();
        text.truncate(text.floor_char_boundary(LOGGED));
        let (server, logger) = (&self.server, message.logger.as_deref());
        match message.level {
            LoggingLevel::Debug => tracing::debug!(target: "umbel::mcp", server, logger, "{text}"),
            LoggingLevel::Info | LoggingLevel::Notice => {
                tracing::info!(target: "umbel::mcp", server, logger, "{text}");
            }
            LoggingLevel::Warning => tracing::warn!(target: "umbel::mcp", server, logger, "{text}"),
            _ => tracing::error!(target: "umbel::mcp", server, logger, "{text}"),
        }
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        if self.grants.elicitation {
            let mut elicitation = ElicitationCapability::default();
            elicitation.form = Some(FormElicitationCapability::default());
            elicitation.url = Some(UrlElicitationCapability::default());
            capabilities.elicitation = Some(elicitation);
        }
        if self.grants.sampling {
            capabilities.sampling = Some(SamplingCapability::default());
        }
        if !self.grants.roots.is_empty() {
            capabilities.roots = Some(RootsCapabilities::default());
        }
        // Only handshakes say a version here.
        ClientConfig::new(capabilities, Implementation::new("umbel", env!("CARGO_PKG_VERSION")))
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}
