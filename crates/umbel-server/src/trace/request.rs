//! The span of a request, for those who trace the whole program.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body::{Body as _, Frame, SizeHint};
use tracing::level_filters::LevelFilter;
use tracing::{Instrument, Span, field};
use umbel_core::TraceContext;
use umbel_core::conventions::broken::{CLIENT_GONE, STREAM_BROKEN};
use umbel_core::conventions::{OTHER, attribute, span};
use umbel_core::trace_context::{TRACEPARENT, TRACESTATE};

use crate::connections::Connection;

/// The methods that are named; all others are one.
const METHODS: [Method; 9] = [
    Method::CONNECT,
    Method::DELETE,
    Method::GET,
    Method::HEAD,
    Method::OPTIONS,
    Method::PATCH,
    Method::POST,
    Method::PUT,
    Method::TRACE,
];

/// A request that is answered. It ends with the answer: if that is a stream, with the end of it, or when the client goes.
pub(crate) async fn traced(span: Span, work: impl Future<Output = Response>) -> Response {
    let response = work.instrument(span.clone()).await;
    let status = response.status();
    span.record(attribute::HTTP_STATUS, i64::from(status.as_u16()));
    if status.is_server_error() {
        span.record(attribute::ERROR, status.as_str());
    }
    let is_stream = response.body().size_hint().exact().is_none();
    if is_stream { response.map(|body| Body::new(Streamed { body, span, is_over: false })) } else { response }
}

/// A stream, as a part of the request that it answers.
struct Streamed {
    body: Body,
    span: Span,
    is_over: bool,
}

impl Streamed {
    /// It ends, with what went wrong. Entered once more, the span ends now, and not with its head.
    fn end(&mut self, error: Option<&str>) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        if let Some(error) = error {
            self.span.record(attribute::ERROR, error);
        }
        self.span.in_scope(|| {});
        self.span = Span::none();
    }
}

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(None) => self.end(None),
            Poll::Ready(Some(Err(_))) => self.end(Some(STREAM_BROKEN)),
            _ => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Streamed {
    fn drop(&mut self) {
        let is_whole = self.body.is_end_stream();
        self.end((!is_whole).then_some(CLIENT_GONE));
    }
}

/// What the span of a request is made of, read before anybody knows who sent it.
pub(crate) struct Head {
    method: Method,
    /// A route, and the path that leads there.
    route: Option<(MatchedPath, String)>,
    context: Option<TraceContext>,
    is_tls: bool,
}

impl Head {
    /// Reads a request; `None` if nobody wants to know. What `tracestate` says is left out unless it is taken too.
    pub(crate) fn of(request: &Request, takes_state: bool) -> Option<Self> {
        if LevelFilter::current() < LevelFilter::INFO {
            return None;
        }
        let route = request.extensions().get::<MatchedPath>().cloned();
        let connection = request.extensions().get::<Arc<Connection>>();
        Some(Self {
            method: request.method().clone(),
            route: route.map(|route| (route, request.uri().path().to_owned())),
            context: context(request.headers(), takes_state),
            is_tls: connection.is_some_and(|connection| connection.is_tls),
        })
    }

    /// The span; `None` if nobody wants to know. Whether it is part of the trace that the request names is a matter of trust.
    pub(crate) fn span(self, is_trusted: bool) -> Option<Span> {
        let method = if METHODS.contains(&self.method) { self.method.as_str() } else { OTHER };
        let begin = || {
            tracing::info_span!(
                span::HTTP,
                { attribute::HTTP_METHOD } = method,
                // What is asked for in a query is nobody's business, nor are paths that lead nowhere.
                { attribute::HTTP_ROUTE } = self.route.as_ref().map(|(route, _)| route.as_str()),
                { attribute::URL_PATH } = self.route.as_ref().map(|(_, path)| path.as_str()),
                { attribute::URL_SCHEME } = if self.is_tls { "https" } else { "http" },
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures::{StreamExt, stream};
    use http_body_util::BodyExt;
    use tracing::Subscriber;
    use tracing::field::{Field, Visit};
    use tracing::span::{Id, Record};
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::{Context as Cx, SubscriberExt};
    use tracing_subscriber::registry::LookupSpan;

    use super::*;

    /// What went wrong with the spans that ended.
    #[derive(Clone, Default)]
    struct Ended(Arc<Mutex<Vec<Option<String>>>>);

    struct Error(Option<String>);

    impl Visit for Error {
        fn record_str(&mut self, field: &Field, value: &str) {
            if field.name() == attribute::ERROR {
                self.0 = Some(value.to_owned());
            }
        }

        fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
    }

    impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Ended {
        fn on_record(&self, id: &Id, values: &Record<'_>, cx: Cx<'_, S>) {
            let mut error = Error(None);
            values.record(&mut error);
            cx.span(id).unwrap().extensions_mut().replace(error);
        }

        fn on_close(&self, id: Id, cx: Cx<'_, S>) {
            let error = cx.span(&id).unwrap().extensions_mut().remove::<Error>();
            self.0.lock().unwrap().push(error.and_then(|error| error.0));
        }
    }

    fn streamed(last: Result<Bytes, axum::Error>) -> Response {
        let pieces = stream::iter([Ok(Bytes::from_static(b"one"))]).chain(stream::iter([last]));
        Response::new(Body::from_stream(pieces))
    }

    #[tokio::test]
    async fn a_request_ends_with_its_answer_and_with_what_went_wrong() {
        let good = || streamed(Ok(Bytes::from_static(b"two")));
        let bad = || streamed(Err(axum::Error::new("too slow")));
        let whole = || Response::new(Body::from("all"));
        for (response, frames, error) in [
            (good(), 3, None),
            (bad(), 2, Some(STREAM_BROKEN)),
            (good(), 1, Some(CLIENT_GONE)),
            (whole(), 0, None),
        ] {
            let ended = Ended::default();
            let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(ended.clone()));
            let span = tracing::info_span!(
                "http",
                { attribute::HTTP_STATUS } = field::Empty,
                { attribute::ERROR } = field::Empty
            );
            let response = traced(span, async { response }).await;
            let mut body = response.into_body();
            for read in 0..frames {
                assert!(ended.0.lock().unwrap().is_empty(), "it goes on after {read} pieces");
                let _ = body.frame().await;
            }
            if error == Some(CLIENT_GONE) {
                assert!(ended.0.lock().unwrap().is_empty());
                drop(body);
            }
            assert_eq!(*ended.0.lock().unwrap(), [error.map(str::to_owned)]);
        }
    }
}
