//! An agent as a tool: it works on a session of its own and its last words are the result.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use umbel_core::{
    Agent, AgentTree, BoxFuture, Content, Error, ErrorKind, Event, NewSession, Object, Outcome, Part,
    Payload, Result, Run, SessionKey, StateScope, Tool, ToolContext, ToolError, ToolOutput, ToolSpec,
    ToolValue,
};

use crate::output_schema::OutputSchema;
use crate::runner::{Shared, run_child};
use crate::team::Team;

/// An agent as a tool.
///
/// Each call gives it a session of its own, which begins with the caller's state, is not listed, and goes when the
/// caller's session goes. What it writes to the state is written to the caller's too.
pub struct AgentTool {
    agent: Arc<dyn Agent>,
    spec: ToolSpec,
    skip_summarization: bool,
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
        let schema = agent.output_schema().and_then(|schema| OutputSchema::new((**schema).clone()).ok());
        Self { agent: Arc::new(agent), spec, skip_summarization: false, schema, tree: OnceLock::new() }
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
        let key = self.session(cx, &shared).await?;
        let input = self.input(args);
        let mut said = Said::default();
        let outcome =
            run_child(shared, run, key, input, cx.extensions(), |event| said.hear(cx, event)).await?;
        if let Outcome::Interrupted { interrupts } = outcome {
            let ids: Vec<&str> = interrupts.iter().map(|interrupt| interrupt.id.as_str()).collect();
            let message = format!(
                "agent `{}` waits for an answer to {}, which an agent that is called as a tool cannot get",
                self.spec.name,
                ids.join(", ")
            );
            return Err(Error::new(ErrorKind::Tool, message));
        }
        said.result(self.schema.as_ref())
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

    async fn session(&self, cx: &ToolContext, shared: &Shared) -> Result<SessionKey> {
        let parent = cx.run().session_key();
        let call = cx.call_id().map_or_else(|| shared.services.ids.call(), Clone::clone);
        // A call may be made again, and ids may repeat: the run and a new id keep its sessions apart.
        let id = format!("{}/{}/{call}/{}", parent.id(), cx.run().id(), shared.services.ids.event());
        let key = SessionKey::new(parent.app(), parent.user(), id)?;
        // Keys of user and app are shared anyway, and what this run knows of them may be older than what is stored.
        let state = cx.run().state();
        let state = state.scope(StateScope::Session).iter().filter(|(key, _)| !key.starts_with("_adk"));
        let state = state.map(|(key, value)| (key.clone(), value.clone()));
        let new = NewSession::new(key.clone()).state(state.collect()).parent(parent.clone());
        shared.services.sessions.create(new).await?;
        Ok(key)
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

/// What the agent said so far.
#[derive(Default)]
struct Said {
    last: Option<Arc<Content>>,
    error: Option<String>,
}

impl Said {
    fn hear(&mut self, cx: &ToolContext, event: &Event) {
        for (key, value) in event.state_delta().into_iter().flatten() {
            cx.set_state(key, value.clone());
        }
        if let Some(message) = event.error_message() {
            self.error = Some(message.to_owned());
        }
        if let Some(content) = &event.content {
            self.last = Some(content.clone());
        }
    }

    /// Its last words. If there are none, but it failed, the caller is told why.
    fn result(self, schema: Option<&OutputSchema>) -> Result<ToolValue> {
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
        Box::pin(async move { Ok(ToolOutput::from(self.ask(cx, &args).await?)) })
    }
}

impl fmt::Debug for AgentTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentTool({})", self.spec.name)
    }
}
