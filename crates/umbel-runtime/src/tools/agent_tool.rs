//! An agent as a tool: it works on a session of its own and its last words are the result.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use umbel_core::{
    Agent, AgentTree, BoxFuture, Content, Error, ErrorKind, Event, EventFilter, FunctionResponse, Interrupt,
    ModelUsage, NewSession, Object, Outcome, Part, Parts, Payload, Result, Role, Run, RunId, SessionKey,
    StateScope, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, ToolValue, Versions,
};

use super::delegate::direct_value;
use super::input_schema::InputSchema;
use crate::output_schema::OutputSchema;
use crate::runner::{Begins, ChildRun, Shared, find_child, run_child};
use crate::team::Team;
use crate::usage::book::{self, Book};

/// How long to wait before a session is looked at again that another process holds.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// An agent as a tool.
///
/// Each call gives it a session of its own, which begins with the caller's state, is not listed, and goes when the
/// caller's session goes. What it writes to the state is written to the caller's too.
pub struct AgentTool {
    agent: Arc<dyn Agent>,
    spec: ToolSpec,
    skip_summarization: bool,
    /// What its arguments must be, if not words.
    input: Option<InputSchema>,
    /// What its answer must be, if not words.
    schema: Option<OutputSchema>,
    tree: OnceLock<Arc<AgentTree>>,
}

impl AgentTool {
    /// The agent, to be called by its name.
    pub fn new(agent: impl Agent + 'static) -> Self {
        let parameters = match agent.input_schema() {
            Some(schema) => (**schema).clone(),
            None => json!({
                "type": "object",
                "properties": {"request": {"type": "string", "description": "What the agent is asked to do."}},
                "required": ["request"],
            }),
        };
        let mut spec = ToolSpec::new(agent.name(), agent.description(), parameters);
        spec.answers = true;
        spec.resumes = true;
        let schema = agent.output_schema().and_then(|schema| OutputSchema::new((**schema).clone()).ok());
        let input = InputSchema::of(&agent);
        Self { agent: Arc::new(agent), spec, skip_summarization: false, input, schema, tree: OnceLock::new() }
    }

    /// Its answer is the caller's answer: the caller's model does not put it in words again.
    pub fn skip_summarization(mut self) -> Self {
        self.skip_summarization = true;
        self
    }

    async fn ask(&self, cx: &ToolContext, args: &Object) -> Result<ToolValue> {
        let run = cx.run();
        run.check_depth()?;
        if self.skip_summarization {
            cx.skip_summarization();
        }
        let shared = self.shared(run)?;
        let limits = run.config().limits;
        // Whoever made the call before may have lost its own session and be about to leave this one, too.
        let patience = Instant::now().checked_add(limits.lease.saturating_add(limits.grace));
        let is_held = |error: &Error| {
            matches!(
                error.kind(),
                ErrorKind::SessionBusy | ErrorKind::SessionAbandoned | ErrorKind::StaleSession
            )
        };
        loop {
            match self.ask_in_session(cx, &shared, args).await {
                Err(error)
                    if cx.is_again()
                        && is_held(&error)
                        && patience.is_none_or(|until| Instant::now() < until) =>
                {
                    run.cancel_token().guard(pin!(tokio::time::sleep(LOOK_AGAIN))).await?;
                }
                asked => return asked,
            }
        }
    }

    /// Lets the agent work in the session of the call, as far as it has not yet.
    async fn ask_in_session(
        &self,
        cx: &ToolContext,
        shared: &Arc<Shared>,
        args: &Object,
    ) -> Result<ToolValue> {
        let (mut said, mut ended) = (Said::default(), None);
        let (key, begins) = self.begin(cx, shared, args).await?;
        if let Some((begins, id)) = begins {
            let child = (key.clone(), id.unwrap_or_else(|| shared.services.ids.run()), begins);
            let hear = |event: &Event| said.hear(cx, event);
            ended = Some(run_child(shared.clone(), cx.run(), child, cx.extensions(), hear).await);
            keep_used(cx.run())?;
        }
        if cx.is_again() {
            // What it said before is part of what it says. It is read when nobody writes there any more.
            said = Said::default();
            let session = shared.services.sessions.get(&key, EventFilter::default()).await?;
            if let (Some(book), Some(session)) = (Book::of(cx.run()), &session) {
                book.take_in_done(&session.state)?;
                keep_used(cx.run())?;
            }
            let events = session.iter().flat_map(|session| &session.events);
            events.filter(|event| !event.is_user()).for_each(|event| said.hear(cx, event));
        }
        said.used.drain(..).for_each(|used| cx.add_usage(used));
        if let Some(Outcome::Interrupted { interrupts }) = ended.transpose()? {
            return Err(Error::asked_inside(*interrupts));
        }
        said.result(self.schema.as_ref())
    }

    /// The session that works for a call, and what its run begins with; nothing if it is done.
    async fn begin(
        &self,
        cx: &ToolContext,
        shared: &Shared,
        args: &Object,
    ) -> Result<(SessionKey, Option<(Begins, Option<RunId>)>)> {
        let store = &*shared.services.sessions;
        let mut attempt = 0;
        loop {
            let key = Self::key(cx, shared, attempt)?;
            let (found, versions) = if cx.is_again() {
                find_child(store, &key).await?
            } else {
                (ChildRun::None, Versions::default())
            };
            let begins = match found {
                ChildRun::None => {
                    let own = cx.run().values().get_or_insert_with(Own::default);
                    match self.create(cx, shared, &key).await {
                        // Someone around the tool makes the call again: it begins anew.
                        Err(error) if error.kind() == ErrorKind::AlreadyExists && own.has(&key) => {
                            attempt += 1;
                            continue;
                        }
                        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                            let message =
                                format!("another process goes on with the call that {key} works for");
                            return Err(Error::new(ErrorKind::SessionBusy, message));
                        }
                        created => {
                            let versions = created?;
                            own.add(key.clone());
                            Some((Begins::MessageAt(self.input(args), versions), None))
                        }
                    }
                }
                ChildRun::Empty => Some((Begins::MessageAt(self.input(args), versions), None)),
                ChildRun::CutShort(run) => Some((Begins::Recovered, Some(run))),
                ChildRun::Cancelled => Some((Begins::Again, None)),
                ChildRun::Waits(open) => {
                    let answers = answers_inside(cx, &open);
                    if answers.is_empty() {
                        return Err(Error::asked_inside(open));
                    }
                    Some((Begins::MessageAt(Content::new(Role::User, answers), versions), None))
                }
                ChildRun::Done => None,
            };
            return Ok((key, begins));
        }
    }

    /// What a runner of this agent would be, with the caller's stores, plugins and settings.
    fn shared(&self, run: &Run) -> Result<Arc<Shared>> {
        let tree = match self.tree.get() {
            Some(tree) => tree.clone(),
            None => {
                let tree = Arc::new(AgentTree::new(&self.agent)?);
                self.tree.get_or_init(|| tree).clone()
            }
        };
        let team = Team::new(tree, Team::of(run)?.extras.clone())?;
        Ok(Arc::new(Shared::for_child(run, team)))
    }

    /// The session of a call: the same when the call is made again, since it goes on where it was cut short.
    fn key(cx: &ToolContext, shared: &Shared, attempt: u32) -> Result<SessionKey> {
        let parent = cx.run().session_key();
        let call = cx.idempotency_key().unwrap_or_else(|| shared.services.ids.event().as_str().into());
        let id = match attempt {
            0 => format!("{}/{call}", parent.id()),
            attempt => format!("{}/{call}/{attempt}", parent.id()),
        };
        SessionKey::new(parent.app(), parent.user(), id)
    }

    async fn create(&self, cx: &ToolContext, shared: &Shared, key: &SessionKey) -> Result<Versions> {
        // Keys of user and app are shared anyway, and what this run knows of them may be older than what is stored.
        let state = cx.run().state();
        // What was used is counted by itself in each session.
        let is_own = |key: &str| key.starts_with("_adk") || key == book::KEY;
        let state = state.scope(StateScope::Session).iter().filter(|(key, _)| !is_own(key));
        let state = state.map(|(key, value)| (key.clone(), value.clone()));
        let parent = cx.run().session_key().clone();
        let new = NewSession::new(key.clone()).state(state.collect()).parent(parent);
        Ok(shared.services.sessions.create(new).await?.versions)
    }

    fn input(&self, args: &Object) -> Content {
        let text = match args.get("request") {
            Some(Value::String(request)) if self.agent.input_schema().is_none() => request.clone(),
            _ if self.agent.input_schema().is_some() => Value::Object(args.clone()).to_string(),
            // Sorted, so that the words do not change from run to run.
            _ => {
                let mut args = Value::Object(args.clone());
                args.sort_all_objects();
                args.to_string()
            }
        };
        Content::user(Part::text(text))
    }
}

/// Has the run remember what was used for a call, with whatever is written next: once that tells of the call's end, nobody
/// looks into the session of the call again.
fn keep_used(run: &Run) -> Result<()> {
    Book::of(run).map_or(Ok(()), |book| book.keep(run))
}

/// What people said to questions that the agent left open.
fn answers_inside(cx: &ToolContext, open: &[Interrupt]) -> Parts {
    let answers = cx.run().values().answers(cx.run().source());
    let given = |asked: &Interrupt| {
        let (_, answer) = answers.iter().find(|(outside, _)| outside.id == asked.id)?;
        Some(Part::response(asked.response(answer)))
    };
    open.iter().filter_map(given).collect()
}

/// The sessions that this run made for its calls. One that is there and was not made here is another process's, which has
/// taken the caller's session over.
#[derive(Default)]
struct Own(Mutex<Vec<SessionKey>>);

impl Own {
    fn has(&self, key: &SessionKey) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    fn add(&self, key: SessionKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(key);
    }
}

/// What the agent said so far.
#[derive(Default)]
struct Said {
    last: Option<Arc<Content>>,
    /// What a tool gave that answers directly, if that came last.
    direct: Option<FunctionResponse>,
    error: Option<String>,
    /// What models used in its last run. What they used before was told when that run asked people.
    used: Vec<ModelUsage>,
    run: RunId,
}

impl Said {
    fn hear(&mut self, cx: &ToolContext, event: &Event) {
        let own = |key: &str| key == book::KEY;
        for (key, value) in event.state_delta().into_iter().flatten().filter(|(key, _)| !own(key)) {
            cx.set_state(key, value.clone());
        }
        if self.run != event.run {
            self.run = event.run.clone();
            self.used.clear();
        }
        if let Some(meta) = &event.meta
            && let Some(usage) = &meta.usage_metadata
        {
            self.used.push(ModelUsage { model: meta.model_version.clone(), usage: usage.clone() });
        }
        self.used.extend(event.actions.iter().flat_map(|actions| actions.called_usage.iter().cloned()));
        if let Some(message) = event.error_message() {
            self.error = Some(message.to_owned());
        }
        if let Some(content) = &event.content {
            self.last = Some(content.clone());
            self.direct = event.direct_answer().cloned();
        }
    }

    /// Its last words, or what its tool answered. If there are none, but it failed, the caller is told why.
    fn result(self, schema: Option<&OutputSchema>) -> Result<ToolValue> {
        if let Some(response) = &self.direct {
            let answer = direct_value(response);
            return match schema.filter(|_| !answer.is_error) {
                Some(schema) => Ok(schema.parse(&umbel_core::json::render(&answer.value))?.into()),
                None => Ok(answer),
            };
        }
        let parts = self.last.iter().flat_map(|content| content.parts.iter());
        let texts = parts.filter(|part| !part.is_thought()).filter_map(in_words);
        let text = texts.filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n");
        match (schema, self.error) {
            (_, Some(error)) if text.is_empty() => {
                Ok(ToolValue { is_error: true, ..Value::String(error).into() })
            }
            (Some(schema), _) if self.last.is_some() => Ok(schema.parse(&text)?.into()),
            _ => Ok(Value::String(text).into()),
        }
    }
}

/// What a part says, be it with code.
fn in_words(part: &Part) -> Option<&str> {
    match &part.payload {
        Payload::Text(text) => Some(text),
        Payload::CodeResult(result) => result.output.as_deref().map(|output| output.trim_end_matches('\n')),
        Payload::Code(code) => code.code.as_deref(),
        _ => None,
    }
}

impl Tool for AgentTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            if let Some(input) = &self.input {
                input.check(&args)?;
            }
            Ok(ToolOutput::from(self.ask(cx, &args).await?))
        })
    }

    fn agent(&self) -> Option<&Arc<dyn Agent>> {
        Some(&self.agent)
    }
}

impl fmt::Debug for AgentTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentTool({})", self.spec.name)
    }
}
