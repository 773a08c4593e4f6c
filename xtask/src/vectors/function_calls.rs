//! The calls of one message: tools, callbacks, confirmations, and the events that come of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::flow::{Batch, make_calls, merge_calls};
use umbel::output_schema::{OutputSchema, SetModelResponse};
use umbel::{
    Agent, BoxError, CountingIds, Event, FunctionCall, Handler, LlmAgent, Object, Parallel, Result, Run,
    RunConfig, Runner, ScriptedModel, ToolErrors, Work, agent_fn,
};

use super::case::{Case, Checked};
use super::script::{ScriptTool, Stage, event, flag, hide_errors, list, object, schema_of, text};
use super::tokens::Tokens;

/// What is to be done inside a run, and what was found out there.
struct Job {
    agent: LlmAgent,
    batch: Batch,
    /// Execute and merge only.
    merge_only: bool,
    begun: AtomicBool,
    seen: Mutex<Seen>,
}

/// What only the inside of a run can tell.
#[derive(Default)]
struct Seen {
    /// Events as they are emitted: what only the run may know is still in them.
    events: Vec<Event>,
    ended: bool,
    branch: Option<String>,
}

pub(super) async fn check(case: &Case) -> Result<Checked, BoxError> {
    let name = text(&case.input, "agent_name").ok_or("the input has no `agent_name`")?;
    let stage = Stage::new(&case.input);
    let job = Arc::new(Job::read(name, &case.input, &stage)?);
    let branch = text(&case.input, "branch");
    let mut actual = run(name, &job, branch, &stage).await?;
    let mut expected = case.expect.clone();
    if let Some(error) = expected.get_mut("error").and_then(Value::as_object_mut) {
        error.remove("type");
    }
    for side in [&mut expected, &mut actual] {
        if case.has_tag("parallel") {
            sort_trace(side);
        }
        if case.has_tag("opaque_error") {
            hide_errors(side);
        }
    }
    let tokens = Tokens::of_tree(&json!({"name": name}));
    Ok(Checked::Compare { expected, actual, tokens })
}

/// Makes the calls inside a run, and tells what came of them.
async fn run(name: &str, job: &Arc<Job>, branch: Option<&str>, stage: &Stage) -> Result<Value, BoxError> {
    let config = RunConfig { tool_errors: ToolErrors::Fail, ..RunConfig::default() };
    let builder = Runner::builder("app", place(name, job, branch.is_some()));
    let builder = builder.ids(CountingIds::default()).config(config).handler(Watch(job.clone()));
    let runner = stage.hooks().plugins().into_iter().fold(builder, umbel::RunnerBuilder::plugin).build()?;
    let session = runner.create_session_with("user", "session", Object::new()).await?;
    let mut error = None;
    let mut stream = runner.run(&session.key, "go");
    while let Some(item) = stream.next().await {
        error = item.err();
    }
    let seen = job.seen.lock().unwrap_or_else(PoisonError::into_inner);
    let events =
        seen.events.iter().map(|event| shown(event, branch, &seen)).collect::<Result<Vec<_>, _>>()?;
    let mut actual = json!({"events": events, "trace": stage.log().trace(), "end_invocation": seen.ended});
    if let (Some(error), Some(actual)) = (error, actual.as_object_mut()) {
        actual.insert("error".to_owned(), json!({"message": error.message()}));
    }
    Ok(actual)
}

/// Sees the events of a job before they are stored.
struct Watch(Arc<Job>);

impl Handler for Watch {
    fn name(&self) -> &str {
        "watch"
    }

    fn on_event<'a>(&'a self, _run: &'a Run, event: Event) -> Work<'a, Result<Event>> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner).events.push(event.clone());
        Work::done(Ok(event))
    }
}

/// The agent whose tools and callbacks are used.
fn agent(name: &str, input: &Value, stage: &Stage) -> Result<LlmAgent, BoxError> {
    let mut agent = LlmAgent::new(name).model(ScriptedModel::new("unused"));
    for tool in list(input, "tools") {
        agent = match tool.get("schema").filter(|schema| !schema.is_null()) {
            Some(schema) => agent.tool(SetModelResponse::new(OutputSchema::new(schema_of(schema))?)),
            None => agent.tool(ScriptTool::new(tool, stage)?),
        };
    }
    Ok(stage.hooks().on_agent("agent", agent))
}

fn batch(input: &Value) -> Result<Batch, BoxError> {
    let calls = list(input, "calls").iter().cloned().map(serde_json::from_value);
    let mut calls: Vec<FunctionCall> = calls.collect::<Result<_, _>>()?;
    let only = list(input, "only_ids");
    let wanted =
        |call: &FunctionCall| only.iter().any(|id| id.as_str() == call.id.as_ref().map(AsRef::as_ref));
    calls.retain(|call| only.is_empty() || wanted(call));
    let answers = object(input, "confirmations").into_iter();
    let answers = answers.map(|(id, answer)| Ok((id.as_str().into(), serde_json::from_value(answer)?)));
    let confirmations = answers.collect::<Result<_, BoxError>>()?;
    Ok(Batch { calls, confirmations, ..Batch::default() })
}

/// The place where the calls are made: on the trunk, or on the branch of a parallel agent.
fn place(name: &str, job: &Arc<Job>, branched: bool) -> Arc<dyn Agent> {
    let job = job.clone();
    let worker = agent_fn(name, move |run| {
        let job = job.clone();
        Box::pin(async move { job.work(run).await })
    });
    if branched { Arc::new(Parallel::new("around").agent(worker)) } else { Arc::new(worker) }
}

impl Job {
    fn read(name: &str, input: &Value, stage: &Stage) -> Result<Self, BoxError> {
        let only_merged = !object(input, "confirmations").is_empty() || !list(input, "only_ids").is_empty();
        Ok(Self {
            agent: agent(name, input, stage)?,
            batch: batch(input)?,
            merge_only: only_merged || flag(input, "stop_before_transfer"),
            begun: AtomicBool::new(false),
            seen: Mutex::default(),
        })
    }

    async fn work(&self, run: &Run) -> Result<()> {
        // A transfer to oneself comes back here.
        if self.begun.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let made = self.make(run).await;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.ended = run.is_ended();
        seen.branch = run.branch().map(ToString::to_string);
        made
    }

    async fn make(&self, run: &Run) -> Result<()> {
        if !self.merge_only {
            return make_calls(&self.agent, run, self.batch.clone()).await.map(|_| ());
        }
        if let Some(event) = merge_calls(&self.agent, run, self.batch.clone()).await? {
            run.emit(event).await?;
        }
        Ok(())
    }
}

/// An event as vectors show it. The branch that it stands on is called what the vector calls it.
fn shown(given: &Event, branch: Option<&str>, seen: &Seen) -> Result<Value, BoxError> {
    let mut shown = event(given)?;
    if given.branch().is_some()
        && given.branch() == seen.branch.as_deref()
        && let (Some(branch), Some(shown)) = (branch, shown.as_object_mut())
    {
        shown.insert("branch".to_owned(), branch.into());
    }
    Ok(shown)
}

/// Calls that are made at the same time leave their traces in any order.
fn sort_trace(side: &mut Value) {
    if let Some(trace) = side.get_mut("trace").and_then(Value::as_array_mut) {
        trace.sort_by_key(|entry| entry.as_str().unwrap_or_default().to_owned());
    }
}
