//! The contract of what runs code that a model wrote.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use crate::error::Result;
use crate::part::{CodeResult, ExecutableCode, FunctionCall, FunctionResponse};
use crate::run::Run;
use crate::session::SessionKey;
use crate::work::BoxFuture;

/// The name that running code has where it is a call: in handlers, in questions to people, in front ends.
pub const RUN_CODE: &str = "run_code";

/// How the id of code begins that looks at a file which the user sent. No model asked for it. The rest is the file's name.
pub const LOOKS_AT_FILE: &str = "adk-file-";

/// Runs code that a model wrote.
///
/// The flow calls it as it calls a tool: within the time that a call may take, behind the handlers around tool calls, and
/// noted in the log. Who drops the future wants the code to be killed, with all that it started.
pub trait CodeExecutor: Send + Sync + fmt::Debug {
    /// What the runtime must know about it.
    fn spec(&self) -> &CodeSpec;

    /// Runs code to its end. Code that fails is no error but an [outcome](CodeOutput::outcome): an error says that it could
    /// not be run at all.
    fn execute<'a>(&'a self, run: &'a Run, input: CodeInput) -> BoxFuture<'a, Result<CodeOutput>>;
}

impl<E: CodeExecutor + ?Sized> CodeExecutor for Arc<E> {
    fn spec(&self) -> &CodeSpec {
        (**self).spec()
    }

    fn execute<'a>(&'a self, run: &'a Run, input: CodeInput) -> BoxFuture<'a, Result<CodeOutput>> {
        (**self).execute(run, input)
    }
}

/// What the runtime must know about a [`CodeExecutor`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CodeSpec {
    /// The language it runs, in small letters, such as `python`.
    pub language: SmolStr,
    /// What code defines and writes is there for later code of the same session: [`CodeInput::session`] says which that
    /// is. The model is told.
    pub stateful: bool,
    /// Running the same code again does no harm, since it can reach nothing outside: code that was cut short by a crash
    /// is then simply run again.
    pub repeatable: bool,
    /// After which time the flow gives it up, if not when the run's limits say. An executor that stops code itself, and can
    /// tell the model so, needs a little longer than that.
    pub timeout: Option<Duration>,
}

impl CodeSpec {
    /// An executor of that language which keeps nothing, and whose code is not run again after a crash.
    pub fn new(language: impl Into<SmolStr>) -> Self {
        Self { language: language.into(), stateful: false, repeatable: false, timeout: None }
    }

    /// The same, where later code finds what earlier code defined and wrote.
    pub fn stateful(mut self) -> Self {
        self.stateful = true;
        self
    }

    /// The same, where running code again does no harm.
    pub fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }

    /// The same, given up after that time.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = Some(time);
        self
    }
}

/// Code to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CodeInput {
    /// The source text.
    pub code: String,
    /// Its language, in small letters, such as `python`.
    pub language: SmolStr,
    /// Files that it finds in its working directory.
    pub files: Vec<CodeFile>,
    /// Whose definitions it finds, if the executor is [stateful](CodeSpec::stateful). Others must not come upon them.
    pub session: Option<SessionKey>,
}

impl CodeInput {
    /// Code in some language, without files.
    pub fn new(code: impl Into<String>, language: impl Into<SmolStr>) -> Self {
        Self { code: code.into(), language: language.into(), files: Vec::new(), session: None }
    }

    /// The same with files.
    pub fn files(mut self, files: impl IntoIterator<Item = CodeFile>) -> Self {
        self.files.extend(files);
        self
    }

    /// The same in a session.
    pub fn session(mut self, session: SessionKey) -> Self {
        self.session = Some(session);
        self
    }
}

/// What stands around code, or its result, in the words of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// Before it.
    pub open: String,
    /// Behind it.
    pub close: String,
}

impl Fence {
    /// A fence with this before and that behind.
    pub fn new(open: impl Into<String>, close: impl Into<String>) -> Self {
        Self { open: open.into(), close: close.into() }
    }

    /// The usual fence of Markdown, with a name.
    pub fn named(name: &str) -> Self {
        Self::new(format!("```{name}\n"), "\n```")
    }

    /// The text inside the fence.
    pub fn around(&self, text: &str) -> String {
        format!("{}{text}{}", self.open, self.close)
    }
}

/// How code and its results are told to a model that knows them as words alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CodeWords {
    /// Around code.
    pub code: Fence,
    /// Around results.
    pub result: Fence,
}

impl ExecutableCode {
    /// The call that runs it.
    pub fn as_call(&self) -> FunctionCall {
        let args = [("code".to_owned(), self.code.clone().unwrap_or_default().into())];
        FunctionCall { id: self.id.clone(), ..FunctionCall::new(RUN_CODE, args.into_iter().collect()) }
    }
}

impl CodeResult {
    /// What the call that ran the code gave.
    pub fn as_response(&self) -> FunctionResponse {
        let known = [CodeOutcome::Ok, CodeOutcome::TimeLimit];
        let outcome = known.into_iter().find(|known| self.outcome.as_deref() == Some(known.in_log()));
        let outcome = outcome.unwrap_or(CodeOutcome::Failed { exit_code: None }).name();
        let output = self.output.clone().unwrap_or_default();
        let given = [("outcome".to_owned(), outcome.into()), ("output".to_owned(), output.into())];
        FunctionResponse::new(self.id.clone(), RUN_CODE, given.into_iter().collect())
    }
}

/// A file that code reads or writes.
#[derive(Clone, PartialEq, Eq)]
pub struct CodeFile {
    /// Its name in the working directory; no path.
    pub name: String,
    /// Its media type.
    pub mime_type: String,
    /// What is in it.
    pub data: Arc<[u8]>,
}

impl CodeFile {
    /// A file.
    pub fn new(name: impl Into<String>, mime_type: impl Into<String>, data: impl Into<Arc<[u8]>>) -> Self {
        Self { name: name.into(), mime_type: mime_type.into(), data: data.into() }
    }
}

impl fmt::Debug for CodeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CodeFile({}, {}, {} bytes)", self.name, self.mime_type, self.data.len())
    }
}

/// What code did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CodeOutput {
    /// How it ended.
    pub outcome: CodeOutcome,
    /// What it printed.
    pub stdout: String,
    /// What it printed for errors.
    pub stderr: String,
    /// What it left in its working directory.
    pub files: Vec<CodeFile>,
    /// What the model should know besides, as a sentence: how large a limit was, or that definitions were lost.
    pub note: Option<String>,
}

impl CodeOutput {
    /// Code that printed this and ended well.
    pub fn ok(stdout: impl Into<String>) -> Self {
        Self { stdout: stdout.into(), ..Self::default() }
    }

    /// Code that failed with this message.
    pub fn failed(stderr: impl Into<String>) -> Self {
        Self::ended(CodeOutcome::Failed { exit_code: None }).stderr(stderr)
    }

    /// Code that ended like that.
    pub fn ended(outcome: CodeOutcome) -> Self {
        Self { outcome, ..Self::default() }
    }

    /// The same with what was printed.
    pub fn stdout(mut self, text: impl Into<String>) -> Self {
        self.stdout = text.into();
        self
    }

    /// The same with what was printed for errors.
    pub fn stderr(mut self, text: impl Into<String>) -> Self {
        self.stderr = text.into();
        self
    }

    /// The same with files that the code left.
    pub fn files(mut self, files: impl IntoIterator<Item = CodeFile>) -> Self {
        self.files.extend(files);
        self
    }

    /// The same with something that the model should know besides.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

/// How code ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CodeOutcome {
    /// As it should.
    #[default]
    Ok,
    /// It failed, by an error of its own.
    Failed {
        /// The number it ended with, if that is known.
        exit_code: Option<i32>,
    },
    /// It ran too long.
    TimeLimit,
    /// It computed too long.
    CpuLimit,
    /// It wanted too much memory.
    MemoryLimit,
    /// It printed too much.
    OutputLimit,
    /// It wanted too many processes or threads.
    ProcessLimit,
    /// It wrote too much to files, or too many of them.
    DiskLimit,
    /// It was killed by something else.
    Killed {
        /// The signal, if that is known.
        signal: Option<i32>,
    },
}

impl CodeOutcome {
    /// Whether it ended as it should.
    pub fn is_ok(self) -> bool {
        self == Self::Ok
    }

    /// Its name, for logs and programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed { .. } => "failed",
            Self::TimeLimit => "time_limit",
            Self::CpuLimit => "cpu_limit",
            Self::MemoryLimit => "memory_limit",
            Self::OutputLimit => "output_limit",
            Self::ProcessLimit => "process_limit",
            Self::DiskLimit => "disk_limit",
            Self::Killed { .. } => "killed",
        }
    }

    /// The outcome of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [
            Self::Ok,
            Self::Failed { exit_code: None },
            Self::TimeLimit,
            Self::CpuLimit,
            Self::MemoryLimit,
            Self::OutputLimit,
            Self::ProcessLimit,
            Self::DiskLimit,
            Self::Killed { signal: None },
        ];
        all.into_iter().find(|outcome| outcome.name() == name)
    }

    /// Its name in the log, where there are but three: `OUTCOME_OK`, `OUTCOME_FAILED` and `OUTCOME_DEADLINE_EXCEEDED`.
    pub fn in_log(self) -> &'static str {
        match self {
            Self::Ok => "OUTCOME_OK",
            Self::TimeLimit | Self::CpuLimit => "OUTCOME_DEADLINE_EXCEEDED",
            _ => "OUTCOME_FAILED",
        }
    }

    /// What it means, in words that a model can act on. An executor may add a [note](CodeOutput::note).
    pub fn words(self) -> String {
        let words = match self {
            Self::Ok => "The code ran to its end.",
            Self::Failed { exit_code: Some(code) } => {
                return format!("The code failed with exit code {code}.");
            }
            Self::Failed { exit_code: None } => "The code failed.",
            Self::TimeLimit => "The code was stopped: it ran too long.",
            Self::CpuLimit => "The code was stopped: it used too much processor time.",
            Self::MemoryLimit => "The code was stopped: it needed too much memory.",
            Self::OutputLimit => "The code was stopped: it printed too much.",
            Self::ProcessLimit => "The code was stopped: it started too many processes or threads.",
            Self::DiskLimit => "The code was stopped: it wrote too much to files.",
            Self::Killed { signal: Some(signal) } => {
                return format!("The code was killed by signal {signal}.");
            }
            Self::Killed { signal: None } => "The code was killed.",
        };
        words.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_a_name_of_its_own_and_says_what_happened() {
        let all = [
            CodeOutcome::Ok,
            CodeOutcome::Failed { exit_code: Some(3) },
            CodeOutcome::TimeLimit,
            CodeOutcome::CpuLimit,
            CodeOutcome::MemoryLimit,
            CodeOutcome::OutputLimit,
            CodeOutcome::ProcessLimit,
            CodeOutcome::DiskLimit,
            CodeOutcome::Killed { signal: Some(9) },
        ];
        let names: std::collections::BTreeSet<_> = all.iter().map(|outcome| outcome.name()).collect();
        let words: std::collections::BTreeSet<_> = all.iter().map(|outcome| outcome.words()).collect();
        assert_eq!((names.len(), words.len()), (all.len(), all.len()));
        assert!(all.iter().all(|outcome| CodeOutcome::from_name(outcome.name()).is_some()));
        assert_eq!(CodeOutcome::from_name("bored"), None);
        let ended_well: Vec<_> = all.iter().filter(|outcome| outcome.in_log() == "OUTCOME_OK").collect();
        assert_eq!(ended_well, [&CodeOutcome::Ok]);
        assert_eq!(CodeOutcome::TimeLimit.in_log(), "OUTCOME_DEADLINE_EXCEEDED");
        assert_eq!(CodeOutcome::MemoryLimit.in_log(), "OUTCOME_FAILED");
        assert!(CodeOutcome::Failed { exit_code: Some(3) }.words().contains("exit code 3"));
    }

    #[test]
    fn a_file_is_shown_without_what_is_in_it() {
        let file = CodeFile::new("a.csv", "text/csv", *b"secret");
        assert_eq!(format!("{file:?}"), "CodeFile(a.csv, text/csv, 6 bytes)");
    }
}
