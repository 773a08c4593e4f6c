//! From a request to what is to be done: what is new in it, and how the run goes.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_agui::{
    InputLimits, InputMark, Message, NewMessages, RunAgentInput, Tool, Turn, Waiting, event_of, ids, inbound,
};
use umbel_core::store::Entries;
use umbel_core::{
    Actions, CallId, Content, Event, FunctionTool, Interrupt, List, LogEntry, NewSession, Object, Role,
    RunConfig, RunId, SessionKey, Source, StateScope, ToolSet, ToolSpec, TraceContext,
};
use umbel_runtime::Runner;

use crate::auth::Principal;
use crate::brought::{self, Brought};
use crate::endpoint::{AgentEndpoint, ClientInput};
use crate::problem::Problem;
use crate::state::{Conflict, Known, Merged, merge};

/// How far back a session's last messages are looked for in what the client sends.
const RECENT: usize = 16;

/// How far back it is looked whether a run has been there.
const LOOKED_AT: usize = 64;

/// What is to be done for a request.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What the user says, turn by turn: answers first, then anything else.
    pub(crate) turns: Vec<(Content, RunConfig)>,
    /// The session is not there yet, and its first run does not make it: this was said before, elsewhere.
    pub(crate) history: Option<Vec<Message>>,
    /// The state that the client sent.
    pub(crate) theirs: Option<Value>,
    /// The state that it sees once the run has begun.
    pub(crate) ours: Object,
    /// Which of the client's changes of the state were not taken.
    pub(crate) conflicts: Vec<Conflict>,
    /// What the thread waits for.
    pub(crate) pending: Vec<CallId>,
    pub(crate) open: Vec<Interrupt>,
    pub(crate) parent: Option<SmolStr>,
    pub(crate) knows_interrupts: bool,
    /// How many runs of that name came before.
    pub(crate) round: u32,
}

/// A request, as far as a plan needs it.
pub(crate) struct Asked<'a> {
    pub(crate) key: &'a SessionKey,
    pub(crate) input: &'a RunAgentInput<'a>,
    /// Tells it apart from others.
    pub(crate) digest: u64,
    pub(crate) principal: &'a Principal,
    /// State that follows from the request.
    pub(crate) state: &'a Object,
    /// The trace that it is part of.
    pub(crate) trace: Option<TraceContext>,
}

/// Looks at the session and finds out what is to be done; `None` if that was done before.
pub(crate) async fn plan(endpoint: &AgentEndpoint, asked: &Asked<'_>) -> Result<Option<Plan>, Problem> {
    let (runner, input) = (&endpoint.runner, asked.input);
    let limits = InputLimits::default();
    let view = runner.session(asked.key).await?;
    let none = List::new();
    let events = view.as_ref().map_or(&none, |view| &view.events);
    let resumes = !input.resume.is_empty();
    let mut round = 0;
    for before in rounds(events, &input.run_id, resumes) {
        if round == 0 && before.digest == asked.digest {
            return Ok(None);
        }
        if !resumes {
            return Err(Problem::run_exists(&input.run_id));
        }
        round += 1;
    }
    let mut known: Option<HashSet<SmolStr>> = None;
    let mut new = NewMessages::find(
        &input.messages,
        &limits,
        |id| events.iter().rev().take(RECENT).any(|event| has_message(event, id)),
        |id| {
            let all = || events.iter().flat_map(|event| ids(event)).collect();
            known.get_or_insert_with(all).contains(id)
        },
    )?;
    let knows_interrupts = input.protocol_version.is_some();
    let open = view.as_ref().map(|view| view.open.clone()).unwrap_or_default();
    let waiting = Waiting::of(last_turn(events), open);
    let was_asked = |id: &str| {
        let responses =
            events.iter().rev().filter(|event| event.is_user()).flat_map(|event| event.responses());
        responses.filter_map(|response| response.id.as_ref()).any(|given| *given == *id)
    };
    let turn = Turn::new(&new.turn, &input.resume, &waiting, was_asked, knows_interrupts)?;
    let mut pending = waiting.calls;
    pending.retain(|(id, _)| !turn.answers(id));
    // A session that is not there yet is made by its run, unless it is needed before, or not empty then.
    let mut history = view.is_none().then(|| std::mem::take(&mut new.history));
    let mut kept = view.as_ref().map(|view| view.state.clone());
    if endpoint.cast.scoped_state
        && let Some(history) = history.take()
    {
        // A new thread has the state of its user and its app.
        Box::pin(create(endpoint, asked.key, &history)).await?;
        kept = runner.session(asked.key).await?.map(|view| view.state);
    }
    let known = Known { events, message: new.known.as_deref() };
    let merged = merge(&endpoint.cast, kept.as_ref(), input.state.as_ref(), asked.state, known);
    let Merged { mut delta, ours, conflicts } = merged;
    if turn.is_empty() && !delta.is_empty() {
        if let Some(history) = history.take() {
            Box::pin(create(endpoint, asked.key, &history)).await?;
        }
        Box::pin(keep_state(endpoint, asked.key, std::mem::take(&mut delta))).await?;
    }
    let brought = Brought {
        tools: if endpoint.client_tools { input.tools.clone() } else { Vec::new() },
        instruction: new.instruction.take().filter(|_| endpoint.system_messages),
    };
    let kept = (!brought.is_empty()).then(|| brought.to_log(events));
    let mut turns = turns(endpoint, asked, (&brought, kept), turn, delta)?;
    if let Some((_, config)) = turns.first_mut()
        && history.take_if(|said| said.is_empty() || !endpoint.import_history).is_some()
    {
        config.create_session = true;
    }
    Ok(Some(Plan {
        turns,
        history,
        theirs: input.state.clone(),
        ours,
        conflicts,
        pending: pending.into_iter().map(|(id, _)| id).collect(),
        open: waiting.questions,
        parent: input.parent_run_id.as_deref().map(SmolStr::new),
        knows_interrupts,
        round,
    }))
}

/// The requests under that name, the last one first. A request may come twice, if its client lost the connection, and one
/// with answers may have the name of the run that asked. A new one under an old name is found among the last alone.
fn rounds<'a>(
    events: &'a List<Arc<Event>>,
    run: &'a str,
    resumes: bool,
) -> impl Iterator<Item = InputMark> + 'a {
    let looked_at = if resumes { usize::MAX } else { LOOKED_AT };
    let said = events.iter().rev().take(looked_at).filter(|event| event.is_user());
    said.filter_map(|event| InputMark::of(event)).filter(move |mark| mark.run == run && !mark.follows)
}

pub(crate) fn has_message(event: &Event, id: &str) -> bool {
    let may_be = event.is_user() || event.id == *event_of(id) || event.id == *id;
    may_be && ids(event).any(|own| own == id)
}

/// The events since the user last said something. What waited before that does not wait any more.
pub(crate) fn last_turn(events: &List<Arc<Event>>) -> impl DoubleEndedIterator<Item = &Event> {
    let says = |event: &Event| {
        let parts = event.content.iter().flat_map(|content| &content.parts);
        event.is_user() && parts.into_iter().any(|part| part.as_response().is_none())
    };
    let back = events.iter().rev().position(|event| says(event)).unwrap_or(events.len());
    events.iter_from(events.len() - back).map(|event| &**event)
}

/// Writes state that came without a message: there is no run whose event could carry it, and none for which `temp:` keys
/// could be.
async fn keep_state(endpoint: &AgentEndpoint, key: &SessionKey, mut delta: Object) -> umbel_core::Result<()> {
    delta.retain(|key, _| StateScope::split(key).0 != StateScope::Temp);
    if delta.is_empty() {
        return Ok(());
    }
    let services = endpoint.runner.services();
    let actions = Actions { state_delta: Some(delta), ..Actions::default() };
    let mut event = Event::new(services.ids.run(), Source::user()).with_actions(actions);
    event.id = services.ids.event();
    event.timestamp = services.clock.now();
    event.meta_mut().custom_metadata = Some(InputMark::default().to_metadata());
    let entries = Entries::from_iter([LogEntry::Event(Arc::new(event))]);
    services.sessions.commit(key, None, entries).await.map(drop)
}

/// Makes the session, with what was said before elsewhere.
pub(crate) async fn create(
    endpoint: &AgentEndpoint,
    key: &SessionKey,
    history: &[Message],
) -> umbel_core::Result<()> {
    let (runner, services) = (&endpoint.runner, endpoint.runner.services());
    match runner.sessions().create(NewSession::new(key.clone())).await {
        // Another request was first.
        Err(error) if error.kind() == umbel_core::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    };
    if history.is_empty() || !endpoint.import_history {
        return Ok(());
    }
    let run: RunId = services.ids.run();
    let events = inbound::history(history, &endpoint.cast.root, &run, services.clock.now());
    let entries: Entries = events.into_iter().map(|event| LogEntry::Event(Arc::new(event))).collect();
    if !entries.is_empty() {
        runner.sessions().commit(key, None, entries).await?;
    }
    Ok(())
}

/// The runs that the request comes to.
fn turns(
    endpoint: &AgentEndpoint,
    asked: &Asked<'_>,
    (brought, kept): (&Brought, Option<Value>),
    turn: Turn,
    delta: Object,
) -> Result<Vec<(Content, RunConfig)>, Problem> {
    // There is seldom more than one.
    let mut turns = Vec::with_capacity(1);
    let mut delta = Some(delta);
    let parts = [(turn.answers, turn.answer_ids), (turn.message, turn.message_ids)];
    let mut parts = parts.into_iter().filter(|(parts, _)| !parts.is_empty()).peekable();
    while let Some((content, messages)) = parts.next() {
        let mark = InputMark {
            run: SmolStr::new(&asked.input.run_id),
            parent: asked.input.parent_run_id.as_deref().map(SmolStr::new),
            follows: !turns.is_empty(),
            leads: parts.peek().is_some(),
            digest: asked.digest,
            is_plain: asked.input.protocol_version.is_none(),
            messages,
        };
        let mut metadata = mark.to_metadata();
        metadata.extend(kept.clone().map(|kept| (brought::KEY.to_owned(), kept)));
        let config = config(endpoint, asked, brought, metadata, delta.take().unwrap_or_default())?;
        turns.push((Content { role: Some(Role::User), parts: content }, config));
    }
    Ok(turns)
}

fn config(
    endpoint: &AgentEndpoint,
    asked: &Asked<'_>,
    brought: &Brought,
    metadata: Object,
    delta: Object,
) -> Result<RunConfig, Problem> {
    let input = asked.input;
    let mut config = RunConfig::clone(endpoint.runner.config());
    config.streaming = true;
    config.state_delta.extend(delta);
    config.input_metadata = metadata;
    brought.give(&endpoint.runner, &mut config);
    // Clients send an empty object where there is nothing to hand through.
    let is_nothing = |props: &Value| props.as_object().is_some_and(Object::is_empty);
    let forwarded_props = input.forwarded_props.clone().filter(|props| !is_nothing(props));
    if !input.context.is_empty() || forwarded_props.is_some() {
        let context = input.context.clone();
        for (key, value) in
            [("temp:agui_context", json!(context)), ("temp:agui_forwarded_props", json!(forwarded_props))]
        {
            config.state_delta.insert(key.to_owned(), value);
        }
        config.extensions.insert(ClientInput { context, forwarded_props });
    }
    if let Some(trace) = &asked.trace {
        config.extensions.insert(trace.clone());
    }
    match &endpoint.config {
        Some(make) => make(input, asked.principal, config),
        None => Ok(config),
    }
}

/// The client's tools, as calls whose answer comes later. Names of the framework and of agents are not theirs to give;
/// those of the agents' own tools count by themselves.
pub(crate) fn client_tools(runner: &Runner, brought: &[Tool]) -> Arc<ToolSet> {
    let mut tools = ToolSet::new();
    for tool in brought {
        if is_reserved(&tool.name) || runner.tree().find(&tool.name).is_some() {
            tracing::warn!(tool = %tool.name, "a client's tool has a name that is taken: it is left out");
            continue;
        }
        let parameters = tool.parameters.clone().filter(Value::is_object);
        let parameters = parameters.unwrap_or_else(|| json!({"type": "object", "properties": {}}));
        let spec = ToolSpec::new(tool.name.clone(), tool.description.clone(), parameters);
        let proxy = FunctionTool::raw(ToolSpec { long_running: true, ..spec }, |cx, _| {
            // Whoever asked answers: until then the agent has nothing more to do.
            cx.run().end();
            Box::pin(async { Ok(Value::Null.into()) })
        });
        tools.add(Arc::new(proxy));
    }
    Arc::new(tools)
}

fn is_reserved(name: &str) -> bool {
    name.starts_with("adk_") || ["transfer_to_agent", "set_model_response", "finish_task"].contains(&name)
}
