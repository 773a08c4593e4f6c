//! An event on its way to a message.

use std::sync::Arc;

use umbel_core::event::USER;
use umbel_core::{Content, Event, FunctionCall, FunctionResponse, Part};

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
            Kind::Summary => agent,
        }
    }
}
