//! Code that models write: what is run, what they are told of it, and what is in the log.

mod by_model;
mod counting;
mod data_files;
mod running;
mod waiting;

use std::fmt;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use umbel::{
    BoxFuture, CodeExecutor, CodeFile, CodeInput, CodeOutput, CodeSpec, Error, ErrorKind, Event, LlmAgent,
    Payload, Result, Run, ScriptedModel,
};

use crate::support::Notes;

/// An executor of the language of these tests: each line is `print TEXT`, `fail TEXT`, `write NAME`, `hang`, `break` or
/// `panic`. It keeps what it was given.
#[derive(Clone)]
struct Toy {
    spec: CodeSpec,
    inputs: Arc<Mutex<Vec<CodeInput>>>,
    notes: Notes,
    /// Whether it notes what it runs.
    is_noting: bool,
}

impl fmt::Debug for Toy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Toy")
    }
}

/// Notes that code was stopped before its end.
struct Running(Notes);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.add("killed");
    }
}

impl Toy {
    fn new() -> Self {
        Self::with(CodeSpec::new("python"))
    }

    fn with(spec: CodeSpec) -> Self {
        Self { spec, inputs: Arc::default(), notes: Notes::default(), is_noting: false }
    }

    fn inputs(&self) -> Vec<CodeInput> {
        self.inputs.lock().unwrap().clone()
    }

    /// The code that was run, in order.
    fn ran(&self) -> Vec<String> {
        self.inputs().into_iter().map(|input| input.code).collect()
    }

    async fn run(&self, input: CodeInput) -> Result<CodeOutput> {
        self.inputs.lock().unwrap().push(input.clone());
        if self.is_noting {
            self.notes.add(format!("ran {}", input.code));
            tokio::task::yield_now().await;
        }
        let mut output = CodeOutput::default();
        for line in input.code.lines() {
            match line.split_once(' ').unwrap_or((line, "")) {
                ("print", text) => output.stdout.push_str(text),
                ("fail", text) => return Ok(CodeOutput::failed(text).stdout(output.stdout)),
                ("write", name) => output.files.push(CodeFile::new(name, "text/plain", *b"written")),
                ("hang", _) => {
                    let _running = Running(self.notes.clone());
                    self.notes.add("hangs");
                    std::future::pending::<()>().await;
                }
                ("break", _) => return Err(Error::new(ErrorKind::Tool, "the machine is gone")),
                ("panic", _) => panic!("on purpose"),
                _ => {}
            }
        }
        Ok(output)
    }
}

impl CodeExecutor for Toy {
    fn spec(&self) -> &CodeSpec {
        &self.spec
    }

    fn execute<'a>(&'a self, _: &'a Run, input: CodeInput) -> BoxFuture<'a, Result<CodeOutput>> {
        Box::pin(self.run(input))
    }
}

/// Code as a model writes it.
fn block(code: &str) -> String {
    format!("```python\n{code}\n```")
}

/// An agent whose model says these things, one after the other.
fn agent<'a>(words: impl IntoIterator<Item = &'a str>) -> (LlmAgent, ScriptedModel) {
    let model = words.into_iter().fold(ScriptedModel::new("m").recorded(), |model, words| model.text(words));
    (LlmAgent::new("a").model(model.clone()), model)
}

/// What events say, part by part: words, `> code`, `= result (outcome)`.
fn told(events: &[Arc<Event>]) -> Vec<String> {
    let parts = events.iter().flat_map(|event| event.content.iter().flat_map(|content| content.parts.iter()));
    let told = parts.map(|part| match &part.payload {
        Payload::Text(text) => text.clone(),
        Payload::Code(code) => format!("> {}", code.code.as_deref().unwrap_or_default()),
        Payload::CodeResult(result) => {
            let outcome = result.outcome.as_deref().unwrap_or_default().trim_start_matches("OUTCOME_");
            format!("= {} ({outcome})", result.output.as_deref().unwrap_or_default())
        }
        Payload::Call(call) => format!("{}({})", call.name, serde_json::json!(call.args)),
        other => format!("{other:?}"),
    });
    told.collect()
}

/// The results of code in these events.
fn results(events: &[Arc<Event>]) -> Vec<Value> {
    let parts = events.iter().flat_map(|event| event.content.iter().flat_map(|content| content.parts.iter()));
    let results = parts.filter(|part| matches!(part.payload, Payload::CodeResult(_)));
    results.map(|part| serde_json::to_value(part).unwrap()["codeExecutionResult"].clone()).collect()
}
