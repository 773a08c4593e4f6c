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
        Some(ErrorCode::CannotOpen) => {
            (ErrorKind::Store, "cannot be opened: check that its folder exists and may be written")
        }
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Store, "cannot be read or written: check the disk"),
        _ => (ErrorKind::Store, "failed"),
    };
    let message = format!("the database {} {what} ({error}); nothing was written", path.display());
    Error::new(kind, message).with_source(error)
}
