//! The rules of order: what may follow what in a stream, enforced on everything that leaves.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use smol_str::SmolStr;

use crate::event::{AguiEvent, EncryptedSubtype, EventKind, RunOutcome, SubagentOutcome};
use crate::message::Message;

/// Stands between whoever makes events and whoever reads them, and lets pass only what readers accept.
///
/// What breaks a rule is repaired where there is no doubt how: what is open is closed before a run finishes, the end of
/// something that is not open is left out, and so is the start of something that is open already. Anything else is
/// refused. Chunks are spelled out as start, content and end. Exactly one event ends a run.
#[derive(Debug, Default)]
pub struct Guard {
    pub(crate) phase: Phase,
    /// What is open, in the order in which it was opened. It is closed from its end.
    pub(crate) open: Vec<Open>,
    /// To whom things of this run belong, closed ones too.
    owners: Owners,
    /// Sub-agents of this run, and whether they are at work.
    subagents: HashMap<SmolStr, bool>,
    repairs: u64,
}

/// Where a stream is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing was said.
    #[default]
    New,
    /// A run is under way.
    Running,
    /// The run has ended.
    Over,
}

/// What can be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entity {
    Text,
    ToolCall,
    Reasoning,
    ReasoningMessage,
    Step,
    Subagent,
}

/// Something that is open.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) entity: Entity,
    pub(crate) id: SmolStr,
    /// The sub-agent that its start was marked with.
    pub(crate) tag: Option<SmolStr>,
    /// The sub-agent it belongs to.
    owner: Option<SmolStr>,
    /// Whether a chunk opened it, so that other events of the same sub-agent close it.
    pub(crate) is_chunked: bool,
}

/// To whom things belong: a sub-agent, or none for the agent itself. An id is unique within a kind.
#[derive(Debug, Default)]
struct Owners {
    messages: HashMap<SmolStr, Option<SmolStr>>,
    tool_calls: HashMap<SmolStr, Option<SmolStr>>,
    activities: HashMap<SmolStr, Option<SmolStr>>,
    reasoning: HashMap<SmolStr, Option<SmolStr>>,
}

/// An event that breaks a rule and cannot be repaired. It was not passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The type of the event.
    pub event: &'static str,
    /// The rule it breaks.
    pub why: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be sent: {}", self.event, self.why)
    }
}

impl std::error::Error for Refusal {}

/// What becomes of an event.
pub(crate) enum Verdict {
    Pass,
    /// It is left out.
    Drop,
}

pub(crate) type Judged = Result<Verdict, String>;

impl Guard {
    /// A guard of a stream that begins.
    pub fn new() -> Self {
        Self::default()
    }

    /// How often something had to be repaired. Whoever makes events as they should be has none.
    pub fn repairs(&self) -> u64 {
        self.repairs
    }

    /// Whether the run has ended.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Passes an event on to `sink`, with whatever has to come before it.
    pub fn pass(
        &mut self,
        event: &AguiEvent<'_>,
        sink: &mut impl FnMut(&AguiEvent<'_>),
    ) -> Result<(), Refusal> {
        self.judge(event, sink).map_err(|why| Refusal { event: event.kind.name(), why })
    }

    /// Closes everything that is open and ends the run with a terminal event, unless it has ended already: then
    /// nothing is sent. That is not counted as a repair: a run may end at any time.
    pub fn finish(
        &mut self,
        terminal: &AguiEvent<'_>,
        sink: &mut impl FnMut(&AguiEvent<'_>),
    ) -> Result<(), Refusal> {
        let refused = |why: &str| Refusal { event: terminal.kind.name(), why: why.to_owned() };
        match (&terminal.kind, self.phase) {
            (kind, _) if !kind.is_terminal() => Err(refused("a run does not end with it")),
            (EventKind::RunFinished { .. }, Phase::New) => Err(refused("the run has not begun")),
            (_, Phase::Over) => Ok(()),
            _ => {
                self.end(terminal, sink);
                Ok(())
            }
        }
    }

    fn end(&mut self, terminal: &AguiEvent<'_>, sink: &mut impl FnMut(&AguiEvent<'_>)) {
        while let Some(open) = self.open.pop() {
            sink(&open.closing(Some(terminal)));
        }
        self.phase = Phase::Over;
        sink(terminal);
    }

    fn judge(&mut self, event: &AguiEvent<'_>, sink: &mut impl FnMut(&AguiEvent<'_>)) -> Result<(), String> {
        match (self.phase, &event.kind) {
            (Phase::New | Phase::Over, EventKind::RunStarted { .. }) => self.start(event),
            (Phase::Running, EventKind::RunStarted { .. }) => return Err("a run is under way".to_owned()),
            (Phase::Over, kind) if kind.is_terminal() => {
                self.repairs += 1;
                return Ok(());
            }
            (Phase::Over, _) => return Err("the run has ended; only a new run may follow".to_owned()),
            (Phase::New, EventKind::RunError { .. }) => {}
            (Phase::New, _) => return Err("a run has to begin first".to_owned()),
            (Phase::Running, _) => {}
        }
        if event.kind.is_terminal() {
            self.close_chunked(|_| true, sink);
            if matches!(event.kind, EventKind::RunFinished { .. }) {
                self.repairs += self.open.len() as u64;
            }
            self.end(event, sink);
            return Ok(());
        }
        if self.take_chunk(event, sink)? {
            return Ok(());
        }
        self.close_chunks_before(event, sink);
        match self.verdict(event)? {
            Verdict::Pass => sink(event),
            Verdict::Drop => self.repairs += 1,
        }
        Ok(())
    }

    /// What becomes of an event within a run.
    pub(crate) fn verdict(&mut self, event: &AguiEvent<'_>) -> Judged {
        use EventKind as E;
        let tag = event.owner();
        match &event.kind {
            E::TextMessageContent { message_id, .. } => self.goes_on(Entity::Text, message_id, tag),
            E::ToolCallArgs { tool_call_id, .. } => self.goes_on(Entity::ToolCall, tool_call_id, tag),
            E::ReasoningMessageContent { message_id, .. } => {
                self.goes_on(Entity::ReasoningMessage, message_id, tag)
            }
            E::TextMessageStart { message_id, .. } => self.opens(Entity::Text, message_id, tag),
            E::TextMessageEnd { message_id } => self.closes(Entity::Text, message_id, tag),
            E::ToolCallStart { tool_call_id, parent_message_id, .. } => {
                self.opens_call(tool_call_id, parent_message_id.as_deref(), tag)
            }
            E::ToolCallEnd { tool_call_id } => self.closes(Entity::ToolCall, tool_call_id, tag),
            E::ReasoningStart { message_id } => self.opens(Entity::Reasoning, message_id, tag),
            E::ReasoningEnd { message_id } => self.closes(Entity::Reasoning, message_id, tag),
            E::ReasoningMessageStart { message_id, .. } => {
                self.opens(Entity::ReasoningMessage, message_id, tag)
            }
            E::ReasoningMessageEnd { message_id } => self.closes(Entity::ReasoningMessage, message_id, tag),
            E::StepStarted { step_name } => Ok(self.opens_step(step_name, tag)),
            E::StepFinished { step_name } => Ok(self.closes_step(step_name, tag)),
            E::SubagentStarted { subagent_run_id, parent_subagent_run_id, .. } => {
                self.opens_subagent(subagent_run_id, parent_subagent_run_id.as_deref())
            }
            E::SubagentFinished { subagent_run_id, .. } | E::SubagentError { subagent_run_id, .. } => {
                Ok(self.closes_subagent(subagent_run_id))
            }
            _ => self.belongs(event),
        }
    }

    /// Events that open and close nothing, but may belong to something or say what belongs to whom.
    fn belongs(&mut self, event: &AguiEvent<'_>) -> Judged {
        let tag = event.owner();
        match &event.kind {
            EventKind::ToolCallResult { message_id, .. } => {
                let owner = tag.map(SmolStr::from);
                if let Some(at) = self.find(Entity::Text, message_id)
                    && let Some(open) = self.open.get_mut(at)
                {
                    open.owner.clone_from(&owner);
                }
                self.owners.messages.insert(SmolStr::from(message_id.as_ref()), owner);
            }
            EventKind::ActivitySnapshot { message_id, replace, .. } => {
                let is_new = !self.owners.activities.contains_key(message_id.as_ref());
                if is_new || *replace != Some(false) {
                    let owner = tag.map(SmolStr::from);
                    self.owners.activities.insert(SmolStr::from(message_id.as_ref()), owner);
                }
            }
            EventKind::ActivityDelta { message_id, .. } => {
                agree(tag, self.owners.activities.get(message_id.as_ref()), message_id)?;
            }
            EventKind::ReasoningEncryptedValue { subtype, entity_id, .. } => {
                let id = entity_id.as_ref();
                let owner = match subtype {
                    EncryptedSubtype::ToolCall => self.owners.tool_calls.get(id),
                    EncryptedSubtype::Message => {
                        self.owners.messages.get(id).or_else(|| self.owners.reasoning.get(id))
                    }
                };
                agree(tag, owner, id)?;
            }
            EventKind::MessagesSnapshot { messages } => {
                for message in messages.iter() {
                    self.owners.restate(message);
                }
                for open in &mut self.open {
                    if let Some(owner) = self.owners.of(open.entity).and_then(|owners| owners.get(&open.id)) {
                        open.owner.clone_from(owner);
                    }
                }
            }
            _ => {}
        }
        Ok(Verdict::Pass)
    }

    /// A new run: nothing of an earlier one counts.
    fn start(&mut self, event: &AguiEvent<'_>) {
        *self = Self { phase: Phase::Running, repairs: self.repairs, ..Self::default() };
        if let EventKind::RunStarted { input: Some(input), .. } = &event.kind {
            for raw in &input.messages {
                self.owners.seed(raw.get());
            }
        }
    }

    /// Where something open stands. What was opened last is found first.
    pub(crate) fn find(&self, entity: Entity, id: &str) -> Option<usize> {
        self.open.iter().rposition(|open| open.entity == entity && open.id == id)
    }

    fn find_open(&self, entity: Entity, id: &str) -> Option<&Open> {
        self.open.iter().rfind(|open| open.entity == entity && open.id == id)
    }

    fn goes_on(&self, entity: Entity, id: &str, tag: Option<&str>) -> Judged {
        let open = self.find_open(entity, id);
        let open = open.ok_or_else(|| format!("{} `{id}` is not open", entity.words()))?;
        agree(tag, Some(&open.owner), id)?;
        Ok(Verdict::Pass)
    }

    fn closes(&mut self, entity: Entity, id: &str, tag: Option<&str>) -> Judged {
        let Some(at) = self.find(entity, id) else { return Ok(Verdict::Drop) };
        agree(tag, self.open.get(at).map(|open| &open.owner), id)?;
        self.open.remove(at);
        Ok(Verdict::Pass)
    }

    fn opens(&mut self, entity: Entity, id: &str, tag: Option<&str>) -> Judged {
        if self.find(entity, id).is_some() {
            return Ok(Verdict::Drop);
        }
        let known = self.owners.of(entity).and_then(|owners| owners.get(id));
        agree(tag, known, id)?;
        let owner = known.cloned();
        self.open(entity, id, tag, owner);
        Ok(Verdict::Pass)
    }

    /// A call belongs to whom the message belongs that makes it.
    fn opens_call(&mut self, id: &str, parent: Option<&str>, tag: Option<&str>) -> Judged {
        if self.find(Entity::ToolCall, id).is_some() {
            return Ok(Verdict::Drop);
        }
        let inherited = parent.and_then(|parent| self.owners.messages.get(parent));
        agree(tag, inherited, parent.unwrap_or_default())?;
        let known = self.owners.tool_calls.get(id);
        agree(tag, known, id)?;
        if let (None, Some(inherited), Some(known)) = (tag, inherited, known)
            && inherited != known
        {
            return Err(format!("the call `{id}` and the message that makes it belong to two agents"));
        }
        let owner = known.or(inherited.filter(|_| tag.is_none())).cloned();
        self.open(Entity::ToolCall, id, tag, owner);
        Ok(Verdict::Pass)
    }

    /// Takes down what was opened. Who opened it first is its owner from then on.
    fn open(&mut self, entity: Entity, id: &str, tag: Option<&str>, owner: Option<Option<SmolStr>>) {
        let id = SmolStr::from(id);
        let tag = tag.map(SmolStr::from);
        let owner = owner.unwrap_or_else(|| tag.clone());
        if let Some(owners) = self.owners.of_mut(entity) {
            owners.entry(id.clone()).or_insert_with(|| owner.clone());
        }
        self.open.push(Open { entity, id, tag, owner, is_chunked: false });
    }

    /// Steps are told apart by their name and by who takes them.
    fn find_step(&self, name: &str, tag: Option<&str>) -> Option<usize> {
        let is_it =
            |open: &Open| open.entity == Entity::Step && open.id == name && open.tag.as_deref() == tag;
        self.open.iter().rposition(is_it)
    }

    fn opens_step(&mut self, name: &str, tag: Option<&str>) -> Verdict {
        if self.find_step(name, tag).is_some() {
            return Verdict::Drop;
        }
        self.open(Entity::Step, name, tag, None);
        Verdict::Pass
    }

    fn closes_step(&mut self, name: &str, tag: Option<&str>) -> Verdict {
        let Some(at) = self.find_step(name, tag) else { return Verdict::Drop };
        self.open.remove(at);
        Verdict::Pass
    }

    fn opens_subagent(&mut self, id: &str, parent: Option<&str>) -> Judged {
        match self.subagents.get(id) {
            Some(true) => return Ok(Verdict::Drop),
            Some(false) => {
                return Err(format!("the sub-agent's run `{id}` is over; another one needs its own id"));
            }
            None => {}
        }
        if let Some(parent) = parent.filter(|parent| !self.subagents.contains_key(*parent)) {
            return Err(format!("its parent `{parent}` has not begun"));
        }
        self.subagents.insert(id.into(), true);
        self.open(Entity::Subagent, id, None, None);
        Ok(Verdict::Pass)
    }

    fn closes_subagent(&mut self, id: &str) -> Verdict {
        let Some(at) = self.find(Entity::Subagent, id) else { return Verdict::Drop };
        self.open.remove(at);
        self.subagents.insert(id.into(), false);
        Verdict::Pass
    }

    /// Closes what chunks opened, as far as it is marked with a sub-agent for which `is_meant` holds.
    pub(crate) fn close_chunked(
        &mut self,
        is_meant: impl Fn(Option<&str>) -> bool,
        sink: &mut impl FnMut(&AguiEvent<'_>),
    ) {
        for open in self.open.extract_if(.., |open| open.is_chunked && is_meant(open.tag.as_deref())) {
            sink(&open.closing(None));
        }
    }
}

/// Whether an event is marked with the owner of what it is about; one that is not marked always is.
fn agree(tag: Option<&str>, owner: Option<&Option<SmolStr>>, id: &str) -> Result<(), String> {
    let (Some(tag), Some(owner)) = (tag, owner) else { return Ok(()) };
    if owner.as_deref() == Some(tag) {
        return Ok(());
    }
    let owner =
        owner.as_deref().map_or("the agent itself".to_owned(), |owner| format!("sub-agent `{owner}`"));
    Err(format!("`{id}` belongs to {owner}, and the event is marked with sub-agent `{tag}`"))
}

impl Entity {
    fn words(self) -> &'static str {
        match self {
            Self::Text => "the text message",
            Self::ToolCall => "the tool call",
            Self::Reasoning => "the span of reasoning",
            Self::ReasoningMessage => "the message of reasoning",
            Self::Step => "the step",
            Self::Subagent => "the sub-agent",
        }
    }
}

impl Open {
    /// The event that closes it, as the run ends with `terminal` or goes on.
    fn closing<'a>(&'a self, terminal: Option<&'a AguiEvent<'_>>) -> AguiEvent<'a> {
        let id = self.id.as_str().into();
        let kind = match self.entity {
            Entity::Text => EventKind::TextMessageEnd { message_id: id },
            Entity::ToolCall => EventKind::ToolCallEnd { tool_call_id: id },
            Entity::Reasoning => EventKind::ReasoningEnd { message_id: id },
            Entity::ReasoningMessage => EventKind::ReasoningMessageEnd { message_id: id },
            Entity::Step => EventKind::StepFinished { step_name: id },
            Entity::Subagent => self.end_of_subagent(terminal),
        };
        // A snapshot may have given it to another than its start was marked with; not marked, it fits any.
        let tag = self.tag.as_deref().filter(|_| self.tag == self.owner);
        let timestamp = terminal.and_then(|terminal| terminal.timestamp);
        AguiEvent { subagent_run_id: tag.map(Into::into), timestamp, ..kind.into() }
    }

    /// A sub-agent ends as its run does.
    fn end_of_subagent<'a>(&'a self, terminal: Option<&'a AguiEvent<'_>>) -> EventKind<'a> {
        let subagent_run_id = self.id.as_str().into();
        let stopped = |subagent_run_id, message: &'a str, code: &'a str| EventKind::SubagentError {
            subagent_run_id,
            message: message.into(),
            code: Some(code.into()),
        };
        let outcome = match terminal.map(|terminal| &terminal.kind) {
            Some(EventKind::RunError { code, .. }) => {
                let code = code.as_deref().unwrap_or("RUN_FAILED");
                return stopped(subagent_run_id, "The run failed before the sub-agent was done.", code);
            }
            Some(EventKind::RunFinished { outcome: Some(RunOutcome::Cancelled), .. }) => {
                let message = "The run was cancelled before the sub-agent was done.";
                return stopped(subagent_run_id, message, "CANCELLED");
            }
            Some(EventKind::RunFinished { outcome: Some(RunOutcome::Interrupt { interrupts }), .. }) => {
                let own = interrupts.iter().filter(|asked| asked.subagent_run_id.as_ref() == Some(&self.id));
                let interrupt_ids = own.map(|asked| asked.id.clone()).collect();
                Some(SubagentOutcome::Suspended { interrupt_ids })
            }
            _ => None,
        };
        EventKind::SubagentFinished { subagent_run_id, result: None, outcome }
    }
}

impl Owners {
    /// Those of the things that are opened and closed; steps and sub-agents have none.
    fn of(&self, entity: Entity) -> Option<&HashMap<SmolStr, Option<SmolStr>>> {
        match entity {
            Entity::Text => Some(&self.messages),
            Entity::ToolCall => Some(&self.tool_calls),
            Entity::Reasoning | Entity::ReasoningMessage => Some(&self.reasoning),
            Entity::Step | Entity::Subagent => None,
        }
    }

    fn of_mut(&mut self, entity: Entity) -> Option<&mut HashMap<SmolStr, Option<SmolStr>>> {
        match entity {
            Entity::Text => Some(&mut self.messages),
            Entity::ToolCall => Some(&mut self.tool_calls),
            Entity::Reasoning | Entity::ReasoningMessage => Some(&mut self.reasoning),
            Entity::Step | Entity::Subagent => None,
        }
    }

    /// What a snapshot of the conversation says counts more than what was said before.
    fn restate(&mut self, message: &Message) {
        let owner = message.subagent_run_id().cloned();
        let owners = match message {
            Message::Reasoning(_) => &mut self.reasoning,
            Message::Activity(_) => &mut self.activities,
            _ => &mut self.messages,
        };
        owners.insert(message.id().clone(), owner.clone());
        if let Message::Assistant(message) = message {
            for call in &message.tool_calls {
                self.tool_calls.insert(call.id.clone(), owner.clone());
            }
        }
    }

    /// What the input says counts where nothing else was said. It is read by the client, whatever it is.
    fn seed(&mut self, message: &str) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head {
            id: SmolStr,
            #[serde(default)]
            role: SmolStr,
            #[serde(default)]
            subagent_run_id: Option<SmolStr>,
            #[serde(default)]
            tool_calls: Option<Vec<CallHead>>,
        }
        #[derive(Deserialize)]
        struct CallHead {
            id: SmolStr,
        }
        let Ok(head) = serde_json::from_str::<Head>(message) else { return };
        let owners = match head.role.as_str() {
            "reasoning" => &mut self.reasoning,
            "activity" => &mut self.activities,
            _ => &mut self.messages,
        };
        owners.entry(head.id).or_insert_with(|| head.subagent_run_id.clone());
        for call in head.tool_calls.unwrap_or_default() {
            self.tool_calls.entry(call.id).or_insert_with(|| head.subagent_run_id.clone());
        }
    }
}
