//! What PostgreSQL says went wrong, as errors of Umbel.

use deadpool_postgres::{HookError, PoolError, TimeoutType};
use tokio_postgres::error::SqlState;
use umbel_core::{Error, ErrorKind};

/// What may go wrong in a piece of work.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server failed, or the way to it.
    Postgres(tokio_postgres::Error),
    /// No connection could be had.
    Pool(PoolError),
    /// The contract forbids it, or something cannot be read.
    Refused(Error),
}

impl Trouble {
    /// Whether it was looked at, and is not allowed.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_))
    }

    /// Whether the connection is gone, or another transaction stood in the way: on another one it may go well.
    pub(super) fn may_pass(&self) -> bool {
        let (error, passing) = match self {
            Self::Postgres(error) => (error, &PASSING[..]),
            Self::Pool(PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error))) => {
                (error, &CONNECTING[..])
            }
            Self::Pool(_) | Self::Refused(_) => return false,
        };
        match error.code() {
            Some(code) => passing.contains(code),
            None => error.is_closed() || is_io(error),
        }
    }
}

/// What work that was begun may stumble over.
const PASSING: [SqlState; 5] = [
    SqlState::ADMIN_SHUTDOWN,
    SqlState::CRASH_SHUTDOWN,
    SqlState::CANNOT_CONNECT_NOW,
    SqlState::T_R_DEADLOCK_DETECTED,
    SqlState::T_R_SERIALIZATION_FAILURE,
];

/// What a new connection may stumble over.
const CONNECTING: [SqlState; 4] = [
    SqlState::ADMIN_SHUTDOWN,
    SqlState::CRASH_SHUTDOWN,
    SqlState::CANNOT_CONNECT_NOW,
    SqlState::TOO_MANY_CONNECTIONS,
];

fn is_io(error: &tokio_postgres::Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
    }
}

impl From<PoolError> for Trouble {
    fn from(error: PoolError) -> Self {
        Self::Pool(error)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Refused(error) => error,
            Trouble::Postgres(error) => fault(error),
            Trouble::Pool(
                PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)),
            ) => fault(error),
            Trouble::Pool(PoolError::Timeout(TimeoutType::Wait)) => {
                let message =
                    "all connections to PostgreSQL are in use: allow more of them, or ask less at once";
                Error::new(ErrorKind::Store, message)
            }
            Trouble::Pool(PoolError::Timeout(_)) => {
                let message = "PostgreSQL does not answer in time: check that it runs and is not overloaded";
                Error::new(ErrorKind::Store, message)
            }
            Trouble::Pool(error) => {
                Error::new(ErrorKind::Store, format!("no connection to PostgreSQL: {error}"))
                    .with_source(error)
            }
        }
    }
}

fn fault(error: tokio_postgres::Error) -> Error {
    let (kind, what) = match error.code() {
        Some(code) => said_by_server(code),
        None if error.is_closed() || is_io(&error) => {
            (ErrorKind::Store, "cannot be reached, or went away: check that it runs")
        }
        None => (ErrorKind::Store, "gave something that is not understood: check its address and version"),
    };
    let said = error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
    Error::new(kind, format!("PostgreSQL {what} ({said}); nothing was written")).with_source(error)
}

/// What an answer of the server means, and what to do about it.
fn said_by_server(code: &SqlState) -> (ErrorKind, &'static str) {
    let what = match *code {
        SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED => {
            return (ErrorKind::Corrupt, "has damaged data: restore it from a copy");
        }
        SqlState::PROGRAM_LIMIT_EXCEEDED => {
            return (ErrorKind::InvalidInput, "cannot take something that long: use shorter names");
        }
        SqlState::DISK_FULL => "has no room left: free some space",
        SqlState::READ_ONLY_SQL_TRANSACTION => "may only be read: use the address of the primary",
        SqlState::TOO_MANY_CONNECTIONS => "takes no more connections: allow more of them, or use fewer",
        SqlState::LOCK_NOT_AVAILABLE => {
            "kept waiting for a lock that another connection holds: end that transaction"
        }
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            "does not let this user in: check the user and the password in the address"
        }
        SqlState::INVALID_CATALOG_NAME => "has no such database: create it, or check the address",
        SqlState::INSUFFICIENT_PRIVILEGE => "does not allow this user that: grant what is missing",
        _ => "refused",
    };
    (ErrorKind::Store, what)
}
