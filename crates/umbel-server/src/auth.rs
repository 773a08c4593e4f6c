//! Who asks.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use smol_str::SmolStr;
use umbel_core::BoxFuture;

use crate::problem::Problem;

/// Who asks. Everything a request can reach is theirs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// Their name: the user of their sessions.
    pub id: SmolStr,
    /// What else is known of them, such as the claims of a token.
    pub claims: Option<Arc<serde_json::Value>>,
}

impl Principal {
    /// Somebody with that name.
    pub fn new(id: impl Into<SmolStr>) -> Self {
        Self { id: id.into(), claims: None }
    }

    /// Whoever sits at this machine: the one principal of a server without auth, on loopback.
    pub fn local() -> Self {
        Self::new("local")
    }
}

/// Tells who asks. Without one, a server listens on loopback alone.
pub trait Auth: Send + Sync + fmt::Debug {
    /// Who sent a request with this head; a problem if nobody who may.
    fn principal<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Result<Principal, Problem>>;
}
