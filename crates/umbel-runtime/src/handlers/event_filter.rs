//! What readers of a run see of its events.

use std::fmt;
use std::sync::Arc;

use smol_str::SmolStr;
use umbel_core::{Content, Event, Handler, Part, Payload, Result, Run};
use umbel_macros::handler;

type Hide = Arc<dyn Fn(&Run, &Event) -> bool + Send + Sync>;

/// Keeps things from the readers of a run. The log has them all the same, and so have the models.
///
/// Of an event the parts are taken away that are to be hidden; an event with nothing left in it is hidden as a whole.
/// Calls that wait for someone's answer are shown in any case: who does not see the question cannot answer it.
///
/// ```
/// use umbel_runtime::handlers::EventFilter;
///
/// let quiet = EventFilter::new().hide_thoughts().hide_responses_of(["search"]).hide_authors(["critic"]);
/// let final_only = EventFilter::new().hide_if(|_run, event| !event.is_final());
/// ```
#[derive(Clone, Default)]
pub struct EventFilter {
    partial: bool,
    thoughts: bool,
    calls: Names,
    responses: Names,
    authors: Vec<SmolStr>,
    events: Vec<Hide>,
}

/// Some tools, or all of them.
#[derive(Clone, Debug)]
enum Names {
    All,
    These(Vec<SmolStr>),
}

impl Default for Names {
    fn default() -> Self {
        Self::These(Vec::new())
    }
}

impl Names {
    fn add<N: Into<SmolStr>>(&mut self, names: impl IntoIterator<Item = N>) {
        if let Self::These(these) = self {
            these.extend(names.into_iter().map(Into::into));
        }
    }

    fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::These(these) => these.iter().any(|one| one == name),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::These(these) if these.is_empty())
    }
}

impl EventFilter {
    /// Hides nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Hides previews.
    pub fn hide_partial(mut self) -> Self {
        self.partial = true;
        self
    }

    /// Hides thoughts.
    pub fn hide_thoughts(mut self) -> Self {
        self.thoughts = true;
        self
    }

    /// Hides calls of tools.
    pub fn hide_calls(mut self) -> Self {
        self.calls = Names::All;
        self
    }

    /// Hides calls of these tools.
    pub fn hide_calls_of<N: Into<SmolStr>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.calls.add(tools);
        self
    }

    /// Hides what tools answer.
    pub fn hide_responses(mut self) -> Self {
        self.responses = Names::All;
        self
    }

    /// Hides what these tools answer.
    pub fn hide_responses_of<N: Into<SmolStr>>(mut self, tools: impl IntoIterator<Item = N>) -> Self {
        self.responses.add(tools);
        self
    }

    /// Hides all events of these authors.
    pub fn hide_authors<N: Into<SmolStr>>(mut self, authors: impl IntoIterator<Item = N>) -> Self {
        self.authors.extend(authors.into_iter().map(Into::into));
        self
    }

    /// Hides events that this says yes to.
    pub fn hide_if<F>(mut self, hide: F) -> Self
    where
        F: Fn(&Run, &Event) -> bool + Send + Sync + 'static,
    {
        self.events.push(Arc::new(hide));
        self
    }

    /// What readers see of an event.
    fn seen(&self, run: &Run, event: Arc<Event>) -> Option<Arc<Event>> {
        let hidden = (self.partial && event.is_partial())
            || self.authors.contains(&event.source.author)
            || self.events.iter().any(|hide| hide(run, &event));
        if hidden {
            return None;
        }
        let looks_at_parts = self.thoughts || !self.calls.is_empty() || !self.responses.is_empty();
        let Some(content) = event.content.as_ref().filter(|_| looks_at_parts) else { return Some(event) };
        if !content.parts.iter().any(|part| self.hides(&event, part)) {
            return Some(event);
        }
        let parts = content.parts.iter().filter(|part| !self.hides(&event, part)).cloned();
        let left = Content { role: content.role.clone(), parts: parts.collect() };
        let mut seen = Arc::unwrap_or_clone(event);
        seen.content = (!left.parts.is_empty()).then(|| Arc::new(left));
        (!is_nothing(&seen)).then(|| Arc::new(seen))
    }

    fn hides(&self, event: &Event, part: &Part) -> bool {
        match &part.payload {
            Payload::Call(call) => {
                let waits = call.id.as_ref().is_some_and(|id| event.long_running().contains(id));
                !waits && self.calls.contains(&call.name)
            }
            Payload::Response(response) => self.responses.contains(&response.name),
            _ => self.thoughts && part.is_thought(),
        }
    }
}

/// Whether an event neither says nor does anything, nor tells of an error.
fn is_nothing(event: &Event) -> bool {
    event.content.is_none()
        && event.actions.as_ref().is_none_or(|actions| actions.is_empty())
        && event.error_code().is_none()
}

#[handler(crate = umbel_core)]
impl Handler for EventFilter {
    fn name(&self) -> &str {
        "event_filter"
    }

    fn on_output(&self, run: &Run, event: Arc<Event>) -> Result<Option<Arc<Event>>> {
        Ok(self.seen(run, event))
    }
}

impl fmt::Debug for EventFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventFilter")
            .field("partial", &self.partial)
            .field("thoughts", &self.thoughts)
            .field("calls", &self.calls)
            .field("responses", &self.responses)
            .field("authors", &self.authors)
            .finish_non_exhaustive()
    }
}
