//! `umbel run`: one prompt and its answer, for scripts.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures::StreamExt;
use serde::Serialize;
use umbel::runtime::output_schema::OutputSchema;
use umbel::runtime::usage::{Tally, Used};
use umbel::{
    Answer, Content, Event, FunctionCall, Interrupt, Object, Outcome, Part, Role, RunConfig, Runner,
    SessionKey,
};

use crate::args::{self, Kept, Which, bad_usage, cannot};
use crate::screen::called;
use crate::style::{clean, clean_line, for_stdout};
use crate::{Cli, UNANSWERED, until_stopped};

/// What is asked, and how the answer is given.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The answer goes to standard output and everything else to standard error.

Exit codes:
  0  the answer is there
  1  it failed
  2  the command line cannot be followed
  3  it waits for an answer that nobody gave: --yes or --no gives one

Examples:
  umbel run weather in Paris
  git diff | umbel run --agent reviewer -
  umbel run --agent booking --yes --json book 3 nights in Lisbon | jq .text")]
pub struct Options {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    kept: Kept,
    /// What is asked; `-` reads it from standard input.
    #[arg(required = true, value_name = "MESSAGE")]
    message: Vec<String>,
    /// Which conversation it belongs to; a new one if left out.
    #[arg(short, long, value_name = "ID")]
    session: Option<String>,
    /// One JSON object: text, outcome, session, usage, cost and tool calls.
    #[arg(long)]
    json: bool,
    /// All events as JSON, a line each, as they come.
    #[arg(long, conflicts_with = "json")]
    events: bool,
    /// Approve whatever needs approval.
    #[arg(short, long, conflicts_with = "no")]
    yes: bool,
    /// Reject whatever needs approval.
    #[arg(short, long)]
    no: bool,
    /// A file with the JSON schema that the answer must fit.
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    /// How long it may take, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
}

/// Asks, and gives the answer.
pub fn main(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    // Read before signals are listened for: nothing hears them while standard input is waited for.
    let message = message(&options.message)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(until_stopped(run(cli, options, message)));
    // A tool may still be busy in a thread of its own, which nobody waits for any more.
    runtime.shutdown_background();
    result
}

async fn run(cli: &Cli, options: &Options, message: String) -> io::Result<ExitCode> {
    let schema = options.schema.as_deref().map(read_schema).transpose()?;
    let stores = args::open(&options.kept.store).await?;
    let runner = cli.offer(&options.which, false)?.runner(&stores).map_err(io::Error::other)?;
    let key = match &options.session {
        Some(id) => SessionKey::new(runner.app(), &options.kept.user, id)
            .map_err(|error| bad_usage(error.to_string()))?,
        None => runner.create_session(&options.kept.user).await.map_err(io::Error::other)?.key,
    };
    let mut config = RunConfig { create_session: true, ..RunConfig::default() };
    if let Some(seconds) = options.timeout {
        config.limits.run_time = Duration::from_secs(seconds);
    }
    if let Some(schema) = &schema {
        config.instruction = Some(schema_words(schema).into());
    }
    let mut asked = Asked { runner, key, config, options, report: Report::default() };
    asked.follow(message.into()).await?;
    asked.settle(schema.as_ref()).await;
    asked.tell()
}

/// What is asked: the arguments, or all of standard input.
fn message(words: &[String]) -> io::Result<String> {
    let text = match words {
        [dash] if dash == "-" => {
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes)?;
            String::from_utf8_lossy(&bytes).trim().to_owned()
        }
        words => words.join(" "),
    };
    if text.trim().is_empty() { Err(bad_usage("the message is empty")) } else { Ok(text) }
}

fn read_schema(file: &Path) -> io::Result<OutputSchema> {
    let text = std::fs::read_to_string(file).map_err(|error| bad_usage(cannot(file, &error).to_string()))?;
    let schema = serde_json::from_str(&text)
        .map_err(|error| bad_usage(format!("{} is not JSON: {error}", file.display())))?;
    OutputSchema::new(schema).map_err(|error| bad_usage(format!("{}: {error}", file.display())))
}

fn schema_words(schema: &OutputSchema) -> String {
    format!(
        "Answer with JSON alone, without any words around it. It must fit this JSON schema:\n{}",
        schema.schema()
    )
}

/// A prompt that is being answered.
struct Asked<'a> {
    runner: Runner,
    key: SessionKey,
    config: RunConfig,
    options: &'a Options,
    report: Report,
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// The last words.
    text: String,
    outcome: &'static str,
    agent: String,
    session: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    questions: Vec<Asking>,
    tool_calls: Vec<Called>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Tally>,
    /// In dollars; absent if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
}

/// A call, and what it gave.
#[derive(Debug, Serialize)]
struct Called {
    #[serde(flatten)]
    call: FunctionCall,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Object>,
}

/// A question that waits for an answer.
#[derive(Debug, Serialize)]
struct Asking {
    id: String,
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<FunctionCall>,
}

impl Asked<'_> {
    /// Does runs until nothing is left to answer.
    async fn follow(&mut self, mut message: Content) -> io::Result<()> {
        loop {
            let mut run = self.runner.run_with(&self.key, message, self.config.clone());
            let mut failure = None;
            while let Some(item) = run.next().await {
                match item {
                    Ok(event) => self.take(&event)?,
                    Err(error) => failure = Some(error),
                }
            }
            let questions = match run.outcome() {
                Some(Outcome::Interrupted { interrupts }) => (**interrupts).clone(),
                Some(Outcome::Finished) => {
                    self.report.outcome = "finished";
                    return Ok(());
                }
                outcome => {
                    let cancelled = matches!(outcome, Some(Outcome::Cancelled));
                    self.report.outcome = if cancelled { "cancelled" } else { "failed" };
                    let words =
                        failure.map_or_else(|| "it was stopped".to_owned(), |error| error.to_string());
                    self.report.error = Some(words);
                    return Ok(());
                }
            };
            match self.decided(&questions) {
                Some(answers) => message = answers,
                None => {
                    self.report.outcome = "interrupted";
                    self.report.questions = questions.iter().map(Asking::of).collect();
                    return Ok(());
                }
            }
        }
    }

    /// What `--yes` or `--no` answers, if that answers all.
    fn decided(&self, questions: &[Interrupt]) -> Option<Content> {
        let answer = match (self.options.yes, self.options.no) {
            (true, _) => Answer::approve(),
            (_, true) => Answer::reject(),
            _ => return None,
        };
        let fits = |question: &Interrupt| {
            let kinds = &question.decisions;
            question.reason == "confirmation" && (kinds.is_empty() || kinds.contains(&answer.decision()))
        };
        let parts = questions.iter().map(|question| Part::response(question.response(&answer)));
        questions.iter().all(fits).then(|| Content::new(Role::User, parts))
    }

    fn take(&mut self, event: &Arc<Event>) -> io::Result<()> {
        if self.options.events {
            let mut out = io::stdout().lock();
            writeln!(out, "{}", for_stdout(&serde_json::to_string(&**event)?))?;
            out.flush()?;
        }
        if event.is_partial() || event.is_user() {
            return Ok(());
        }
        let asks = |call: &FunctionCall| call.name.starts_with("adk_request_");
        for call in event.calls_and_code().filter(|call| !asks(call)) {
            if !self.options.json && !self.options.events {
                writeln!(io::stderr(), "→ {}", clean_line(&called(&call)))?;
            }
            self.report.tool_calls.push(Called { call, result: None });
        }
        for response in event.responses_and_results() {
            let made = self.report.tool_calls.iter_mut().rev().find(|made| made.call.id == response.id);
            if let Some(made) = made {
                made.result = response.response;
            }
        }
        self.report.agent = event.author().to_owned();
        let text = event.answer_text();
        if !text.is_empty() {
            self.report.text = text;
        }
        Ok(())
    }

    /// Adds what the conversation tells of the run, and looks at the answer.
    async fn settle(&mut self, schema: Option<&OutputSchema>) {
        self.report.session = self.key.id().to_owned();
        if let Ok(Some(view)) = self.runner.session(&self.key).await
            && let Ok(Some(used)) = Used::last_run_in(&view.state)
        {
            let total = used.total();
            self.report.cost = total.cost().map(|cost| cost.as_nanos() as f64 / 1e9);
            self.report.usage = Some(total);
        }
        if let (Some(schema), "finished") = (schema, self.report.outcome)
            && let Err(error) = schema.parse(&self.report.text)
        {
            self.report.outcome = "failed";
            self.report.error = Some(format!("the answer does not fit the schema: {error}"));
        }
    }

    /// Gives the answer, and says how it went.
    fn tell(&self) -> io::Result<ExitCode> {
        let report = &self.report;
        let mut out = io::stdout().lock();
        if self.options.json {
            writeln!(out, "{}", for_stdout(&serde_json::to_string_pretty(report)?))?;
        } else if !self.options.events && !report.text.is_empty() {
            writeln!(out, "{}", for_stdout(&report.text))?;
        }
        out.flush()?;
        if let Some(error) = &report.error {
            writeln!(io::stderr(), "error: {}", clean(error))?;
        }
        if !report.questions.is_empty() {
            for question in &report.questions {
                let about = question.call.as_ref().map(called).or_else(|| question.message.clone());
                writeln!(io::stderr(), "It waits for you: {}", clean_line(&about.unwrap_or_default()))?;
            }
            let id = clean_line(&report.session);
            writeln!(io::stderr(), "--yes or --no answers, or `umbel chat --session {id}`.")?;
        }
        Ok(match report.outcome {
            "finished" => ExitCode::SUCCESS,
            "interrupted" => ExitCode::from(UNANSWERED),
            _ => ExitCode::FAILURE,
        })
    }
}

impl Asking {
    fn of(interrupt: &Interrupt) -> Self {
        Self {
            id: interrupt.id.to_string(),
            reason: interrupt.reason.to_string(),
            message: interrupt.message.clone(),
            call: interrupt.call.clone(),
        }
    }
}
