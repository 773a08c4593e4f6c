//! The span of a request, for those who trace the whole program.

use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use http::{HeaderMap, Method};
use tracing::level_filters::LevelFilter;
use tracing::{Instrument, Span, field};
use umbel_core::TraceContext;
use umbel_core::conventions::{attribute, span};
use umbel_core::trace_context::{TRACEPARENT, TRACESTATE};

/// A request that is answered. It ends with the head of the answer: what follows is told by the spans of the run.
pub(crate) async fn traced(span: Span, work: impl Future<Output = Response>) -> Response {
    let response = work.instrument(span.clone()).await;
    let status = response.status();
    span.record(attribute::HTTP_STATUS, i64::from(status.as_u16()));
    if status.is_server_error() {
        span.record(attribute::ERROR, status.as_str());
    }
    response
}

/// What the span of a request is made of, read before anybody knows who sent it.
pub(crate) struct Head {
    method: Method,
    route: Option<MatchedPath>,
    context: Option<TraceContext>,
}

impl Head {
    /// Reads a request; `None` if nobody wants to know. What `tracestate` says is left out unless it is taken too.
    pub(crate) fn of(request: &Request, takes_state: bool) -> Option<Self> {
        if LevelFilter::current() < LevelFilter::INFO {
            return None;
        }
        Some(Self {
            method: request.method().clone(),
            route: request.extensions().get::<MatchedPath>().cloned(),
            context: context(request.headers(), takes_state),
        })
    }

    /// The span; `None` if nobody wants to know. Whether it is part of the trace that the request names is a matter of trust.
    pub(crate) fn span(self, is_trusted: bool) -> Option<Span> {
        let begin = || {
            tracing::info_span!(
                span::HTTP,
                { attribute::HTTP_METHOD } = self.method.as_str(),
                // The path itself has names in it, and whoever makes up paths would make up names of spans.
                { attribute::HTTP_ROUTE } = self.route.as_ref().map(MatchedPath::as_str),
                { attribute::HTTP_STATUS } = field::Empty,
                { attribute::ERROR } = field::Empty,
            )
        };
        let span = match self.context.as_ref().filter(|_| is_trusted) {
            Some(context) => context.within(begin),
            None => begin(),
        };
        Some(span).filter(|span| !span.is_disabled())
    }
}

/// The trace that a request is part of, as it says. One that says several is part of none.
fn context(headers: &HeaderMap, takes_state: bool) -> Option<TraceContext> {
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let (parent, None) = (parents.next()?, parents.next()) else { return None };
    let states: Vec<&str> =
        headers.get_all(TRACESTATE).iter().filter_map(|state| state.to_str().ok()).collect();
    let states = takes_state.then(|| states.join(","));
    TraceContext::parse(parent.to_str().ok()?, states.as_deref())
}
