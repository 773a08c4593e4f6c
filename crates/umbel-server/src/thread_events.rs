//! The log of a thread, for people who look into it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Uri, header};
use serde::Serialize;
use smol_str::SmolStr;
use umbel_agui::{Cast, InputMark};
use umbel_core::json::empty_object;
use umbel_core::store::News;
use umbel_core::weight::event_bytes;
use umbel_core::{Event, List, Object, RunId, State, StateScope, Versions};

use crate::problem::Problem;
use crate::state::visible;
use crate::thread_list::number;
use crate::threads::{ThreadName, events_of};

/// So many events are on a page at most.
const PAGE: usize = 10_000;

/// So many bytes they take, roughly; one event may take more.
const PAGE_BYTES: usize = 16 << 20;

/// A page of a log.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Page<'a> {
    thread_id: &'a str,
    total: usize,
    /// The state before the first event. Only the first page has it.
    initial_state: Option<Object>,
    events: Vec<Entry>,
    /// What to send as `after` for the next page.
    next: Option<usize>,
}

/// An event of a log.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    index: usize,
    /// The run as the client calls it.
    run_id: SmolStr,
    event: Arc<Event>,
}

/// `GET {agent}/threads/{thread}/events`: the events as viewers may see them.
pub(crate) async fn events(thread: ThreadName, uri: Uri) -> Result<Response, Problem> {
    let ThreadName { offered, key, principal } = thread;
    offered.app.check_inspect(&principal)?;
    let reserved = offered.reserve(&principal, &key).await?;
    let endpoint = &offered.endpoint;
    let after = number(&uri, "after")?;
    let limit = number(&uri, "limit")?.unwrap_or(PAGE).clamp(1, PAGE);
    let missing = || Problem::not_found("thread");
    let (all, initial_state) = match after {
        // What is at hand need not be read again.
        Some(_) => (endpoint.runner.session(&key).await?.ok_or_else(missing)?.events, None),
        None => {
            let news = endpoint.runner.sessions().news(&key, Versions::default()).await?;
            let mut news = news.ok_or_else(missing)?;
            let events: List<Arc<Event>> = events_of(std::mem::take(&mut news.entries)).into_iter().collect();
            let first = first_state(&endpoint.cast, news, &events);
            (events, Some(first))
        }
    };
    let from = after.map_or(0, |after| after.saturating_add(1));
    let mut bytes = 0;
    let fits = |event: &&Arc<Event>| {
        let is_first = bytes == 0;
        bytes += event_bytes(event);
        is_first || bytes <= PAGE_BYTES
    };
    let page: List<Arc<Event>> = all.iter_from(from).take(limit).take_while(fits).cloned().collect();
    let names = names(all.iter());
    let seen = endpoint.runner.each_as_seen(&key, &page).await?;
    let events = (from..).zip(page.iter().zip(seen)).filter_map(|(index, (event, seen))| {
        let run_id = names.get(&event.run).cloned().unwrap_or_else(|| event.run.as_str().into());
        Some(Entry { index, run_id, event: shown(&endpoint.cast, seen?) })
    });
    let (total, end) = (all.len(), from.saturating_add(page.len()));
    let page = Page {
        thread_id: key.id(),
        total,
        initial_state,
        events: events.collect(),
        next: (end < total).then(|| end.saturating_sub(1)),
    };
    let failed = |error| Problem::internal("ERROR", "the log cannot be written as JSON", &error);
    let body = serde_json::to_vec(&page).map_err(failed)?;
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    Ok(reserved.hold((kind, body).into_response()))
}

/// What clients call the runs of a log.
pub(crate) fn names<'a>(events: impl Iterator<Item = &'a Arc<Event>>) -> HashMap<RunId, SmolStr> {
    let marked = events.filter(|event| event.is_user());
    let marked = marked.filter_map(|event| Some((event.run.clone(), InputMark::of(event)?.run)));
    marked.filter(|(_, name)| !name.is_empty()).collect()
}

/// An event without the keys of the state that viewers do not see.
fn shown(cast: &Cast, event: Arc<Event>) -> Arc<Event> {
    let hides = |delta: &Object| delta.keys().any(|key| !cast.shows(key));
    if !event.state_delta().is_some_and(hides) {
        return event;
    }
    let mut event = Arc::unwrap_or_clone(event);
    if let Some(delta) = event.actions.as_mut().and_then(|actions| actions.state_delta.as_mut()) {
        delta.retain(|key, _| cast.shows(key));
    }
    Arc::new(event)
}

/// The state that a thread began with, as viewers may see it. What its user and its app had then is not known any more: what
/// the thread did not set itself is taken to be as it is now.
fn first_state(cast: &Cast, news: News, events: &List<Arc<Event>>) -> Object {
    let state = |keys: Option<Arc<Object>>| keys.unwrap_or_else(empty_object);
    let state = State::new(state(news.session_state), state(news.user_state), state(news.app_state));
    let mut first = visible(cast, &state);
    let set = events.iter().filter_map(|event| event.state_delta()).flat_map(Object::keys);
    let set: HashSet<&String> = set.filter(|key| StateScope::split(key).0 != StateScope::Session).collect();
    first.retain(|key, _| !set.contains(key));
    first
}
