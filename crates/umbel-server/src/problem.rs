//! What a client is told when something is wrong: a code, a plain message, and a reference for whoever looks into it.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use smol_str::{SmolStr, format_smolstr};
use umbel_agui::{InputError, InputErrorKind, ResumeError};
use umbel_core::interrupt::questions_in_words;
use umbel_core::{Error, ErrorKind, Failure, Object};

/// Something a client is told. What it is told of a fault of ours says nothing about our insides: that goes to the log,
/// under the same reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The HTTP status.
    pub status: StatusCode,
    /// What it is, for programs. The codes are listed in the guide.
    pub code: SmolStr,
    /// What it is, for people.
    pub message: String,
    /// Where to look it up in the server's log; only where there is more to know.
    pub reference: Option<SmolStr>,
    /// After how many seconds to try again.
    pub retry_after: Option<u64>,
}

impl Problem {
    /// A problem of the client's.
    pub fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { status, code: code.into(), message: message.into(), reference: None, retry_after: None }
    }

    /// There is no such thing, or it is somebody else's: nobody is told which.
    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NOT_FOUND", format!("there is no such {what}"))
    }

    /// A name is given twice.
    pub(crate) fn run_exists(run: &str) -> Self {
        let message = format!("run `{run}` was begun with another request: choose another id");
        Self::new(StatusCode::CONFLICT, "RUN_EXISTS", message)
    }

    /// Too much is going on.
    pub(crate) fn busy(message: impl Into<String>) -> Self {
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_RUNS", message);
        Self { retry_after: Some(1), ..problem }
    }

    /// The request took too long to arrive.
    pub(crate) fn too_slow() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "REQUEST_TOO_SLOW",
            "the request took too long to arrive (`request_time`)",
        )
    }

    /// What the client gets.
    pub(crate) fn body(&self) -> Value {
        let mut error = Object::new();
        error.insert("code".to_owned(), self.code.as_str().into());
        error.insert("message".to_owned(), self.message.as_str().into());
        if let Some(reference) = &self.reference {
            error.insert("reference".to_owned(), reference.as_str().into());
        }
        json!({ "error": error })
    }

    /// The server is about to stop.
    pub(crate) fn shutting_down(message: &str) -> Self {
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, "SHUTTING_DOWN", message);
        Self { retry_after: Some(1), ..problem }
    }

    /// What was asked for was not begun.
    pub(crate) fn not_begun(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "NOT_BEGUN", message)
    }

    /// Whether it is told as the end of a run: the protocol has it so for what concerns interrupts.
    pub(crate) fn is_of_run(&self) -> bool {
        let codes = [
            "UNKNOWN_INTERRUPT",
            "INTERRUPT_RESUME_REQUIRED",
            "INTERRUPT_RESUME_INCOMPLETE",
            "INVALID_ANSWER",
        ];
        codes.contains(&self.code.as_str())
    }

    /// The message with the reference, where there is no other place for it.
    pub(crate) fn text(&self) -> String {
        match &self.reference {
            Some(reference) => format!("{} (reference {reference})", self.message),
            None => self.message.clone(),
        }
    }

    /// A fault of ours. The log gets the whole of it.
    pub(crate) fn internal(code: &str, message: &str, detail: &dyn std::fmt::Display) -> Self {
        let reference = reference();
        tracing::error!(%reference, code, "{detail}");
        let problem = Self::new(StatusCode::INTERNAL_SERVER_ERROR, code, message);
        Self { reference: Some(reference), ..problem }
    }
}

/// A name for one occurrence of a problem.
fn reference() -> SmolStr {
    let id = umbel_core::Ids::mint(&umbel_core::RandomIds, umbel_core::IdKind::Session);
    format_smolstr!("{}", id.get(..10).unwrap_or(&id))
}

/// What a client is told of an error, by its code: words for people, unless it did something wrong itself and is told
/// what.
fn told(code: &str) -> Option<(StatusCode, &'static str)> {
    let known = [
        (ErrorKind::SessionNotFound, StatusCode::NOT_FOUND, "there is no such thread"),
        (
            ErrorKind::SessionBusy,
            StatusCode::CONFLICT,
            "another run has this thread: try again when it is done",
        ),
        (
            ErrorKind::StaleSession,
            StatusCode::CONFLICT,
            "another run has this thread: try again when it is done",
        ),
        (
            ErrorKind::SessionAbandoned,
            StatusCode::CONFLICT,
            "another run has this thread: try again when it is done",
        ),
        (ErrorKind::Fenced, StatusCode::CONFLICT, "another server has taken over this run"),
        (ErrorKind::Cancelled, StatusCode::OK, "the run was cancelled"),
        (ErrorKind::Tool, StatusCode::INTERNAL_SERVER_ERROR, "a tool failed"),
        (ErrorKind::ModelCallLimit, StatusCode::INTERNAL_SERVER_ERROR, "the run used up its model calls"),
        (ErrorKind::Timeout, StatusCode::INTERNAL_SERVER_ERROR, "the run took too long"),
        (ErrorKind::StreamCut, StatusCode::BAD_GATEWAY, "the model's answer broke off"),
    ];
    let own = [ErrorKind::InvalidInput, ErrorKind::InvalidConfirmation];
    if own.iter().any(|kind| kind.code() == code) {
        return None;
    }
    let known =
        known.into_iter().find(|(kind, ..)| kind.code() == code).map(|(_, status, words)| (status, words));
    let is_model = code.starts_with("MODEL_");
    let other = if is_model { "the model could not answer" } else { "the run failed" };
    Some(known.unwrap_or((StatusCode::INTERNAL_SERVER_ERROR, other)))
}

/// The code that clients know. An answer that does not fit is the same to them, whoever noticed.
fn public(code: &str) -> &str {
    if code == ErrorKind::InvalidConfirmation.code() { "INVALID_ANSWER" } else { code }
}

impl Problem {
    /// What is told of a failure that the log has.
    pub(crate) fn of_failure(failure: &Failure) -> Self {
        match told(&failure.code) {
            None => Self::new(StatusCode::BAD_REQUEST, public(&failure.code), failure.message.clone()),
            Some((status, words)) => Self::new(status, &failure.code, words),
        }
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        let code = error.kind().code();
        match told(code) {
            None => Self::new(StatusCode::BAD_REQUEST, public(code), error.message()),
            Some((status, words)) if status.is_server_error() => {
                Self { status, ..Self::internal(code, words, error) }
            }
            Some((status, words)) => Self::new(status, code, words),
        }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<InputError> for Problem {
    fn from(error: InputError) -> Self {
        let (status, code) = match error.kind {
            InputErrorKind::NotJson => (StatusCode::BAD_REQUEST, "NOT_JSON"),
            InputErrorKind::TooMuch => (StatusCode::PAYLOAD_TOO_LARGE, "TOO_MUCH"),
            _ => (StatusCode::UNPROCESSABLE_ENTITY, "INVALID_INPUT"),
        };
        Self::new(status, code, error.to_string())
    }
}

fn in_words(open: &[(SmolStr, Option<String>)]) -> String {
    questions_in_words(open.iter().map(|(id, message)| (id.as_str(), message.as_deref())))
}

impl From<ResumeError> for Problem {
    fn from(error: ResumeError) -> Self {
        let (code, message) = match error {
            ResumeError::UnknownInterrupt(id) => {
                ("UNKNOWN_INTERRUPT", format!("nobody asked question `{id}` in this thread"))
            }
            ResumeError::ResumeRequired(open) => (
                "INTERRUPT_RESUME_REQUIRED",
                format!(
                    "the thread waits for {} answers: send `resume` with all of them first; open are {}",
                    open.len(),
                    in_words(&open)
                ),
            ),
            ResumeError::ResumeIncomplete(left) => {
                ("INTERRUPT_RESUME_INCOMPLETE", format!("these questions are left open: {}", in_words(&left)))
            }
            ResumeError::InvalidAnswer(id, why) => {
                ("INVALID_ANSWER", format!("question `{id}` cannot be answered like this: {why}"))
            }
        };
        Self::new(StatusCode::CONFLICT, code, message)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.body().to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::UNAUTHORIZED {
            // What a client is to do about it, as RFC 6750 has it.
            let how = match self.code.as_str() {
                "INVALID_TOKEN" => "Bearer error=\"invalid_token\"",
                _ => "Bearer",
            };
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(how));
        }
        if self.code == "INSUFFICIENT_SCOPE" {
            let how = HeaderValue::from_static("Bearer error=\"insufficient_scope\"");
            headers.insert(header::WWW_AUTHENTICATE, how);
        }
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
