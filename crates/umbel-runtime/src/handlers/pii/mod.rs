//! Keeps personal data from the model, from readers, and from the log.
//!
//! # Layout
//! - [`Pii`]: the handler; [`PiiRule`]: what it looks for, where, and what becomes of it
//! - `detect`: the patterns; `redact`: the strategies; `rules`: through messages and JSON values
//! - [`StreamRedactor`]: for texts that come piece by piece; `trace`: what of them may become a match
//! - `answer`, `tool`, `args`: what streams through the handler; `memory`: what it remembers of a run

mod answer;
mod args;
mod detect;
mod memory;
mod redact;
mod rules;
mod stream;
mod tool;
mod trace;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smol_str::{SmolStr, format_smolstr};
use umbel_core::{
    ChunkStream, Content, Event, Handler, History, Hooks, ModelCall, ModelTurn, NextModel, NextTool, Result,
    Role, Run, Step, ToolCall, ToolResult, Transcript,
};
use umbel_macros::handler;

pub use self::detect::PiiMatch;
pub use self::redact::{PiiBlocked, PiiRule, PiiStrategy};
pub use self::stream::StreamRedactor;

use self::memory::remember;
use self::rules::Sorted;

/// How many characters of a streamed text are held back at least, unless set.
const LOOKBACK: usize = 128;

/// Redacts personal data: in what users say, in what the model says, in what tools answer, as its rules demand.
///
/// - What users say, and what tools answered, is redacted in the history before the model sees it.
/// - What the model says is redacted before anyone sees it or it is stored, previews and thoughts included, and so are
///   structured answers. Arguments of calls are left to the tools; people see them redacted while they stream.
/// - What tools answer is redacted before it is stored, news of streamed answers included.
///
/// Rules apply in the order in which they were added; each sees what those before it left. A rule that blocks stops the
/// run before anything of what it found gets any further. In later runs of the session it hides what stopped that run.
///
/// Add it before handlers that hand the history to someone else, such as those that sum it up. The log keeps what users
/// said, for whoever reads it directly, unless the handler acts [on entry](Self::on_entry).
///
/// ```
/// use umbel_runtime::handlers::pii::{Pii, PiiRule, PiiStrategy};
///
/// let pii = Pii::new(PiiRule::email().tool_results(true))
///     .rule(PiiRule::credit_card().strategy(PiiStrategy::Mask).output(true))
///     .rule(PiiRule::pattern("employee", r"EMP-\d{4}")?.strategy(PiiStrategy::Block));
/// # Ok::<(), umbel_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pii {
    name: SmolStr,
    /// Whether the name was given.
    is_named: bool,
    list: Vec<PiiRule>,
    rules: Sorted,
    /// The same rules, hiding what they would stop a run for.
    hiding: Sorted,
    lookback: usize,
    on_entry: bool,
    /// By which it finds its memory in a run.
    number: u64,
}

impl Pii {
    /// A handler with one rule.
    pub fn new(rule: PiiRule) -> Self {
        let empty = Self {
            name: SmolStr::default(),
            is_named: false,
            list: Vec::new(),
            rules: Sorted::default(),
            hiding: Sorted::default(),
            lookback: LOOKBACK,
            on_entry: false,
            number: 0,
        };
        empty.rule(rule)
    }

    /// Adds a rule.
    pub fn rule(mut self, rule: PiiRule) -> Self {
        // Handlers that differ in their rules must not take what the other looked at for done.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        self.number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.list.push(rule);
        if !self.is_named {
            let kinds: Vec<&str> = self.list.iter().map(PiiRule::kind).collect();
            self.name = format_smolstr!("pii({})", kinds.join(", "));
        }
        self.rules = Sorted::new(&self.list);
        let hiding: Vec<PiiRule> = self.list.iter().cloned().map(PiiRule::hiding).collect();
        self.hiding = Sorted::new(&hiding);
        self
    }

    /// Its name in messages; if none is given, what it looks for is in it.
    pub fn named(mut self, name: impl Into<SmolStr>) -> Self {
        self.name = name.into();
        self.is_named = true;
        self
    }

    /// How many characters of a streamed text are held back at least; 128 unless set. More are held back where something
    /// may become a match, so 0 is as safe and shows text sooner.
    pub fn lookback(mut self, characters: usize) -> Self {
        self.lookback = characters;
        self
    }

    /// Redacts what users say before it is stored, so that the log holds none of it. Acts in a handler of a runner only.
    pub fn on_entry(mut self) -> Self {
        self.on_entry = true;
        self
    }

    /// A message of a user, or with what tools answered, redacted; `None` if there is nothing to redact.
    pub fn redact_message(&self, content: &Content) -> Result<Option<Content>> {
        Ok(self.rules.message(content)?)
    }

    /// An answer of a model redacted; `None` if there is nothing to redact.
    pub fn redact_answer(&self, content: &Content) -> Result<Option<Content>> {
        Ok(self.rules.output.words(content, &[])?)
    }

    /// Redacts what users said and tools answered in a conversation, from one message on.
    pub fn redact_history(&self, history: &mut Transcript, from: usize) -> Result<()> {
        self.look_at(history, from, from, &HashSet::new())
    }

    /// Looks at the messages from `from` on that are not known. Before `new` nothing stops a run: it did already.
    fn look_at(
        &self,
        history: &mut Transcript,
        from: usize,
        new: usize,
        known: &HashSet<*const Content>,
    ) -> Result<()> {
        let messages = history.history().clone();
        for (index, content) in messages.iter_from(from).enumerate().map(|(n, content)| (from + n, content)) {
            if known.contains(&Arc::as_ptr(content)) {
                continue;
            }
            let rules = if index < new { &self.hiding } else { &self.rules };
            if let Some(changed) = rules.message(content)? {
                history.replace(index, changed);
            }
        }
        Ok(())
    }

    /// Looks at what is new in the conversation.
    fn look(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let run = turn.run();
        let (seen, blocked) =
            remember(run, self.number, |memory| (std::mem::take(&mut memory.seen), memory.blocked.take()));
        if let Some(blocked) = blocked {
            return Err(blocked.into());
        }
        let same = seen.common_prefix(turn.history);
        let new = if seen.is_empty() { beginning(turn.history, run.input()) } else { same };
        // If someone moved messages about, those that were looked at are known by what they are, not by their place.
        let known = seen.iter_from(same).map(Arc::as_ptr).collect();
        self.look_at(turn.history, same, new, &known)?;
        remember(run, self.number, |memory| memory.seen = turn.history.history().clone());
        Ok(Step::Continue)
    }

    /// Redacts what of a response did not come through here yet.
    fn look_behind(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        let run = turn.run();
        let Some(content) = turn.response.as_mut().and_then(|response| response.content.as_mut()) else {
            return Ok(Step::Continue);
        };
        let passed = remember(run, self.number, |memory| memory.passed.clone());
        if let Some(changed) = self.rules.output.words(content, &passed)? {
            *content = Arc::new(changed);
        }
        if let Some(changed) = self.rules.output.answers(content)? {
            *content = Arc::new(changed);
        }
        Ok(Step::Continue)
    }
}

/// Where what belongs to this run begins: with what the user said.
fn beginning(history: &History, input: Option<&Arc<Content>>) -> usize {
    let back = || history.iter().rev();
    let said = input.and_then(|input| back().position(|content| content == input));
    let plain = |content: &Arc<Content>| content.role == Some(Role::User) && !content.has_responses();
    said.or_else(|| back().position(plain)).map_or(0, |back| history.len() - 1 - back)
}

#[handler(crate = umbel_core)]
impl Handler for Pii {
    fn name(&self) -> &str {
        &self.name
    }

    fn hooks(&self) -> Hooks {
        let when = |yes: bool, hooks: Hooks| if yes { hooks } else { Hooks::NONE };
        let Sorted { input, output, tool_results, .. } = &self.rules;
        when(!input.is_empty(), Hooks::BEFORE_MODEL)
            | when(!input.is_empty() && self.on_entry, Hooks::ON_INPUT)
            | when(!output.is_empty(), Hooks::WRAP_MODEL | Hooks::AFTER_MODEL | Hooks::ON_OUTPUT)
            | when(!tool_results.is_empty(), Hooks::BEFORE_MODEL | Hooks::WRAP_TOOL)
    }

    fn on_input(&self, _run: &Run, input: Arc<Content>) -> Result<Arc<Content>> {
        Ok(self.rules.input.words(&input, &[])?.map_or(input, Arc::new))
    }

    fn before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.look(turn)
    }

    fn after_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.look_behind(turn)
    }

    async fn wrap_model(&self, call: ModelCall<'_>, next: NextModel<'_>) -> Result<ChunkStream<'_>> {
        let run = call.run();
        remember(run, self.number, |memory| {
            memory.passed.clear();
            memory.args.clear();
        });
        Ok(answer::redacted(self, run, next.call(call).await?))
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        let run = call.run();
        tool::redacted(self, run, next.call(call).await)
    }

    fn on_output(&self, run: &Run, event: Arc<Event>) -> Result<Option<Arc<Event>>> {
        args::redacted(self, run, event).map(Some)
    }
}
