//! Who asks.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{StatusCode, header};
use smol_str::SmolStr;
use umbel_core::BoxFuture;

use crate::problem::Problem;

/// The code of a token that is not good.
pub(crate) const INVALID_TOKEN: &str = "INVALID_TOKEN";

/// The scope of all agents and mounted services.
const ALL: &str = "*";

/// The scope of the server's figures.
pub(crate) const METRICS: &str = "metrics";

/// The scope of looking into agents and their work.
pub(crate) const INSPECT: &str = "inspect";

/// Who asks. Everything a request can reach is theirs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    /// Their name: the user of their sessions.
    pub id: SmolStr,
    /// What else is known of them, such as the claims of a token.
    pub claims: Option<Arc<serde_json::Value>>,
    /// What they may do, if that is not what everybody may: use all agents and mounted services, and nothing else.
    ///
    /// A scope is the path of an agent or of a mounted service, such as `/chat`, or `*` for all of them; `inspect`, to look into
    /// agents and their work; or `metrics`.
    pub scopes: Option<Arc<[SmolStr]>>,
}

impl Principal {
    /// Somebody with that name.
    pub fn new(id: impl Into<SmolStr>) -> Self {
        Self { id: id.into(), claims: None, scopes: None }
    }

    /// The same, who may do this and nothing else.
    pub fn scopes<S: Into<SmolStr>>(self, scopes: impl IntoIterator<Item = S>) -> Self {
        Self { scopes: Some(scopes.into_iter().map(Into::into).collect()), ..self }
    }

    /// Whoever sits at this machine: the one principal of a server without auth, on loopback.
    pub fn local() -> Self {
        Self::new("local").scopes([ALL, METRICS])
    }

    /// Whether they may use what is at that path.
    pub(crate) fn may_use(&self, path: &str) -> bool {
        self.scopes.as_ref().is_none_or(|scopes| scopes.iter().any(|scope| scope == ALL || scope == path))
    }

    /// Whether they were given that scope.
    pub(crate) fn has_scope(&self, name: &str) -> bool {
        self.scopes.as_ref().is_some_and(|scopes| scopes.iter().any(|scope| scope == name))
    }
}

/// Tells who asks. Without one, a server listens on loopback alone.
///
/// There are [`BearerTokens`](crate::BearerTokens), [`Jwt`](crate::Jwt), and [`auth_fn`] for anything else.
pub trait Auth: Send + Sync + fmt::Debug {
    /// Who sent a request with this head; a problem if nobody who may.
    fn principal<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Result<Principal, Problem>>;
}

/// A closure that tells who asks.
///
/// ```
/// use umbel_server::{Principal, Problem, auth_fn};
///
/// // A proxy in front has found out who it is.
/// let auth = auth_fn(|head| {
///     let user = head.headers.get("x-user").and_then(|user| user.to_str().ok()).map(Principal::new);
///     async move { user.ok_or_else(|| Problem::unauthorized("the proxy names nobody")) }
/// });
/// # let _: &dyn umbel_server::Auth = &auth;
/// ```
pub fn auth_fn<F, R>(ask: F) -> impl Auth + 'static
where
    F: Fn(&Parts) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Principal, Problem>> + Send + 'static,
{
    AuthFn(ask)
}

struct AuthFn<F>(F);

impl<F, R> Auth for AuthFn<F>
where
    F: Fn(&Parts) -> R + Send + Sync,
    R: Future<Output = Result<Principal, Problem>> + Send + 'static,
{
    fn principal<'a>(&'a self, head: &'a Parts) -> BoxFuture<'a, Result<Principal, Problem>> {
        Box::pin(self.0(head))
    }
}

impl<F> fmt::Debug for AuthFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AuthFn")
    }
}

/// The token of a request, from `Authorization: Bearer TOKEN`.
pub fn bearer_token(head: &Parts) -> Result<&str, Problem> {
    let mut given = head.headers.get_all(header::AUTHORIZATION).iter();
    let (Some(first), None) = (given.next(), given.next()) else {
        return Err(Problem::unauthorized("say who you are, with `Authorization: Bearer TOKEN`"));
    };
    let scheme_and_token = first.to_str().ok().and_then(|given| given.trim().split_once(' '));
    match scheme_and_token.map(|(scheme, token)| (scheme, token.trim())) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() => Ok(token),
        _ => Err(Problem::unauthorized("only `Authorization: Bearer TOKEN` is understood")),
    }
}

impl Problem {
    /// Nobody who may ask has said who they are.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", message)
    }

    /// They are known, and may not do that.
    pub(crate) fn lacks_scope(scope: &str) -> Self {
        let message = format!("your token does not have the scope `{scope}`");
        Self::new(StatusCode::FORBIDDEN, "INSUFFICIENT_SCOPE", message)
    }

    /// A token that is not good.
    pub(crate) fn invalid_token(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, INVALID_TOKEN, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(given: &[&str]) -> Parts {
        let mut request = http::Request::builder();
        for value in given {
            request = request.header(header::AUTHORIZATION, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_bearer_token_is_found_and_nothing_else_is_taken_for_one() {
        for given in ["Bearer abc", "bearer abc", "BEARER  abc "] {
            assert_eq!(bearer_token(&head(&[given])), Ok("abc"), "{given}");
        }
        for given in [&[][..], &["Bearer"], &["Bearer "], &["Basic abc"], &["abc"], &["Bearer a", "Bearer b"]]
        {
            let problem = bearer_token(&head(given)).unwrap_err();
            assert_eq!((problem.status, problem.code.as_str()), (StatusCode::UNAUTHORIZED, "UNAUTHORIZED"));
        }
    }
}
