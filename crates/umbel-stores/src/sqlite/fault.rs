//! What SQLite says went wrong, as errors of Umbel.

use std::path::Path;

use rusqlite::ErrorCode;
use umbel_core::{Error, ErrorKind};

/// An error of the database at that path.
pub(super) fn fault(path: &Path, error: rusqlite::Error) -> Error {
    let (kind, what) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            (ErrorKind::Corrupt, "is damaged or is no database: restore it from a copy")
        }
        Some(ErrorCode::DiskFull) => {
            (ErrorKind::Store, "cannot grow, since the disk is full: free some space")
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            (ErrorKind::Store, "may not be written: check the permissions of the file and its folder")
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Store, "is locked by another process: wait for it, or stop it")
        }
        Some(ErrorCode::CannotOpen) => (ErrorKind::Store, cannot_open(path)),
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Store, "cannot be read or written: check the disk"),
        _ if is_unreadable(&error) => {
            (ErrorKind::Corrupt, "holds something that Umbel never wrote: restore it from a copy")
        }
        _ => (ErrorKind::Store, "failed"),
    };
    let message = format!("the database {} {what} ({error}); nothing was written", path.display());
    Error::new(kind, message).with_source(error)
}

/// Why a file cannot be opened, as far as that can be seen.
fn cannot_open(path: &Path) -> &'static str {
    if path.is_dir() {
        return "cannot be opened, since it is a folder: name a file in it";
    }
    if path.parent().is_some_and(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        return "cannot be opened, since its folder does not exist: make the folder first";
    }
    "cannot be opened: check that the file and its folder may be read and written, and that the disk is not full"
}

/// Whether a value is of another type than its column has.
fn is_unreadable(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    matches!(
        error,
        FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..)
    )
}

/// A database that can be read and not written.
pub(super) fn read_only(path: &Path) -> Error {
    let message = format!(
        "the database {} may not be written: check the permissions of the file and its folder, and how its disk is mounted",
        path.display()
    );
    Error::new(ErrorKind::Store, message)
}
