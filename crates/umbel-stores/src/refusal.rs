//! The errors of the session contract, in the same words for every database.

use umbel_core::{Error, ErrorKind, SessionKey};

pub(crate) fn not_found(key: &SessionKey) -> Error {
    Error::new(ErrorKind::SessionNotFound, format!("there is no session {key}: create it first"))
}

pub(crate) fn exists(key: &SessionKey) -> Error {
    let message = format!("session {key} exists already: choose another id or use that one");
    Error::new(ErrorKind::AlreadyExists, message)
}

pub(crate) fn busy(key: &SessionKey) -> Error {
    let message = format!("session {key} is held by another run: wait for it to end, or cancel it");
    Error::new(ErrorKind::SessionBusy, message)
}

pub(crate) fn abandoned(key: &SessionKey) -> Error {
    let message = format!("a run was cut short in session {key}: go on with it first, with `recover`");
    Error::new(ErrorKind::SessionAbandoned, message)
}

pub(crate) fn fenced(key: &SessionKey) -> Error {
    let message = format!("the lease of session {key} was given back or taken over; nothing was written");
    Error::new(ErrorKind::Fenced, message)
}

pub(crate) fn stale(key: &SessionKey) -> Error {
    let message = format!("session {key} has changed since it was read: read it again");
    Error::new(ErrorKind::StaleSession, message)
}

pub(crate) fn artifact_exists(name: &str) -> Error {
    let message = format!("artifact `{name}` has that version already: import into another database");
    Error::new(ErrorKind::AlreadyExists, message)
}
