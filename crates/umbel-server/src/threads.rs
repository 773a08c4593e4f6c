//! The routes about one thread: what it is, its runs, and others that begin like it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{StatusCode, Uri};
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_agui::messages::live;
use umbel_agui::{InputLimits, InputMark, event_of, interrupt_on_the_wire, messages};
use umbel_core::store::Entries;
use umbel_core::weight::event_bytes;
use umbel_core::{
    Event, EventFilter, IdKind, List, LogEntry, NewSession, Outcome, RunStep, Services, SessionKey, Source,
    StateScope, Versions,
};
use umbel_runtime::SessionView;

use crate::app::Offered;
use crate::auth::Principal;
use crate::live::Stop;
use crate::post::{principal, read};
use crate::problem::Problem;
use crate::quotas::Reserved;
use crate::resolve::Asking;
use crate::routes::{Named, answer, query};
use crate::state::visible;
use crate::thread_list::number;

/// Events of a page by default, and at most for `limit`.
const PAGE: usize = 1_000;

/// Bytes of a page's events on the heap, roughly. A single turn may take more.
const PAGE_BYTES: usize = 4 << 20;

/// The name of a thread that would be the caller's, and the agent that has it. Whether there is one was not looked at.
pub(crate) struct ThreadName {
    pub(crate) offered: Offered,
    pub(crate) key: SessionKey,
    /// Who asks.
    pub(crate) principal: Principal,
}

impl FromRequestParts<Offered> for ThreadName {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, offered: &Offered) -> Result<Self, Problem> {
        let Named(thread) = Named::from_request_parts(head, offered).await?;
        let principal = principal(head)?;
        let asking = Asking { head, principal: &principal, input: None };
        let chosen = offered.choose(&asking, Some(&thread)).await?;
        let offered = chosen.unwrap_or_else(|| offered.clone());
        let key = offered.endpoint.key(head, &principal, &thread)?;
        Ok(Self { offered, key, principal })
    }
}

/// A thread that is the caller's, named by the address, and the agent that has it.
pub(crate) struct Thread {
    offered: Offered,
    key: SessionKey,
    principal: Principal,
    view: SessionView,
    reserved: Reserved,
}

impl FromRequestParts<Offered> for Thread {
    type Rejection = Problem;

    async fn from_request_parts(head: &mut Parts, offered: &Offered) -> Result<Self, Problem> {
        let ThreadName { offered, key, principal } = ThreadName::from_request_parts(head, offered).await?;
        let reserved = offered.reserve(&principal, &key).await?;
        let view =
            offered.endpoint.runner.session(&key).await?.ok_or_else(|| Problem::not_found("thread"))?;
        Ok(Self { offered, key, principal, view, reserved })
    }
}

/// The events that a session had when a run began, with those that began it.
fn until_run(events: &List<Arc<Event>>, run: &str) -> List<Arc<Event>> {
    let begins =
        |event: &Arc<Event>| event.is_user() && InputMark::of(event).is_some_and(|mark| mark.run == run);
    let count = events.iter().position(begins).map_or(events.len(), |at| at + 1);
    events.iter().take(count).cloned().collect()
}

/// The index of the first event of the newest page: whole turns, at least `limit` events unless they take [`PAGE_BYTES`].
///
/// A page never begins with an answer, so that a call and its result are on the same page.
fn page_start(events: &[&Arc<Event>], limit: usize) -> usize {
    let (mut count, mut bytes) = (0, 0);
    for (index, event) in events.iter().enumerate().rev() {
        count += 1;
        bytes += event_bytes(event);
        let begins_turn = event.is_user() && event.content.is_some() && event.responses().next().is_none();
        if begins_turn && (count >= limit || bytes >= PAGE_BYTES) {
            return index;
        }
    }
    0
}

/// `GET {agent}/threads/{thread}`: messages in pages, newest page first, and the state. `until` is the cursor of a page: the
/// `previous` of the one after it. With `before`, the messages are those that were there when that run began; the stream of
/// the run has the rest.
pub(crate) async fn read_thread(thread: Thread, uri: Uri) -> Result<Response, Problem> {
    let Thread { offered, key, view, reserved, .. } = thread;
    let endpoint = &offered.endpoint;
    let limit = number(&uri, "limit")?.unwrap_or(PAGE).clamp(1, PAGE);
    let all = match query(&uri, "before") {
        Some(run) => until_run(&view.events, &run),
        None => view.events.clone(),
    };
    // A rewind may name a run of another page, so void events are left out before pages are made.
    let mut events = live(all.iter());
    if let Some(until) = query(&uri, "until") {
        let end = events.iter().position(|event| event.id == *until);
        let end =
            end.ok_or_else(|| invalid("`until` is no cursor of this thread: send `previous` as it came"))?;
        events.truncate(end);
    }
    let start = page_start(&events, limit);
    let previous = events.get(start).filter(|_| start > 0).map(|first| first.id.clone());
    let events: List<Arc<Event>> = events.into_iter().skip(start).cloned().collect();
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
        "previous": previous,
    });
    Ok(reserved.hold(answer(StatusCode::OK, &body)))
}

/// `DELETE {agent}/threads/{thread}`. Runs that it has are stopped first.
pub(crate) async fn delete_thread(thread: ThreadName) -> Result<Response, Problem> {
    let ThreadName { offered, key, .. } = thread;
    // A first run may be under way before the thread is stored, so runs are stopped before the thread is looked for.
    let under_way = offered.app.runs.all_of_thread(&key);
    under_way.iter().for_each(|live| live.stop(Stop::Now));
    for live in &under_way {
        live.ended().await;
    }
    // Its log need not be read for it, and perhaps cannot be.
    let no_events = EventFilter { first: Some(0), ..EventFilter::default() };
    let found = offered.endpoint.runner.sessions().get(&key, no_events).await?;
    if found.is_none() && under_way.is_empty() {
        return Err(Problem::not_found("thread"));
    }
    offered.endpoint.runner.delete_session(&key).await?;
    offered.app.runs.forget_thread(&key);
    offered.app.runs.quotas.forget_usage(&key);
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `GET {agent}/threads/{thread}/runs`.
pub(crate) async fn thread_runs(thread: Thread) -> Result<Response, Problem> {
    let Thread { offered, key, reserved, .. } = thread;
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
    Ok(reserved.hold(answer(StatusCode::OK, &json!({"threadId": key.id(), "runs": runs}))))
}

/// The events of a log.
pub(crate) fn events_of(entries: Vec<LogEntry>) -> Vec<Arc<Event>> {
    let events = entries.into_iter().filter_map(|entry| match entry {
        LogEntry::Event(event) => Some(event),
        LogEntry::Record(_) => None,
    });
    events.collect()
}

/// How many events a thread gets that begins like another: up to a message or an event, with it or without it.
fn shared(events: &[Arc<Event>], body: &Value) -> Result<usize, Problem> {
    let name = |key: &str| body.get(key).and_then(Value::as_str);
    let at = match (name("messageId"), name("eventId")) {
        (None, None) => return Ok(events.len()),
        (Some(message), None) => {
            let is_it = |event: &Arc<Event>| {
                let mark = InputMark::of(event);
                let is_marked = |mark: InputMark| mark.messages.iter().any(|(id, _)| id == message);
                mark.is_some_and(is_marked) || event.id == *event_of(message)
            };
            events.iter().rposition(is_it).ok_or_else(|| Problem::not_found("message"))?
        }
        (None, Some(id)) => {
            let found = events.iter().position(|event| event.id == *id);
            found.ok_or_else(|| Problem::not_found("event"))?
        }
        (Some(_), Some(_)) => return Err(invalid("name a message or an event, not both")),
    };
    let is_left_out = body.get("before").and_then(Value::as_bool).unwrap_or_default();
    Ok(if is_left_out { at } else { at + 1 })
}

fn invalid(message: &str) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "INVALID_INPUT", message)
}

/// The event without what it set for the user and the app: that is past, and what they have by now stays.
fn of_the_session(event: Arc<Event>) -> Arc<Event> {
    let is_own = |key: &String| StateScope::split(key).0 == StateScope::Session;
    if event.state_delta().is_none_or(|delta| delta.keys().all(is_own)) {
        return event;
    }
    let mut event = Arc::unwrap_or_clone(event);
    if let Some(delta) = event.actions.as_mut().and_then(|actions| actions.state_delta.as_mut()) {
        delta.retain(|key, _| is_own(key));
    }
    Arc::new(event)
}

/// The log up to so many events, with what is known of the runs there. A run that is cut in the middle is over.
fn beginning(entries: Vec<LogEntry>, mut events: usize) -> Entries {
    let (mut beginning, mut is_running) = (Entries::new(), false);
    for entry in entries {
        let entry = match entry {
            LogEntry::Event(_) if events == 0 => break,
            LogEntry::Event(event) => {
                events -= 1;
                // What is said to nobody is state that was set, before a run.
                is_running |= !event.is_user() || event.content.is_some();
                LogEntry::Event(of_the_session(event))
            }
            LogEntry::Record(step) => {
                match &*step {
                    RunStep::Ended { .. } => is_running = false,
                    RunStep::Continued { .. } => is_running = true,
                    _ => {}
                }
                LogEntry::Record(step)
            }
        };
        beginning.push(entry);
    }
    if is_running {
        beginning.push(RunStep::Ended { outcome: Outcome::Cancelled }.into());
    }
    beginning
}

/// `POST {agent}/threads/{thread}/fork`: a thread of its own that begins like this one, up to a message or an event.
pub(crate) async fn fork_thread(thread: Thread, body: Body) -> Result<Response, Problem> {
    let Thread { offered, key, principal, reserved: _reserved, .. } = thread;
    let runs = &offered.app.runs;
    if let Some(user) = offered.app.quota_user(&principal) {
        runs.quotas.count_fork(user, runs.limits())?;
    }
    let body = read(runs.limits(), body).await?;
    let body: Value = match body.is_empty() {
        true => Value::Null,
        false => serde_json::from_slice(&body).map_err(|_| invalid("the body is not JSON"))?,
    };
    let runner = &offered.endpoint.runner;
    let news = runner.sessions().news(&key, Versions::default()).await?;
    let news = news.ok_or_else(|| Problem::not_found("thread"))?;
    let until = shared(&events_of(news.entries.clone()), &body)?;
    let new = match body.get("threadId").and_then(Value::as_str) {
        Some(id) => {
            InputLimits::default().check_id(|| "threadId".to_owned(), id)?;
            SmolStr::new(id)
        }
        None => runner.services().ids.mint(IdKind::Session),
    };
    let forked = SessionKey::new(key.app(), key.user(), &new)?;
    let copied = runner.sessions().summary(&key).await?.map_or(0, |found| found.bytes);
    offered.check_stored(&forked, copied, true).await?;
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
    let mut entries = beginning(news.entries, until);
    if !entries.is_empty() {
        // A session changed last when its last event happened; this one does now, and would else be taken for idle.
        let Services { ids, clock, .. } = &**runner.services();
        let mut now = Event::new(ids.mint(IdKind::Run).into(), Source::user());
        (now.id, now.timestamp) = (ids.event(), clock.now());
        entries.push(LogEntry::Event(Arc::new(now)));
        runner.sessions().commit(&forked, None, entries).await?;
    }
    Ok(answer(StatusCode::CREATED, &json!({"threadId": new})))
}
