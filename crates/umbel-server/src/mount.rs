//! Services of others at paths of the server, behind the same gate and within the same limits.

use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any};
use http::request::Parts;
use tower_service::Service;
use umbel_core::{Caller, RequestTrace, TraceContext};

use crate::app::App;
use crate::auth::Principal;
use crate::post::{principal, read};
use crate::problem::Problem;

/// Tells who a request for a mounted service comes from.
pub(crate) type ToCaller = dyn Fn(&Parts, &Principal) -> Result<Caller, Problem> + Send + Sync;

/// The route of a service. It gets requests that are whole, and as their [`Caller`] who sent them.
pub(crate) fn route<S, R>(service: S) -> MethodRouter<Arc<App>>
where
    S: Service<Request, Response = R, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    R: IntoResponse,
{
    any(async move |State(app): State<Arc<App>>, request: Request| -> Response {
        let (mut head, body) = request.into_parts();
        let known = principal(&head).and_then(|principal| match &app.caller {
            Some(make) => make(&head, &principal),
            None => Ok(Caller::new(principal.id)),
        });
        let caller = match known {
            Ok(caller) => caller,
            Err(problem) => return problem.into_response(),
        };
        if let Some(name) = &caller.app {
            app.caller_apps.note(name);
        }
        head.extensions.insert(caller);
        let trace = RequestTrace {
            span: TraceContext::current(),
            is_trusted: app.trusts_traces,
            takes_state: app.takes_tracestate,
        };
        head.extensions.insert(trace);
        let body = match read(app.runs.limits(), body).await {
            Ok(body) => body,
            Err(problem) => return problem.into_response(),
        };
        let mut service = service.clone();
        let Ok(()) = poll_fn(|cx| service.poll_ready(cx)).await;
        let Ok(response) = service.call(Request::from_parts(head, Body::from(body))).await;
        response.into_response()
    })
}
