//! People decide about calls before they are made.

use std::fmt;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use smol_str::SmolStr;
use umbel_core::{
    AgentPlan, Answer, DecisionKind, Error, ErrorKind, FunctionCall, Handler, NextTool, Object, Question,
    Result, ToolCall, ToolError, ToolResult, ToolSet, ToolSpec, ToolValue,
};
use umbel_macros::handler;

use crate::flow::INJECTED;
use crate::layers::at_end;
use crate::layers::canonical::write_value;
use crate::text;

/// Asks people before calls are made: they approve a call, edit its arguments, reject it, or answer in the tool's place.
///
/// Code that the model writes is a call of `run_code`; code by which files are looked at that the user sent is not asked about.
///
/// Which calls: those of [tools](Self::tool), those that a [rule](Self::rule) is about, or
/// [all but those that are allowed](Self::every_call). An answer holds for the call it was given about and for the
/// arguments that were shown: it is not asked for again when someone around this handler tries the call once more, and is
/// asked for anew if the arguments have changed.
///
/// Calls beside it that need nobody are made at once, each question is answered by itself, and the model is asked when all
/// have their answers. With [`whole_batch`](Self::whole_batch) nothing is made before all are answered.
///
/// ```
/// use serde_json::json;
/// use umbel_core::{Answer, Content, FunctionTool, Outcome, Result};
/// use umbel_runtime::handlers::Approve;
/// use umbel_runtime::{LlmAgent, Runner, ScriptedModel};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let send = FunctionTool::new("send", "Sends a mail.", |_: serde_json::Value| async { Ok("sent") });
/// let model = ScriptedModel::new("demo").call("send", json!({"to": "ann"})).text("Done.");
/// let agent = LlmAgent::new("clerk").model(model).tool(send).handler(Approve::new().tool("send"));
/// let runner = Runner::new("demo", agent)?;
/// let session = runner.create_session("ann").await?;
/// runner.run(&session.key, "Write to Ann.").text().await?;
/// let open = runner.open_questions(&session.key).await?;
/// let said = runner.resume(&session.key, [(&open[0], Answer::approve())]).text().await?;
/// assert_eq!(said, "Done.");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Approve {
    name: SmolStr,
    rules: Vec<ApprovalRule>,
    /// What is asked about calls that no rule is about.
    otherwise: Option<ApprovalRule>,
    allowed: Vec<SmolStr>,
    allows_read_only: bool,
    whole_batch: bool,
    tells_edits: bool,
}

/// Which calls people are asked about, and what they may do.
#[derive(Clone)]
pub struct ApprovalRule {
    /// The tool; any if absent.
    tool: Option<SmolStr>,
    when: Option<Judge>,
    decisions: Vec<DecisionKind>,
    message: Option<Words>,
    expires_in: Option<Duration>,
}

type Judge = Arc<dyn Fn(&FunctionCall) -> bool + Send + Sync>;
type Words = Arc<dyn Fn(&FunctionCall) -> String + Send + Sync>;

impl ApprovalRule {
    /// Calls of that tool.
    pub fn tool(name: impl Into<SmolStr>) -> Self {
        Self { tool: Some(name.into()), ..Self::any() }
    }

    /// All calls. [`when_call`](Self::when_call) says which.
    pub fn any() -> Self {
        let decisions = DecisionKind::ALL.to_vec();
        Self { tool: None, when: None, decisions, message: None, expires_in: None }
    }

    /// Only if this says so of the arguments.
    pub fn when(self, judge: impl Fn(&Object) -> bool + Send + Sync + 'static) -> Self {
        let none = Object::new();
        self.when_call(move |call| judge(call.args.as_deref().unwrap_or(&none)))
    }

    /// Only if this says so of the call.
    pub fn when_call(mut self, judge: impl Fn(&FunctionCall) -> bool + Send + Sync + 'static) -> Self {
        self.when = Some(Arc::new(judge));
        self
    }

    /// What people may do; all of it unless said. Nothing at all is an error when the agent is built.
    pub fn decisions(mut self, decisions: impl IntoIterator<Item = DecisionKind>) -> Self {
        self.decisions = decisions.into_iter().collect();
        self
    }

    /// What people are asked.
    pub fn message(self, message: impl Into<String>) -> Self {
        let message = message.into();
        self.message_fn(move |_| message.clone())
    }

    /// What people are asked, made from the call.
    pub fn message_fn(mut self, message: impl Fn(&FunctionCall) -> String + Send + Sync + 'static) -> Self {
        self.message = Some(Arc::new(message));
        self
    }

    /// How long it may be answered; for ever unless said. Then the call stays unmade.
    pub fn expires_in(mut self, time: Duration) -> Self {
        self.expires_in = Some(time);
        self
    }

    fn is_about(&self, call: &FunctionCall) -> bool {
        self.tool.as_ref().is_none_or(|tool| *tool == call.name)
            && self.when.as_ref().is_none_or(|judge| judge(call))
    }

    fn question(&self, call: &FunctionCall) -> Question {
        let message = match &self.message {
            Some(message) => message(call),
            None => text::approve_hint(&call.name),
        };
        let question = Question::confirm(message).decisions(self.decisions.iter().copied());
        Question { expires_in: self.expires_in, ..question }
    }
}

impl Default for Approve {
    fn default() -> Self {
        Self::new()
    }
}

impl Approve {
    /// Asks about nothing yet.
    pub fn new() -> Self {
        Self {
            name: "approve".into(),
            rules: Vec::new(),
            otherwise: None,
            allowed: Vec::new(),
            allows_read_only: false,
            whole_batch: false,
            tells_edits: true,
        }
    }

    /// Asks about every call, except of tools that are [allowed](Self::allow), and of those that only read if
    /// [that is allowed](Self::allow_read_only). Umbel's own tools, such as `transfer_to_agent`, are no exception. A tool
    /// that does not exist is not asked about: there is nothing that could be done.
    pub fn every_call() -> Self {
        Self::new().otherwise(ApprovalRule::any())
    }

    /// Asks about all calls of that tool.
    pub fn tool(self, name: impl Into<SmolStr>) -> Self {
        self.rule(ApprovalRule::tool(name))
    }

    /// Asks about calls that this is about. Rules about one tool come before those about any, then the first one counts.
    pub fn rule(mut self, rule: ApprovalRule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Asks so about calls that no other rule is about and that are not allowed.
    pub fn otherwise(mut self, rule: ApprovalRule) -> Self {
        self.otherwise = Some(rule);
        self
    }

    /// Calls of that tool need nobody, unless a rule about this very tool says so.
    pub fn allow(mut self, tool: impl Into<SmolStr>) -> Self {
        self.allowed.push(tool.into());
        self
    }

    /// Calls of tools that say they [only read](ToolSpec::read_only) need nobody, unless a rule about such a tool says so.
    /// What a tool of a remote server says of itself is believed then.
    pub fn allow_read_only(mut self) -> Self {
        self.allows_read_only = true;
        self
    }

    /// If people are asked about a call, none of those that the model asked for with it is made before they answered all
    /// questions about them, together. They may also put another tool in the place of the one that was called.
    pub fn whole_batch(mut self) -> Self {
        self.whole_batch = true;
        self
    }

    /// Does not tell the model that arguments were edited. Unless said, the result does.
    pub fn without_edit_notice(mut self) -> Self {
        self.tells_edits = false;
        self
    }

    /// Gives it a name, by which it is known in questions.
    pub fn named(mut self, name: impl Into<SmolStr>) -> Self {
        self.name = name.into();
        self
    }

    /// The rule by which people are asked about a call, if they are.
    fn rule_for(&self, call: &FunctionCall, spec: Option<&ToolSpec>) -> Option<&ApprovalRule> {
        let rule =
            |named: bool| self.rules.iter().find(|rule| rule.tool.is_some() == named && rule.is_about(call));
        if let Some(rule) = rule(true) {
            return Some(rule);
        }
        let reads = self.allows_read_only && spec.is_some_and(|spec| spec.read_only);
        if reads || self.allowed.contains(&call.name) {
            return None;
        }
        rule(false).or_else(|| self.otherwise.as_ref().filter(|rule| spec.is_some() && rule.is_about(call)))
    }

    /// What people say to a call; `None` if nobody needs to be asked.
    fn ask(&self, call: &ToolCall<'_>) -> Result<Option<Answer>> {
        if call.cx.looks_at_file() {
            return Ok(None);
        }
        // What was said counts, whatever the rules make of the call now.
        if let Some(answer) = call.answer(self) {
            return Ok(Some(answer));
        }
        let spec = call.tool.map(|tool| tool.spec());
        let name = call.cx.instead_of().map_or_else(|| call.name().into(), Clone::clone);
        let shown = FunctionCall { id: call.id().cloned(), ..FunctionCall::new(name, (*call.args).clone()) };
        if !self.whole_batch {
            let Some(rule) = self.rule_for(&shown, spec) else { return Ok(None) };
            return call.interrupt(self, rule.question(&shown)).map(Some);
        }
        // Those beside it are judged as the model made them, so it is, too.
        let own = call.cx.batch().iter().find(|one| one.id == shown.id).unwrap_or(&shown);
        if let Some(rule) = self.rule_for(own, spec) {
            let question = Question { together: true, any_tool: true, ..rule.question(&shown) };
            return call.interrupt(self, question).map(Some);
        }
        let waits = !call.cx.is_released() && !call.is_batch_answered(self);
        if waits && call.cx.batch().iter().any(|other| self.asks_about(other, call.cx.tools())) {
            return Err(Error::held());
        }
        Ok(None)
    }

    /// Whether people are asked about another call of the batch.
    fn asks_about(&self, other: &FunctionCall, tools: Option<&Arc<ToolSet>>) -> bool {
        let meta = tools.and_then(|tools| tools.get(&other.name));
        self.rule_for(other, meta.map(|meta| meta.tool.spec())).is_some()
    }

    /// A result that is given without making the call. Of a whole batch these come first.
    fn given(&self, mut value: ToolValue) -> ToolResult {
        if self.whole_batch {
            value.metadata.insert(INJECTED.to_owned(), true.into());
        }
        Ok(value.into())
    }
}

#[handler(crate = umbel_core)]
impl Handler for Approve {
    fn name(&self) -> &str {
        &self.name
    }

    fn configure(&self, _plan: &mut AgentPlan) -> Result<()> {
        if self.rules.iter().chain(&self.otherwise).any(|rule| rule.decisions.is_empty()) {
            let message = format!("a rule of `{}` lets people decide nothing: name a decision", self.name);
            return Err(Error::new(ErrorKind::Build, message));
        }
        Ok(())
    }

    async fn wrap_tool(&self, call: ToolCall<'_>, next: NextTool<'_>) -> ToolResult {
        let Some(answer) = self.ask(&call)? else { return next.call(call).await };
        match answer.decision() {
            DecisionKind::Approve => next.call(call).await,
            DecisionKind::Reject => {
                self.given(ToolValue::error(text::call_rejected(call.name(), answer.reason.as_deref())))
            }
            DecisionKind::Respond => self.given(answer.answer.unwrap_or_default().into()),
            DecisionKind::Edit => {
                let name = call.name().to_owned();
                let args = answer.args.map_or_else(|| call.args.clone(), Arc::new);
                let call = ToolCall { args: args.clone(), ..call };
                let made = next.call(call).await;
                if !self.tells_edits {
                    return made;
                }
                at_end(made, move |end| ready(with_notice(&edit_notice(&name, &args), end))).await
            }
        }
    }
}

fn edit_notice(tool: &str, args: &Object) -> String {
    let mut shown = String::new();
    write_value(&mut shown, &Value::Object(args.clone()));
    text::call_edited(tool, &shown)
}

/// Tells with a result that it belongs to other arguments than those of the call.
fn with_notice(notice: &str, end: Result<ToolValue, ToolError>) -> Result<ToolValue, ToolError> {
    match end {
        Ok(value) => Ok(ToolValue { value: noticed(notice, value.value), ..value }),
        Err(error) => {
            let error = error.into_error();
            if error.is_control() || error.kind() == ErrorKind::Handler {
                return Err(error.into());
            }
            let told = Error::new(error.kind(), format!("{notice}{}", error.message()));
            let told = error.retry_after().into_iter().fold(told, Error::with_retry_after);
            Err(told.with_source(error).into())
        }
    }
}

/// A result with a notice before it.
fn noticed(notice: &str, value: Value) -> Value {
    match value {
        Value::String(words) => format!("{notice}{words}").into(),
        Value::Object(mut object) => {
            if let Some(Value::String(words)) = object.get_mut("error") {
                *words = format!("{notice}{words}");
                return object.into();
            }
            json!({"notice": notice.trim_end(), "result": object})
        }
        other => json!({"notice": notice.trim_end(), "result": other}),
    }
}

impl fmt::Debug for ApprovalRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApprovalRule")
            .field("tool", &self.tool)
            .field("decisions", &self.decisions)
            .field("expires_in", &self.expires_in)
            .finish_non_exhaustive()
    }
}
