//! An event on its way to a message.

use std::sync::Arc;

use umbel_core::event::{Meta, Transcription, USER};
use umbel_core::{CallId, Content, Event, FunctionCall, FunctionResponse, Part};

/// An event on its way to a message: the event it comes from, and what is left of its content.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) event: Arc<Event>,
    pub(crate) content: Option<Arc<Content>>,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// As it stands in the log.
    Plain,
    /// Another agent's, quoted.
    Quoted,
    /// A summary that stands for a stretch of the log.
    Summary,
}

impl Item {
    pub(crate) fn plain(event: Arc<Event>) -> Self {
        Self { content: event.content.clone(), event, kind: Kind::Plain }
    }

    pub(crate) fn with_parts(&self, parts: impl IntoIterator<Item = Part>) -> Self {
        let role = self.content.as_ref().and_then(|content| content.role.clone());
        let content = Content { role, parts: parts.into_iter().collect() };
        Self { content: Some(Arc::new(content)), ..self.clone() }
    }

    /// The item with the parts that `keep` says yes to; `None` if it had some and none is left.
    pub(crate) fn keep_parts(&self, keep: impl Fn(&Part) -> bool) -> Option<Self> {
        let parts = self.parts();
        if parts.iter().all(&keep) {
            return Some(self.clone());
        }
        let kept: Vec<Part> = parts.iter().filter(|part| keep(part)).cloned().collect();
        (!kept.is_empty()).then(|| self.with_parts(kept))
    }

    pub(crate) fn parts(&self) -> &[Part] {
        self.content.as_ref().map(|content| content.parts.as_slice()).unwrap_or_default()
    }

    pub(crate) fn calls(&self) -> impl Iterator<Item = &FunctionCall> {
        self.parts().iter().filter_map(Part::as_call)
    }

    pub(crate) fn responses(&self) -> impl Iterator<Item = &FunctionResponse> {
        self.parts().iter().filter_map(Part::as_response)
    }

    pub(crate) fn has_calls(&self) -> bool {
        self.calls().next().is_some()
    }

    pub(crate) fn has_responses(&self) -> bool {
        self.responses().next().is_some()
    }

    /// The author as the rules see it: a quotation is the user's, a summary the agent's own.
    pub(crate) fn author<'a>(&'a self, agent: &'a str) -> &'a str {
        match self.kind {
            Kind::Plain => self.event.author(),
            Kind::Quoted => USER,
            Kind::Summary if agent.is_empty() => "model",
            Kind::Summary => agent,
        }
    }

    /// The words that one side spoke. A summary has none, even if the event that brings it does.
    pub(crate) fn spoken(&self, side: fn(&Meta) -> Option<&Transcription>) -> Option<&str> {
        let meta = self.event.meta.as_deref().filter(|_| self.kind == Kind::Plain)?;
        side(meta)?.text.as_deref().filter(|words| !words.is_empty())
    }
}

/// An id that names something: an empty one is as good as none.
pub(crate) fn known(id: &Option<CallId>) -> Option<&CallId> {
    id.as_ref().filter(|id| !id.is_empty())
}
