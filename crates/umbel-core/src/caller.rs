//! Who a request comes from.

use smol_str::SmolStr;

/// Who a request comes from, as the server says that found it out. It is put among the extensions of a request, for
/// services that a server mounts and that do not ask again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The user of their sessions.
    pub user: SmolStr,
    /// The app of their sessions, such as a tenant's; that of whatever serves them if absent. Nothing of one app can be
    /// reached from another.
    pub app: Option<SmolStr>,
}

impl Caller {
    /// Somebody with that name.
    pub fn new(user: impl Into<SmolStr>) -> Self {
        Self { user: user.into(), app: None }
    }

    /// The same, with the app of their sessions.
    pub fn app(mut self, app: impl Into<SmolStr>) -> Self {
        self.app = Some(app.into());
        self
    }
}
