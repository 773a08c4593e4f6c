//! Sums up the oldest messages of a conversation before it grows too long for its model.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use umbel_core::event::USER;
use umbel_core::{
    AgentPlan, BoxFuture, CallId, Capabilities, Content, ContentsView, Error, ErrorKind, Event, FunctionCall,
    FunctionResponse, Handler, History, Jump, Model, ModelTurn, Part, Result, Role, Run, Source, Step, Work,
};
use umbel_macros::handler;

use super::per_agent;
use super::token_counter::{ApproximateTokens, TokenCounter, running_count};
use crate::compaction::{ModelSummariser, Summariser, compact, safe_cut};
use crate::contents::visible::is_visible;
use crate::models::model_of;
use crate::text;

/// When it is time to sum up.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Trigger {
    /// The messages have at least so many tokens, by the counter or by what the model reported last.
    Tokens(u64),
    /// There are at least so many messages.
    Messages(usize),
    /// The messages take up at least that part of the model's window; see [`Summarise::window`].
    Fraction(f64),
    /// All of these. It is an error to give none.
    All(Vec<Trigger>),
    /// One of these is enough. With none it is never time.
    Any(Vec<Trigger>),
}

/// How much of the end of a conversation stays as it is.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Keep {
    /// So many messages.
    Messages(usize),
    /// As many messages as fit in so many tokens; one at least.
    Tokens(u64),
    /// As many messages as fit in that part of the model's window; one at least.
    Fraction(f64),
}

/// Sums up the oldest messages when a conversation grows long, so that the model sees the summary in their place.
///
/// The log keeps what was said. The summary holds for the rest of the run; [`lasting`](Self::lasting) makes it hold for
/// later runs too. A call and its answers stay together: both are summed up, or both are kept.
///
/// If the summariser fails or says nothing, the conversation stays as it is and the run goes on: a summary is
/// housekeeping, the model may well take one request more, and nothing is lost. It is tried again before the next model
/// call. [`or_fail`](Self::or_fail) makes it the run's failure.
///
/// A conversation that is too long for the model though nobody thought so is summed up too, and the model is asked again;
/// see [`on_overflow`](Self::on_overflow).
///
/// ```
/// use umbel_runtime::handlers::{Keep, Summarise, Trigger};
/// use umbel_runtime::{LlmAgent, ScriptedModel};
///
/// // Above 100,000 tokens, or 100 messages that fill half of the model's window.
/// let many = Trigger::All(vec![Trigger::Messages(100), Trigger::Fraction(0.5)]);
/// let summarise = Summarise::new(Trigger::Any(vec![Trigger::Tokens(100_000), many]))
///     .window(128_000)
///     .keep(Keep::Messages(10))
///     .model(ScriptedModel::new("small"))
///     .lasting();
/// let agent = LlmAgent::new("guide").model(ScriptedModel::new("large")).handler(summarise);
/// ```
pub struct Summarise {
    trigger: Trigger,
    keep: Keep,
    window: Option<u64>,
    trim: Option<u64>,
    counter: Arc<dyn TokenCounter>,
    summariser: Option<Arc<dyn Summariser>>,
    lasting: bool,
    or_fail: bool,
    on_overflow: bool,
}

/// Tokens of old messages that the summariser is shown.
const TRIM: u64 = 4_000;

impl Summarise {
    /// Sums up at that time, and keeps the newest 20 messages.
    pub fn new(trigger: Trigger) -> Self {
        Self {
            trigger,
            keep: Keep::Messages(20),
            window: None,
            trim: Some(TRIM),
            counter: Arc::new(ApproximateTokens::default()),
            summariser: None,
            lasting: false,
            or_fail: false,
            on_overflow: true,
        }
    }

    /// How much of the end stays as it is.
    pub fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// How many tokens the model takes in: what it tells of itself unless said otherwise. Needed for fractions.
    pub fn window(mut self, tokens: u64) -> Self {
        self.window = Some(tokens);
        self
    }

    /// How many tokens of what is summed up the summariser is shown, the newest of them: 4,000 unless said otherwise;
    /// `None` shows it all. An earlier summary is always shown.
    pub fn trim(mut self, tokens: Option<u64>) -> Self {
        self.trim = tokens;
        self
    }

    /// Counts tokens in another way.
    pub fn counter(mut self, counter: impl TokenCounter + 'static) -> Self {
        self.counter = Arc::new(counter);
        self
    }

    /// Has another model write the summaries; the agent's own does unless said otherwise.
    pub fn model(self, model: impl Model + 'static) -> Self {
        self.summariser(ModelSummariser::new(model))
    }

    /// Who writes the summaries: a [`ModelSummariser`], an async function, or anything else that can.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use umbel_core::Event;
    /// # use umbel_runtime::handlers::{Summarise, Trigger};
    /// let summarise = Summarise::new(Trigger::Messages(100)).summariser(|events: Vec<Arc<Event>>| async move {
    ///     Ok(format!("{} things were said.", events.len()))
    /// });
    /// ```
    pub fn summariser(mut self, summariser: impl Summariser + 'static) -> Self {
        self.summariser = Some(Arc::new(summariser));
        self
    }

    /// Writes the summary to the log, as [`Compactor`](crate::Compactor) does: it stands for what it covers in later runs
    /// too, and for the other agents of the session. Where the log cannot be summed up, because a call before the place is
    /// still open, the summary holds for the run.
    pub fn lasting(mut self) -> Self {
        self.lasting = true;
        self
    }

    /// Lets the run fail if there is no summary when one is due.
    pub fn or_fail(mut self) -> Self {
        self.or_fail = true;
        self
    }

    /// Whether it sums up when the model says that the conversation is too long for it, whatever the trigger says, and has
    /// it asked again: at most three times in a row, and with less each time. It does so unless told otherwise. If nothing
    /// can be summed up, the model's error stands.
    pub fn on_overflow(mut self, on_overflow: bool) -> Self {
        self.on_overflow = on_overflow;
        self
    }

    /// An error if the settings make no sense, for a model that does not tell its window. When an agent is built, what its
    /// model tells counts too.
    pub fn check(&self) -> Result<()> {
        self.check_with(self.window)
    }

    fn check_with(&self, window: Option<u64>) -> Result<()> {
        self.trigger.check(window)?;
        match self.keep {
            Keep::Messages(0) | Keep::Tokens(0) => Err(refused("`keep` must be more than 0")),
            Keep::Messages(_) | Keep::Tokens(_) => Ok(()),
            Keep::Fraction(part) => check_fraction(part, window),
        }
    }

    /// How many tokens the model of a run's agent takes in.
    fn window_of(&self, run: &Run) -> Option<u64> {
        let told = || model_of(run)?.capabilities().context_tokens.map(u64::from);
        self.window.or_else(told)
    }

    /// Whether it is time: `tokens` is what the messages count, `reported` what the model said that its last request and
    /// answer took.
    pub fn is_due(&self, messages: usize, tokens: u64, reported: Option<u64>) -> bool {
        self.fires(messages, tokens, reported, self.window)
    }

    fn fires(&self, messages: usize, tokens: u64, reported: Option<u64>, window: Option<u64>) -> bool {
        self.trigger.fires(messages, tokens.max(reported.unwrap_or(0)), window)
    }

    /// How many messages at the front are to be summed up: none if it is not time, or if all are to be kept.
    pub fn plan(&self, history: &History, tokens: u64, reported: Option<u64>) -> Option<usize> {
        if !self.is_due(history.len(), tokens, reported) {
            return None;
        }
        self.cut(history, tokens, self.window)
    }

    /// Where to cut so that as much stays as it should.
    fn cut(&self, history: &History, tokens: u64, window: Option<u64>) -> Option<usize> {
        let wanted = match self.keep {
            Keep::Messages(count) => history.len().saturating_sub(count),
            Keep::Tokens(limit) => self.cut_by_tokens(history, tokens, limit),
            Keep::Fraction(part) => self.cut_by_tokens(history, tokens, share(part, window)),
        };
        Some(safe(history, wanted)).filter(|cut| *cut > 0)
    }

    /// Where to cut a conversation that is too long for the model: where it should be cut, and if that does not help or
    /// did not, in the middle or behind it.
    fn forced_cut(
        &self,
        history: &History,
        tokens: u64,
        window: Option<u64>,
        overflows: u32,
    ) -> Option<usize> {
        // A summary of a summary alone is nothing gained.
        let earlier = usize::from(history.get(0).is_some_and(|first| is_summary(first)));
        let gains = |cut: &usize| *cut > earlier;
        let usual = if overflows == 1 { self.cut(history, tokens, window) } else { None };
        let later = || (history.len().div_ceil(2)..history.len()).map(|wanted| safe(history, wanted));
        usual.filter(gains).or_else(|| later().find(gains))
    }

    /// The first message of those at the end that fit.
    fn cut_by_tokens(&self, history: &History, tokens: u64, limit: u64) -> usize {
        if tokens <= limit {
            return 0;
        }
        let mut left = limit;
        let fits = |message: &&Arc<Content>| {
            let rest = left.checked_sub(self.counter.count(message));
            rest.inspect(|rest| left = *rest).is_some()
        };
        let kept = history.iter().rev().take_while(fits).count();
        history.len().saturating_sub(kept.max(1))
    }

    /// What the summariser is shown of messages that are to be summed up: the newest, from a word of the user on or behind
    /// an earlier summary.
    pub fn shown(&self, messages: &[Arc<Content>]) -> Vec<Arc<Content>> {
        let Some(limit) = self.trim else { return messages.to_vec() };
        let (earlier, rest) = match messages.split_first() {
            Some((first, rest)) if is_summary(first) => (Some(first), rest),
            _ => (None, messages),
        };
        let limit = limit.saturating_sub(earlier.map_or(0, |earlier| self.counter.count(earlier)));
        earlier.cloned().into_iter().chain(self.newest(rest, limit, earlier.is_none())).collect()
    }

    fn newest(&self, messages: &[Arc<Content>], limit: u64, from_user: bool) -> Vec<Arc<Content>> {
        let mut left = limit;
        let fits = |message: &&Arc<Content>| {
            let rest = left.checked_sub(self.counter.count(message));
            rest.inspect(|rest| left = *rest).is_some()
        };
        let count = messages.iter().rev().take_while(fits).count();
        let (before, fitting) = messages.split_at(messages.len() - count);
        if let Some(part) = before.last().filter(|message| is_spoken(message))
            && let Some(end) = self.last_lines(part, left)
        {
            return [Arc::new(end)].into_iter().chain(fitting.iter().cloned()).collect();
        }
        // Without a word of the user any message but an answer will do: a summary of some of it is better than none.
        let start = fitting.iter().position(|message| from_user && is_spoken(message));
        let start = start.or_else(|| fitting.iter().position(|message| !message.has_responses()));
        match start.and_then(|start| fitting.get(start..)) {
            Some(shown) => shown.to_vec(),
            None => messages.last().cloned().into_iter().collect(),
        }
    }

    /// As many lines at the end of a message as fit.
    fn last_lines(&self, message: &Content, limit: u64) -> Option<Content> {
        let words = message.text();
        let lines: Vec<&str> = words.split_inclusive('\n').collect();
        let last = |count: usize| {
            let lines = lines.get(lines.len().saturating_sub(count)..).unwrap_or_default();
            Content { role: message.role.clone(), parts: [Part::text(lines.concat())].into_iter().collect() }
        };
        let counts: Vec<usize> = (1..=lines.len()).collect();
        let fitting = counts.partition_point(|count| self.counter.count(&last(*count)) <= limit);
        (fitting > 0).then(|| last(fitting))
    }

    /// What the model said that its last request and answer took, if nothing was summed up since.
    fn reported(&self, run: &Run, since: usize) -> Option<u64> {
        let events = run.events();
        let (source, model) = (run.source(), model_of(run));
        let newest = (since..events.len()).rev().filter_map(|index| events.get(index));
        let mut newest = newest.take_while(|event| event.compaction().is_none());
        let is_own = |event: &&Arc<Event>| {
            event.source == *source
                && event.content.as_ref().is_some_and(|content| content.role == Some(Role::Model))
        };
        let meta = newest.find(is_own)?.meta.as_ref()?;
        let is_same = |version: &str| model.is_some_and(|model| version.starts_with(model.name()));
        // Tokens of another model are not the same measure.
        if !meta.model_version.as_deref().is_none_or(is_same) {
            return None;
        }
        let usage = meta.usage_metadata.as_ref()?;
        let sum = || Some(usage.prompt_token_count? + usage.candidates_token_count.unwrap_or(0));
        usage.total_token_count.or_else(sum)
    }

    /// How many messages at the front are to be summed up now, if any.
    fn due(&self, turn: &ModelTurn<'_>, handler: usize, tried: usize, forced: bool) -> Result<Option<usize>> {
        let (run, window) = (turn.run(), self.window_of(turn.run()));
        self.check_with(window)?;
        let by_tokens = self.trigger.counts_tokens();
        let history = turn.history.history();
        let tokens = match by_tokens || !matches!(self.keep, Keep::Messages(_)) {
            true => running_count(run, handler, &self.counter, history),
            false => 0,
        };
        if forced {
            return Ok(self.forced_cut(history, tokens, window, turn.overflows()));
        }
        let reported = if by_tokens { self.reported(run, tried) } else { None };
        let due = self.fires(history.len(), tokens, reported, window);
        Ok(if due { self.cut(history, tokens, window) } else { None })
    }

    /// Puts a summary in the place of the first messages: in the log, from which the request is then made anew, or for
    /// this run.
    async fn sum_up(&self, turn: &mut ModelTurn<'_>, cut: usize) -> Result<Step> {
        let run = turn.run();
        if self.lasting {
            let writer = ForLog { summarise: self, asked: AtomicBool::new(false) };
            if self.write(run, &writer, turn.history.len() - cut).await? {
                return Ok(Step::Jump(Jump::Model));
            }
            if writer.asked.into_inner() {
                return Ok(Step::Continue);
            }
        }
        let old: Vec<_> = turn.history.iter().take(cut).cloned().collect();
        if let Some(summary) = self.summary(run, &old).await? {
            turn.history.splice(0..cut, [Arc::new(summary)]);
        }
        Ok(Step::Continue)
    }

    /// Writes a summary of all but the newest messages to the log. Gives whether there is a place to end it at.
    async fn write(&self, run: &Run, writer: &ForLog<'_>, keep: usize) -> Result<bool> {
        let source = run.source();
        let view = ContentsView {
            agent: source.author.clone(),
            branch: source.branch.clone(),
            isolation_scope: source.isolation_scope.clone(),
            ..ContentsView::default()
        };
        let cut = |old: &[Arc<Event>]| {
            let mut seen = 0;
            let newest = old.iter().rev().take_while(|event| {
                seen += usize::from(is_visible(&view, event));
                seen <= keep
            });
            safe_cut(old, newest.count())
        };
        compact(run, writer, cut).await
    }

    /// The message that stands for these; `None` if there is none and the run is to go on without.
    async fn summary(&self, run: &Run, messages: &[Arc<Content>]) -> Result<Option<Content>> {
        let told = |content: Arc<Content>| {
            let author = if is_spoken(&content) { USER } else { run.agent_name() };
            Arc::new(Event::new(run.id().clone(), Arc::new(Source::new(author))).with_content(content))
        };
        let shown: Vec<Arc<Event>> = self.shown(messages).into_iter().map(told).collect();
        let error = match self.ask(run, &shown).await {
            Ok(words) if !words.trim().is_empty() => {
                return Ok(Some(Content::user(Part::text(text::summary(words.trim())))));
            }
            Ok(_) => Error::new(ErrorKind::InvalidOutput, "the summariser gave an empty summary"),
            Err(error) => error,
        };
        // A run that was told to stop stops, whatever error came of it.
        run.cancel_token().check()?;
        if self.or_fail || error.is_control() {
            return Err(error);
        }
        tracing::warn!(%error, "no summary could be made, so the conversation stays as it is");
        Ok(None)
    }

    async fn ask(&self, run: &Run, shown: &[Arc<Event>]) -> Result<String> {
        let own;
        let summariser: &dyn Summariser = match &self.summariser {
            Some(summariser) => summariser.as_ref(),
            None => {
                let model = model_of(run).ok_or_else(|| refused("there is no model to sum up with"))?;
                own = ModelSummariser::new(model.clone());
                &own
            }
        };
        let summary = run.cancel_token().guard(summariser.summarise(run, shown)).await??;
        Ok(summary.map(|summary| summary.text()).unwrap_or_default())
    }
}

/// When a summary was tried last, so that it is not tried twice for one model call.
#[derive(Clone, Copy, Default)]
struct LastTry {
    /// How many events the log had.
    events: usize,
    /// How often in a row the conversation was too long.
    overflows: u32,
}

/// Writes a summary for the log, in the same way as for a run.
struct ForLog<'h> {
    summarise: &'h Summarise,
    /// Whether there was anything to sum up.
    asked: AtomicBool,
}

impl Summariser for ForLog<'_> {
    fn summarise<'a>(
        &'a self,
        run: &'a Run,
        events: &'a [Arc<Event>],
    ) -> BoxFuture<'a, Result<Option<Content>>> {
        self.asked.store(true, Ordering::Relaxed);
        Box::pin(async move {
            let contents: Vec<_> = events.iter().filter_map(|event| event.content.clone()).collect();
            self.summarise.summary(run, &contents).await
        })
    }
}

#[handler(crate = umbel_core)]
impl Handler for Summarise {
    fn name(&self) -> &str {
        "summarise"
    }

    fn configure(&self, plan: &mut AgentPlan) -> Result<()> {
        let told = |model: Capabilities| model.context_tokens.map(u64::from);
        match (self.window, plan.capabilities) {
            // Whose model stands further up is known when it is asked, and who has none never asks.
            (None, None) => self.check_with(Some(u64::MAX)),
            (window, model) => self.check_with(window.or_else(|| model.and_then(told))),
        }
    }

    fn before_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        let (run, overflows) = (turn.run(), turn.overflows());
        let handler = per_agent::identity(self);
        if self.on_overflow {
            turn.offer_to_shorten();
        }
        let forced = self.on_overflow && overflows > 0;
        let last = per_agent::with(run, handler, |last: &mut LastTry| {
            let known = *last;
            last.overflows = overflows;
            known
        });
        let is_tried = match forced {
            true => last.overflows == overflows,
            false => last.events > 0 && last.events == run.events().len(),
        };
        if is_tried {
            return Work::done(Ok(Step::Continue));
        }
        match self.due(turn, handler, last.events, forced) {
            Err(error) => Work::done(Err(error)),
            Ok(None) => Work::done(Ok(Step::Continue)),
            Ok(Some(cut)) => Work::later(async move {
                let step = self.sum_up(turn, cut).await;
                let events = run.events().len();
                per_agent::with(run, handler, |last| *last = LastTry { events, overflows });
                step
            }),
        }
    }
}

impl fmt::Debug for Summarise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Summarise").field("trigger", &self.trigger).field("keep", &self.keep).finish()
    }
}

impl Trigger {
    fn check(&self, window: Option<u64>) -> Result<()> {
        match self {
            Self::Tokens(0) | Self::Messages(0) => Err(refused("a trigger must be more than 0")),
            Self::Tokens(_) | Self::Messages(_) => Ok(()),
            Self::Fraction(part) => check_fraction(*part, window),
            Self::All(all) if all.is_empty() => Err(refused("`Trigger::All` needs at least one trigger")),
            Self::All(all) | Self::Any(all) => all.iter().try_for_each(|trigger| trigger.check(window)),
        }
    }

    fn fires(&self, messages: usize, tokens: u64, window: Option<u64>) -> bool {
        match self {
            Self::Tokens(limit) => tokens >= *limit,
            Self::Messages(limit) => messages >= *limit,
            Self::Fraction(part) => tokens >= share(*part, window),
            Self::All(all) => all.iter().all(|trigger| trigger.fires(messages, tokens, window)),
            Self::Any(any) => any.iter().any(|trigger| trigger.fires(messages, tokens, window)),
        }
    }

    fn counts_tokens(&self) -> bool {
        match self {
            Self::Tokens(_) | Self::Fraction(_) => true,
            Self::Messages(_) => false,
            Self::All(all) | Self::Any(all) => all.iter().any(Self::counts_tokens),
        }
    }
}

fn refused(what: &str) -> Error {
    Error::new(ErrorKind::Build, format!("the handler `summarise` cannot work: {what}"))
}

fn check_fraction(part: f64, window: Option<u64>) -> Result<()> {
    if !(part > 0.0 && part <= 1.0) {
        return Err(refused("a fraction must be above 0 and at most 1"));
    }
    match window {
        Some(1..) => Ok(()),
        _ => Err(refused(
            "a fraction needs to know the model's window: give it with `.window(…)`, or have the model tell it",
        )),
    }
}

/// So much of a window, in whole tokens; 1 at least.
fn share(part: f64, window: Option<u64>) -> u64 {
    // Without a window nothing is a part of it; that was refused before.
    window.map_or(u64::MAX, |window| ((window as f64 * part) as u64).max(1))
}

/// Whether a user said it: an answer of a tool is a user's message too, but not their word.
fn is_spoken(message: &Content) -> bool {
    message.role == Some(Role::User) && !message.has_responses()
}

fn is_summary(message: &Content) -> bool {
    message.parts.first().and_then(Part::as_text).is_some_and(|words| words.starts_with(text::SUMMARY))
}

/// The place nearest to `wanted` where no answer is cut off from its call.
fn safe(history: &History, wanted: usize) -> usize {
    if wanted == 0 {
        return 0;
    }
    let mut pairs = pairs(history);
    let mut cut = wanted;
    // Answers to calls that are nowhere go with what stands before them.
    let answers = history.iter_from(cut).take_while(|message| message.has_responses()).count();
    if !pairs.iter().any(|(call, answer)| *call < cut && (cut..cut + answers).contains(answer)) {
        cut += answers;
    }
    // From the last call to the first: going back for one call may cut off the answers to an earlier one, never a later.
    pairs.sort_unstable_by_key(|(call, _)| std::cmp::Reverse(*call));
    for (call, answer) in pairs {
        if call < cut && cut <= answer {
            cut = call;
        }
    }
    cut
}

/// Where each answered call stands, and where its answer does.
fn pairs(history: &History) -> Vec<(usize, usize)> {
    let mut calls: HashMap<(Option<&CallId>, &str), usize> = HashMap::new();
    let mut pairs = Vec::new();
    for (index, message) in history.iter().enumerate() {
        let owner = |response: &FunctionResponse| calls.get(&key(&response.id, &response.name)).copied();
        pairs.extend(message.responses().filter_map(owner).map(|call| (call, index)));
        calls.extend(message.calls().map(|call: &FunctionCall| (key(&call.id, &call.name), index)));
    }
    pairs
}

/// By what a call and its answer find each other: the id, or the name if there is none.
fn key<'a>(id: &'a Option<CallId>, name: &'a str) -> (Option<&'a CallId>, &'a str) {
    let id = id.as_ref().filter(|id| !id.is_empty());
    (id, if id.is_some() { "" } else { name })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(ids: &[&str]) -> Content {
        let call = |id: &&str| FunctionCall { id: id_of(id), ..FunctionCall::new("f", Default::default()) };
        Content::new(Role::Model, ids.iter().map(call).map(Part::call))
    }

    fn answer(ids: &[&str]) -> Content {
        let answer = |id: &&str| FunctionResponse::new(id_of(id), "f", Default::default());
        Content::new(Role::User, ids.iter().map(answer).map(Part::response))
    }

    /// `-` stands for no id.
    fn id_of(id: &str) -> Option<CallId> {
        (id != "-").then(|| id.into())
    }

    fn history(messages: impl IntoIterator<Item = Content>) -> History {
        messages.into_iter().map(Arc::new).collect()
    }

    /// Where it cuts if it is to keep so many messages.
    fn cut(history: &History, keep: usize) -> usize {
        let summarise = Summarise::new(Trigger::Messages(1)).keep(Keep::Messages(keep));
        summarise.plan(history, 0, None).unwrap_or(0)
    }

    #[test]
    fn an_answer_that_comes_late_holds_its_call_back() {
        let late = history([
            Content::user("q"),
            call(&["a"]),
            Content::user("wait"),
            answer(&["a"]),
            Content::user("z"),
        ]);
        // A cut before `wait` would leave the answer without its call.
        assert_eq!(cut(&late, 3), 1);
        assert_eq!(cut(&late, 2), 1);
        assert_eq!(cut(&late, 1), 4);
    }

    #[test]
    fn going_back_for_one_call_goes_back_for_those_it_would_cut_off_too() {
        let nested = history([
            Content::user("q"),
            call(&["a"]),
            call(&["b"]),
            answer(&["a"]),
            answer(&["b"]),
            Content::user("z"),
        ]);
        assert_eq!(cut(&nested, 2), 1);
        assert_eq!(cut(&nested, 3), 1);
        assert_eq!(cut(&nested, 4), 1);
        // One of these two answers has no call, the other's is the first message.
        let mixed =
            history([call(&["a"]), Content::user("u"), answer(&["x"]), answer(&["a"]), Content::user("z")]);
        assert_eq!(cut(&mixed, 3), 0);
    }

    #[test]
    fn calls_without_ids_stay_with_their_answers_too() {
        let nameless = history([Content::user("q"), call(&["-", "-"]), answer(&["-"]), answer(&["-"])]);
        for keep in 1..3 {
            assert_eq!(cut(&nameless, keep), 1);
        }
    }

    fn told(trim: u64, messages: impl IntoIterator<Item = Content>) -> Vec<String> {
        // A token for every character.
        let counter = ApproximateTokens { overhead: 0, chars_per_token: Some(1.0), count_args: false };
        let summarise = Summarise::new(Trigger::Messages(1)).counter(counter).trim(Some(trim));
        let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
        summarise.shown(&messages).iter().map(|message| message.text()).collect()
    }

    #[test]
    fn of_a_users_word_that_does_not_fit_whole_the_last_lines_are_shown() {
        let words = || [Content::user("one\ntwo\nthree"), Content::model("ab")];
        assert_eq!(told(15, words()), ["one\ntwo\nthree", "ab"]);
        assert_eq!(told(11, words()), ["two\nthree", "ab"]);
        assert_eq!(told(7, words()), ["three", "ab"]);
        // A line is not cut, and what is not the user's is not either.
        assert_eq!(told(6, words()), ["ab"]);
        assert_eq!(told(5, [Content::model("one\ntwo"), Content::user("abc")]), ["abc"]);
    }

    #[test]
    fn something_is_always_shown() {
        assert_eq!(told(4, [Content::model("ab"), Content::model("cd")]), ["ab", "cd"]);
        assert_eq!(told(2, [Content::user("ab"), Content::model("cd")]), ["cd"]);
        assert_eq!(told(4, [answer(&["a"]), Content::model("cd")]), ["cd"]);
        assert_eq!(told(1, [Content::model("abcdef")]), ["abcdef"]);
    }

    #[test]
    fn an_earlier_summary_is_shown_first_whatever_does_not_fit() {
        let summary = text::summary("s");
        let earlier = || Content::user(summary.as_str());
        let limit = summary.chars().count() as u64;
        let rest = [Content::model("ab"), Content::user("cd"), Content::model("ef")];
        let all: Vec<_> = [earlier()].into_iter().chain(rest).collect();
        assert_eq!(told(limit + 6, all.clone()), [&summary, "ab", "cd", "ef"]);
        assert_eq!(told(limit + 4, all.clone()), [&summary, "cd", "ef"]);
        assert_eq!(told(1, all), [&summary, "ef"]);
    }

    fn message() -> impl Strategy<Value = Content> {
        let ids = || prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "-"]), 1..3);
        prop_oneof![
            Just(Content::user("u")),
            Just(Content::model("m")),
            ids().prop_map(|ids| call(&ids)),
            ids().prop_map(|ids| answer(&ids)),
        ]
    }

    proptest! {
        #[test]
        fn no_answer_is_ever_cut_off_from_its_call(
            messages in prop::collection::vec(message(), 1..20),
            keep in 1..20usize,
        ) {
            let history = history(messages);
            let cut = cut(&history, keep);
            prop_assert!(pairs(&history).iter().all(|(call, answer)| !(*call < cut && cut <= *answer)));
            // What is kept does not begin with an answer, as providers demand.
            prop_assert!(cut == 0 || history.get(cut).is_none_or(|first| !first.has_responses()));
        }
    }
}
