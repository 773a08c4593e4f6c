//! Answers in the place of models and tools, from a recording.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::{
    Actions, AgentTree, CallId, Chunk, ChunkStream, Error, ErrorKind, Event, FunctionCall, Interrupt,
    ModelErrorKind, ModelRequest, Object, Outcome, Question, Response, Run, Tool, ToolContext, ToolResult,
    ToolValue,
};

use super::recording::{Done, Lane, Recording, calls, response, runs, under};
use super::{Difference, Part};
use crate::flow::calls_of;
use crate::stand_in::StandIn;
use crate::text;

/// What a model was asked in a replay, after all handlers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sent {
    /// In which run of the session, counted from 1.
    pub run: usize,
    /// The agent.
    pub agent: SmolStr,
    /// Its branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<SmolStr>,
    /// The calls that it works under.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub under: String,
    /// How many times it asked its model in this run, counted from 1.
    pub step: usize,
    /// The request: `model`, `instruction`, `messages`, `tools`, `config`, `outputSchema`.
    pub request: Value,
}

impl Sent {
    /// Where it belongs, in words.
    pub fn place(&self) -> String {
        let branch = self.branch.as_ref().map(|branch| format!(" on {branch}")).unwrap_or_default();
        let under = if self.under.is_empty() { String::new() } else { format!(" under {}", self.under) };
        format!("run {}, {}{branch}{under}, request {}", self.run, self.agent, self.step)
    }
}

/// A request as JSON.
pub(super) fn request_form(request: &ModelRequest) -> Value {
    let tools = request.tools.specs().map(
        |spec| json!({"name": spec.name, "description": spec.description, "parameters": spec.parameters}),
    );
    json!({
        "model": request.model,
        "instruction": request.instruction.text(),
        "messages": request.contents.iter().collect::<Vec<_>>(),
        "tools": tools.collect::<Vec<_>>(),
        "config": request.config,
        "outputSchema": request.output_schema,
    })
}

/// Answers from a recording, and keeps what it was asked.
pub(super) struct Answers {
    root: String,
    /// Whether tools are called for real.
    live_tools: bool,
    lanes: HashMap<Lane, Vec<Answer>>,
    calls: Vec<Done>,
    /// The places of calls among them, by who made them and their id. Some models give an id again with each answer.
    by_id: HashMap<(Lane, CallId), Vec<usize>>,
    state: Mutex<State>,
}

/// What a model said, and in which run of the session, counted from 1. Those of sessions that worked for it are not counted.
struct Answer {
    run: usize,
    response: Response,
}

#[derive(Default)]
struct State {
    /// The run of the session that goes on, counted from 1, and how it ended in the recording.
    run: (usize, Option<Outcome>),
    /// The places of results for calls that go by another id now, by tool and arguments.
    unnamed: HashMap<(SmolStr, String), VecDeque<usize>>,
    sent: Vec<Sent>,
    missing: Vec<Difference>,
}

impl Answers {
    pub(super) fn new(recording: &Recording, live_tools: bool) -> Self {
        let root = recording.key.id().to_owned();
        let mut lanes: HashMap<Lane, Vec<Answer>> = HashMap::new();
        let mut by_id: HashMap<(Lane, CallId), Vec<usize>> = HashMap::new();
        let mut all: Vec<Done> = Vec::new();
        let runs = runs(recording);
        let mut state = State::default();
        for one in recording.all() {
            let under = under(&root, one.key.id());
            let number =
                |event: &Event| runs.iter().position(|run| run.id == event.run).map_or(0, |at| at + 1);
            for event in one.events().filter(|event| event.is_answer()) {
                lanes
                    .entry(Lane::of(&under, event))
                    .or_default()
                    .push(Answer { run: number(event), response: response(event) });
            }
            for done in calls(one, &under) {
                state.unnamed.entry(form(&done)).or_default().push_back(all.len());
                if let Some(id) = &done.call.id {
                    by_id.entry((done.lane.clone(), id.clone())).or_default().push(all.len());
                }
                all.push(done);
            }
        }
        Self { root, live_tools, lanes, calls: all, by_id, state: Mutex::new(state) }
    }

    /// The next run of the session begins.
    pub(super) fn begin(&self, run: usize, outcome: Option<Outcome>) {
        self.lock().run = (run, outcome);
    }

    /// What was asked, and what could not be answered.
    pub(super) fn take(&self) -> (Vec<Sent>, Vec<Difference>) {
        let mut state = self.lock();
        (std::mem::take(&mut state.sent), std::mem::take(&mut state.missing))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answers of a lane, or of the same agent elsewhere, if it has moved.
    fn lane(&self, lane: &Lane) -> Option<&Vec<Answer>> {
        let moved = || {
            let same = self.lanes.iter().filter(|(other, _)| other.agent == lane.agent);
            same.min_by_key(|(other, _)| (*other).clone()).map(|(_, answers)| answers)
        };
        self.lanes.get(lane).or_else(moved)
    }

    /// Whether an agent that is called as a tool has answers of its own, so that it can work.
    fn can_work(&self, under: &str, tool: &dyn Tool) -> bool {
        let Some(tree) = tool.agent().and_then(|agent| AgentTree::new(agent).ok()) else { return false };
        let names = tree.ids().filter_map(|id| Some(tree.node(id).ok()?.agent.name().to_owned()));
        let names: Vec<String> = names.collect();
        let is_its = |lane: &Lane| lane.under == under && names.iter().any(|name| *name == *lane.agent);
        self.lanes.keys().any(is_its)
    }

    /// The result of a call: by its id, or by what it is. What was given by its id is not given to another call.
    fn find(&self, under: &str, cx: &ToolContext, args: &Object) -> Option<&Done> {
        let mut state = self.lock();
        if let Some((place, done)) = self.find_by_id(under, cx) {
            state.unnamed.entry(form(done)).or_default().retain(|other| *other != place);
            return Some(done);
        }
        let key = (SmolStr::new(cx.tool_name()), canonical(Some(args)));
        let place = state.unnamed.get_mut(&key)?.pop_front()?;
        self.calls.get(place)
    }

    /// The same call of the recording, and its place: as many calls of that id came before it there as here.
    fn find_by_id(&self, under: &str, cx: &ToolContext) -> Option<(usize, &Done)> {
        let (id, source) = (cx.call_id()?, cx.run().source());
        let lane =
            Lane { under: under.to_owned(), agent: source.author.clone(), branch: source.branch.clone() };
        let events = cx.run().events();
        let made = events.iter().filter(|event| !event.is_user() && Lane::of(under, event) == lane);
        let count =
            made.flat_map(|event| calls_of(event)).filter(|call| call.id.as_ref() == Some(id)).count();
        let place = *self.by_id.get(&(lane, id.clone()))?.get(count.checked_sub(1)?)?;
        let done = self.calls.get(place).filter(|done| is_the_call(&done.call, cx))?;
        Some((place, done))
    }

    fn note(&self, part: Part, place: String, now: String) {
        let (then, note) = (String::new(), "the recording has no answer".to_owned());
        self.lock().missing.push(Difference { part, place, note, then, now });
    }
}

/// Whether the model called the same as then. People and handlers may have changed the arguments since, then as now.
fn is_the_call(then: &FunctionCall, cx: &ToolContext) -> bool {
    let events = cx.run().events();
    let mut calls = events.iter().rev().flat_map(|event| calls_of(event));
    let now = calls.find(|call| call.id.as_ref() == cx.call_id());
    then.name == *cx.tool_name()
        && now.is_none_or(|now| canonical(now.args.as_deref()) == canonical(then.args.as_deref()))
}

/// What a call is: its tool and its arguments.
fn form(done: &Done) -> (SmolStr, String) {
    (done.call.name.clone(), canonical(done.call.args.as_deref()))
}

fn canonical(args: Option<&Object>) -> String {
    let mut args = Value::Object(args.cloned().unwrap_or_default());
    args.sort_all_objects();
    args.to_string()
}

impl StandIn for Answers {
    fn call(&self, cx: &ToolContext, tool: &Arc<dyn Tool>, args: &Arc<Object>) -> Option<ToolResult> {
        let (spec, run) = (tool.spec(), cx.run());
        let under = under(&self.root, run.session_key().id());
        let works = match tool.agent() {
            Some(_) => {
                let call = cx.call_id().map(|id| id.as_str()).unwrap_or_default();
                let below = if under.is_empty() { call.to_owned() } else { format!("{under}/{call}") };
                self.can_work(&below, &**tool)
            }
            // What does nothing but act on its run does that, and what a client brought only passes its calls on.
            None => {
                spec.resumes || run.config().tools.as_ref().is_some_and(|own| own.get(&spec.name).is_some())
            }
        };
        if works || self.live_tools {
            return None;
        }
        let Some(done) = self.find(&under, cx, args).cloned() else {
            let place = format!("run {}, {}", self.lock().run.0, run.agent_name());
            self.note(Part::Result, place, format!("{}({})", spec.name, canonical(Some(args))));
            return Some(Ok(ToolValue::error(text::call_not_recorded(&spec.name)).into()));
        };
        for asked in &done.asked {
            if let Err(error) = cx.ask(None, question(asked)) {
                return Some(Err(error.into()));
            }
        }
        if let Some(actions) = done.actions {
            let asks_no_more = Actions { requested_tool_confirmations: None, ..*actions };
            cx.actions(|own| own.merge(asks_no_more));
        }
        let value = done.response.map_or(Value::Null, |response| without_notice(Value::Object(response)));
        let is_error = value.get("error").is_some();
        Some(Ok(ToolValue { value, is_error, ..ToolValue::default() }.into()))
    }

    fn generate(&self, run: &Run, request: &ModelRequest) -> Option<ChunkStream<'static>> {
        let under = under(&self.root, run.session_key().id());
        let source = run.source();
        let lane = Lane { under, agent: source.author.clone(), branch: source.branch.clone() };
        let events = run.events();
        let said = |event: &Event| event.is_answer() && Lane::of(&lane.under, event) == lane;
        let place = events.iter().filter(|event| said(event)).count();
        let (place_in_words, number, outcome) = {
            let mut state = self.lock();
            let (run, outcome) = state.run.clone();
            let is_same = |sent: &&Sent| {
                (sent.run, &sent.agent, &sent.branch, &sent.under)
                    == (run, &lane.agent, &lane.branch, &lane.under)
            };
            let step = state.sent.iter().filter(is_same).count() + 1;
            let Lane { under, agent, branch } = lane.clone();
            let sent = Sent { run, agent, branch, under, step, request: request_form(request) };
            let words = sent.place();
            state.sent.push(sent);
            (words, run, outcome)
        };
        // What was said in a later run was not said to this.
        let found =
            self.lane(&lane).and_then(|answers| answers.get(place)).filter(|found| found.run <= number);
        let answer = match found {
            Some(answer) => Ok(Chunk::Complete(answer.response.clone())),
            None => match outcome {
                Some(Outcome::Failed { failure }) => {
                    let other = ErrorKind::Model(ModelErrorKind::Other);
                    let kind = ErrorKind::from_code(&failure.code).unwrap_or(other);
                    Err(Error::new(kind, failure.message.clone()))
                }
                Some(Outcome::Cancelled) => {
                    Err(Error::new(ErrorKind::Cancelled, "the run was cancelled here"))
                }
                _ => {
                    self.note(Part::Answer, place_in_words, "the model is asked once more".to_owned());
                    Ok(Chunk::Complete(Response::text(text::NOT_RECORDED)))
                }
            },
        };
        Some(Box::pin(futures::stream::iter([answer])))
    }
}

/// A result as the tool gave it. That a person changed the call is said again by who lets it pass.
fn without_notice(mut value: Value) -> Value {
    let text = |value: Option<&Value>| value?.as_str().and_then(text::after_edit_notice).map(str::to_owned);
    if text(value.get("notice")).is_some() {
        return value.get_mut("result").map(Value::take).unwrap_or_default();
    }
    for key in ["result", "error"] {
        if let (Some(words), Some(place)) = (text(value.get(key)), value.get_mut(key)) {
            *place = words.into();
        }
    }
    value
}

/// The question that was asked.
fn question(asked: &Interrupt) -> Question {
    Question {
        response_schema: asked.response_schema.clone(),
        payload: asked.payload.clone(),
        decisions: asked.decisions.clone(),
        any_tool: asked.any_tool,
        together: asked.together,
        ..Question::new(asked.reason.clone(), asked.message.clone().unwrap_or_default())
    }
}
