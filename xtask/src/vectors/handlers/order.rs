//! Which hook comes when, and what jumps, errors and answers of hooks bring about.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use serde_json::{Value, json};
use umbel::{
    AfterOrder, AgentTurn, BoxError, Chunk, ChunkStream, Content, Error, ErrorKind, Handler, Hooks, Jump,
    ModelCall, ModelTurn, NextModel, NextTool, Outcome, Response, Result, Run, Step, ToolCall, ToolResult,
    Work,
};

use super::message::{content, settle_runs};
use super::play::{Play, both_ways};
use super::scene::{Scene, SceneModel, Scripted};
use crate::vectors::case::{Case, Checked};
use crate::vectors::script::{list, text};
use crate::vectors::tokens::Tokens;

pub(in crate::vectors) async fn check(case: &Case) -> Result<Checked, BoxError> {
    both_ways(case, once).await
}

async fn once(case: &Case, streaming: bool) -> Result<Checked, BoxError> {
    let scene = Scene::new(&case.input);
    let model = SceneModel::new("main", list(&case.input, "model"), &scene);
    let mut agent = scene.agent(&case.input, model)?.after_order(AfterOrder::Reverse);
    for handler in list(&case.input, "handlers") {
        agent = agent.handler(Traced::new(handler, list(&case.input, "actions"), &scene)?);
    }
    let play = Play::new(agent, streaming)?;
    let mut runs = Vec::new();
    for run in list(&case.input, "runs") {
        let said = json!([{"role": "user", "text": run}]);
        let before = scene.seen().trace.len();
        let played = play.run("t1", run.as_array().or(said.as_array()).map_or(&[], Vec::as_slice)).await?;
        let trace = scene.seen().trace.split_off(before);
        let mut seen = json!({"outcome": "ok", "trace": trace, "messages": played.messages});
        if let (Some(error), Some(seen)) = (&played.error, seen.as_object_mut()) {
            seen.insert("outcome".to_owned(), "error".into());
            seen.insert("error".to_owned(), Scripted::shown(error));
        }
        runs.push(seen);
    }
    let (mut expected, mut actual) = (case.expect.clone(), json!({"runs": runs}));
    settle_runs(&mut expected, &mut actual);
    for side in [&mut expected, &mut actual] {
        for run in side.get_mut("runs").and_then(Value::as_array_mut).into_iter().flatten() {
            sort_calls(run);
        }
    }
    Ok(Checked::Compare { expected, actual, tokens: Tokens::default() })
}

/// Calls of one turn are made at once: of each the order counts, but not how they interleave.
fn sort_calls(run: &mut Value) {
    let call = |entry: &Value| {
        let id = entry.as_str().and_then(|entry| entry.split_once(':')).map(|(_, id)| id);
        id.map(|id| id.trim_end_matches(['>', '<', '!']).to_owned())
    };
    if let Some(trace) = run.get_mut("trace").and_then(Value::as_array_mut) {
        for turn in trace.chunk_by_mut(|one, next| call(one).is_some() && call(next).is_some()) {
            turn.sort_by_key(call);
        }
    }
}

/// A handler that leaves traces, and does what the vector says.
struct Traced {
    name: String,
    hooks: Hooks,
    /// Where its hooks may jump to, if the vector says so. We have no such declaration.
    can_jump: Value,
    actions: Vec<Value>,
    /// How often each hook was called.
    calls: Mutex<BTreeMap<&'static str, u64>>,
    scene: Arc<Scene>,
}

impl Traced {
    fn new(handler: &Value, actions: &[Value], scene: &Arc<Scene>) -> Result<Self, BoxError> {
        let mut hooks = Hooks::NONE;
        for hook in list(handler, "hooks") {
            hooks |= match hook.as_str().unwrap_or_default() {
                "before_agent" => Hooks::BEFORE_AGENT,
                "before_model" => Hooks::BEFORE_MODEL,
                "wrap_model_call" => Hooks::WRAP_MODEL,
                "after_model" => Hooks::AFTER_MODEL,
                "wrap_tool_call" => Hooks::WRAP_TOOL,
                "after_agent" => Hooks::AFTER_AGENT,
                other => return Err(format!("there is no hook `{other}`").into()),
            };
        }
        Ok(Self {
            name: text(handler, "name").ok_or("a handler has no `name`")?.to_owned(),
            hooks,
            can_jump: handler.get("can_jump").cloned().unwrap_or_default(),
            actions: actions.to_vec(),
            calls: Mutex::default(),
            scene: scene.clone(),
        })
    }

    fn note(&self, what: &str) {
        self.scene.note(format!("{}.{what}", self.name));
    }

    /// What the hook is to do in this call, if anything. An error if that is to fail.
    fn act(&self, hook: &'static str) -> Result<Option<&Value>> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let count = calls.entry(hook).or_default();
        *count += 1;
        let at = format!("{}.{hook}", self.name);
        let due = |action: &&Value| {
            let nth = action.get("nth").and_then(Value::as_u64).unwrap_or(1);
            text(action, "at") == Some(&at) && nth == *count
        };
        let action = self.actions.iter().find(due);
        if action.is_some_and(|action| text(action, "do") == Some("raise")) {
            return Err(Scripted::error(&json!({"kind": "error", "text": "stop"}), ErrorKind::Other));
        }
        Ok(action)
    }

    /// Where an action wants to go on.
    fn step(&self, hook: &str, action: Option<&Value>) -> Step {
        let declared = self.can_jump.get(hook).and_then(Value::as_array);
        let jump = action.and_then(|action| action.get("jump"));
        let jump = jump.filter(|to| declared.is_none_or(|declared| declared.contains(to)));
        match jump.and_then(Value::as_str) {
            Some("model") => Step::Jump(Jump::Model),
            Some("tools") => Step::Jump(Jump::Tools),
            Some("end") => Step::Jump(Jump::End),
            _ => Step::Continue,
        }
    }

    fn in_before_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.note("before_model");
        let action = self.act("before_model")?;
        let step = self.step("before_model", action);
        for message in action.map(|action| list(action, "add")).unwrap_or_default() {
            let said = spoken(message)?;
            if step == Step::Jump(Jump::End) && text(message, "role") == Some("assistant") {
                return Ok(Step::Respond(said));
            }
            turn.history.push(said);
        }
        Ok(step)
    }

    fn in_after_model(&self, turn: &mut ModelTurn<'_>) -> Result<Step> {
        self.note("after_model");
        let action = self.act("after_model")?;
        for message in action.map(|action| list(action, "add")).unwrap_or_default() {
            match text(message, "call_id") {
                Some(call) => turn.answer(call.into(), json!(text(message, "text"))),
                None => turn.history.push(spoken(message)?),
            }
        }
        Ok(self.step("after_model", action))
    }

    /// Calls the inner layers and reads what they give to its end, since only then they are left.
    async fn in_wrap_model<'a>(&'a self, call: ModelCall<'a>, next: NextModel<'a>) -> Result<Vec<Chunk>> {
        let action = self.act("wrap_model_call")?;
        let word = action.and_then(|action| text(action, "do"));
        if let (Some("skip"), Some(action)) = (word, action) {
            return Ok(vec![Chunk::Complete(Response::text(text(action, "text").unwrap_or_default()))]);
        }
        if word == Some("twice") {
            read(call.clone(), next).await?;
        }
        match read(call, next).await {
            Err(error) if word == Some("catch") => Ok(vec![Chunk::Complete(Response::text(caught(&error)))]),
            given => given,
        }
    }

    async fn in_wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> ToolResult {
        let action = self.act("wrap_tool_call")?;
        let word = action.and_then(|action| text(action, "do"));
        if let (Some("skip"), Some(action)) = (word, action) {
            return Ok(json!(text(action, "text")).into());
        }
        if word == Some("twice") {
            next.call(call.clone()).await?;
        }
        match next.call(call).await {
            Err(error) if word == Some("catch") => Ok(json!(caught(error.error())).into()),
            given => given,
        }
    }
}

async fn read<'a>(call: ModelCall<'a>, next: NextModel<'a>) -> Result<Vec<Chunk>> {
    let mut chunks = next.call(call).await?;
    let mut all = Vec::new();
    while let Some(chunk) = chunks.next().await {
        all.push(chunk?);
    }
    Ok(all)
}

fn caught(error: &Error) -> String {
    format!("caught {}", Scripted::find(error).map_or(error.kind().code(), |scripted| &scripted.kind))
}

/// A message of the vector as a content, in a hook.
fn spoken(message: &Value) -> Result<Content> {
    content(message).map_err(|e| Error::new(ErrorKind::InvalidInput, e.to_string()))
}

impl Handler for Traced {
    fn name(&self) -> &str {
        &self.name
    }

    fn hooks(&self) -> Hooks {
        self.hooks
    }

    fn before_agent<'a>(&'a self, _turn: &'a mut AgentTurn<'_>) -> Work<'a, Result<Step>> {
        self.note("before_agent");
        Work::done(self.act("before_agent").map(|action| self.step("before_agent", action)))
    }

    fn before_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        Work::done(self.in_before_model(turn))
    }

    fn after_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        Work::done(self.in_after_model(turn))
    }

    fn wrap_model<'a>(
        &'a self,
        call: ModelCall<'a>,
        next: NextModel<'a>,
    ) -> Work<'a, Result<ChunkStream<'a>>> {
        Work::later(async move {
            self.note("wrap_model_call>");
            let given = self.in_wrap_model(call, next).await;
            self.note(if given.is_ok() { "wrap_model_call<" } else { "wrap_model_call!" });
            let chunks: ChunkStream<'a> = Box::pin(futures::stream::iter(given?.into_iter().map(Ok)));
            Ok(chunks)
        })
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        Work::later(async move {
            let id = call.id().map(ToString::to_string).unwrap_or_default();
            self.note(&format!("wrap_tool_call:{id}>"));
            let given = self.in_wrap_tool(call, next).await;
            self.note(&format!("wrap_tool_call:{id}{}", if given.is_ok() { '<' } else { '!' }));
            given
        })
    }

    fn after_agent<'a>(&'a self, _run: &'a Run, _outcome: &'a Outcome) -> Work<'a, Result<()>> {
        self.note("after_agent");
        Work::done(self.act("after_agent").map(|_| ()))
    }
}
