//! An MCP server as a toolset.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rmcp::model::{
    ClientRequest, ListToolsRequest, PaginatedRequestParams, ServerResult, Tool as McpDefinition,
};
use serde_json::json;
use smol_str::SmolStr;
use tokio::io::DuplexStream;
use umbel_core::{
    Answer, AuthConfig, BoxFuture, Confirm, Error, ErrorKind, Question, Result, Run, Tool, Toolset,
};

use super::attend::Attendant;
use super::connections::{Connections, Slot, Who};
use super::elicitation::Answerer;
use super::handler::Grants;
use super::http::Http;
use super::link::Failure;
use super::listed::{Listed, digest, look_at};
use super::oauth::{McpOAuth, REFUSED, Refused};
use super::pins::{InMemoryPins, Pinned, Pins};
use super::resources;
use super::sampling::Sampling;
use super::stdio::Stdio;
use super::tool::McpTool;

/// How much an MCP server may take. Of times, zero is at once and [`Duration::MAX`] is never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToolsetLimits {
    /// For beginning a connection; 30 s.
    pub connect: Duration,
    /// For an answer without a sign of life; 60 s. Each news about a call gives it as much time again.
    pub answer: Duration,
    /// For an answer, whatever the signs of life; 10 minutes.
    pub call: Duration,
    /// How long a connection is kept that nobody uses; 5 minutes.
    pub idle: Duration,
    /// Connections that are open at once, where each user has one; 1,000. Those that nobody uses make room for others; if all
    /// are in use, whoever comes waits as long as connecting may take.
    pub connections: usize,
    /// How long a list of tools counts if the server does not say that it changed; 5 minutes.
    pub list: Duration,
    /// Bytes of one message; 4 MiB. A server that sends more is disconnected before it is read.
    pub message_bytes: usize,
    /// Bytes of text in a result; 256 KiB. The rest is left out, and the model is told.
    pub result_bytes: usize,
    /// Requests that are under way over one HTTP connection at once; 64. More of them wait.
    pub requests: usize,
    /// Tools of one server; 256.
    pub tools: usize,
    /// Pages of one list; 64.
    pub pages: usize,
}

impl Default for ToolsetLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            answer: Duration::from_secs(60),
            call: Duration::from_secs(600),
            idle: Duration::from_secs(300),
            connections: 1_000,
            list: Duration::from_secs(300),
            message_bytes: 4 << 20,
            result_bytes: 256 << 10,
            requests: 64,
            tools: 256,
            pages: 64,
        }
    }
}

/// How a connection begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// As the newest version has it, and with a handshake where a server does not know that.
    #[default]
    Newest,
    /// With a handshake, as all versions before 2026-07-28 have it.
    Handshake,
}

/// What is done about tools that nobody agreed to yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approval {
    /// They are used, and pinned as they are.
    Trust,
    /// A person is asked: the run ends with a question that shows them.
    Ask,
    /// They are left out.
    Refuse,
}

/// Where a server is.
#[derive(Clone)]
pub(crate) enum Place {
    Stdio(Stdio),
    Http(Http),
    Pipe(Arc<dyn Fn() -> Result<DuplexStream> + Send + Sync>),
}

/// A server in this process: what connects to it.
#[derive(Clone)]
pub struct Pipe(Arc<dyn Fn() -> Result<DuplexStream> + Send + Sync>);

impl Pipe {
    /// `connect` gives one end of a pipe for each connection. Whoever has the other end is the server.
    pub fn new(connect: impl Fn() -> Result<DuplexStream> + Send + Sync + 'static) -> Self {
        Self(Arc::new(connect))
    }
}

impl fmt::Debug for Pipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pipe(…)")
    }
}

/// Where an MCP server is: [`Stdio`], [`Http`] or [`Pipe`].
#[derive(Clone)]
pub struct McpPlace(pub(crate) Place);

impl fmt::Debug for McpPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Stdio(stdio) => stdio.fmt(f),
            Place::Http(http) => http.fmt(f),
            Place::Pipe(_) => f.write_str("Pipe(…)"),
        }
    }
}

impl Place {
    /// What tells a server from another one, be it started or asked anew: its address without what may be secret in it, or the
    /// program with its arguments. Nothing if it is in this process.
    fn identity(&self) -> Option<String> {
        let what = match self {
            Self::Http(http) => json!(http.place()),
            Self::Stdio(stdio) => stdio.identity(),
            Self::Pipe(_) => return None,
        };
        Some(digest(&what))
    }
}

impl From<Stdio> for McpPlace {
    fn from(stdio: Stdio) -> Self {
        Self(Place::Stdio(stdio))
    }
}

impl From<Http> for McpPlace {
    fn from(http: Http) -> Self {
        Self(Place::Http(http))
    }
}

impl From<Pipe> for McpPlace {
    fn from(pipe: Pipe) -> Self {
        Self(Place::Pipe(pipe.0))
    }
}

/// What a toolset was told.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) name: SmolStr,
    pub(crate) place: Place,
    pub(crate) prefix: SmolStr,
    filter: Option<Arc<dyn Fn(&str) -> bool + Send + Sync>>,
    pub(crate) limits: ToolsetLimits,
    pub(crate) grants: Grants,
    pub(crate) sampling: Option<Sampling>,
    pub(crate) answerer: Option<Answerer>,
    pub(crate) protocol: Protocol,
    pub(crate) auth: Option<AuthConfig>,
    pub(crate) one_at_a_time: bool,
    pub(crate) trust_hints: bool,
    pub(crate) confirm: Confirm,
    confirm_destructive: bool,
    resources: bool,
    instructions: bool,
    optional: bool,
    pins: Arc<dyn Pins>,
    first: Approval,
    change: Approval,
}

/// What a toolset and its tools share.
pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) connections: Arc<Connections>,
    /// One at a time looks at what is pinned.
    pinning: tokio::sync::Mutex<()>,
}

/// The tools of an MCP server, for an agent.
///
/// It connects when it is first needed. All agents and runs share a connection, but for servers that want a credential of
/// each user: then each user has one.
///
/// ```
/// use umbel_mcp::client::{Approval, FilePins, Http, McpToolset};
///
/// let tools = McpToolset::new("docs", Http::new("https://docs.example.org/mcp"))
///     .prefix("docs_")
///     .only(["search", "read"])
///     .pins(FilePins::new("mcp-pins.json"))
///     .changes(Approval::Refuse);
/// ```
#[derive(Clone)]
pub struct McpToolset {
    pub(crate) inner: Arc<Inner>,
}

impl McpToolset {
    /// A server under a name that people know it by. What is pinned is kept under that name.
    pub fn new(name: impl Into<SmolStr>, server: impl Into<McpPlace>) -> Self {
        let grants = Grants { elicitation: true, ..Grants::default() };
        let options = Options {
            name: name.into(),
            place: server.into().0,
            prefix: SmolStr::default(),
            filter: None,
            limits: ToolsetLimits::default(),
            grants,
            sampling: None,
            answerer: None,
            protocol: Protocol::default(),
            auth: None,
            one_at_a_time: false,
            trust_hints: false,
            confirm: Confirm::Never,
            confirm_destructive: false,
            resources: false,
            instructions: false,
            optional: false,
            pins: Arc::new(InMemoryPins::new()),
            first: Approval::Trust,
            change: Approval::Ask,
        };
        Self { inner: Arc::new(Inner::new(options)) }
    }

    /// Changes what it was told. One that is in use already stays as it is, and this is another.
    fn change(self, change: impl FnOnce(&mut Options)) -> Self {
        let mut options = self.inner.options.clone();
        change(&mut options);
        Self { inner: Arc::new(Inner::new(options)) }
    }

    /// Only the tools of these names, as the server names them.
    pub fn only<T: Into<String>>(self, names: impl IntoIterator<Item = T>) -> Self {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        self.filter(move |name| names.iter().any(|known| known == name))
    }

    /// Only the tools whose names, as the server has them, this says yes to.
    pub fn filter(self, filter: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.change(|options| options.filter = Some(Arc::new(filter)))
    }

    /// What stands before the names of all tools, such as `docs_`.
    pub fn prefix(self, prefix: impl Into<SmolStr>) -> Self {
        self.change(|options| options.prefix = prefix.into())
    }

    /// How much the server may take.
    pub fn limits(self, limits: ToolsetLimits) -> Self {
        self.change(|options| options.limits = limits)
    }

    /// How a connection begins.
    pub fn protocol(self, protocol: Protocol) -> Self {
        self.change(|options| options.protocol = protocol)
    }

    /// The credential that the server wants. Each user has one, and a connection; one that the program has is for all.
    pub fn auth(self, auth: AuthConfig) -> Self {
        self.change(|options| options.auth = Some(auth))
    }

    /// Signs each user in where the server says. The credential has the name of the toolset.
    pub fn oauth(self, oauth: McpOAuth) -> Self {
        self.change(|options| {
            let credential = options.name.clone();
            options.auth = Some(AuthConfig { credential, method: Arc::new(oauth) });
        })
    }

    /// Believes what the server says about its tools: that they change nothing, or can be called twice. Calls of such tools
    /// are made again when a connection breaks or a run was cut short.
    pub fn trust_hints(self) -> Self {
        self.change(|options| options.trust_hints = true)
    }

    /// Whether a person must agree before each call.
    pub fn confirm(self, confirm: Confirm) -> Self {
        self.change(|options| options.confirm = confirm)
    }

    /// A person must agree before each call of a tool, unless the server says that it changes nothing or destroys nothing.
    /// Use this only with servers that say the truth.
    pub fn confirm_destructive(self) -> Self {
        self.change(|options| options.confirm_destructive = true)
    }

    /// Calls one tool after the other, over each connection. Servers that ask people something need this where a
    /// connection does not tell for which call they ask: over standard input and output.
    pub fn one_at_a_time(self) -> Self {
        self.change(|options| options.one_at_a_time = true)
    }

    /// Whether the server may ask people something; it may. The run then ends with its question.
    pub fn elicitation(self, allowed: bool) -> Self {
        self.change(|options| options.grants.elicitation = allowed)
    }

    /// Answers the server's questions at once, while it waits, for programs whose user is there. Otherwise the run ends with
    /// each question, and the call is made again once there is an answer.
    pub fn answer_with<F>(self, answer: impl Fn(Question) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let answerer: Answerer = Arc::new(move |question| Box::pin(answer(question)));
        self.change(|options| options.answerer = Some(answerer))
    }

    /// Lends the server a model. It has none otherwise.
    pub fn sampling(self, sampling: Sampling) -> Self {
        self.change(|options| {
            options.grants.sampling = true;
            options.sampling = Some(sampling);
        })
    }

    /// A folder that the server is told of, as a `file://` address.
    pub fn root(self, uri: impl Into<String>, name: Option<&str>) -> Self {
        let root = (uri.into(), name.map(str::to_owned));
        self.change(|options| options.grants.roots.push(root))
    }

    /// Two more tools, `list_resources` and `read_resource`, by which a model looks at what the server has.
    pub fn resources(self) -> Self {
        self.change(|options| options.resources = true)
    }

    /// Tells models what the server wants them told. It is pinned like the tools.
    pub fn instructions(self) -> Self {
        self.change(|options| options.instructions = true)
    }

    /// The agent works without the tools if the server cannot be reached. Otherwise the run fails.
    pub fn optional(self) -> Self {
        self.change(|options| options.optional = true)
    }

    /// Keeps what was agreed to, so that it outlives the process.
    pub fn pins(self, pins: impl Pins + 'static) -> Self {
        self.change(|options| options.pins = Arc::new(pins))
    }

    /// What is done with the tools of a server that was never seen before; they are trusted unless said otherwise.
    pub fn first_use(self, approval: Approval) -> Self {
        self.change(|options| options.first = approval)
    }

    /// What is done with tools that are new, or that the server speaks of in other words than before; a person is asked
    /// unless said otherwise.
    pub fn changes(self, approval: Approval) -> Self {
        self.change(|options| options.change = approval)
    }

    /// Ends all connections. The next call connects again.
    pub async fn close(&self) {
        self.inner.connections.close().await;
    }
}

impl Toolset for McpToolset {
    fn name(&self) -> &str {
        &self.inner.options.name
    }

    fn tools<'a>(&'a self, run: &'a Run) -> BoxFuture<'a, Result<Vec<Arc<dyn Tool>>>> {
        Box::pin(self.inner.tools(run))
    }

    fn instruction(&self, run: &Run) -> Option<Arc<str>> {
        self.inner.connections.known(&self.inner.who(run))?.instruction()
    }

    fn auth(&self) -> Option<&AuthConfig> {
        self.inner.options.auth.as_ref()
    }
}

impl fmt::Debug for McpToolset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "McpToolset({})", self.inner.options.name)
    }
}

impl Inner {
    fn new(options: Options) -> Self {
        let connections = Arc::new(Connections::new(options.limits.connections));
        Self { options, connections, pinning: tokio::sync::Mutex::default() }
    }

    async fn tools(self: &Arc<Self>, run: &Run) -> Result<Vec<Arc<dyn Tool>>> {
        match self.find_tools(run).await {
            Err(error) if self.options.optional && !error.is_control() => {
                let server = self.options.name.as_str();
                tracing::warn!(target: "umbel::mcp", server, "the agent works without its tools: {error}");
                Ok(Vec::new())
            }
            found => found,
        }
    }

    async fn find_tools(self: &Arc<Self>, run: &Run) -> Result<Vec<Arc<dyn Tool>>> {
        let grant = match &self.options.auth {
            Some(auth) => Some((auth, run.credential(auth).await?)),
            None => None,
        };
        let slot = self.slot(run, grant.as_ref().map(|(_, grant)| grant))?;
        let found = match (self.ready(run, &slot).await, grant) {
            (Err(Failure::Stranger(said)), Some((auth, grant))) => {
                let refused = Refused { said, credential: grant.credential().clone() };
                let other = REFUSED.scope(refused, run.credential_refused(auth, &grant)).await?;
                slot.authorise(Some(&other))?;
                self.ready(run, &slot).await
            }
            (found, _) => found,
        };
        found.map_err(|failure| failure.into_error(&self.options.name))
    }

    /// The tools of a connection, listed anew if they changed.
    async fn ready(self: &Arc<Self>, run: &Run, slot: &Arc<Slot>) -> Result<Vec<Arc<dyn Tool>>, Failure> {
        let link = slot.link(&self.options).await?;
        if let Some(tools) = slot.tools(&link, self.options.limits.list) {
            return Ok(tools);
        }
        // Whatever changes from here on is seen the next time.
        let changes = link.changes();
        let says =
            link.info().and_then(|info| info.instructions.clone()).filter(|_| self.options.instructions);
        // If the list needs another connection, this one shall not keep its place.
        let seen = Arc::downgrade(&link);
        drop(link);
        let _turn = if self.options.one_at_a_time { Some(slot.turn.lock().await) } else { None };
        let mut listed = self.list(slot).await?;
        listed.extend(says.map(|text| words(&text)));
        let agreed = self.agreed(run, listed).await?;
        let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
        let mut instruction = None;
        for listed in agreed {
            match listed.tool.description.as_deref().filter(|_| listed.name == WORDS) {
                Some(text) => instruction = Some(Arc::from(text)),
                None => tools.push(Arc::new(self.tool(listed))),
            }
        }
        if self.options.resources {
            for own in resources::tools(self) {
                let is_other = |tool: &Arc<dyn Tool>| tool.spec().name != own.spec().name;
                tools.retain(is_other);
                tools.push(own);
            }
        }
        slot.keep((seen, changes), &tools, instruction);
        Ok(tools)
    }

    /// All tools of the server that were asked for, page by page.
    async fn list(&self, slot: &Arc<Slot>) -> Result<Vec<Listed>, Failure> {
        let Options { name, limits, prefix, filter, .. } = &self.options;
        let (mut tools, mut cursor) = (Vec::<McpDefinition>::new(), None);
        for _ in 0..limits.pages.max(1) {
            let page = PaginatedRequestParams::default().with_cursor(cursor.clone());
            let request = ListToolsRequest::with_param(page);
            let request = ClientRequest::ListToolsRequest(request);
            let attendant = Attendant::new(name, &self.options.grants);
            let answer = slot.ask(&self.options, request, &attendant).await?;
            let ServerResult::ListToolsResult(page) = answer else {
                return Err(Failure::Ended("what it answers is no list of tools".to_owned()));
            };
            // What nobody wants takes no room.
            let wanted = |tool: &McpDefinition| filter.as_ref().is_none_or(|filter| filter(&tool.name));
            tools.extend(page.tools.into_iter().filter(wanted));
            let is_enough = tools.len() > limits.tools;
            match page.next_cursor.filter(|next| !is_enough && cursor.as_ref() != Some(next)) {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        if tools.len() > limits.tools {
            let server = name.as_str();
            tracing::warn!(target: "umbel::mcp", server, "it has more than {} tools: the rest is left out", limits.tools);
            tools.truncate(limits.tools);
        }
        Ok(look_at(name, prefix, tools))
    }

    /// Those of the tools that were agreed to, word for word.
    async fn agreed(&self, run: &Run, listed: Vec<Listed>) -> Result<Vec<Listed>> {
        let Options { name, pins, first, change, .. } = &self.options;
        let _turn = self.pinning.lock().await;
        let (record, known) = self.pinned(run).await?;
        let approval = if known.is_some() { *change } else { *first };
        let is_first = known.is_none();
        let mut pinned =
            known.unwrap_or_else(|| Pinned { place: self.options.place.identity(), ..Pinned::default() });
        let news = pinned.news(&listed);
        if !news.is_empty() || is_first {
            let agreed = match approval {
                Approval::Trust => true,
                Approval::Ask if news.is_empty() => true,
                Approval::Ask => self.ask(run, &pinned, &news, is_first)?,
                Approval::Refuse => {
                    let changes = pinned.in_words(&news);
                    tracing::warn!(target: "umbel::mcp", server = name.as_str(), "tools are left out: {changes}");
                    return Ok(listed.into_iter().filter(|listed| pinned.has(listed)).collect());
                }
            };
            if agreed {
                pinned.agree(&news);
            } else {
                pinned.refused.extend(news.iter().map(|listed| listed.digest.clone()));
            }
            pins.save(&record, pinned.clone()).await?;
        }
        Ok(listed.into_iter().filter(|listed| pinned.has(listed)).collect())
    }

    /// Whether a person agrees to tools. What they say counts for just the words that they were shown.
    fn ask(&self, run: &Run, pinned: &Pinned, news: &[&Listed], is_first: bool) -> Result<bool> {
        let name = &self.options.name;
        let what = if is_first { "has tools" } else { "has changed its tools" };
        let words = format!(
            "The MCP server `{name}` {what}: {}. May the agent use them as the server describes them now?",
            pinned.in_words(news)
        );
        let payload = json!({"mcpServer": name, "changes": pinned.changes(news)});
        let shown = digest(&payload);
        Ok(run
            .interrupt_about(&format!("mcp.pins.{shown}"), Question::confirm(words).payload(payload))?
            .confirmed)
    }

    fn tool(self: &Arc<Self>, listed: Listed) -> McpTool {
        let hints = listed.tool.annotations.clone().unwrap_or_default();
        let is_read_only = hints.read_only_hint == Some(true);
        let destroys = !is_read_only && hints.is_destructive();
        let confirm = match &self.options.confirm {
            Confirm::Never if self.options.confirm_destructive && destroys => Confirm::Always,
            confirm => confirm.clone(),
        };
        McpTool::new(self, listed, confirm)
    }

    /// The toolset of a tool. Tools do not keep it: it keeps them, and connections end with it.
    pub(crate) fn of(toolset: &Weak<Self>) -> Result<Arc<Self>> {
        let gone = || Error::new(ErrorKind::Tool, "the toolset of this tool is not there any more");
        toolset.upgrade().ok_or_else(gone)
    }

    /// The connection for the user of a run.
    pub(crate) fn slot(&self, run: &Run, grant: Option<&umbel_core::Grant>) -> Result<Arc<Slot>> {
        let slot = self.connections.slot(self.who(run));
        slot.authorise(grant)?;
        Ok(slot)
    }

    /// Whose connection a run has.
    fn who(&self, run: &Run) -> Who {
        let is_own = self.options.auth.as_ref().is_some_and(|auth| auth.method.fixed().is_none());
        let key = run.session_key();
        is_own.then(|| [key.app().into(), key.user().into()])
    }

    /// What was agreed to, and under which name that is kept. Where each user has a connection, a server may tell each of them
    /// something else, and each agrees for nobody else. What the program agreed to is where each begins.
    ///
    /// The server that came first has its name; another one of that name has the place where it is, too. Nothing was agreed
    /// to of that one, but it is no server that was never seen: it may have been put in the place of the first.
    async fn pinned(&self, run: &Run) -> Result<(String, Option<Pinned>)> {
        let name = &self.options.name;
        let place = self.options.place.identity();
        let short: String = place.iter().flat_map(|place| place.chars()).take(16).collect();
        let elsewhere = format!("{name} @ {short}");
        let is_another = |known: &Pinned| known.is_of_another(place.as_deref());
        let begin = || Pinned { place: place.clone(), ..Pinned::default() };
        let (mut record, mut known) = (name.to_string(), self.load(name).await?);
        if known.as_ref().is_some_and(is_another) {
            known = Some(self.load(&elsewhere).await?.unwrap_or_else(begin));
            record.clone_from(&elsewhere);
        }
        let Some([app, user]) = self.who(run) else { return Ok((record, known)) };
        let of_user = |record: &str| json!([record, app, user]).to_string();
        let own = self.load(&of_user(&record)).await?;
        if own.as_ref().is_some_and(is_another) {
            let record = of_user(&elsewhere);
            let own = self.load(&record).await?.or(known);
            return Ok((record, Some(own.unwrap_or_else(begin))));
        }
        Ok((of_user(&record), own.or(known)))
    }

    /// What is kept under a name. If it does not say yet of which server, it is of this one from now on.
    async fn load(&self, record: &str) -> Result<Option<Pinned>> {
        let Options { name, pins, place, .. } = &self.options;
        let Some(mut pinned) = pins.load(record).await? else { return Ok(None) };
        if pinned.place.is_none() {
            pinned.place = place.identity();
            // What may only be read, such as a file that was shipped with the program, counts all the same.
            if pinned.place.is_some()
                && let Err(error) = pins.save(record, pinned.clone()).await
            {
                let server = name.as_str();
                tracing::warn!(target: "umbel::mcp", server, "where it is could not be noted: {error}");
            }
        }
        Ok(Some(pinned))
    }

    /// The connection that all share.
    pub(crate) fn shared_slot(&self) -> Result<Arc<Slot>> {
        let Some(auth) = &self.options.auth else { return Ok(self.connections.slot(None)) };
        let Some(fixed) = auth.method.fixed() else {
            let message = "the server wants a credential of each user, and there is no user here";
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let slot = self.connections.slot(None);
        slot.authorise(Some(&umbel_core::Grant::new(&*auth.method, fixed)))?;
        Ok(slot)
    }
}

/// The name under which what a server tells models is pinned. No tool can have it.
const WORDS: &str = "(instructions)";

/// What a server tells models, in the form of a tool, so that it is agreed to like one.
fn words(text: &str) -> Listed {
    let tool = McpDefinition::new(WORDS, text.to_owned(), serde_json::Map::new());
    let definition = json!({"name": WORDS, "description": text});
    let digest = digest(&definition);
    Listed { tool: Arc::new(tool), name: WORDS.into(), definition: Arc::new(definition), digest }
}
