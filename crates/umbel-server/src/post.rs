//! `POST {agent}`: a run begins, or goes on, and its client looks at it.

use std::future::poll_fn;
use std::hash::Hasher;
use std::task::Poll;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;
use serde_json::value::RawValue;
use siphasher::sip::SipHasher13;
use smol_str::SmolStr;
use tracing::Instrument;
use umbel_agui::{InputLimits, RunAgentInput, proto};
use umbel_core::{Object, SessionKey, TraceContext};

use crate::app::Offered;
use crate::auth::Principal;
use crate::body::{Recode, StreamBody};
use crate::drive::drive;
use crate::live::{LiveRun, View};
use crate::metrics::Counted;
use crate::plan::{Asked, plan};
use crate::problem::Problem;
use crate::quotas::Reserved;
use crate::replay;
use crate::resolve::Asking;
use crate::runs::{Admission, ServerLimits, Ticket};

/// Tells proxies to hand on each frame as it comes.
const UNBUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");

/// How many bytes of each end of a request tell it from others.
const DIGESTED: usize = 2048;

/// Requests with more bytes are handled on a blocking thread: parsing one takes milliseconds and does
/// not yield.
const LARGE_BODY: usize = 256 * 1024;

/// How many of its last messages tell a request from others that answers something.
const LAST_MESSAGES: usize = 16;

/// Begins a run, or attaches to it if it is there.
pub(crate) async fn run(State(offered): State<Offered>, request: Request) -> Response {
    match begin(&offered, request).await {
        Ok(response) => response,
        Err(problem) => {
            offered.app.metrics.count(Counted::Refused);
            problem.into_response()
        }
    }
}

async fn begin(offered: &Offered, request: Request) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let principal = principal(&head)?;
    check_type(&head.headers)?;
    let reserved = reserve_body(offered, &principal, body.size_hint().upper()).await?;
    let body = read(offered.app.runs.limits(), body).await?;
    if body.len() > LARGE_BODY {
        let (user, offered) = (offered.app.quota_user(&principal).cloned(), offered.clone());
        let runs = offered.app.runs.clone();
        let work = async move { accept(&offered, (head, principal), body, reserved).await };
        let work = async move {
            match user {
                Some(user) => runs.quotas.metered(user, work).await,
                None => work.await,
            }
        };
        return Box::pin(on_blocking_thread(work)).await;
    }
    accept(offered, (head, principal), body, reserved).await
}

/// Drives a future on a blocking thread, so that its polls keep no worker from other requests.
async fn on_blocking_thread<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let runtime = tokio::runtime::Handle::current();
    let work = work.in_current_span();
    match tokio::task::spawn_blocking(move || runtime.block_on(work)).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Problem::shutting_down("the server is stopping: try again")),
        },
    }
}

/// Parses a request, admits its run and responds with its stream.
async fn accept(
    offered: &Offered,
    (head, principal): (Parts, Principal),
    body: Bytes,
    reserved: Reserved,
) -> Result<Response, Problem> {
    let encoding = encoding(&head.headers);
    let input = RunAgentInput::parse_within(&body, &InputLimits::default())?;
    let asking = Asking { head: &head, principal: &principal, input: Some(&input) };
    let chosen = offered.choose(&asking, Some(&input.thread_id)).await?;
    let offered = chosen.as_ref().unwrap_or(offered);
    let endpoint = &offered.endpoint;
    let key = offered.endpoint.key(&head, &principal, &input.thread_id)?;
    offered.check_stored(&key, body.len() as u64, false).await?;
    let state = match &endpoint.state {
        Some(make) => make(&head, &principal)?,
        None => Object::new(),
    };
    let (app, limits) = (&offered.app, offered.app.runs.limits());
    let run = SmolStr::new(&input.run_id);
    let live = LiveRun::new(key, run, digest(&body), endpoint.disconnect, limits.run_bytes);
    let resumes = !input.resume.is_empty();
    let admission = app.runs.admit(live, endpoint.same_thread, resumes, app.auth.is_some())?;
    let (ticket, after) = match admission {
        Admission::Attach(live) => {
            let Some(view) = live.view(0) else {
                // Boxed: this future is large enough without it.
                return Box::pin(from_log(offered, live.key.clone(), &live.run, None, encoding)).await;
            };
            return Ok(offered.stream(&live, view, encoding));
        }
        Admission::Begin { ticket, after } => (ticket, after),
    };
    let live = ticket.live.clone();
    let view = live.view(0).ok_or_else(|| Problem::not_found("run"))?;
    let response = offered.stream(&live, view, encoding);
    match after {
        None => {
            let (key, digest) = (&live.key, logged_digest(&input, live.digest));
            let trace = TraceContext::current();
            let asked = Asked { key, input: &input, digest, principal: &principal, state: &state, trace };
            let planned = plan(endpoint, &asked).await;
            start(offered.clone(), ticket, planned).await?;
            drop(reserved);
        }
        Some(first) => {
            let queued =
                Queued { offered: offered.clone(), body, principal, state, trace: TraceContext::current() };
            let user = live.key.user().to_owned();
            offered.spawn(&user, async move {
                first.ended().await;
                queued.run(ticket).await;
                drop(reserved);
            });
        }
    }
    Ok(response)
}

/// Begins with what was planned. What is wrong with a request is told before the stream begins, but for what concerns
/// interrupts: the protocol has that as the end of a run.
async fn start(
    offered: Offered,
    ticket: Ticket,
    planned: Result<Option<crate::plan::Plan>, Problem>,
) -> Result<(), Problem> {
    match planned {
        Ok(Some(plan)) => {
            let (user, run) = (ticket.live.key.user().to_owned(), offered.clone());
            step_off(&offered, &user, async move { drive(&run, ticket, plan).await }).await;
            Ok(())
        }
        Ok(None) => {
            // The same request came before, to a server that is gone or has forgotten.
            let (user, again) = (ticket.live.key.user().to_owned(), offered.clone());
            offered.spawn(&user, async move { tell_again(&again, ticket).await });
            Ok(())
        }
        Err(problem) if problem.is_of_run() => {
            ticket.refuse(&problem);
            Ok(())
        }
        Err(problem) => Err(problem),
    }
}

/// Lets a run take its first steps at once, and go on by itself if it has to wait. What it says until then leaves together
/// with the head of the response, and a run that never waits needs no task.
async fn step_off(offered: &Offered, user: &str, run: impl Future<Output = ()> + Send + 'static) {
    let mut run = Box::pin(run);
    if poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx))).await.is_pending() {
        offered.spawn(user, run);
    }
}

async fn tell_again(offered: &Offered, ticket: Ticket) {
    let live = ticket.live.clone();
    match replay::read(&offered.endpoint, &live.key, &live.run, None).await {
        Ok(Some(log)) => replay::replay(offered, &live, log, None).await,
        Ok(None) => ticket.refuse(&Problem::not_found("run")),
        Err(problem) => ticket.refuse(&problem),
    }
}

/// A request whose run waits until the one before it in its thread has ended.
struct Queued {
    offered: Offered,
    body: Bytes,
    principal: Principal,
    state: Object,
    trace: Option<TraceContext>,
}

impl Queued {
    async fn run(self, ticket: Ticket) {
        let (live, offered) = (ticket.live.clone(), self.offered.clone());
        let planned = if self.body.len() > LARGE_BODY {
            on_blocking_thread(async move { self.plan(&live).await }).await
        } else {
            self.plan(&live).await
        };
        match planned {
            Ok(Some(plan)) => drive(&offered, ticket, plan).await,
            Ok(None) => tell_again(&offered, ticket).await,
            Err(problem) => ticket.refuse(&problem),
        }
    }

    async fn plan(self, live: &LiveRun) -> Result<Option<crate::plan::Plan>, Problem> {
        let input = RunAgentInput::parse_within(&self.body, &InputLimits::default())?;
        let (key, digest) = (&live.key, logged_digest(&input, live.digest));
        let (principal, state) = (&self.principal, &self.state);
        let asked = Asked { key, input: &input, digest, principal, state, trace: self.trace };
        plan(&self.offered.endpoint, &asked).await
    }
}

/// A stream made from the log.
pub(crate) async fn from_log(
    offered: &Offered,
    key: SessionKey,
    run: &SmolStr,
    seen: Option<crate::place::Place>,
    encoding: Encoding,
) -> Result<Response, Problem> {
    let round = seen.as_ref().map(|place| place.round);
    let log = replay::read(&offered.endpoint, &key, run, round).await?;
    let log = log.ok_or_else(|| Problem::not_found("run"))?;
    let limits = offered.app.runs.limits();
    let live = LiveRun::for_one(key, run.clone(), limits.run_bytes);
    let view = live.view(0).ok_or_else(|| Problem::not_found("run"))?;
    let response = offered.stream(&live, view, encoding);
    offered.app.metrics.count(Counted::Replay);
    let offered = offered.clone();
    let (user, again) = (live.key.user().to_owned(), offered.clone());
    offered.spawn(&user, async move { replay::replay(&again, &live, log, seen).await });
    Ok(response)
}

impl Offered {
    pub(crate) fn stream(&self, live: &LiveRun, view: View, encoding: Encoding) -> Response {
        self.app.metrics.count(Counted::Stream);
        let recode: Option<Recode> = match encoding {
            Encoding::Sse => None,
            Encoding::Proto => Some(to_proto),
        };
        let body = StreamBody::new(view, self.app.runs.limits().keep_alive, recode);
        let mut response = Response::new(axum::body::Body::new(body));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(encoding.media_type()));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-store"));
        headers.insert(UNBUFFERED, HeaderValue::from_static("no"));
        let mut place = String::with_capacity(128);
        place.push_str(&self.path);
        place.push_str("/runs/");
        write_plain(&mut place, &live.run);
        place.push_str("/events?thread=");
        write_plain(&mut place, live.key.id());
        if let Ok(place) = HeaderValue::try_from(place) {
            headers.insert(header::CONTENT_LOCATION, place);
        }
        response
    }
}

/// Adds text as it can stand in an address.
fn write_plain(out: &mut String, text: &str) {
    use std::fmt::Write;
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

/// Who asks.
pub(crate) fn principal(head: &Parts) -> Result<Principal, Problem> {
    let problem = || Problem::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "say who you are");
    head.extensions.get::<Principal>().cloned().ok_or_else(problem)
}

/// How frames are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Sse,
    Proto,
}

impl Encoding {
    fn media_type(self) -> &'static str {
        match self {
            Self::Sse => "text/event-stream",
            Self::Proto => proto::MEDIA_TYPE,
        }
    }
}

/// How the client wants frames: the binary form only if it names it, and does not like text better.
pub(crate) fn encoding(headers: &HeaderMap) -> Encoding {
    let weight = |wanted: &str| {
        let accepted = headers.get_all(header::ACCEPT).into_iter().filter_map(|accept| accept.to_str().ok());
        let named = accepted.flat_map(|accept| accept.split(',')).filter_map(|range| {
            let mut fields = range.split(';').map(str::trim);
            fields.next().filter(|range| range.eq_ignore_ascii_case(wanted))?;
            let weight = fields.find_map(|field| field.strip_prefix("q=")?.parse::<f32>().ok());
            Some(weight.unwrap_or(1.0))
        });
        named.fold(0.0, f32::max)
    };
    let proto = weight(proto::MEDIA_TYPE);
    if proto > 0.0 && proto >= weight("text/event-stream") { Encoding::Proto } else { Encoding::Sse }
}

/// Frames of text as frames of the binary form.
fn to_proto(frames: &Bytes) -> Bytes {
    let mut out = Vec::with_capacity(frames.len());
    let text = std::str::from_utf8(frames).unwrap_or_default();
    for line in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let event = serde_json::from_str::<umbel_agui::AguiEvent<'static>>(line);
        let written = event.map_err(Into::into).and_then(|event| proto::write_frame(&mut out, &event));
        if let Err(error) = written {
            tracing::error!("a frame cannot be put in the binary form: {error}");
        }
    }
    Bytes::from(out)
}

fn check_type(headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = given.split(';').next().unwrap_or_default().trim();
    if media.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = "send JSON, with `Content-Type: application/json`";
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "NOT_JSON", message))
}

/// Reserves memory for the body of a request. One that does not say how long it is may be as long as any.
async fn reserve_body(
    offered: &Offered,
    principal: &Principal,
    bytes: Option<u64>,
) -> Result<Reserved, Problem> {
    let (runs, user) = (&offered.app.runs, offered.app.quota_user(principal));
    let most = u64::try_from(runs.limits().body_bytes).unwrap_or(u64::MAX);
    runs.quotas.reserve(user, bytes.unwrap_or(most).min(most), runs.limits()).await
}

/// The body of a request, if it is not too large and does not take too long.
pub(crate) async fn read(limits: &ServerLimits, body: axum::body::Body) -> Result<Bytes, Problem> {
    let too_large = || {
        let message = format!("the request has more than {} bytes (`body_bytes`)", limits.body_bytes);
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", message)
    };
    // Whoever says how much there is need not send it first.
    if body.size_hint().lower() > u64::try_from(limits.body_bytes).unwrap_or(u64::MAX) {
        return Err(too_large());
    }
    let collected = Limited::new(body, limits.body_bytes).collect();
    let collected = tokio::time::timeout(limits.request_time, collected).await;
    let collected = collected.map_err(|_| Problem::too_slow())?;
    match collected {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => Err(too_large()),
        Err(_) => Err(Problem::new(StatusCode::BAD_REQUEST, "BAD_REQUEST", "the request broke off")),
    }
}

/// Tells requests apart: by their length and both of their ends, where threads, runs and new messages stand. All of a long
/// conversation would cost as much as reading it. It is kept in the log unless people answer something, so it is the same in
/// every process.
fn digest(body: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(&(body.len() as u64).to_le_bytes());
    let end = body.len().min(DIGESTED);
    hasher.write(body.get(..end).unwrap_or_default());
    if end < body.len() {
        hasher.write(body.get(body.len() - end..).unwrap_or_default());
    }
    hasher.finish()
}

/// What the log keeps to tell a request from others. A secret could be guessed by the digest of what it stands in: of answers
/// to questions and results of calls, only the names count.
fn logged_digest(input: &RunAgentInput<'_>, digest: u64) -> u64 {
    let answers = |message: &RawValue| message.get().contains("\"toolCallId\"");
    if input.resume.is_empty() && !input.messages.iter().any(|message| answers(message)) {
        return digest;
    }
    let mut hasher = SipHasher13::new();
    let mut add = |text: &str| {
        hasher.write(&(text.len() as u64).to_le_bytes());
        hasher.write(text.as_bytes());
    };
    add(&input.run_id);
    add(&input.messages.len().to_string());
    for message in input.messages.iter().rev().take(LAST_MESSAGES) {
        if answers(message) {
            add(&serde_json::from_str::<Named>(message.get()).unwrap_or_default().id);
        } else {
            add(message.get());
        }
    }
    for entry in &input.resume {
        add(&entry.interrupt_id);
        add(entry.status.name());
    }
    hasher.finish()
}

/// The name of a message.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    id: String,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn logged(input: &Value) -> u64 {
        let body = input.to_string().into_bytes();
        let input = RunAgentInput::parse_within(&body, &InputLimits::default()).unwrap();
        logged_digest(&input, digest(&body))
    }

    fn input(said: &str, more: &Value, resume: &Value) -> Value {
        let user = json!({"id": "m1", "role": "user", "content": said});
        let messages: Vec<Value> = [user].into_iter().chain(more.as_array().cloned().unwrap()).collect();
        json!({"threadId": "t", "runId": "r", "messages": messages, "tools": [], "context": [], "resume": resume})
    }

    #[test]
    fn what_the_log_keeps_of_a_request_does_not_depend_on_what_people_answer() {
        let resume = |secret: &str, question: &str, status: &str| {
            let entry = json!({"interruptId": question, "status": status, "payload": {"apiKey": secret}});
            logged(&input("go", &json!([]), &json!([entry])))
        };
        assert_eq!(resume("hunter2", "q1", "resolved"), resume("a longer one", "q1", "resolved"));
        assert_ne!(resume("hunter2", "q1", "resolved"), resume("hunter2", "q2", "resolved"));
        assert_ne!(resume("hunter2", "q1", "resolved"), resume("hunter2", "q1", "cancelled"));
        let tool = |said: &str, secret: &str, id: &str| {
            let result = json!({"id": id, "role": "tool", "toolCallId": "q1", "content": secret});
            logged(&input(said, &json!([result]), &json!([])))
        };
        assert_eq!(tool("go", "hunter2", "m2"), tool("go", "a longer one", "m2"));
        assert_ne!(tool("go", "hunter2", "m2"), tool("go", "hunter2", "m3"));
        assert_ne!(tool("go", "hunter2", "m2"), tool("stop", "hunter2", "m2"));
        assert_ne!(
            logged(&input("go", &json!([]), &json!([]))),
            logged(&input("no", &json!([]), &json!([])))
        );
    }
}
