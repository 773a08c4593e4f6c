//! Who a request comes from.

use smol_str::SmolStr;

/// Who a request comes from, as the server says that found it out. It is put among the extensions of a request, for
/// services that a server mounts and that do not ask again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The user of their sessions.
    pub user: SmolStr,
}

impl Caller {
    /// Somebody with that name.
    pub fn new(user: impl Into<SmolStr>) -> Self {
        Self { user: user.into() }
    }
}
