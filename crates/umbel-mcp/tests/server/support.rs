//! A client, a server, and agents to talk about.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, CreateMessageRequestParams,
    CreateMessageResult, ElicitRequestParams, ElicitResult, ElicitationAction, Implementation,
    ProgressNotificationParam, SamplingMessage,
};
use rmcp::service::{NotificationContext, RequestContext, RunningService, ServiceExt};
use rmcp::{ClientHandler, ErrorData, RoleClient};
use serde_json::{Value, json};
use smol_str::SmolStr;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use umbel_core::{
    BoxFuture, EventFilter, Object, Result, SessionKey, Tool, ToolContext, ToolError, ToolItem, ToolOutput,
    ToolSpec,
};
use umbel_mcp::server::McpServer;
use umbel_runtime::{LlmAgent, Runner, ScriptedModel};

/// How a test's client answers what it is asked.
pub(crate) type Answers = Arc<dyn Fn(&ElicitRequestParams) -> ElicitResult + Send + Sync>;

/// A client that writes down what it is told.
#[derive(Clone, Default)]
pub(crate) struct TestClient {
    pub(crate) answers: Option<Answers>,
    pub(crate) asked: Arc<Mutex<Vec<Value>>>,
    pub(crate) progress: Arc<Mutex<Vec<ProgressNotificationParam>>>,
    pub(crate) samples: bool,
}

impl TestClient {
    /// One whose person answers like this.
    pub(crate) fn answering(
        answers: impl Fn(&ElicitRequestParams) -> ElicitResult + Send + Sync + 'static,
    ) -> Self {
        Self { answers: Some(Arc::new(answers)), ..Self::default() }
    }

    /// What its person was asked.
    pub(crate) fn asked(&self) -> Vec<Value> {
        self.asked.lock().unwrap().clone()
    }

    /// What it was told of how far things are.
    pub(crate) fn progress(&self) -> Vec<ProgressNotificationParam> {
        self.progress.lock().unwrap().clone()
    }
}

/// Yes, with this.
pub(crate) fn accept(content: Value) -> ElicitResult {
    ElicitResult::new(ElicitationAction::Accept).with_content(content)
}

impl ClientHandler for TestClient {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        if self.answers.is_some() {
            capabilities.elicitation = Some(Default::default());
        }
        if self.samples {
            capabilities.sampling = Some(Default::default());
        }
        ClientConfig::new(capabilities, Implementation::new("test", "1"))
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.asked.lock().unwrap().push(serde_json::to_value(&request).unwrap());
        Ok(self.answers.as_ref().unwrap()(&request))
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let asked = serde_json::to_value(&params).unwrap();
        self.asked.lock().unwrap().push(asked);
        Ok(CreateMessageResult::new(SamplingMessage::assistant_text("from the client"), "theirs".to_owned()))
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.progress.lock().unwrap().push(params);
    }
}

/// A client that talks with the server, as that user.
pub(crate) async fn connect(
    server: McpServer,
    user: &str,
    client: TestClient,
) -> RunningService<RoleClient, TestClient> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (read, write) = tokio::io::split(far);
    let user = SmolStr::new(user);
    tokio::spawn(async move { server.serve(read, write, user).await.unwrap() });
    client.serve(near).await.unwrap()
}

/// A call.
pub(crate) fn call(name: &'static str, arguments: Value) -> CallToolRequestParams {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    CallToolRequestParams::new(name).with_arguments(arguments)
}

/// The texts of a result.
pub(crate) fn texts(result: &CallToolResult) -> Vec<&str> {
    result.content.iter().filter_map(|block| block.as_text()).map(|text| text.text.as_str()).collect()
}

/// The session that a result names, for programs.
pub(crate) fn session(result: &CallToolResult) -> String {
    result.meta.as_ref().unwrap().0["umbel/session"].as_str().unwrap().to_owned()
}

/// An agent that says these things, one in each turn.
pub(crate) fn speaker<const N: usize>(says: [&str; N]) -> Runner {
    let model = says.into_iter().fold(ScriptedModel::new("script"), |model, text| model.text(text));
    Runner::new("speaker", LlmAgent::new("speaker").description("Speaks.").model(model)).unwrap()
}

/// A tool made of a closure.
#[derive(Clone)]
pub(crate) struct TestTool {
    pub(crate) spec: ToolSpec,
    work: Work,
}

type Work =
    Arc<dyn Fn(ToolContext, Arc<Object>) -> BoxFuture<'static, Result<ToolOutput, ToolError>> + Send + Sync>;

impl TestTool {
    pub(crate) fn new<F, R>(name: &str, work: F) -> Self
    where
        F: Fn(ToolContext, Arc<Object>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
    {
        let spec = ToolSpec::new(name, format!("Does {name}."), json!({"type": "object", "properties": {}}));
        Self { spec, work: Arc::new(move |cx, args| Box::pin(work(cx, args))) }
    }

    /// One that gives news, and then this.
    pub(crate) fn with_news(name: &str, news: Vec<Value>, last: Value) -> Self {
        Self::new(name, move |_, _| {
            let news = news.clone().into_iter().map(|news| Ok(ToolItem::Progress(news)));
            let all: Vec<_> = news.chain([Ok(ToolItem::Done(last.clone().into()))]).collect();
            std::future::ready(Ok(ToolOutput::Stream(Box::pin(futures::stream::iter(all)))))
        })
    }

    /// One that tells when it works, and never ends; and tells when it is dropped.
    pub(crate) fn endless(name: &str) -> (Self, mpsc::UnboundedReceiver<&'static str>) {
        let (tell, told) = mpsc::unbounded_channel();
        let tool = Self::new(name, move |_, _| {
            let tell = tell.clone();
            async move {
                struct Dropped(mpsc::UnboundedSender<&'static str>);
                impl Drop for Dropped {
                    fn drop(&mut self) {
                        let _ = self.0.send("dropped");
                    }
                }
                let dropped = Dropped(tell);
                let _ = dropped.0.send("begun");
                std::future::pending::<()>().await;
                Ok(json!("never").into())
            }
        });
        (tool, told)
    }
}

impl Tool for TestTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        (self.work)(cx.clone(), args)
    }
}

/// What comes next, unless it takes too long.
pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work).await.expect("it took too long")
}

/// Waits until something holds: a client reads what it is told when it comes to it.
pub(crate) async fn until(holds: impl Fn() -> bool) {
    soon(async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// The sessions of a user.
pub(crate) async fn sessions_of(runner: &Runner, user: &str) -> Vec<SessionKey> {
    let sessions = runner.sessions().list(runner.app(), user).await.unwrap();
    sessions.into_iter().map(|session| session.key).collect()
}

/// How often a person has spoken in a session.
pub(crate) async fn turns(runner: &Runner, key: &SessionKey) -> usize {
    let session = runner.sessions().get(key, EventFilter::default()).await.unwrap().unwrap();
    session.events.iter().filter(|event| event.is_user()).count()
}

/// A client that sends what it likes, a message in each line.
pub(crate) struct Lines {
    read: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
    write: WriteHalf<DuplexStream>,
}

impl Lines {
    /// A client that has said nothing yet.
    pub(crate) fn on(stream: DuplexStream) -> Self {
        let (read, write) = tokio::io::split(stream);
        Self { read: BufReader::new(read).lines(), write }
    }

    /// A client that has introduced itself.
    pub(crate) async fn new(server: McpServer) -> Self {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (read, write) = tokio::io::split(far);
        tokio::spawn(server.serve(read, write, "ann"));
        let mut lines = Self::on(near);
        lines.send(&crate::http::initialize().to_string()).await;
        assert!(lines.next().await.get("result").is_some());
        lines.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string()).await;
        lines
    }

    pub(crate) async fn send(&mut self, line: &str) {
        self.write.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// What the server says next.
    pub(crate) async fn next(&mut self) -> Value {
        let line = soon(self.read.next_line()).await.unwrap().expect("it said nothing more");
        serde_json::from_str(&line).unwrap()
    }

    /// What it says until it answers that request, and the answer.
    pub(crate) async fn until_answer(&mut self, id: u32) -> (Vec<Value>, Value) {
        let mut before = Vec::new();
        loop {
            let next = self.next().await;
            if next["id"] == id {
                return (before, next);
            }
            before.push(next);
        }
    }
}
