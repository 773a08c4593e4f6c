//! How an agent has the code run that its model writes.

use std::fmt;
use std::sync::Arc;

use umbel_core::{CodeExecutor, CodeWords, Confirm, Fence, ToolSet};

use crate::text;
use crate::tools::RunCode;

/// How an agent has the code run that its model writes: by an executor of yours, or by the model itself.
///
/// An executor alone is as good as one, so that `agent.code_executor(executor)` is all that most agents need.
#[derive(Clone)]
pub struct CodeExecution {
    pub(crate) by: RunBy,
    pub(crate) data_files: bool,
    pub(crate) max_failures: u32,
    pub(crate) fences: Vec<Fence>,
    pub(crate) result_fence: Fence,
    pub(crate) confirm: Confirm,
}

/// Who runs code.
#[derive(Clone, Debug)]
pub(crate) enum RunBy {
    /// An executor.
    Executor(Arc<dyn CodeExecutor>),
    /// The model, where its provider is.
    Model,
}

impl CodeExecution {
    /// Code is run by an executor. The model writes it between ` ```tool_code ` or the name of the executor's language and
    /// ` ``` `, and reads its result behind ` ```tool_output `.
    pub fn new(executor: impl CodeExecutor + 'static) -> Self {
        let language = executor.spec().language.clone();
        Self::run_by(RunBy::Executor(Arc::new(executor)), &language)
    }

    /// Code is run by the model itself, where its provider is. Images that it draws are kept as artifacts, if the runner
    /// has a store for them. It is an error to build such an agent with a model that cannot.
    pub fn by_model() -> Self {
        Self::run_by(RunBy::Model, "python")
    }

    fn run_by(by: RunBy, language: &str) -> Self {
        Self {
            by,
            data_files: false,
            max_failures: 2,
            fences: vec![Fence::named("tool_code"), Fence::named(language)],
            result_fence: Fence::named("tool_output"),
            confirm: Confirm::Never,
        }
    }

    /// Gives code the tables that the user sent (`text/csv`) as files, and tells the model their names in the place of what
    /// is in them. Each is looked at once, by code that says what is in it.
    pub fn data_files(mut self) -> Self {
        self.data_files = true;
        self
    }

    /// How often code may fail in a row before it is no longer run in answer to what the user said; 2 unless said. What the
    /// model says then is its answer, as it is.
    pub fn max_failures(mut self, failures: u32) -> Self {
        self.max_failures = failures;
        self
    }

    /// Between what the model writes code. It is told to use the first.
    pub fn fences(mut self, fences: impl IntoIterator<Item = Fence>) -> Self {
        self.fences = fences.into_iter().collect();
        self
    }

    /// Between what the model reads results.
    pub fn result_fence(mut self, fence: Fence) -> Self {
        self.result_fence = fence;
        self
    }

    /// Whether a person must agree before code is run. They see the code, and may change it.
    pub fn confirm(mut self, confirm: Confirm) -> Self {
        self.confirm = confirm;
        self
    }

    /// The executor, unless it is the model.
    pub(crate) fn executor(&self) -> Option<&Arc<dyn CodeExecutor>> {
        match &self.by {
            RunBy::Executor(executor) => Some(executor),
            RunBy::Model => None,
        }
    }
}

impl<E: CodeExecutor + 'static> From<E> for CodeExecution {
    fn from(executor: E) -> Self {
        Self::new(executor)
    }
}

impl fmt::Debug for CodeExecution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CodeExecution").field(&self.by).finish()
    }
}

/// What an agent that has code run needs in each step, made once.
#[derive(Clone)]
pub(crate) struct AgentCode {
    pub(crate) execution: CodeExecution,
    /// The tool that runs code, for calls that the flow makes itself.
    pub(crate) tools: Arc<ToolSet>,
    pub(crate) words: Arc<CodeWords>,
    /// What the model is told, unless it runs code itself.
    pub(crate) instruction: Arc<str>,
}

impl AgentCode {
    pub(crate) fn new(execution: CodeExecution) -> Self {
        let first = execution.fences.first().cloned();
        let code = first.unwrap_or_else(|| Fence::named("tool_code"));
        let note = |executor: &Arc<dyn CodeExecutor>| {
            text::run_code_note(executor.spec(), &code, &execution.result_fence)
        };
        let instruction = execution.executor().map(note).unwrap_or_default();
        let words = Arc::new(CodeWords { code, result: execution.result_fence.clone() });
        let mut tools = ToolSet::new();
        if execution.executor().is_some() {
            tools.add(Arc::new(RunCode::new(execution.clone())));
        }
        Self { execution, tools: Arc::new(tools), words, instruction: instruction.into() }
    }
}
