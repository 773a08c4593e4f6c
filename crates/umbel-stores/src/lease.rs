//! Leases as columns hold them.

use std::time::Duration;

/// A century: a lease that long never expires, and the end of it is a time that every database can compute with.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The length of a lease in milliseconds.
pub(crate) fn ttl_millis(ttl: Duration) -> i64 {
    i64::try_from(ttl.min(LONGEST).as_millis()).unwrap_or(i64::MAX)
}
