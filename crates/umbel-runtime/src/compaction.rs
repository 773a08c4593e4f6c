//! Summaries of old turns: when they are due, what they cover, and who writes them.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use umbel_core::{
    Actions, CallId, Compaction, Content, Event, Model, ModelRequest, Part, Payload, Result, Role, Run,
    Source,
};

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
        Self { runs: Some(Runs { interval: interval.max(1), overlap }), tokens: None, summariser: None }
    }

    /// Sums up before a request if the last prompt had at least `threshold` tokens, and keeps the newest `keep` events as
    /// they are. If a request is too long for the model all the same, the older half of the events is summed up, and the
    /// model is asked again; three times at most.
    pub fn above(threshold: u64, keep: usize) -> Self {
        Self { runs: None, tokens: Some(Tokens { threshold, keep }), summariser: None }
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
        let events = live(run);
        let Some(window) = due(&events, runs) else { return Ok(()) };
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
        let events = in_scope(run);
        let Some(summariser) = self.written_by(Some(model)) else { return Ok(()) };
        if overflows > 0 {
            // The older half, which the summariser can take in though the model cannot take in all.
            let half = |old: &[Arc<Event>]| safe_cut(old, old.len() / 2);
            let compacted = compact(run, summariser.as_ref(), &events, half).await;
            return compacted.map(drop).or_else(|error| {
                run.cancel_token().check()?;
                if error.is_control() {
                    return Err(error);
                }
                tracing::warn!(%error, "no summary could be made of a conversation that is too long");
                Ok(())
            });
        }
        let used = events
            .iter()
            .rev()
            .find_map(|event| event.meta.as_ref()?.usage_metadata.as_ref()?.prompt_token_count);
        if used.is_some_and(|used| used >= tokens.threshold) {
            compact(run, summariser.as_ref(), &events, |old| safe_cut(old, tokens.keep)).await?;
        }
        Ok(())
    }

    fn written_by(&self, model: Option<&Arc<dyn Model>>) -> Option<Arc<dyn Summariser>> {
        let by_model = || Some(Arc::new(ModelSummariser::new(model?.clone())) as Arc<dyn Summariser>);
        self.summariser.clone().or_else(by_model)
    }
}

/// Sums up the oldest of these events behind the last summary, as far as `cut` says, so that the summary stands for them
/// from now on. Gives whether there was anything to sum up.
pub(crate) async fn compact(
    run: &Run,
    summariser: &dyn Summariser,
    events: &[Arc<Event>],
    cut: impl FnOnce(&[Arc<Event>]) -> usize,
) -> Result<bool> {
    let after = covered_until(events);
    let old: Vec<_> = events.iter().filter(|event| is_open_ended(event, after)).cloned().collect();
    let window = self_contained(&old, cut(&old));
    if window.is_empty() {
        return Ok(false);
    }
    let earlier = events.iter().rev().find_map(|event| event.compaction().cloned());
    sum_up(run, summariser, earlier, &window).await
}

async fn sum_up(
    run: &Run,
    summariser: &dyn Summariser,
    earlier: Option<Compaction>,
    window: &[Arc<Event>],
) -> Result<bool> {
    let (Some(first), Some(last)) = (window.first(), window.last()) else { return Ok(false) };
    let mut told: Vec<Arc<Event>> = Vec::new();
    let mut start = first.timestamp;
    if let Some(earlier) = earlier
        && let (Some(content), Some(from)) = (earlier.compacted_content, earlier.start_timestamp)
    {
        // The new summary takes in the old one, so that it can take its place.
        told.push(Arc::new(
            Event::new(run.id().clone(), Arc::new(Source::new("model"))).with_content(content),
        ));
        start = from;
    }
    told.extend(window.iter().cloned());
    let Some(mut content) = summariser.summarise(run, &told).await? else { return Ok(false) };
    content.role = Some(Role::Model);
    let compaction = Compaction {
        start_timestamp: Some(start),
        end_timestamp: Some(last.timestamp),
        compacted_content: Some(Arc::new(content)),
        ..Compaction::default()
    };
    let actions = Actions { compaction: Some(Box::new(compaction)), ..Actions::default() };
    let source = Source { author: umbel_core::event::USER.into(), ..(**run.source()).clone() };
    run.emit(Event::new(run.id().clone(), Arc::new(source)).with_actions(actions)).await?;
    Ok(true)
}

fn live(run: &Run) -> Vec<Arc<Event>> {
    let events: Vec<Arc<Event>> = run.events().iter().cloned().collect();
    apply_rewinds(&events)
}

/// The events that stand under the same call as the agent's own.
pub(crate) fn in_scope(run: &Run) -> Vec<Arc<Event>> {
    let scope = &run.source().isolation_scope;
    live(run).into_iter().filter(|event| event.source.isolation_scope == *scope).collect()
}

/// The last moment that a summary covers.
fn covered_until(events: &[Arc<Event>]) -> f64 {
    let ends = events.iter().filter_map(|event| event.compaction()?.end_timestamp);
    ends.fold(f64::NEG_INFINITY, f64::max)
}

fn is_open_ended(event: &Event, after: f64) -> bool {
    event.compaction().is_none() && event.timestamp > after
}

/// The events of the runs that a summary is due for.
fn due(events: &[Arc<Event>], runs: Runs) -> Option<Vec<Arc<Event>>> {
    let after = covered_until(events);
    let said: Vec<&Arc<Event>> = events.iter().filter(|event| event.compaction().is_none()).collect();
    let mut ids: Vec<&umbel_core::RunId> = Vec::new();
    for event in &said {
        if !ids.contains(&&event.run) {
            ids.push(&event.run);
        }
    }
    let is_new = |id: &&&umbel_core::RunId| {
        said.iter().rev().find(|event| event.run == ***id).is_some_and(|event| event.timestamp > after)
    };
    let new = ids.iter().filter(is_new).count();
    if new < runs.interval {
        return None;
    }
    let first = ids.len().saturating_sub(new + runs.overlap);
    let wanted: HashSet<_> = ids.get(first..)?.iter().copied().collect();
    let window: Vec<_> = said.into_iter().filter(|event| wanted.contains(&event.run)).cloned().collect();
    let window = self_contained(&window, window.len());
    (!window.is_empty()).then_some(window)
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

/// The longest beginning, up to `end`, that leaves no call and no question unanswered. A summary covers a stretch of time,
/// so it must end before the next event took place.
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
        let is_apart = events.get(index + 1).is_none_or(|next| next.timestamp > event.timestamp);
        if open.is_empty() && is_apart {
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
