//! Where the time of a run went: its agents, model calls, tools and handlers.
//!
//! What this process did was recorded while it happened, if somebody asked for that ([`Traces`]). What others did, or this one
//! before a restart, follows from the times in the log, as far as these tell.

mod from_log;

mod recorded;
pub(crate) mod request;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::{AgentTree, Object, RunId, SessionKey, Usage};
use umbel_runtime::Prices;

pub use recorded::{TraceLimits, Traces};

use crate::app::Offered;
use crate::problem::Problem;
use crate::routes::{Named, answer};
use crate::steps::Steps;

/// What takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Run,
    Agent,
    Model,
    Tool,
    Handler,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Agent => "agent",
            Self::Model => "model",
            Self::Tool => "tool",
            Self::Handler => "handler",
        }
    }
}

/// Something that takes time.
#[derive(Clone, Debug)]
struct Span {
    /// Where the one that it is a part of stands: before it, in the same trace.
    parent: Option<usize>,
    kind: Kind,
    name: SmolStr,
    /// Seconds since 1970.
    start: f64,
    /// `None` while it is under way.
    end: Option<f64>,
    /// What a model took.
    usage: Option<Usage>,
    /// The model's own name for itself.
    model: Option<SmolStr>,
    /// The event that an answer of a model became.
    event: Option<SmolStr>,
    /// What went wrong, as a code.
    error: Option<SmolStr>,
    attributes: Object,
}

impl Span {
    fn new(kind: Kind, name: impl Into<SmolStr>, start: f64) -> Self {
        Self {
            parent: None,
            kind,
            name: name.into(),
            start,
            end: None,
            usage: None,
            model: None,
            event: None,
            error: None,
            attributes: Object::new(),
        }
    }

    fn set(&mut self, attribute: &str, value: impl Into<Value>) {
        self.attributes.insert(attribute.to_owned(), value.into());
    }

    /// What it cost, if that is known.
    fn cost(&self, prices: &Prices) -> Option<Value> {
        let usage = self.usage.as_ref()?;
        let known = [self.model.as_ref(), Some(&self.name)].into_iter().flatten();
        let cost = known.into_iter().find_map(|model| prices.cost(model, usage))?;
        Some(json!({"amount": cost.as_nanos() as f64 / 1e9, "currency": "USD"}))
    }

    fn form(&self, index: usize, since: f64, prices: &Prices) -> Value {
        let millis = |time: f64| ((time - since) * 1e6).round() / 1e3;
        let id = |index: usize| (index + 1).to_string();
        let usage = self.usage.as_ref().map(|usage| {
            json!({
                "input": usage.prompt_token_count.unwrap_or_default(),
                "output": usage.candidates_token_count.unwrap_or_default(),
                "cached": usage.cached_content_token_count.unwrap_or_default(),
                "thoughts": usage.thoughts_token_count.unwrap_or_default(),
            })
        });
        let always = [
            ("id", json!(id(index))),
            ("parent", json!(self.parent.map(id))),
            ("kind", json!(self.kind.name())),
            ("name", json!(self.name)),
            ("start", json!(millis(self.start))),
            ("end", json!(self.end.map(millis))),
            ("attributes", json!(self.attributes)),
        ];
        let seldom = [
            ("usage", usage),
            ("cost", self.cost(prices)),
            ("error", self.error.as_ref().map(|code| json!(code))),
        ];
        let seldom = seldom.into_iter().filter_map(|(key, value)| Some((key, value?)));
        always.into_iter().chain(seldom).map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// Puts spans behind others. Where they have no parent, they are part of `above`.
fn append(spans: &mut Vec<Span>, more: Vec<Span>, above: Option<usize>) {
    let offset = spans.len();
    spans.extend(more.into_iter().map(|mut span| {
        span.parent = span.parent.map(|parent| parent + offset).or(above);
        span
    }));
}

/// `GET {agent}/runs/{run}/trace`.
pub(crate) async fn trace(
    State(offered): State<Offered>,
    Named(run): Named,
    request: Request,
) -> Result<Response, Problem> {
    let (head, _) = request.into_parts();
    let steps = Steps::of(&offered, &head, &run).await?;
    let endpoint = &steps.offered.endpoint;
    let (mut spans, mut is_recorded) = (Vec::new(), true);
    for id in &steps.runs {
        let recorded = offered.app.traces.as_ref().and_then(|traces| traces.of_run(id));
        is_recorded &= recorded.is_some();
        let of_run = match recorded {
            Some(recorded) => recorded,
            None => told(&steps, id).await?,
        };
        append(&mut spans, of_run, None);
    }
    for span in &mut spans {
        let step = steps.answers.iter().position(|answer| span.event.as_deref() == Some(answer.id.as_str()));
        if let Some(step) = step {
            span.set("step", step + 1);
        }
        if span.kind == Kind::Run {
            span.name = endpoint.cast.root.clone();
        }
    }
    let since = spans.iter().map(|span| span.start).fold(f64::INFINITY, f64::min);
    let prices = &offered.app.prices;
    let spans: Vec<Value> =
        spans.iter().enumerate().map(|(index, span)| span.form(index, since, prices)).collect();
    let body = json!({
        "threadId": steps.key.id(),
        "runId": run,
        "source": if is_recorded { "recorded" } else { "log" },
        "startedAt": since,
        "spans": spans,
    });
    Ok(steps.reserved.hold(answer(StatusCode::OK, &body)))
}

/// What the log tells of a run.
async fn told(steps: &Steps, run: &RunId) -> Result<Vec<Span>, Problem> {
    let runner = &steps.offered.endpoint.runner;
    let session = Session { sessions: &**runner.sessions(), key: steps.key.clone(), tree: runner.tree() };
    session.spans(Some(run)).await
}

/// A session, with the agents that speak in it.
struct Session<'a> {
    sessions: &'a dyn umbel_core::SessionStore,
    key: SessionKey,
    tree: &'a AgentTree,
}
