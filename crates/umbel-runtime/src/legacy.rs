//! Middlewares of the old form, kept for those who come from Eino's `AgentMiddleware`.

#![allow(deprecated)]

use std::fmt;
use std::sync::Arc;

use smol_str::{SmolStr, format_smolstr};
use umbel_core::{
    AgentPlan, BoxFuture, Error, ErrorKind, Handler, Hooks, ModelTurn, NextTool, Result, Step, Tool,
    ToolCall, ToolResult, Words, Work, template,
};

use crate::agents::OWN;

/// Sees and changes the conversation around a model call.
pub type ChatModelHook =
    Arc<dyn for<'a> Fn(&'a mut ModelTurn<'_>) -> BoxFuture<'a, Result<()>> + Send + Sync>;

/// Stands around a tool call.
pub type ToolCallWrapper =
    Arc<dyn for<'a> Fn(ToolCall<'a>, NextTool<'a>) -> BoxFuture<'a, ToolResult> + Send + Sync>;

/// A middleware of the old form: five fields, each of which may be left out.
#[deprecated(note = "write a handler: the guide has both forms side by side")]
#[derive(Clone, Default)]
pub struct AgentMiddleware {
    /// Its name; `legacy-middleware[i]` if empty.
    pub name: SmolStr,
    /// Added to the agent's instruction.
    pub additional_instruction: String,
    /// What stands between the agent's instruction and the addition. Agents of this form expect one line break.
    pub separator: Option<String>,
    /// Added to the agent's tools.
    pub additional_tools: Vec<Arc<dyn Tool>>,
    /// Before each model call.
    pub before_chat_model: Option<ChatModelHook>,
    /// After each model call.
    pub after_chat_model: Option<ChatModelHook>,
    /// Around each tool call.
    pub wrap_tool_call: Option<ToolCallWrapper>,
}

impl AgentMiddleware {
    /// The handler that does the same.
    pub fn into_handler(mut self, place: usize) -> impl Handler {
        if self.name.is_empty() {
            self.name = format_smolstr!("legacy-middleware[{place}]");
        }
        Legacy(self)
    }
}

struct Legacy(AgentMiddleware);

impl Handler for Legacy {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn hooks(&self) -> Hooks {
        let hook = |has: bool, hook: Hooks| if has { hook } else { Hooks::NONE };
        hook(
            !self.0.additional_instruction.is_empty() || !self.0.additional_tools.is_empty(),
            Hooks::CONFIGURE,
        ) | hook(self.0.before_chat_model.is_some(), Hooks::BEFORE_MODEL)
            | hook(self.0.after_chat_model.is_some(), Hooks::AFTER_MODEL)
            | hook(self.0.wrap_tool_call.is_some(), Hooks::WRAP_TOOL)
    }

    fn configure(&self, plan: &mut AgentPlan) -> Result<()> {
        let addition = &self.0.additional_instruction;
        if !addition.is_empty() {
            let separator = self.0.separator.as_deref().unwrap_or("\n");
            // Byte for byte what such agents were told, so it is one part.
            match plan.instruction.parts_mut().iter_mut().find(|part| part.source == OWN) {
                Some(part) => part.words = extended(&part.words, separator, addition)?,
                None => plan.instruction.push(OWN, template(addition.as_str())),
            }
        }
        for tool in &self.0.additional_tools {
            plan.add_tool(tool.clone());
        }
        Ok(())
    }

    fn before_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        continued(self.0.before_chat_model.as_ref(), turn)
    }

    fn after_model<'a>(&'a self, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
        continued(self.0.after_chat_model.as_ref(), turn)
    }

    fn wrap_tool<'a>(&'a self, call: ToolCall<'a>, next: NextTool<'a>) -> Work<'a, ToolResult> {
        match &self.0.wrap_tool_call {
            Some(wrap) => Work::later(wrap(call, next)),
            None => Work::later(next.call(call)),
        }
    }
}

/// Words with an addition behind them.
fn extended(words: &Words, separator: &str, addition: &str) -> Result<Words> {
    match words {
        Words::Verbatim(text) => Ok(Words::Verbatim(joined(text, separator, addition).into())),
        Words::Template(text) => Ok(Words::Template(joined(text, separator, addition).into())),
        Words::Provided(provider) => {
            let (provider, separator, addition) =
                (provider.clone(), separator.to_owned(), addition.to_owned());
            Ok(Words::Provided(Arc::new(move |run| {
                let (made, separator, addition) = (provider(run), separator.clone(), addition.clone());
                Box::pin(async move { Ok(joined(&made.await?, &separator, &addition)) })
            })))
        }
        other => {
            let message = format!("nothing can be added to an instruction part that is {other:?}");
            Err(Error::new(ErrorKind::Unsupported, message))
        }
    }
}

/// Without a text there is nothing to separate.
fn joined(text: &str, separator: &str, addition: &str) -> String {
    if text.is_empty() { addition.to_owned() } else { format!("{text}{separator}{addition}") }
}

fn continued<'a>(hook: Option<&'a ChatModelHook>, turn: &'a mut ModelTurn<'_>) -> Work<'a, Result<Step>> {
    match hook {
        None => Work::done(Ok(Step::Continue)),
        Some(hook) => Work::later(async move { hook(turn).await.map(|()| Step::Continue) }),
    }
}

impl fmt::Debug for AgentMiddleware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentMiddleware({})", self.name)
    }
}
