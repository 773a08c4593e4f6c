//! Limits on how often models and tools are called, in a run and in a session.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, format_smolstr};
use umbel_core::code::RUN_CODE;
use umbel_core::tool_context::ONCE;
use umbel_core::{
    AgentPlan, CallId, Content, Context, Error, ErrorKind, Event, Handler, Hooks, ModelTurn, NextTool, Part,
    Result, Run, RunId, Source, Step, ToolCall, ToolContext, ToolResult, ToolValue,
};
use umbel_macros::handler;

use crate::flow::error_value;
use crate::text;

/// Limits how often the model is asked.
///
/// A call counts once, however many attempts it takes. Runs that an agent starts as a tool count too, and so do agents
/// that work at the same time. Limits of the same name count together: put one on the runner to bound all its agents, or
/// name those of single agents apart with [`named`](Self::named).
///
/// ```
/// use umbel_runtime::handlers::ModelCallLimit;
/// use umbel_runtime::{LlmAgent, ScriptedModel};
///
/// let limit = ModelCallLimit::new().run(20).session(200);
/// let agent = LlmAgent::new("guide").model(ScriptedModel::new("demo")).handler(limit);
/// ```
#[derive(Clone, Debug)]
pub struct ModelCallLimit {
    counter: Counter,
    exit: ModelLimitExit,
}

/// What happens when the model may not be asked any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelLimitExit {
    /// The agent says so, and its turn ends.
    #[default]
    End,
    /// The run fails; see [`LimitReached`], and [`UsageReached`](super::UsageReached) for what was used.
    Error,
}

/// Limits how often tools are called, or one of them.
///
/// A call counts when the model asks for it, however many attempts it takes. Code that the model writes is a call of
/// `run_code`, and counts when it is to be run. Limits of the same name count together; the name has the tool in it. There
/// must be a limit, and that of a run cannot be above that of a session.
///
/// ```
/// use umbel_runtime::handlers::{ToolCallLimit, ToolLimitExit};
/// use umbel_runtime::{LlmAgent, ScriptedModel};
///
/// let agent = LlmAgent::new("guide")
///     .model(ScriptedModel::new("demo"))
///     .handler(ToolCallLimit::new().run(50))
///     .handler(ToolCallLimit::of("search").run(5).exit(ToolLimitExit::End));
/// ```
#[derive(Clone, Debug)]
pub struct ToolCallLimit {
    counter: Counter,
    /// The only tool that counts.
    tool: Option<SmolStr>,
    exit: ToolLimitExit,
}

/// What happens when a tool may not be called any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolLimitExit {
    /// The calls that are too many are answered with that, and the model goes on.
    #[default]
    Continue,
    /// None of the calls is made, the agent says so, and its turn ends. Nothing is counted.
    End,
    /// None of the calls is made, and the run fails; see [`LimitReached`]. Nothing is counted.
    Error,
}

/// A limit on calls was reached: the source of the error that a run fails with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitReached {
    /// The only tool that counts, if there is such.
    pub tool: Option<SmolStr>,
    /// The calls of the run. For tools those that were refused are counted too.
    pub run: u32,
    /// How many are allowed.
    pub run_limit: Option<u32>,
    /// The calls of the session. Those of earlier runs are known only if there is a limit.
    pub session: u32,
    /// How many are allowed.
    pub session_limit: Option<u32>,
}

impl fmt::Display for LimitReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = |limit: Option<u32>| limit.map_or("any number".to_owned(), |limit| limit.to_string());
        let (run_limit, session_limit) = (limit(self.run_limit), limit(self.session_limit));
        let Self { run, session, .. } = self;
        write!(f, "calls: {run} of {run_limit} in this run, {session} of {session_limit} in this session")
    }
}

impl std::error::Error for LimitReached {}

/// What is counted in a run and in its session.
#[derive(Clone, Debug)]
struct Counter {
    name: SmolStr,
    run: Option<u32>,
    session: Option<u32>,
}

/// The calls so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Calls {
    run: u32,
    session: u32,
    /// Who is about to ask the model, or is asking it.
    #[serde(skip)]
    asking: Vec<Who>,
    /// Whose code was one too many, and is not to ask the model any more.
    #[serde(skip)]
    over: Vec<(Who, LimitReached)>,
}

/// A run and the place in it.
type Who = (RunId, Arc<Source>);

fn who(run: &Run) -> Who {
    (run.id().clone(), run.source().clone())
}

/// The calls of a run by counter.
#[derive(Debug, Default)]
struct RunCalls(Mutex<BTreeMap<SmolStr, Calls>>);

impl RunCalls {
    /// Those of a run. The runs that it starts share them.
    fn of(run: &Run) -> Arc<Self> {
        run.extension::<Self>().unwrap_or_else(|| {
            let calls = run.values().get_or_insert_with(Self::default);
            run.values().insert(calls.clone());
            calls
        })
    }
}

impl Counter {
    fn new(name: SmolStr) -> Self {
        Self { name, run: None, session: None }
    }

    fn check(&self) -> Result<()> {
        if self.run.is_none() && self.session.is_none() {
            let message = "a limit on calls limits nothing: give it `.run(…)` or `.session(…)`";
            return Err(Error::new(ErrorKind::Build, message));
        }
        Ok(())
    }

    /// The key of what the session and the run remember.
    fn key(&self) -> SmolStr {
        format_smolstr!("_umbel:calls:{}", self.name)
    }

    /// Whether so many calls more would be too many.
    fn is_full(&self, calls: &Calls, more: u32) -> bool {
        let beyond =
            |limit: Option<u32>, calls: u32| limit.is_some_and(|limit| calls.saturating_add(more) > limit);
        beyond(self.run, calls.run) || beyond(self.session, calls.session)
    }

    /// Works on the calls so far. Nobody else does meanwhile, also not in another agent of the run.
    fn with<T>(&self, cx: &Context, work: impl FnOnce(&mut Calls) -> T) -> Result<T> {
        let (run, key) = (cx.run(), self.key());
        let all = RunCalls::of(run);
        let mut all = all.0.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = match all.entry(key.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                // After an interrupt there are calls already.
                let mut calls: Calls = run.kept(&key)?.unwrap_or_default();
                let session = cx.state(&key).and_then(|value| value.as_u64()).unwrap_or_default();
                calls.session = calls.session.max(u32::try_from(session).unwrap_or(u32::MAX));
                place.insert(calls)
            }
        };
        let before = (calls.run, calls.session);
        let result = work(calls);
        if before != (calls.run, calls.session) {
            run.keep(key, calls)?;
        }
        Ok(result)
    }

    /// The calls so far, if there are any.
    fn calls(&self, run: &Run) -> Option<Calls> {
        let all = RunCalls::of(run);
        let all = all.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&self.key()).cloned()
    }

    /// Has the session remember the calls, with the event that is being made.
    fn store(&self, cx: &Context) {
        if self.session.is_some()
            && let Some(calls) = self.calls(cx.run())
        {
            cx.set_state(self.key().as_str(), calls.session);
        }
    }

    /// An agent that works beside this one may have counted on since the event was made, and may be stored before it.
    fn refresh(&self, run: &Run, event: &mut Event) {
        let key = self.key();
        if let Some(delta) = event.actions.as_mut().and_then(|actions| actions.state_delta.as_mut())
            && let Some(stored) = delta.get_mut(key.as_str())
            && let Some(calls) = self.calls(run)
        {
            *stored = calls.session.into();
        }
    }

    /// What is told of calls that are too many.
    fn reached(&self, calls: &Calls, tool: Option<SmolStr>) -> LimitReached {
        LimitReached {
            tool,
            run: calls.run,
            run_limit: self.run,
            session: calls.session,
            session_limit: self.session,
        }
    }

    /// The hooks of a limit. Events are looked at only if the session counts.
    fn hooks(&self, others: Hooks) -> Hooks {
        if self.session.is_some() { others | Hooks::ON_EVENT } else { others }
    }
}

impl Calls {
    fn add(&mut self, count: u32) {
        self.run = self.run.saturating_add(count);
        self.session = self.session.saturating_add(count);
    }
}

impl ModelCallLimit {
    /// No limit yet: there must be one.
    pub fn new() -> Self {
        Self { counter: Counter::new("model-call-limit".into()), exit: ModelLimitExit::End }
    }

    /// How often the model may be asked in a run.
    pub fn run(mut self, limit: u32) -> Self {
        self.counter.run = Some(limit);
        self
    }

    /// How often the model may be asked in a session, over all its runs.
    pub fn session(mut self, limit: u32) -> Self {
        self.counter.session = Some(limit);
        self
    }

    /// What happens then.
    pub fn exit(mut self, exit: ModelLimitExit) -> Self {
        self.exit = exit;
        self
    }

    /// Gives it a name, and so a count of its own.
    pub fn named(mut self, name: impl Into<SmolStr>) -> Self {
        self.counter.name = name.into();
        self
    }
}

impl Default for ModelCallLimit {
    fn default() -> Self {
        Self::new()
    }
}

#[handler(crate = umbel_core)]
impl Handler for ModelCallLimit {
    fn name(&self) -> &str {
        &self.counter.name
    }

    fn hooks(&self) -> Hooks {
        self.counter.hooks(Hooks::CONFIGURE | Hooks::BEFORE_MODEL | Hooks::AFTER_MODEL)
    }

    fn configure(&self, _plan: &mut AgentPlan) -> Result<()> {
        self.counter.check()
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let who = who(turn.run());
        let refused = self.counter.with(turn.cx(), |calls| {
            // Counted already, but someone else answered in the model's place.
            if calls.asking.contains(&who) {
                return None;
            }
            if self.counter.is_full(calls, 1) {
                return Some(self.counter.reached(calls, None));
            }
            calls.add(1);
            calls.asking.push(who);
            None
        })?;
        let Some(reached) = refused else { return Ok(Step::Continue) };
        let words = text::model_limit(&exceeded(&reached, 1));
        match self.exit {
            ModelLimitExit::End => Ok(Step::Respond(Content::model(Part::text(words)))),
            ModelLimitExit::Error => Err(Error::new(ErrorKind::ModelCallLimit, words).with_source(reached)),
        }
    }

    fn after_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let run = turn.run();
        self.counter.with(turn.cx(), |calls| {
            calls.asking.retain(|(id, source)| (id, source) != (run.id(), run.source()));
        })?;
        self.counter.store(turn.cx());
        Ok(Step::Continue)
    }

    fn on_event(&self, run: &Run, mut event: Event) -> Result<Event> {
        self.counter.refresh(run, &mut event);
        Ok(event)
    }
}

impl ToolCallLimit {
    /// For all tools together. No limit yet: there must be one.
    pub fn new() -> Self {
        let counter = Counter::new("tool-call-limit".into());
        Self { counter, tool: None, exit: ToolLimitExit::Continue }
    }

    /// For one tool. No limit yet: there must be one.
    pub fn of(tool: impl Into<SmolStr>) -> Self {
        let tool = tool.into();
        let counter = Counter::new(format_smolstr!("tool-call-limit:{tool}"));
        Self { counter, tool: Some(tool), exit: ToolLimitExit::Continue }
    }

    /// How often it may be called in a run.
    pub fn run(mut self, limit: u32) -> Self {
        self.counter.run = Some(limit);
        self
    }

    /// How often it may be called in a session, over all its runs.
    pub fn session(mut self, limit: u32) -> Self {
        self.counter.session = Some(limit);
        self
    }

    /// What happens then.
    pub fn exit(mut self, exit: ToolLimitExit) -> Self {
        self.exit = exit;
        self
    }

    /// Gives it a name, and so a count of its own.
    pub fn named(mut self, name: impl Into<SmolStr>) -> Self {
        self.counter.name = name.into();
        self
    }

    fn counts(&self, name: &str) -> bool {
        self.tool.as_ref().is_none_or(|tool| tool == name)
    }

    /// Counts code that is about to be run, if it is the model's. Says whether there is room for it.
    fn allows_code(&self, cx: &ToolContext) -> Result<bool> {
        if !self.counts(RUN_CODE) || !cx.is_code() || cx.looks_at_file() {
            return Ok(true);
        }
        let Some(id) = cx.idempotency_key() else { return Ok(true) };
        // It may be tried again, or people are asked about it, and answer after other things were said.
        let counted = format_smolstr!("{ONCE}{id}.{}", self.counter.name);
        if cx.run().kept::<bool>(&counted)?.is_some() {
            return Ok(true);
        }
        let allows = self.counter.with(cx, |calls| {
            if !self.counter.is_full(calls, 1) {
                calls.add(1);
                return true;
            }
            if self.exit != ToolLimitExit::Continue {
                let mut shown = calls.clone();
                shown.add(1);
                calls.over.push((who(cx.run()), self.counter.reached(&shown, self.tool.clone())));
            }
            false
        })?;
        if allows {
            cx.run().keep(counted, &true)?;
        }
        self.counter.store(cx);
        Ok(allows)
    }

    /// What a call that is one too many is answered.
    fn refusal(&self) -> ToolValue {
        error_value(&text::tool_limit(self.tool.as_deref()))
    }

    /// What comes of calls that are too many.
    fn step(&self, reached: LimitReached) -> Result<Step> {
        let words = text::tool_limit_end(self.tool.as_deref(), &exceeded(&reached, 0));
        match self.exit {
            ToolLimitExit::Continue => Ok(Step::Continue),
            ToolLimitExit::End => Ok(Step::Respond(Content::model(Part::text(words)))),
            ToolLimitExit::Error => Err(Error::new(ErrorKind::ToolCallLimit, words).with_source(reached)),
        }
    }

    /// Counts calls, as far as there is room for them. Gives those that are too many, and what to tell of them.
    fn count(&self, cx: &Context, asked: Vec<CallId>) -> Result<Option<(Vec<CallId>, LimitReached)>> {
        self.counter.with(cx, |calls| {
            let mut after = calls.clone();
            let mut refused = Vec::new();
            for id in asked {
                if self.counter.is_full(&after, 1) {
                    refused.push(id);
                } else {
                    after.add(1);
                }
            }
            let too_many = u32::try_from(refused.len()).unwrap_or(u32::MAX);
            let mut shown = after.clone();
            shown.add(too_many);
            if refused.is_empty() || self.exit == ToolLimitExit::Continue {
                *calls = after;
            }
            (too_many > 0).then(|| (refused, self.counter.reached(&shown, self.tool.clone())))
        })
    }
}

impl Default for ToolCallLimit {
    fn default() -> Self {
        Self::new()
    }
}

#[handler(crate = umbel_core)]
impl Handler for ToolCallLimit {
    fn name(&self) -> &str {
        &self.counter.name
    }

    fn hooks(&self) -> Hooks {
        let hooks = self.counter.hooks(Hooks::CONFIGURE | Hooks::AFTER_MODEL | Hooks::WRAP_TOOL);
        if self.exit == ToolLimitExit::Continue { hooks } else { hooks | Hooks::BEFORE_MODEL }
    }

    fn configure(&self, _plan: &mut AgentPlan) -> Result<()> {
        self.counter.check()?;
        match (self.counter.run, self.counter.session) {
            (Some(run), Some(session)) if run > session => {
                let message = format!("a run may make {run} calls, but a session only {session}");
                Err(Error::new(ErrorKind::Build, message))
            }
            _ => Ok(()),
        }
    }

    fn after_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let asked: Vec<CallId> =
            turn.calls().filter(|call| self.counts(&call.name)).filter_map(|call| call.id.clone()).collect();
        if asked.is_empty() {
            return Ok(Step::Continue);
        }
        let refused = self.count(turn.cx(), asked)?;
        self.counter.store(turn.cx());
        let Some((refused, reached)) = refused else { return Ok(Step::Continue) };
        let step = self.step(reached)?;
        // The calls that were not refused are answered with that they were passed over.
        for id in refused {
            turn.answer(id, self.refusal());
        }
        Ok(step)
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        // What is in an answer becomes code only after the hooks behind the model.
        if self.allows_code(call.cx)? { next.call(call).await } else { Ok(self.refusal().into()) }
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let who = who(turn.run());
        let over = self.counter.with(turn.cx(), |calls| {
            let at = calls.over.iter().position(|(over, _)| *over == who)?;
            Some(calls.over.swap_remove(at).1)
        })?;
        over.map_or(Ok(Step::Continue), |reached| self.step(reached))
    }

    fn on_event(&self, run: &Run, mut event: Event) -> Result<Event> {
        self.counter.refresh(run, &mut event);
        Ok(event)
    }
}

/// The limits that so many calls more would go beyond, in words.
fn exceeded(reached: &LimitReached, more: u32) -> String {
    let scope = |calls: u32, limit: Option<u32>, scope: &str| {
        let limit = limit.filter(|limit| calls.saturating_add(more) > *limit)?;
        Some(text::calls_of(calls, limit, scope))
    };
    let session = scope(reached.session, reached.session_limit, "session");
    let run = scope(reached.run, reached.run_limit, "run");
    session.into_iter().chain(run).collect::<Vec<_>>().join(", ")
}
