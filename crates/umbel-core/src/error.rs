//! One error type: what happened (a kind to match on), why (words for people), and where it came from.

use std::fmt;
use std::time::Duration;

use crate::interrupt::{Asker, Interrupt, Question, Raised};

/// The result of nearly everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A boxed error of any kind.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong. One pointer wide, so that `Result`s stay small.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<BoxError>,
    retry_after: Option<Duration>,
}

/// What kind of thing went wrong. [`ErrorKind::code`] is its name in events and on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// What the caller gave cannot be used.
    InvalidInput,
    /// An agent, a runner or a tool was put together in a way that cannot work.
    Build,
    /// The feature is not there yet.
    Unsupported,
    /// There is no such session.
    SessionNotFound,
    /// There is such a session already.
    AlreadyExists,
    /// Another run holds the session.
    SessionBusy,
    /// A run was cut short in the session: it has to be gone on with first.
    SessionAbandoned,
    /// The session has moved on since it was read.
    StaleSession,
    /// The lease was lost to another owner; nothing was written.
    Fenced,
    /// A template names a state key that is not set.
    MissingState,
    /// A template names an artifact that does not exist.
    MissingArtifact,
    /// Artifacts are needed and no store for them is configured.
    NoArtifactStore,
    /// No agent of that name in the tree.
    AgentNotFound,
    /// The agent may not hand over to that one.
    TransferRefused,
    /// The run used up its model calls.
    ModelCallLimit,
    /// Tools were called more often than a handler allows.
    ToolCallLimit,
    /// More tokens were used, or more money was spent, than a handler allows.
    UsageLimit,
    /// Agents call agents deeper than allowed.
    DepthLimit,
    /// The run or a tool took too long.
    Timeout,
    /// The model's stream broke off.
    StreamCut,
    /// The model failed; see [`ModelErrorKind`].
    Model(ModelErrorKind),
    /// A tool failed and the policy is to fail the run.
    Tool,
    /// An answer to a question that does not fit what was asked, comes too late, or was never asked for.
    InvalidConfirmation,
    /// A run that stopped in the middle cannot go on: too many tried, or it was begun by another build.
    Unrecoverable,
    /// The model's answer does not fit the output schema.
    InvalidOutput,
    /// A handler, plugin or callback failed.
    Handler,
    /// A limit on calls was reached; see [`Error::retry_after`].
    RateLimited,
    /// A circuit is open: what failed too often is not tried for a while; see [`Error::retry_after`].
    CircuitOpen,
    /// Something that must not leave or enter was found, and the policy is to stop.
    Blocked,
    /// Permission was denied: a credential is missing or was refused, or a person would not give it.
    Denied,
    /// Something is larger than its limit.
    TooLarge,
    /// A person must be asked first. Control flow, not a failure.
    Interrupted,
    /// Something panicked; it was caught.
    Panic,
    /// The run was cancelled. Control flow, not a failure.
    Cancelled,
    /// A store failed.
    Store,
    /// A stored record cannot be read.
    Corrupt,
    /// Any other error of user code.
    Other,
}

/// How a model failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ModelErrorKind {
    /// Key missing, wrong or not allowed to do this.
    Auth,
    /// Too many requests or tokens.
    RateLimited,
    /// The provider cannot take more now.
    Overloaded,
    /// The context is longer than the model takes.
    ContextTooLong,
    /// Refused by policy.
    Refused,
    /// The request is not acceptable.
    BadRequest,
    /// The connection failed.
    Transport,
    /// Anything else.
    Other,
}

impl ErrorKind {
    /// Every kind there is.
    pub const ALL: &'static [Self] = &[
        Self::InvalidInput,
        Self::Build,
        Self::Unsupported,
        Self::SessionNotFound,
        Self::AlreadyExists,
        Self::SessionBusy,
        Self::SessionAbandoned,
        Self::StaleSession,
        Self::Fenced,
        Self::MissingState,
        Self::MissingArtifact,
        Self::NoArtifactStore,
        Self::AgentNotFound,
        Self::TransferRefused,
        Self::ModelCallLimit,
        Self::ToolCallLimit,
        Self::UsageLimit,
        Self::DepthLimit,
        Self::Timeout,
        Self::StreamCut,
        Self::Model(ModelErrorKind::Auth),
        Self::Model(ModelErrorKind::RateLimited),
        Self::Model(ModelErrorKind::Overloaded),
        Self::Model(ModelErrorKind::ContextTooLong),
        Self::Model(ModelErrorKind::Refused),
        Self::Model(ModelErrorKind::BadRequest),
        Self::Model(ModelErrorKind::Transport),
        Self::Model(ModelErrorKind::Other),
        Self::Tool,
        Self::InvalidConfirmation,
        Self::Unrecoverable,
        Self::InvalidOutput,
        Self::Handler,
        Self::RateLimited,
        Self::CircuitOpen,
        Self::Blocked,
        Self::Denied,
        Self::TooLarge,
        Self::Interrupted,
        Self::Panic,
        Self::Cancelled,
        Self::Store,
        Self::Corrupt,
        Self::Other,
    ];

    /// The kind of that name.
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.code() == code)
    }

    /// Its stable name: `errorCode` in events.
    pub fn code(self) -> &'static str {
        match self {
            Self::InvalidInput => "INVALID_INPUT",
            Self::Build => "BUILD",
            Self::Unsupported => "UNSUPPORTED",
            Self::SessionNotFound => "SESSION_NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::SessionBusy => "SESSION_BUSY",
            Self::SessionAbandoned => "SESSION_ABANDONED",
            Self::StaleSession => "STALE_SESSION",
            Self::Fenced => "FENCED",
            Self::MissingState => "MISSING_STATE",
            Self::MissingArtifact => "MISSING_ARTIFACT",
            Self::NoArtifactStore => "NO_ARTIFACT_STORE",
            Self::AgentNotFound => "AGENT_NOT_FOUND",
            Self::TransferRefused => "TRANSFER_REFUSED",
            Self::ModelCallLimit => "MODEL_CALL_LIMIT",
            Self::ToolCallLimit => "TOOL_CALL_LIMIT",
            Self::UsageLimit => "USAGE_LIMIT",
            Self::DepthLimit => "DEPTH_LIMIT",
            Self::Timeout => "TIMEOUT",
            Self::StreamCut => "STREAM_CUT",
            Self::Model(kind) => kind.code(),
            Self::Tool => "TOOL_FAILED",
            Self::InvalidConfirmation => "INVALID_CONFIRMATION",
            Self::Unrecoverable => "UNRECOVERABLE",
            Self::InvalidOutput => "INVALID_OUTPUT",
            Self::Handler => "HANDLER_FAILED",
            Self::RateLimited => "RATE_LIMITED",
            Self::CircuitOpen => "CIRCUIT_OPEN",
            Self::Blocked => "BLOCKED",
            Self::Denied => "DENIED",
            Self::TooLarge => "TOO_LARGE",
            Self::Interrupted => "INTERRUPTED",
            Self::Panic => "PANIC",
            Self::Cancelled => "CANCELLED",
            Self::Store => "STORE_FAILED",
            Self::Corrupt => "CORRUPT",
            Self::Other => "ERROR",
        }
    }
}

impl ModelErrorKind {
    fn code(self) -> &'static str {
        match self {
            Self::Auth => "MODEL_AUTH",
            Self::RateLimited => "MODEL_RATE_LIMITED",
            Self::Overloaded => "MODEL_OVERLOADED",
            Self::ContextTooLong => "MODEL_CONTEXT_TOO_LONG",
            Self::Refused => "MODEL_REFUSED",
            Self::BadRequest => "MODEL_BAD_REQUEST",
            Self::Transport => "MODEL_TRANSPORT",
            Self::Other => "MODEL_FAILED",
        }
    }
}

impl Error {
    /// An error of that kind, with words for people.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), source: None, retry_after: None }))
    }

    /// The same with the error that caused it.
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same, with how long to wait before it is worth another try; [`Duration::MAX`] is never.
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    /// How long to wait before it is worth another try, if that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// A person must be asked this first. Whoever raises it is called again with the answer, which
    /// [`ToolContext::interrupt`](crate::ToolContext::interrupt) and its like give; they raise it, too.
    pub fn interrupt(question: impl Into<Question>) -> Self {
        Self::asked(question.into(), None, 0)
    }

    /// The same, said by whom, who asked so many questions before.
    pub fn asked(question: Question, by: Option<Asker>, nth: u32) -> Self {
        let message = question.message.clone();
        let raised = Raised::Question { question: Box::new(question), by, nth };
        Self::new(ErrorKind::Interrupted, message).with_source(raised)
    }

    /// Questions of a run that works for a call.
    pub fn asked_inside(interrupts: Vec<Interrupt>) -> Self {
        let raised = Raised::Inner(interrupts);
        Self::new(ErrorKind::Interrupted, raised.to_string()).with_source(raised)
    }

    /// The call waits with those of its batch that people are asked about. It is made again when one of them was answered,
    /// or when nobody is asked after all: then [`ToolContext::is_released`](crate::ToolContext::is_released).
    pub fn held() -> Self {
        Self::new(ErrorKind::Interrupted, Raised::Held.to_string()).with_source(Raised::Held)
    }

    /// What is asked, if it is control flow of that kind.
    pub fn raised(&self) -> Option<&Raised> {
        self.0.source.as_ref().and_then(|source| source.downcast_ref())
    }

    /// The same, asked by that one, if nobody said yet who asks.
    pub fn asked_by(mut self, asker: impl FnOnce() -> Asker) -> Self {
        if let Some(source) = &mut self.0.source
            && let Some(Raised::Question { by: by @ None, .. }) = source.downcast_mut()
        {
            *by = Some(asker());
        }
        self
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// What to tell people.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether it is control flow, which no retry, fallback or error-to-model policy may swallow.
    pub fn is_control(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Cancelled | ErrorKind::Interrupted)
    }

    /// Whether the same call may succeed later. A store that failed may, if it says when to try again.
    pub fn is_retryable(&self) -> bool {
        match self.0.kind {
            ErrorKind::SessionBusy
            | ErrorKind::SessionAbandoned
            | ErrorKind::StaleSession
            | ErrorKind::StreamCut
            | ErrorKind::RateLimited
            | ErrorKind::CircuitOpen
            | ErrorKind::Model(
                ModelErrorKind::RateLimited | ModelErrorKind::Overloaded | ModelErrorKind::Transport,
            ) => true,
            ErrorKind::Store => self.0.retry_after.is_some(),
            _ => false,
        }
    }

    /// Whether it comes from a panic that was caught, be it in a handler.
    pub fn is_panic(&self) -> bool {
        let source = self.0.source.as_ref().and_then(|source| source.downcast_ref::<Self>());
        self.0.kind == ErrorKind::Panic || source.is_some_and(Self::is_panic)
    }

    /// What a caught panic said, as an error.
    pub fn from_panic(what: &str, payload: &(dyn std::any::Any + Send)) -> Self {
        let words = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        Self::new(ErrorKind::Panic, format!("{what} panicked: {words}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Error");
        out.field("kind", &self.0.kind).field("message", &self.0.message);
        if let Some(source) = &self.0.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_found_by_its_code() {
        for kind in ErrorKind::ALL.iter().copied() {
            assert_eq!(ErrorKind::from_code(kind.code()), Some(kind));
        }
        assert_eq!(ErrorKind::from_code("NO_SUCH_CODE"), None);
    }
}
