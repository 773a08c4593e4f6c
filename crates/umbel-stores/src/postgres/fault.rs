//! What PostgreSQL says went wrong, as errors of Umbel.

use std::time::Duration;

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
    /// The server did not answer within that time. What became of what it was asked is not known.
    Late(Duration),
    /// The contract forbids it, or something cannot be read.
    Refused(Error),
}

impl Trouble {
    /// Whether it was looked at, and is not allowed.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_))
    }

    /// Whether nobody knows if something was written.
    pub(super) fn leaves_doubt(&self) -> bool {
        // Where no connection could be had, nothing was asked.
        matches!(self, Self::Late(_)) || (matches!(self, Self::Postgres(_)) && self.may_pass())
    }

    /// Whether the connection is gone, or another transaction stood in the way: on another one it may go well.
    pub(super) fn may_pass(&self) -> bool {
        let (error, passing) = match self {
            Self::Postgres(error) => (error, &PASSING[..]),
            Self::Pool(PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error))) => {
                (error, &CONNECTING[..])
            }
            Self::Pool(_) | Self::Late(_) | Self::Refused(_) => return false,
        };
        match error.code() {
            Some(code) => passing.contains(code),
            None => error.is_closed() || is_io(error),
        }
    }
}

/// What a server is said to do from which nothing comes.
pub(super) const NO_ANSWER: &str =
    "PostgreSQL does not answer in time: check that it runs and is not overloaded";

/// When it is worth another try.
const SOON: Duration = Duration::from_secs(1);

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

/// What was waited for in vain, and may be there the next time.
const WAITED: [SqlState; 2] = [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED];

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
                Error::new(ErrorKind::Store, message).with_retry_after(SOON)
            }
            Trouble::Pool(PoolError::Timeout(_) | PoolError::PostCreateHook(HookError::Message(_))) => {
                let message = format!("{NO_ANSWER}, or raise `connect_timeout`");
                Error::new(ErrorKind::Store, message).with_retry_after(SOON)
            }
            Trouble::Late(time) => {
                let message =
                    format!("{NO_ANSWER}, or raise `statement_timeout` (it took more than {time:?})");
                Error::new(ErrorKind::Store, message).with_retry_after(SOON)
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
    let may_pass = match error.code() {
        Some(code) => PASSING.contains(code) || CONNECTING.contains(code) || WAITED.contains(code),
        None => error.is_closed() || is_io(&error),
    };
    let said = error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
    let fault =
        Error::new(kind, format!("PostgreSQL {what} ({said}); nothing was written")).with_source(error);
    if may_pass { fault.with_retry_after(SOON) } else { fault }
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
        SqlState::QUERY_CANCELED => {
            "took too long for a statement: see what holds it up, or raise `statement_timeout`"
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
