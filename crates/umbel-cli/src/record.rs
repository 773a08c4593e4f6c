//! `umbel record`: asks a real model, and writes down what was said between it and us.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use futures::StreamExt;
use umbel::models::{Tape, model};
use umbel::{Result, RunConfig};

use crate::Cli;
use crate::args::{bad_usage, cannot, write_private};
use crate::demo;
use crate::style::for_stdout;
use crate::until_stopped;

/// What is to be recorded.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
#[command(after_help = "\
The model works for the guide of the demo, so it can call tools. Keys are never on the tape.

Examples:
  umbel record --model anthropic/claude-sonnet-4-5 --tape weather.json weather in Paris
  umbel record --model http://localhost:8080/v1#smollm2 --tape hello.json hello

In a test: model(NAME)?.replay(&Tape::from_json(&text)?)")]
pub struct Options {
    /// The model, as provider/model or http://HOST/v1#model; its key comes from the environment.
    #[arg(short, long, value_name = "NAME", env = "UMBEL_MODEL", hide_env_values = true)]
    pub model: String,
    /// Where to write; what is on the tape already stays.
    #[arg(short, long, value_name = "FILE")]
    pub tape: PathBuf,
    /// What the model is asked.
    #[arg(required = true)]
    pub message: Vec<String>,
}

/// Does it.
pub fn main(_: &Cli, options: &Options) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(until_stopped(record(options)))
}

async fn record(options: &Options) -> io::Result<ExitCode> {
    let tape = match std::fs::read_to_string(&options.tape) {
        Ok(text) => Tape::from_json(&text).map_err(io::Error::other)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Tape::new(),
        Err(error) => return Err(cannot(&options.tape, &error)),
    };
    let before = tape.len();
    let invalid = |error: umbel::Error| bad_usage(error.message().to_owned());
    let model = model(&options.model).map_err(invalid)?.record(&tape);
    let answered = ask(options, model).await;
    // What was said up to a failure is worth having, too.
    write_private(&options.tape, tape.to_json())?;
    let requests = tape.len() - before;
    writeln!(io::stderr(), "{requests} requests and their answers are in {}", options.tape.display())?;
    answered.map_err(io::Error::other)?;
    Ok(ExitCode::SUCCESS)
}

async fn ask(options: &Options, model: umbel::models::HttpModel) -> Result<()> {
    let runner = demo::guide_on(model)?;
    let session = runner.create_session("local").await?;
    let config = RunConfig { streaming: true, ..RunConfig::default() };
    let mut run = runner.run_with(&session.key, options.message.join(" "), config);
    let mut said = false;
    while let Some(event) = run.next().await {
        let event = event?;
        if event.partial == Some(true) {
            let text = event.text();
            said |= !text.is_empty();
            let text = for_stdout(&text);
            // Who does not want to read along still wants the tape.
            let _ = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
        }
    }
    if said {
        let _ = io::stdout().write_all(b"\n");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_tape_is_written_that_plays_again_and_grows() {
        let folder = tempfile::tempdir().unwrap();
        let tape = folder.path().join("t.json");
        let options = Options {
            model: "http://127.0.0.1:1/v1#m".to_owned(),
            tape: tape.clone(),
            message: vec!["hi".to_owned()],
        };
        // Nobody is there: the failure is told, and the tape is there nevertheless.
        assert!(record(&options).await.unwrap_err().to_string().contains("refused"));
        assert!(Tape::from_json(&std::fs::read_to_string(&tape).unwrap()).unwrap().is_empty());
        std::fs::write(&tape, "{").unwrap();
        assert!(record(&options).await.unwrap_err().to_string().contains("cannot be read"));
    }
}
