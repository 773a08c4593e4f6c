//! Which trace work is a part of, as W3C Trace Context says it, and who knows that.
//!
//! Nothing of Umbel but `umbel-telemetry` knows OpenTelemetry. It is made known here ([`set_tracer`]), and who asks somebody
//! over a network sends [`TraceContext::current`] along. Without it there is none, and asking costs one look.

use std::any::Any;
use std::sync::OnceLock;

use smol_str::SmolStr;

use crate::content::Content;
use crate::json::Object;
use crate::model::ModelRequest;
use crate::tool::ToolValue;

/// The name of the header, and of the key in `_meta` of MCP, that says which trace a request is part of.
pub const TRACEPARENT: &str = "traceparent";

/// The name of the header, and of the key in `_meta` of MCP, that holds what tracing systems say to each other.
pub const TRACESTATE: &str = "tracestate";

/// The most bytes of a `tracestate` that are passed on.
const STATE_BYTES: usize = 512;

/// Which trace, and which span of it, work is a part of. Baggage is no part of it: it is neither read nor sent on, since
/// what one's own services say to each other is not for providers of models.
///
/// As a value of [`RunConfig::extensions`](crate::RunConfig::extensions) it is what the run is part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    parent: SmolStr,
    state: Option<SmolStr>,
}

impl TraceContext {
    /// What the two headers say; `None` if the first one says nothing that can be read. A `tracestate` that is wrong or too
    /// long is left out.
    ///
    /// ```
    /// use umbel_core::TraceContext;
    ///
    /// let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// let context = TraceContext::parse(parent, Some("vendor=1")).unwrap();
    /// assert_eq!(context.headers().collect::<Vec<_>>(), [("traceparent", parent), ("tracestate", "vendor=1")]);
    /// assert!(TraceContext::parse("00-yes", None).is_none());
    /// ```
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let parent = traceparent.trim();
        if !is_parent(parent) {
            return None;
        }
        let state = tracestate.map(str::trim).filter(|state| is_state(state));
        Some(Self { parent: parent.into(), state: state.map(SmolStr::new) })
    }

    /// Of the span that is entered now, if it is traced.
    pub fn current() -> Option<Self> {
        tracer()?.current()
    }

    /// The value of `traceparent`.
    pub fn traceparent(&self) -> &str {
        &self.parent
    }

    /// The value of `tracestate`.
    pub fn tracestate(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// The names and values to send: as headers, or as keys of MCP's `_meta`.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        std::iter::once((TRACEPARENT, self.traceparent()))
            .chain(self.tracestate().map(|state| (TRACESTATE, state)))
    }

    /// Calls `begin` such that spans that begin in it are part of this trace, unless they are part of one already.
    pub fn within<T>(&self, begin: impl FnOnce() -> T) -> T {
        let _entered = tracer().map(|tracer| tracer.enter(self));
        begin()
    }
}

/// What the server that took a request says of its trace. It is put among the extensions of the request, for services that a
/// server mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestTrace {
    /// The span of the request, if it is traced.
    pub span: Option<TraceContext>,
    /// Whether the request may say itself which trace it is part of.
    pub is_trusted: bool,
    /// Whether what it says as `tracestate` is taken then: it is sent on to others.
    pub takes_state: bool,
}

/// Whether it is a `traceparent`: `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`, or one of a later version, which may
/// go on after that.
fn is_parent(text: &str) -> bool {
    let mut fields = text.split('-');
    let mut next = |length: usize| {
        fields.next().filter(|field| {
            field.len() == length && field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })
    };
    let (Some(version), Some(trace), Some(span), Some(_)) = (next(2), next(32), next(16), next(2)) else {
        return false;
    };
    let is_something = |id: &str| id.bytes().any(|byte| byte != b'0');
    let is_whole = version != "00" || fields.next().is_none();
    version != "ff" && is_something(trace) && is_something(span) && is_whole && text.len() <= STATE_BYTES
}

/// Whether it can be sent on as a `tracestate`.
fn is_state(text: &str) -> bool {
    let members = || text.split(',').map(str::trim).filter(|member| !member.is_empty());
    let is_member = |member: &str| member.split_once('=').is_some_and(|(key, _)| !key.is_empty());
    !text.is_empty()
        && text.len() <= STATE_BYTES
        && text.bytes().all(|byte| matches!(byte, b' '..=b'~'))
        && members().count() <= 32
        && members().all(is_member)
}

/// What is said in a run. It is content, and no field of a span: it goes to who was told to take it, and to no log.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SpanContent<'a> {
    /// What a model is asked, as it is sent.
    Request(&'a ModelRequest),
    /// What it answered, as it is stored: after all handlers.
    Answer {
        /// The message.
        content: &'a Content,
        /// Why it ended, as the model says.
        finish_reason: Option<&'a str>,
    },
    /// What a tool is called with.
    Arguments(&'a Object),
    /// What a tool gave, after all handlers.
    Result(&'a ToolValue),
}

/// Knows of spans what `tracing` does not.
pub trait Tracer: Send + Sync {
    /// The context of the span that is entered now, if it is traced.
    fn current(&self) -> Option<TraceContext>;

    /// Spans that begin on this thread, until what is given is dropped, are part of the trace, unless they are part of one
    /// already.
    fn enter(&self, context: &TraceContext) -> Box<dyn Any>;

    /// The span that is entered now goes on with another one, which has ended.
    fn link(&self, earlier: &TraceContext);

    /// Whether it was told to take what is said.
    fn wants_content(&self) -> bool;

    /// Takes what is said within the span that is entered now, if it was told to.
    fn take(&self, said: SpanContent<'_>);
}

static TRACER: OnceLock<&'static dyn Tracer> = OnceLock::new();

/// Makes known who traces, for this process. The first one stays; gives whether it is this one.
pub fn set_tracer(tracer: &'static dyn Tracer) -> bool {
    TRACER.set(tracer).is_ok()
}

/// Who traces, if anybody does.
pub fn tracer() -> Option<&'static dyn Tracer> {
    TRACER.get().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_is_read_and_sent_on_as_it_came() {
        let context = TraceContext::parse(PARENT, Some("a=1,b=2")).unwrap();
        assert_eq!(context.traceparent(), PARENT);
        assert_eq!(context.tracestate(), Some("a=1,b=2"));
        let sent: Vec<_> = context.headers().collect();
        assert_eq!(sent, [("traceparent", PARENT), ("tracestate", "a=1,b=2")]);
    }

    #[test]
    fn a_parent_that_is_none_is_refused() {
        for wrong in [
            "",
            "00",
            "hello",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(wrong, None), None, "{wrong}");
        }
    }

    #[test]
    fn a_later_version_may_say_more() {
        let later = "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more";
        assert_eq!(TraceContext::parse(later, None).unwrap().traceparent(), later);
        let endless = format!("{later}{}", "x".repeat(STATE_BYTES));
        assert_eq!(TraceContext::parse(&endless, None), None);
    }

    #[test]
    fn a_state_that_is_wrong_or_too_long_is_left_out() {
        let members = vec!["a=1"; 33].join(",");
        for wrong in ["", "nothing", "=1", "a=é", "a=1\r\nb: 2", &"a".repeat(600), &members] {
            let context = TraceContext::parse(PARENT, Some(wrong)).unwrap();
            assert_eq!(context.tracestate(), None, "{wrong}");
        }
    }

    #[test]
    fn without_a_tracer_work_begins_all_the_same() {
        assert_eq!(TraceContext::current(), None);
        assert_eq!(TraceContext::parse(PARENT, None).unwrap().within(|| 7), 7);
    }
}
