//! Runs code that a model wrote, as a tool.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel_core::code::RUN_CODE;
use umbel_core::{
    BoxFuture, CodeFile, CodeInput, CodeOutput, CodeSpec, ErrorKind, Object, Part, Result, Tool, ToolContext,
    ToolError, ToolOutput, ToolSpec, ToolValue,
};

use crate::code::CodeExecution;
use crate::flow::data_files;
use crate::text;

/// Runs code that a model wrote, as a tool: for models that are better at calls than at writing code between their words.
/// An agent with a [code executor](crate::LlmAgent::code_executor) needs no such tool.
///
/// Files that the code leaves are kept as artifacts.
#[derive(Clone, Debug)]
pub struct RunCode {
    execution: CodeExecution,
    spec: ToolSpec,
}

impl RunCode {
    /// The tool `run_code`, with one argument, `code`. Of what can be said of code execution, `data_files` and `confirm`
    /// count here. Code that the model is to run itself is no tool: then every call fails.
    pub fn new(execution: impl Into<CodeExecution>) -> Self {
        let execution = execution.into();
        let code = execution.executor().map_or_else(|| CodeSpec::new("python"), |one| one.spec().clone());
        let parameters = json!({
            "type": "object",
            "properties": {"code": {"type": "string", "description": text::run_code_argument(&code.language)}},
            "required": ["code"],
        });
        let mut spec = ToolSpec::new(RUN_CODE, text::run_code_tool(&code), parameters);
        spec.confirm = execution.confirm.clone();
        spec.idempotent = code.repeatable;
        spec.exclusive = code.stateful;
        spec.timeout = code.timeout;
        Self { execution, spec }
    }

    async fn run(&self, cx: &ToolContext, args: &Object) -> Result<ToolOutput, ToolError> {
        let Some(code) = args.get("code").and_then(Value::as_str) else {
            return Err(ToolError::invalid_arguments("`code` is missing: give the code to run as a text"));
        };
        let Some(executor) = self.execution.executor() else {
            return Err(ToolError::new("the model runs code itself: there is no executor here"));
        };
        let run = cx.run();
        let mut input = CodeInput::new(code, executor.spec().language.clone());
        if executor.spec().stateful {
            input = input.session(run.session_key().clone());
        }
        if self.execution.data_files {
            input =
                input.files(data_files::find(&run.events()).iter().filter_map(|file| file.to_code_file()));
        }
        let mut output = executor.execute(run, input).await?;
        let files = std::mem::take(&mut output.files);
        let kept = keep(cx, files).await?;
        let value = json!({"outcome": output.outcome.name(), "output": words(&output, &kept)});
        let is_error = !output.outcome.is_ok();
        Ok(ToolValue { value, is_error, ..ToolValue::default() }.into())
    }
}

impl Tool for RunCode {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(
        &'a self,
        cx: &'a ToolContext,
        args: Arc<Object>,
    ) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move { self.run(cx, &args).await })
    }
}

/// What became of the files that code left.
enum Files {
    None,
    /// They are artifacts of these names.
    Kept(Vec<String>),
    /// There is nowhere to keep them.
    Lost,
}

/// Keeps files as artifacts.
async fn keep(cx: &ToolContext, files: Vec<CodeFile>) -> Result<Files> {
    if files.is_empty() {
        return Ok(Files::None);
    }
    match cx.run().artifacts() {
        Err(error) if error.kind() == ErrorKind::NoArtifactStore => return Ok(Files::Lost),
        other => other?,
    };
    let mut names = Vec::with_capacity(files.len());
    for file in files {
        let name = session_name(&file.name);
        cx.save_artifact(&name, Part::data(file.mime_type, &*file.data)).await?;
        names.push(name);
    }
    Ok(Files::Kept(names))
}

/// A name that stays within the session, whatever code calls its files: others begin with `user:`.
fn session_name(name: &str) -> String {
    match name.strip_prefix("user:") {
        Some(rest) => format!("user_{rest}"),
        None => name.to_owned(),
    }
}

/// What a model is told of code that was run.
fn words(output: &CodeOutput, files: &Files) -> String {
    let CodeOutput { outcome, stdout, stderr, note, .. } = output;
    let mut said: Vec<String> = Vec::new();
    let mut say = |text: &str| {
        if !text.trim().is_empty() {
            said.push(text.trim_end().to_owned());
        }
    };
    say(stdout);
    // What code that ended well says besides are mostly warnings.
    if !outcome.is_ok() || stdout.trim().is_empty() {
        say(stderr);
    }
    if !outcome.is_ok() {
        say(&outcome.words());
    }
    say(note.as_deref().unwrap_or_default());
    match files {
        Files::Kept(names) => say(&text::saved_artifacts(names)),
        Files::Lost => say(text::FILES_LOST),
        Files::None => {}
    }
    if said.is_empty() {
        return text::PRINTED_NOTHING.to_owned();
    }
    said.join("\n\n")
}

#[cfg(test)]
mod tests {
    use umbel_core::CodeOutcome;

    use super::*;

    #[test]
    fn a_model_reads_what_code_printed_and_why_it_failed() {
        assert_eq!(words(&CodeOutput::ok("4\n").stderr("Warning"), &Files::None), "4");
        assert_eq!(words(&CodeOutput::ok("").stderr("logged"), &Files::None), "logged");
        assert_eq!(words(&CodeOutput::ok(" \n"), &Files::None), text::PRINTED_NOTHING);
        let failed = CodeOutput::ended(CodeOutcome::Failed { exit_code: Some(1) }).stdout("1").stderr("no b");
        assert_eq!(words(&failed, &Files::None), "1\n\nno b\n\nThe code failed with exit code 1.");
        let limited = CodeOutput::ended(CodeOutcome::MemoryLimit).note("It may use 64 MiB.");
        assert_eq!(
            words(&limited, &Files::None),
            "The code was stopped: it needed too much memory.\n\nIt may use 64 MiB."
        );
        let drawn = words(&CodeOutput::ok(""), &Files::Kept(vec!["a.png".into(), "b".into()]));
        assert_eq!(drawn, "Saved artifacts:\n`a.png`, `b`");
        assert!(words(&CodeOutput::ok("4"), &Files::Lost).ends_with(text::FILES_LOST));
    }

    #[test]
    fn files_of_code_stay_in_the_session() {
        assert_eq!(session_name("user:notes"), "user_notes");
        assert_eq!(session_name("notes"), "notes");
    }
}
