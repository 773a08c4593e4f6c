//! What every request passes first: is it meant for this server, does it come from where it may, and who sent it.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use smol_str::SmolStr;
use umbel_core::Error;

use crate::app::App;
use crate::auth::{Auth, INVALID_TOKEN, Principal};
use crate::connections::Connection;
use crate::metrics::Counted;
use crate::problem::Problem;
use crate::trace::request::{Head, traced};

/// Where the studio is, below the base path.
pub(crate) const STUDIO: &str = "/studio";

/// Which pages may make an answer part of themselves.
const CROSS_ORIGIN: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Where requests may come from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    /// Names by which the server may be asked; any if empty.
    pub(crate) hosts: Vec<String>,
    /// Pages of other origins that may ask.
    pub(crate) origins: Vec<String>,
    /// Paths that anybody may ask for.
    pub(crate) open: Vec<String>,
    /// What comes before the path of the studio, if there is one: its pages may be read by anybody.
    pub(crate) studio_at: Option<SmolStr>,
}

impl Gate {
    /// A problem if the request is not meant for this server, or comes from a page that may not ask. A page in a browser
    /// can make a name of its own point to this machine, and so reach a server that only listens here.
    fn check(&self, headers: &HeaderMap, is_tls: bool) -> Result<(), Problem> {
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let name = host.map(without_port).unwrap_or_default();
        if !self.hosts.is_empty() && !self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            let message = "this server is not known by that name: see `allow_host`";
            return Err(Problem::new(StatusCode::FORBIDDEN, "HOST_NOT_ALLOWED", message));
        }
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
        let origin = origin.to_str().unwrap_or_default();
        // Behind a proxy nobody knows by which scheme clients ask. With TLS, a page that came
        // without is another's.
        let own = origin
            .split_once("://")
            .is_some_and(|(scheme, from)| Some(from) == host && (!is_tls || scheme == "https"));
        if own || self.allows(origin) {
            return Ok(());
        }
        let message = "pages of that origin may not ask this server: see `allow_origin`";
        Err(Problem::new(StatusCode::FORBIDDEN, "ORIGIN_NOT_ALLOWED", message))
    }

    /// Whether nobody needs to say who they are.
    fn is_open(&self, method: &Method, path: &str) -> bool {
        let reads = *method == Method::GET || *method == Method::HEAD;
        let is_page = |base: &SmolStr| {
            let Some(path) = path.strip_prefix(base.as_str()) else { return false };
            let below = path.strip_prefix(STUDIO);
            path == "/" || below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
        };
        self.open.iter().any(|open| open == path) || reads && self.studio_at.as_ref().is_some_and(is_page)
    }

    fn allows(&self, origin: &str) -> bool {
        self.origins.iter().any(|known| known.eq_ignore_ascii_case(origin))
    }
}

/// A host without its port.
fn without_port(host: &str) -> &str {
    if let Some(end) = host.strip_prefix('[').and_then(|rest| rest.find(']')) {
        return host.get(..end + 2).unwrap_or(host);
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

/// Lets a request through, or answers it.
pub(crate) async fn pass(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let allowed = origin.filter(|origin| origin.to_str().is_ok_and(|origin| app.gate.allows(origin)));
    // Whoever only looks whether the server is alive does so all the time.
    let is_traced = !app.gate.is_open(request.method(), request.uri().path());
    let head = if is_traced { Head::of(&request, app.takes_tracestate) } else { None };
    let entered = AssertUnwindSafe(enter(&app, request)).catch_unwind().await;
    let entered = entered.unwrap_or_else(|panic| Err(panicked(&*panic)));
    // Who was not let in has no say in which trace this is part of.
    let span = head.and_then(|head| head.span(app.trusts_traces && entered.is_ok()));
    let work = async {
        match entered {
            Ok(Some(request)) => match user_of(&app, &request) {
                Some(user) => app.runs.quotas.metered(user, next.run(request)).await,
                None => next.run(request).await,
            },
            // A browser asks whether a page may ask.
            Ok(None) => preflight(),
            Err(problem) => {
                app.metrics.count(Counted::Refused);
                turned_away(&app, problem)
            }
        }
    };
    let work = AssertUnwindSafe(work)
        .catch_unwind()
        .map(|answered| answered.unwrap_or_else(|panic| panicked(&*panic).into_response()));
    let mut response = match span {
        Some(span) => Box::pin(traced(span, work)).await,
        None => work.await,
    };
    let headers = response.headers_mut();
    for (name, value) in [
        // Nothing here is to be guessed at, kept by others, or made part of their pages.
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (CROSS_ORIGIN, HeaderValue::from_static("same-origin")),
    ] {
        headers.entry(name).or_insert(value);
    }
    if let Some(origin) = allowed {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.append(header::VARY, HeaderValue::from_static("origin"));
        let exposed = HeaderValue::from_static("content-location, mcp-session-id, retry-after");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    response
}

/// The user whose quotas a request counts for, if there are several.
fn user_of(app: &App, request: &Request) -> Option<SmolStr> {
    app.auth.as_ref()?;
    Some(request.extensions().get::<Principal>()?.id.clone())
}

fn panicked(panic: &(dyn Any + Send)) -> Problem {
    Problem::from(Error::from_panic("a request", panic))
}

/// The answer to a request that is not let through. Who has no good token is told where to come by one, if that is known.
fn turned_away(app: &App, problem: Problem) -> Response {
    let how = app.protected.as_ref().filter(|_| problem.status == StatusCode::UNAUTHORIZED);
    let how =
        how.map(|told| if problem.code == "INVALID_TOKEN" { &told.invalid } else { &told.bare }).cloned();
    let mut response = problem.into_response();
    if let Some(how) = how {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    }
    response
}

/// Checks a request and finds out who sent it; `None` if a browser only asks whether a page may send one.
async fn enter(app: &App, request: Request) -> Result<Option<Request>, Problem> {
    let (mut head, body) = request.into_parts();
    let connection = head.extensions.get::<Arc<Connection>>().cloned();
    app.gate.check(&head.headers, connection.as_ref().is_some_and(|connection| connection.is_tls))?;
    let asks_first = head.method == Method::OPTIONS
        && head.headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
        && !app.gate.origins.is_empty();
    if asks_first {
        return Ok(None);
    }
    // Whether the server is alive is no secret.
    if !app.gate.is_open(&head.method, head.uri.path()) {
        let principal = match &app.auth {
            Some(auth) => authenticate(app, &**auth, &head, connection.as_deref()).await?,
            None => Principal::local(),
        };
        if let Some(connection) = connection {
            connection.trust();
        }
        app.check_scope(&principal, head.uri.path())?;
        head.extensions.insert(principal);
    }
    Ok(Some(Request::from_parts(head, body)))
}

/// Who sent a request, if they do not ask too often.
async fn authenticate(
    app: &App,
    auth: &dyn Auth,
    head: &Parts,
    connection: Option<&Connection>,
) -> Result<Principal, Problem> {
    let rates = &app.runs.rates;
    if let Some(connection) = connection {
        rates.check_guess(connection.peer, &head.headers)?;
    }
    let known = auth.principal(head).await;
    if let (Err(problem), Some(connection)) = (&known, connection)
        && problem.code == INVALID_TOKEN
    {
        rates.count_guess(connection.peer);
    }
    let principal = known?;
    rates.note_good(&head.headers);
    rates.count_request(&principal.id, app.runs.limits())?;
    app.runs.quotas.check_cpu(&principal.id, app.runs.limits())?;
    Ok(principal)
}

fn preflight() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE"),
        (
            header::ACCESS_CONTROL_ALLOW_HEADERS,
            "accept, authorization, content-type, last-event-id, traceparent, tracestate, \
             mcp-method, mcp-name, mcp-protocol-version, mcp-session-id",
        ),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
