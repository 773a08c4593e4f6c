//! What PostgreSQL says went wrong, as errors of Umbel.

use deadpool_postgres::{PoolError, TimeoutType};
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
    /// Whether the connection is gone, or another transaction stood in the way: on another one it may go well.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Postgres(error) => match error.code() {
                Some(code) => {
                    let passing = [
                        SqlState::ADMIN_SHUTDOWN,
                        SqlState::CRASH_SHUTDOWN,
                        SqlState::CANNOT_CONNECT_NOW,
                        SqlState::T_R_DEADLOCK_DETECTED,
                        SqlState::T_R_SERIALIZATION_FAILURE,
                    ];
                    passing.contains(code)
                }
                None => error.is_closed() || is_io(error),
            },
            Self::Pool(PoolError::Backend(error)) => {
                error.code().is_none_or(|code| *code == SqlState::CANNOT_CONNECT_NOW)
                    && (error.is_closed() || is_io(error) || error.code().is_some())
            }
            Self::Pool(_) | Self::Refused(_) => false,
        }
    }
}

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
            Trouble::Pool(PoolError::Backend(error)) => fault(error),
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
        Some(code) if *code == SqlState::DATA_CORRUPTED || *code == SqlState::INDEX_CORRUPTED => {
            (ErrorKind::Corrupt, "has damaged data: restore it from a copy")
        }
        Some(code) if *code == SqlState::DISK_FULL => (ErrorKind::Store, "has no room left: free some space"),
        Some(code) if *code == SqlState::PROGRAM_LIMIT_EXCEEDED => {
            (ErrorKind::InvalidInput, "cannot take something that long: use shorter names")
        }
        Some(code) if *code == SqlState::READ_ONLY_SQL_TRANSACTION => {
            (ErrorKind::Store, "may only be read: use the address of the primary")
        }
        Some(code) if *code == SqlState::TOO_MANY_CONNECTIONS => {
            (ErrorKind::Store, "takes no more connections: allow more of them, or use fewer")
        }
        Some(_) => (ErrorKind::Store, "refused"),
        None => (ErrorKind::Store, "cannot be reached, or went away: check that it runs"),
    };
    let said = error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned());
    Error::new(kind, format!("PostgreSQL {what} ({said}); nothing was written")).with_source(error)
}
