//! The other routes of an agent: its runs and threads, and what it can do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_agui::{InputLimits, InputMark, event_of, interrupt_on_the_wire, messages};
use umbel_core::store::Entries;
use umbel_core::{Event, List, LogEntry, NewSession, Outcome, RunStep, SafePoint, SessionKey, Versions};
use umbel_runtime::SessionView;

use crate::app::Offered;
use crate::capabilities;
use crate::live::Stop;
use crate::place::Place;
use crate::post::{encoding, from_log, principal, read};
use crate::problem::Problem;
use crate::resolve::Asking;
use crate::state::visible;

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

/// `GET {agent}/threads`.
pub(crate) async fn threads(State(offered): State<Offered>, request: Request) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let principal = principal(&head)?;
    let mut sessions = Vec::new();
    for candidate in offered.candidates(&Asking { head: &head, principal: &principal, input: None })? {
        let any = candidate.endpoint.key(&head, &principal, "-")?;
        sessions.extend(candidate.endpoint.runner.sessions().list(any.app(), any.user()).await?);
    }
    if offered.choice.is_some() {
        // Agents may share their sessions.
        sessions.sort_by(|a, b| a.updated_at.total_cmp(&b.updated_at));
        let mut seen = std::collections::HashSet::new();
        sessions.retain(|session| seen.insert(session.key.clone()));
    }
    let threads: Vec<Value> = sessions
        .iter()
        .rev()
        .map(|session| json!({"threadId": session.key.id(), "updatedAt": session.updated_at}))
        .collect();
    Ok(answer(StatusCode::OK, &json!({"threads": threads})))
}

/// A thread that is the caller's, named by the address, and the agent that has it.
pub(crate) struct Thread {
    offered: Offered,
    key: SessionKey,
    view: SessionView,
}

impl FromRequestParts<Offered> for Thread {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, offered: &Offered) -> Result<Self, Problem> {
        let Named(thread) = Named::from_request_parts(head, offered).await?;
        let principal = principal(head)?;
        let asking = Asking { head, principal: &principal, input: None };
        let chosen = offered.choose(&asking, Some(&thread)).await?;
        let offered = chosen.unwrap_or_else(|| offered.clone());
        let key = offered.endpoint.key(head, &principal, &thread)?;
        let view =
            offered.endpoint.runner.session(&key).await?.ok_or_else(|| Problem::not_found("thread"))?;
        Ok(Self { offered, key, view })
    }
}

/// The events that a session had when a run began, with those that began it.
fn until_run(events: &List<Arc<Event>>, run: &str) -> List<Arc<Event>> {
    let begins =
        |event: &Arc<Event>| event.is_user() && InputMark::of(event).is_some_and(|mark| mark.run == run);
    let count = events.iter().position(begins).map_or(events.len(), |at| at + 1);
    events.iter().take(count).cloned().collect()
}

/// `GET {agent}/threads/{thread}`: its messages and its state. With `before`, the messages are those there were when that
/// run began: whoever reads the run's stream from its beginning has all then.
pub(crate) async fn read_thread(thread: Thread, uri: Uri) -> Result<Response, Problem> {
    let Thread { offered, key, view } = thread;
    let endpoint = &offered.endpoint;
    let events = match query(&uri, "before") {
        Some(run) => until_run(&view.events, &run),
        None => view.events.clone(),
    };
    let seen = endpoint.runner.as_seen(&key, &events).await?;
    let messages = messages(&endpoint.cast, seen.iter(), true);
    let interrupts: Vec<_> = view.open.iter().map(interrupt_on_the_wire).collect();
    let running = offered.app.runs.of_thread(&key).map(|live| live.run.clone());
    let body = json!({
        "threadId": key.id(),
        "messages": messages,
        "state": visible(&endpoint.cast, &view.state),
        "interrupts": interrupts,
        "runningRunId": running,
    });
    Ok(answer(StatusCode::OK, &body))
}

/// `DELETE {agent}/threads/{thread}`. Runs that it has are stopped first.
pub(crate) async fn delete_thread(thread: Thread) -> Result<Response, Problem> {
    let Thread { offered, key, .. } = thread;
    let under_way = offered.app.runs.all_of_thread(&key);
    under_way.iter().for_each(|live| live.stop(Stop::Now));
    for live in under_way {
        live.ended().await;
    }
    offered.endpoint.runner.delete_session(&key).await?;
    offered.app.runs.forget_thread(&key);
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `GET {agent}/threads/{thread}/runs`.
pub(crate) async fn thread_runs(thread: Thread) -> Result<Response, Problem> {
    let Thread { offered, key, .. } = thread;
    let news = offered.endpoint.runner.sessions().news(&key, Versions::default()).await?;
    let mut runs: Vec<Value> = Vec::new();
    for entry in news.map(|news| news.entries).unwrap_or_default() {
        match entry {
            // What is said to nobody is state that was set.
            LogEntry::Event(event) if event.is_user() && event.content.is_some() => {
                let mark = InputMark::of(&event).unwrap_or_default();
                let name = if mark.run.is_empty() { event.run.as_str() } else { &mark.run };
                runs.push(json!({"runId": name, "startedAt": event.timestamp, "outcome": "running"}));
            }
            LogEntry::Record(step) => {
                let last = runs.last_mut().and_then(|run| run.get_mut("outcome"));
                if let (RunStep::Ended { outcome }, Some(last)) = (&*step, last) {
                    *last = json!(match outcome {
                        Outcome::Interrupted { .. } => "interrupted",
                        Outcome::Cancelled => "cancelled",
                        Outcome::Failed { .. } => "failed",
                        _ => "finished",
                    });
                }
            }
            LogEntry::Event(_) => {}
        }
    }
    Ok(answer(StatusCode::OK, &json!({"threadId": key.id(), "runs": runs})))
}

/// `POST {agent}/threads/{thread}/fork`: a thread of its own that begins like this one, up to a message.
pub(crate) async fn fork_thread(thread: Thread, body: Body) -> Result<Response, Problem> {
    let Thread { offered, key, .. } = thread;
    let body = read(&offered, body).await?;
    let invalid = |message: &str| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "INVALID_INPUT", message);
    let body: Value = match body.is_empty() {
        true => Value::Null,
        false => serde_json::from_slice(&body).map_err(|_| invalid("the body is not JSON"))?,
    };
    let runner = &offered.endpoint.runner;
    let news = runner.sessions().news(&key, Versions::default()).await?;
    let news = news.ok_or_else(|| Problem::not_found("thread"))?;
    let events: Vec<Arc<Event>> = news
        .entries
        .into_iter()
        .filter_map(|entry| match entry {
            LogEntry::Event(event) => Some(event),
            LogEntry::Record(_) => None,
        })
        .collect();
    let until = match body.get("messageId").and_then(Value::as_str) {
        None => events.len(),
        Some(message) => {
            let is_it = |event: &Arc<Event>| {
                let marked = InputMark::of(event)
                    .is_some_and(|mark| mark.messages.iter().any(|(id, _)| id == message));
                marked || event.id == *event_of(message)
            };
            events.iter().rposition(is_it).ok_or_else(|| Problem::not_found("message"))? + 1
        }
    };
    let new = match body.get("threadId").and_then(Value::as_str) {
        Some(id) => {
            InputLimits::default().check_id(|| "threadId".to_owned(), id)?;
            SmolStr::new(id)
        }
        None => runner.services().ids.mint(umbel_core::IdKind::Session),
    };
    let forked = SessionKey::new(key.app(), key.user(), &new)?;
    let state = news.session_state.map(Arc::unwrap_or_clone).unwrap_or_default();
    match runner.sessions().create(NewSession::new(forked.clone()).state(state)).await {
        Err(error) if error.kind() == umbel_core::ErrorKind::AlreadyExists => {
            return Err(Problem::new(
                StatusCode::CONFLICT,
                "ALREADY_EXISTS",
                "there is such a thread: choose another id",
            ));
        }
        made => made?,
    };
    let entries: Entries = events.into_iter().take(until).map(LogEntry::Event).collect();
    if !entries.is_empty() {
        runner.sessions().commit(&forked, None, entries).await?;
    }
    Ok(answer(StatusCode::CREATED, &json!({"threadId": new})))
}
