//! The routes about the runs of an agent, and what it can do.

use std::collections::HashMap;
use std::time::Duration;

use axum::extract::{FromRequestParts, Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_agui::InputMark;
use umbel_core::{SafePoint, SessionKey, Versions};

use crate::app::Offered;
use crate::capabilities;
use crate::live::Stop;
use crate::place::Place;
use crate::post::{encoding, from_log, principal};
use crate::problem::Problem;
use crate::resolve::Asking;

/// How many of a user's threads are searched for a run whose thread is not named.
const SEARCHED: usize = 200;

/// How long it is waited before a run is looked for again, at first and at last; twice as long each time.
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LAST_LOOK: Duration = Duration::from_millis(640);

/// The threads in which a run was looked for and not found, and how far they were then. Each agent that it may be of has its
/// own.
pub(crate) type Looked = HashMap<(usize, SessionKey), Versions>;

/// A name in an address.
pub(crate) struct Named(pub(crate) SmolStr);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, Problem> {
        let named = Path::<SmolStr>::from_request_parts(head, state).await;
        named.map(|Path(name)| Self(name)).map_err(|_| {
            let message = "the address cannot be read: write it in UTF-8";
            Problem::new(StatusCode::BAD_REQUEST, "INVALID_INPUT", message)
        })
    }
}

/// JSON with a status.
pub(crate) fn answer(status: StatusCode, body: &Value) -> Response {
    let mut response = (status, body.to_string()).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A value of the query.
pub(crate) fn query(uri: &Uri, name: &str) -> Option<String> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.into_iter().find(|(key, _)| *key == name)?.1;
    let (mut bytes, mut rest) = (Vec::new(), value.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// `GET {agent}/capabilities`.
pub(crate) async fn capabilities(
    State(offered): State<Offered>,
    request: Request,
) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let asking = Asking { head: &head, principal: &principal(&head)?, input: None };
    let chosen = offered.choose(&asking, None).await?;
    let capabilities = capabilities::of(&chosen.as_ref().unwrap_or(&offered).endpoint);
    Ok(answer(StatusCode::OK, &serde_json::to_value(&*capabilities).unwrap_or_default()))
}

/// `GET {agent}/runs/{run}/events`.
pub(crate) async fn events(
    State(offered): State<Offered>,
    Named(run): Named,
    request: Request,
) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let principal = principal(&head)?;
    let seen = seen(&head)?;
    let thread = query(&head.uri, "thread");
    let asking = Asking { head: &head, principal: &principal, input: None };
    let may_begin = seen.is_some() || thread.is_some();
    let (mut pause, mut looked) = (FIRST_LOOK, Looked::new());
    loop {
        let found = stream_of(&offered, &asking, &run, (thread.as_deref(), &mut looked), seen.clone()).await;
        // That a run begins is told before the log knows of it: another server may hear of it a moment later.
        match found {
            Err(problem) if problem.status == StatusCode::NOT_FOUND && may_begin && pause <= LAST_LOOK => {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            found => return found,
        }
    }
}

/// The stream of a run from behind a place on.
async fn stream_of(
    offered: &Offered,
    asking: &Asking<'_>,
    run: &SmolStr,
    (thread, looked): (Option<&str>, &mut Looked),
    seen: Option<Place>,
) -> Result<Response, Problem> {
    let encoding = encoding(&asking.head.headers);
    let (offered, key) = find_run(offered, asking, run, thread, looked).await?;
    let live = offered.app.runs.find(key.app(), key.user(), run);
    if let Some(live) = live.filter(|live| live.key == key) {
        let after = match &seen {
            None => Some(0),
            Some(place) if place.stream == live.stream => Some(place.frame),
            Some(_) => None,
        };
        if let Some(view) = after.and_then(|after| live.view(after)) {
            return Ok(offered.stream(&live, view, encoding));
        }
    }
    from_log(&offered, key, run, seen, encoding).await
}

/// The agent and the thread of a run.
pub(crate) async fn find_run(
    offered: &Offered,
    asking: &Asking<'_>,
    run: &str,
    thread: Option<&str>,
    looked: &mut Looked,
) -> Result<(Offered, SessionKey), Problem> {
    let (head, principal) = (asking.head, asking.principal);
    let name = thread.unwrap_or("-");
    if let (Some(_), None) = (thread, &offered.choice) {
        return Ok((offered.clone(), offered.endpoint.key(head, principal, name)?));
    }
    let candidates = offered.candidates(asking)?;
    let mut found = None;
    for candidate in &candidates {
        let any = candidate.endpoint.key(head, principal, name)?;
        let live = offered.app.runs.find(any.app(), any.user(), run);
        let live = live.filter(|live| thread.is_none() || live.key == any);
        found = found.or_else(|| Some((candidate, live?.key.clone())));
    }
    for (place, candidate) in candidates.iter().enumerate() {
        if found.is_none() {
            let any = candidate.endpoint.key(head, principal, name)?;
            let key = match thread {
                Some(_) => has_run(candidate, &any, run).await?.then_some(any),
                None => find_thread((place, candidate), &any, run, looked).await?,
            };
            found = key.map(|key| (candidate, key));
        }
    }
    let (candidate, key) = found.ok_or_else(|| Problem::not_found("run"))?;
    // Among agents that share the thread, it is the one that spoke in it.
    let chosen = offered.choose(asking, Some(key.id())).await?;
    let chosen = match chosen {
        Some(chosen) if chosen.endpoint.key(head, principal, key.id())? == key => chosen,
        _ => candidate.clone(),
    };
    Ok((chosen, key))
}

/// The place that a client has come to.
fn seen(head: &Parts) -> Result<Option<Place>, Problem> {
    let header = |headers: &HeaderMap| Some(headers.get("last-event-id")?.to_str().ok()?.to_owned());
    let Some(text) =
        header(&head.headers).or_else(|| query(&head.uri, "after")).filter(|text| !text.is_empty())
    else {
        return Ok(None);
    };
    let problem = || {
        let message = "that is no id of an event of a stream: send one as it came, or none at all";
        Problem::new(StatusCode::BAD_REQUEST, "INVALID_EVENT_ID", message)
    };
    text.parse().map(Some).map_err(|()| problem())
}

/// The thread of a run that nobody names: it is looked for in the log of the threads that changed last. Who looks again
/// reads only what has changed since.
async fn find_thread(
    (place, offered): (usize, &Offered),
    any: &SessionKey,
    run: &str,
    looked: &mut Looked,
) -> Result<Option<SessionKey>, Problem> {
    let store = offered.endpoint.runner.sessions();
    for session in store.list(any.app(), any.user()).await?.into_iter().rev().take(SEARCHED) {
        let here = (place, session.key);
        if looked.get(&here) == Some(&session.versions) {
            continue;
        }
        if has_run(offered, &here.1, run).await? {
            return Ok(Some(here.1));
        }
        looked.insert(here, session.versions);
    }
    Ok(None)
}

/// Whether a thread has a run of that name.
async fn has_run(offered: &Offered, key: &SessionKey, run: &str) -> Result<bool, Problem> {
    let view = offered.endpoint.runner.session(key).await?;
    let mut said = view.iter().flat_map(|view| view.events.iter()).filter(|event| event.is_user());
    Ok(said.any(|event| InputMark::of(event).is_some_and(|mark| mark.run == run)))
}

/// `POST {agent}/runs/{run}/cancel`.
pub(crate) async fn cancel(
    State(offered): State<Offered>,
    Named(run): Named,
    request: Request,
) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let principal = principal(&head)?;
    let mut live = None;
    for candidate in offered.candidates(&Asking { head: &head, principal: &principal, input: None })? {
        let any = candidate.endpoint.key(&head, &principal, "-")?;
        live = live.or_else(|| offered.app.runs.find(any.app(), any.user(), &run));
    }
    let live = live.ok_or_else(|| Problem::not_found("run"))?;
    let stop = match query(&head.uri, "at").as_deref() {
        None | Some("now") => Stop::Now,
        Some("step") => Stop::At(SafePoint::Next),
        Some(_) => {
            let message = "`at` is `now` or `step`";
            return Err(Problem::new(StatusCode::BAD_REQUEST, "INVALID_INPUT", message));
        }
    };
    if live.over_since().is_some() {
        return Ok(answer(StatusCode::OK, &json!({"runId": run, "status": "over"})));
    }
    live.stop(stop);
    Ok(answer(StatusCode::ACCEPTED, &json!({"runId": run, "status": "cancelling"})))
}
