//! Summaries of old turns: when they are due, what they cover, and who writes them.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use umbel_core::session::SessionMap;
use umbel_core::{
    Actions, CallId, Compaction, Content, Event, EventId, List, Model, ModelRequest, Part, Payload, Result,
    Role, Run, RunId, SessionKey, Source,
};

use crate::contents::compaction::{CompactionRange, SummaryRange, summaries};
use crate::contents::visible::apply_rewinds;
use crate::models::ask;
use crate::text;

/// Writes summaries.
pub trait Summariser: Send + Sync {
    /// Sums up these events. `None` if there is nothing to say.
    fn summarise<'a>(
        &'a self,
        run: &'a Run,
        events: &'a [Arc<Event>],
    ) -> umbel_core::BoxFuture<'a, Result<Option<Content>>>;
}

/// An async function from what was said to its summary is one too; an empty text says nothing.
impl<F, Fut> Summariser for F
where
    F: Fn(Vec<Arc<Event>>) -> Fut + Send + Sync,
    Fut: Future<Output = Result<String>> + Send + 'static,
{
    fn summarise<'a>(
        &'a self,
        _run: &'a Run,
        events: &'a [Arc<Event>],
    ) -> umbel_core::BoxFuture<'a, Result<Option<Content>>> {
        let summary = self(events.to_vec());
        Box::pin(async move {
            let summary = Some(summary.await?).filter(|summary| !summary.trim().is_empty());
            Ok(summary.map(|summary| Content::model(Part::text(summary))))
        })
    }
}

/// Has a model write summaries.
#[derive(Clone, Debug)]
pub struct ModelSummariser {
    model: Arc<dyn Model>,
    prompt: Arc<str>,
}

impl ModelSummariser {
    /// Summaries by that model.
    pub fn new(model: impl Model + 'static) -> Self {
        Self { model: Arc::new(model), prompt: text::SUMMARISE.into() }
    }

    /// How the model is asked; the conversation follows.
    pub fn prompt(mut self, prompt: impl Into<Arc<str>>) -> Self {
        self.prompt = prompt.into();
        self
    }
}

impl Summariser for ModelSummariser {
    fn summarise<'a>(
        &'a self,
        run: &'a Run,
        events: &'a [Arc<Event>],
    ) -> umbel_core::BoxFuture<'a, Result<Option<Content>>> {
        Box::pin(summarise_with(self.model.as_ref(), &self.prompt, run, events))
    }
}

/// Sums up old turns, so that what a model is sent does not grow without end.
///
/// The log keeps everything: a summary is an event of its own that takes the place of what it covers when messages are
/// made.
pub struct Compactor {
    runs: Option<Runs>,
    tokens: Option<Tokens>,
    summariser: Option<Arc<dyn Summariser>>,
    counts: RunCounts,
}

#[derive(Clone, Copy)]
struct Runs {
    interval: usize,
    overlap: usize,
}

#[derive(Clone, Copy)]
struct Tokens {
    threshold: u64,
    keep: usize,
}

impl Compactor {
    /// Sums up after every `interval` runs. Each summary goes `overlap` runs further back, to keep the thread.
    pub fn every(interval: usize, overlap: usize) -> Self {
        Self::new(Some(Runs { interval: interval.max(1), overlap }), None)
    }

    /// Sums up before a request if the last prompt had at least `threshold` tokens, and keeps the newest `keep` events as
    /// they are. If a request is too long for the model all the same, the older half of the events is summed up, and the
    /// model is asked again; three times at most.
    pub fn above(threshold: u64, keep: usize) -> Self {
        Self::new(None, Some(Tokens { threshold, keep }))
    }

    fn new(runs: Option<Runs>, tokens: Option<Tokens>) -> Self {
        Self { runs, tokens, summariser: None, counts: RunCounts::default() }
    }

    /// Also sums up before a request if the last prompt had at least `threshold` tokens.
    pub fn or_above(mut self, threshold: u64, keep: usize) -> Self {
        self.tokens = Some(Tokens { threshold, keep });
        self
    }

    /// Who writes the summaries; the agent's own model unless said otherwise.
    pub fn summariser(mut self, summariser: impl Summariser + 'static) -> Self {
        self.summariser = Some(Arc::new(summariser));
        self
    }

    pub(crate) fn watches_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// After a run: sums up if enough runs have passed.
    pub(crate) async fn compact_by_runs(&self, run: &Run) -> Result<()> {
        let Some(runs) = self.runs else { return Ok(()) };
        if self.counts.count(run) < runs.interval {
            return Ok(());
        }
        let Some(window) = CompactionLog::of(run).due(runs) else { return Ok(()) };
        // The last answer was held back to share a write with the outcome: its reader shall not wait for the summary.
        run.flush().await?;
        let model = run.node()?.agent.model().cloned();
        if let Some(summariser) = self.written_by(model.as_ref()) {
            sum_up(run, summariser.as_ref(), None, &window).await?;
        }
        Ok(())
    }

    /// Before a request: sums up if the last prompt was too long, be it that the model said so.
    pub(crate) async fn compact_by_tokens(
        &self,
        run: &Run,
        model: &Arc<dyn Model>,
        overflows: u32,
    ) -> Result<()> {
        let Some(tokens) = self.tokens else { return Ok(()) };
        let Some(summariser) = self.written_by(Some(model)) else { return Ok(()) };
        if overflows > 0 {
            // The older half, which the summariser can take in though the model cannot take in all.
            let half = |old: &[Arc<Event>]| safe_cut(old, old.len() / 2);
            let compacted = compact(run, summariser.as_ref(), half).await;
            return compacted.map(drop).or_else(|error| {
                run.cancel_token().check()?;
                if error.is_control() {
                    return Err(error);
                }
                tracing::warn!(%error, "no summary could be made of a conversation that is too long");
                Ok(())
            });
        }
        if last_prompt(run).is_some_and(|used| used >= tokens.threshold) {
            compact(run, summariser.as_ref(), |old| safe_cut(old, tokens.keep)).await?;
        }
        Ok(())
    }

    fn written_by(&self, model: Option<&Arc<dyn Model>>) -> Option<Arc<dyn Summariser>> {
        let by_model = || Some(Arc::new(ModelSummariser::new(model?.clone())) as Arc<dyn Summariser>);
        self.summariser.clone().or_else(by_model)
    }
}

/// Sums up the oldest of the agent's events behind the last summary, as far as `cut` says, so that the summary stands for
/// them from now on. Gives whether there was anything to sum up.
pub(crate) async fn compact(
    run: &Run,
    summariser: &dyn Summariser,
    cut: impl FnOnce(&[Arc<Event>]) -> usize,
) -> Result<bool> {
    let log = CompactionLog::of(run);
    let old = log.uncovered();
    let window = self_contained(&old, cut(&old));
    if window.is_empty() {
        return Ok(false);
    }
    sum_up(run, summariser, log.earlier(), &window).await
}

/// A summary that a new one takes in.
struct PriorSummary {
    compaction: Compaction,
    /// The first event that it covers.
    first: Option<EventId>,
}

async fn sum_up(
    run: &Run,
    summariser: &dyn Summariser,
    earlier: Option<PriorSummary>,
    window: &[Arc<Event>],
) -> Result<bool> {
    let (Some(first), Some(last)) = (window.first(), window.last()) else { return Ok(false) };
    let mut told: Vec<Arc<Event>> = Vec::new();
    let mut range = CompactionRange { first: first.id.clone(), last: last.id.clone() };
    // Who reads the log by times shall find all that is covered between them, and the summary that was taken in.
    let (mut start, mut end) = (f64::INFINITY, f64::NEG_INFINITY);
    if let Some(PriorSummary { compaction, first }) = earlier
        && let Some(content) = compaction.compacted_content
    {
        // The new summary takes in the old one, so that it can take its place.
        told.push(Arc::new(
            Event::new(run.id().clone(), Arc::new(Source::new("model"))).with_content(content),
        ));
        range.first = first.unwrap_or(range.first);
        (start, end) = (compaction.start_timestamp.unwrap_or(start), compaction.end_timestamp.unwrap_or(end));
    }
    for event in window {
        (start, end) = (start.min(event.timestamp), end.max(event.timestamp));
    }
    told.extend(window.iter().cloned());
    let Some(mut content) = summariser.summarise(run, &told).await? else { return Ok(false) };
    content.role = Some(Role::Model);
    let compaction = Compaction {
        start_timestamp: Some(start),
        end_timestamp: Some(end),
        compacted_content: Some(Arc::new(content)),
        ..Compaction::default()
    };
    let actions = Actions { compaction: Some(Box::new(compaction)), ..Actions::default() };
    let source = Source { author: umbel_core::event::USER.into(), ..(**run.source()).clone() };
    let mut event = Event::new(run.id().clone(), Arc::new(source)).with_actions(actions);
    if !range.first.is_empty() && !range.last.is_empty() {
        range.put(&mut event);
    }
    run.emit(event).await?;
    Ok(true)
}

/// The log as a summary of one agent sees it.
struct CompactionLog<'a> {
    run: &'a Run,
    /// The events that no rewind made void.
    live: Vec<Arc<Event>>,
    /// The summaries that stand under the same call as the agent's own events.
    summaries: Vec<SummaryRange>,
}

impl<'a> CompactionLog<'a> {
    fn of(run: &'a Run) -> Self {
        let events: Vec<Arc<Event>> = run.events().iter().cloned().collect();
        let live = apply_rewinds(&events);
        let mut summaries = summaries(&live);
        summaries.retain(|summary| live.get(summary.index).is_some_and(|event| is_in_scope(run, event)));
        Self { run, live, summaries }
    }

    /// The position behind the last event that a summary covers.
    fn covered(&self) -> usize {
        self.summaries.iter().map(|summary| summary.end).max().unwrap_or(0)
    }

    /// What the agent may sum up: the events under its call that no summary covers yet.
    fn uncovered(&self) -> Vec<Arc<Event>> {
        let events = self.live.iter().skip(self.covered());
        let said = events.filter(|event| event.compaction().is_none() && is_in_scope(self.run, event));
        said.cloned().collect()
    }

    /// The last summary.
    fn earlier(&self) -> Option<PriorSummary> {
        let summary = self.summaries.last()?;
        let compaction = self.live.get(summary.index)?.compaction()?.clone();
        let first = self.live.get(summary.start..summary.end).and_then(|covered| covered.first());
        Some(PriorSummary { compaction, first: first.map(|event| event.id.clone()) })
    }

    /// The runs of the log in their order, each with the position of its last event.
    fn runs(&self) -> Vec<(&RunId, usize)> {
        let mut places: HashMap<&RunId, usize> = HashMap::new();
        let mut runs: Vec<(&RunId, usize)> = Vec::new();
        let said = self.live.iter().enumerate().filter(|(_, event)| event.compaction().is_none());
        for (position, event) in said {
            let place = *places.entry(&event.run).or_insert(runs.len());
            match runs.get_mut(place) {
                Some((_, last)) => *last = position,
                None => runs.push((&event.run, position)),
            }
        }
        runs
    }

    /// The events of the runs that a summary is due for.
    fn due(&self, by: Runs) -> Option<Vec<Arc<Event>>> {
        let (runs, covered) = (self.runs(), self.covered());
        let new = runs.iter().filter(|(_, last)| *last >= covered).count();
        if new < by.interval {
            return None;
        }
        let first = runs.len().saturating_sub(new + by.overlap);
        let wanted: HashSet<_> = runs.get(first..)?.iter().map(|(run, _)| *run).collect();
        let said = self.live.iter().filter(|event| event.compaction().is_none());
        let window: Vec<_> = said.filter(|event| wanted.contains(&event.run)).cloned().collect();
        let window = self_contained(&window, window.len());
        (!window.is_empty()).then_some(window)
    }
}

/// Whether an event stands under the same call as the agent's own.
fn is_in_scope(run: &Run, event: &Event) -> bool {
    event.source.isolation_scope == run.source().isolation_scope
}

/// How many tokens the agent's last prompt had.
fn last_prompt(run: &Run) -> Option<u64> {
    let tokens = |event: &Arc<Event>| {
        let usage = event.meta.as_ref()?.usage_metadata.as_ref()?;
        usage.prompt_token_count.filter(|_| is_in_scope(run, event))
    };
    for event in run.events().iter().rev() {
        if event.rewinds_to().is_some() {
            return CompactionLog::of(run).live.iter().rev().find_map(tokens);
        }
        if let Some(tokens) = tokens(event) {
            return Some(tokens);
        }
    }
    None
}

/// How many runs of each session no summary covers yet, so that a turn looks at its own events only.
#[derive(Default)]
struct RunCounts {
    sessions: Mutex<SessionMap<RunCount>>,
    /// How many events were looked at.
    #[cfg(test)]
    looked_at: Arc<std::sync::atomic::AtomicUsize>,
}

/// How many runs of a session no summary covers yet, as far as its log was counted.
struct RunCount {
    /// So many events were counted.
    events: usize,
    /// The last of them: whether it is still the same log.
    last: EventId,
    /// Its run.
    run: RunId,
    runs: usize,
}

/// Sessions whose runs are counted; those of others are counted anew.
const COUNTED_SESSIONS: usize = 4096;

impl RunCounts {
    /// How many runs of the session no summary covers yet, or a few more: a run that another one interrupts counts twice.
    fn count(&self, run: &Run) -> usize {
        let (key, events) = (run.session_key(), run.events());
        let known = self.lock().remove(key);
        let count =
            known.and_then(|known| self.extend(known, &events)).or_else(|| self.recount(run, &events));
        let Some(count) = count else { return 0 };
        let runs = count.runs;
        self.put(key, count);
        runs
    }

    /// Counts what is new. `None` if the log has to be looked at as a whole.
    fn extend(&self, mut count: RunCount, events: &List<Arc<Event>>) -> Option<RunCount> {
        let last = events.get(count.events.checked_sub(1)?)?;
        if last.id.is_empty() || last.id != count.last {
            return None;
        }
        for event in events.iter_from(count.events) {
            self.look_at(1);
            if event.compaction().is_some() || event.rewinds_to().is_some() {
                return None;
            }
            if event.run != count.run {
                count.run = event.run.clone();
                count.runs += 1;
            }
        }
        count.events = events.len();
        count.last = events.last()?.id.clone();
        Some(count)
    }

    fn recount(&self, run: &Run, events: &List<Arc<Event>>) -> Option<RunCount> {
        self.look_at(events.len());
        let log = CompactionLog::of(run);
        let covered = log.covered();
        let runs = log.runs().iter().filter(|(_, last)| *last >= covered).count();
        let last = events.last()?;
        Some(RunCount { events: events.len(), last: last.id.clone(), run: last.run.clone(), runs })
    }

    fn put(&self, key: &SessionKey, count: RunCount) {
        let mut sessions = self.lock();
        if sessions.len() >= COUNTED_SESSIONS
            && let Some(victim) = sessions.keys().next().cloned()
        {
            sessions.remove(&victim);
        }
        sessions.insert(key.clone(), count);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SessionMap<RunCount>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn look_at(&self, events: usize) {
        self.looked_at.fetch_add(events, std::sync::atomic::Ordering::Relaxed);
    }

    #[cfg(not(test))]
    fn look_at(&self, _events: usize) {}
}

/// Where to cut so that the newest `keep` events stay, and no answer stays without its call.
pub(crate) fn safe_cut(events: &[Arc<Event>], keep: usize) -> usize {
    let wanted = events.len().saturating_sub(keep);
    let mut unmatched: HashSet<&CallId> = HashSet::new();
    for (index, event) in events.iter().enumerate().rev() {
        unmatched.extend(event.responses().filter_map(|response| response.id.as_ref()));
        for id in event.calls().filter_map(|call| call.id.as_ref()) {
            unmatched.remove(id);
        }
        if unmatched.is_empty() && index <= wanted {
            return index;
        }
    }
    0
}

/// The longest beginning, up to `end`, that leaves no call and no question unanswered.
fn self_contained(events: &[Arc<Event>], end: usize) -> Vec<Arc<Event>> {
    let mut open: HashSet<&CallId> = HashSet::new();
    let mut safe = 0;
    for (index, event) in events.iter().enumerate().take(end) {
        for id in event.answered() {
            open.remove(id);
        }
        open.extend(event.calls().filter_map(|call| call.id.as_ref()));
        open.extend(event.content.iter().filter_map(|content| content.code_id()));
        let asked = event.actions.as_ref().and_then(|actions| actions.requested_tool_confirmations.as_ref());
        open.extend(asked.into_iter().flat_map(|asked| asked.keys()));
        if open.is_empty() {
            safe = index + 1;
        }
    }
    events.get(..safe).unwrap_or_default().to_vec()
}

async fn summarise_with(
    model: &dyn Model,
    prompt: &str,
    run: &Run,
    events: &[Arc<Event>],
) -> Result<Option<Content>> {
    let mut talk = String::new();
    for event in events {
        for part in
            event.content.iter().flat_map(|content| content.parts.iter()).filter(|part| !part.is_thought())
        {
            let line = match &part.payload {
                Payload::Text(said) => said.clone(),
                Payload::Call(call) => text::called(event.author(), &call.name, call.args.as_deref()),
                Payload::Response(response) => {
                    text::returned(event.author(), &response.name, response.response.as_ref())
                }
                Payload::Code(code) => text::ran_code(code.code.as_deref().unwrap_or_default()),
                Payload::CodeResult(result) => text::code_gave(result.output.as_deref().unwrap_or_default()),
                _ => continue,
            };
            talk.push_str(&format!("{}: {line}\n", event.author()));
        }
    }
    let mut request = ModelRequest::new(model.name());
    request.contents.push(Content::user(Part::text(format!("{prompt}\n\n{talk}"))));
    let content = ask(run, model, &request).await?.and_then(|response| response.content);
    Ok(content.map(Arc::unwrap_or_clone).filter(|content| !content.text().trim().is_empty()))
}

impl fmt::Debug for Compactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compactor")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use futures::StreamExt;
    use umbel_core::LogEntry;

    use super::*;
    use crate::{LlmAgent, Runner, ScriptedModel};

    fn said(number: usize, author: &str) -> LogEntry {
        let (run, source) = (format!("run-{number}"), Arc::new(Source::new(author)));
        let mut event = Event::new(run.as_str().into(), source).with_content(Content::user("words"));
        (event.id, event.timestamp) = (format!("{author}{number}").as_str().into(), 1.0);
        LogEntry::Event(Arc::new(event))
    }

    async fn turn(runner: &Runner, key: &SessionKey) {
        let events: Vec<_> = runner.run(key, "hi").collect().await;
        assert!(events.iter().all(Result::is_ok), "{events:?}");
    }

    /// How many events a compactor looks at in a turn behind so many runs, once it has counted them.
    async fn looked_at(runs: usize, hot: usize) -> usize {
        let model = ScriptedModel::from_fn("m", |_| {
            vec![Ok(umbel_core::Chunk::Complete(umbel_core::Response::text("fine")))]
        });
        let compactor = Compactor::every(1_000_000, 0);
        let looked_at = compactor.counts.looked_at.clone();
        let runner = Runner::builder("app", LlmAgent::new("a").model(model)).compaction(compactor);
        let runner = runner.hot_sessions(hot).build().unwrap();
        let key = runner.create_session("ann").await.unwrap().key;
        let entries = (0..runs).flat_map(|number| [said(number, "user"), said(number, "a")]).collect();
        runner.sessions().commit(&key, None, entries).await.unwrap();
        turn(&runner, &key).await;
        assert_eq!(looked_at.swap(0, Ordering::Relaxed), 2 * runs + 2, "they are counted once");
        for _ in 0..3 {
            turn(&runner, &key).await;
        }
        looked_at.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn a_turn_looks_at_its_own_events_however_many_runs_came_before() {
        for hot in [0, 10] {
            assert_eq!(looked_at(10, hot).await, 6);
            assert_eq!(looked_at(1_000, hot).await, 6);
        }
    }

    /// What a compactor counts, and whether it had to look at the whole log, turn by turn.
    #[tokio::test]
    async fn runs_are_counted_anew_behind_a_summary_and_a_rewind_and_in_another_log_of_that_name() {
        let model = ScriptedModel::from_fn("m", |_| {
            vec![Ok(umbel_core::Chunk::Complete(umbel_core::Response::text("fine")))]
        });
        let summaries = Arc::new(Mutex::new(Vec::new()));
        let noted = summaries.clone();
        let compactor = Compactor::every(3, 0).summariser(move |events: Vec<Arc<Event>>| {
            noted.lock().unwrap().push(events.len());
            async { Ok("summary".to_owned()) }
        });
        let runner = Runner::builder("app", LlmAgent::new("a").model(model)).compaction(compactor);
        let runner = runner.build().unwrap();
        let key = runner.create_session("ann").await.unwrap().key;
        for _ in 0..7 {
            turn(&runner, &key).await;
        }
        assert_eq!(*summaries.lock().unwrap(), [6, 6]);
        // One run is left since; it is made void, so three more are due.
        let session = runner.session(&key).await.unwrap().unwrap();
        runner.rewind(&key, &session.events.last().unwrap().run).await.unwrap();
        for _ in 0..2 {
            turn(&runner, &key).await;
        }
        assert_eq!(summaries.lock().unwrap().len(), 2);
        turn(&runner, &key).await;
        assert_eq!(*summaries.lock().unwrap(), [6, 6, 6]);
        turn(&runner, &key).await;
        // The same name, another log.
        runner.sessions().delete(&key).await.unwrap();
        let new = umbel_core::NewSession::new(key.clone());
        runner.sessions().create(new).await.unwrap();
        for _ in 0..2 {
            turn(&runner, &key).await;
        }
        assert_eq!(summaries.lock().unwrap().len(), 3);
        turn(&runner, &key).await;
        assert_eq!(*summaries.lock().unwrap(), [6, 6, 6, 6]);
    }
}
