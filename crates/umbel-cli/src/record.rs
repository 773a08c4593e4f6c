//! `umbel record`: asks a real model, and writes down what was said between it and us.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use futures::StreamExt;
use umbel::models::{Tape, model};
use umbel::{Result, RunConfig};

use crate::args::BadArgs;
use crate::demo;

/// What `umbel record --help` says.
pub const USAGE: &str = "\
Asks a real model, and writes down each request and its answer, byte by byte: a tape to test with, offline. The model
works for the guide of the demo, so it can call tools. Keys are never on the tape.

Usage: umbel record --model NAME --tape FILE MESSAGE...

  --model NAME  The model: provider/model, or http://HOST/v1#model. Its key comes from the environment.
  --tape FILE   Where to write; what is on the tape already stays.
  -h, --help    Show this help.

Examples:
  umbel record --model anthropic/claude-sonnet-4-5 --tape weather.json weather in Paris
  umbel record --model http://localhost:8080/v1#smollm2 --tape hello.json hello

In a test: model(NAME)?.replay(&Tape::from_json(&text)?)
";

/// What is to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The model by name.
    pub model: String,
    /// The tape.
    pub tape: PathBuf,
    /// What the model is asked.
    pub message: String,
}

/// Reads what stands behind `umbel record`. Nothing if help is wanted.
pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, BadArgs> {
    let (mut model, mut tape, mut words) = (None, None, Vec::new());
    while let Some(arg) = args.next() {
        let (flag, given) = match arg.split_once('=').filter(|(flag, _)| flag.starts_with("--")) {
            Some((flag, given)) => (flag, Some(given.to_owned())),
            None => (arg.as_str(), None),
        };
        let mut value =
            |what, such| crate::args::value(given.clone().or_else(|| args.next()), flag, what, such);
        match flag {
            "-h" | "--help" => return Ok(None),
            "--model" => model = Some(value("a name", "anthropic/claude-sonnet-4-5")?),
            "--tape" => tape = Some(value("a file", "weather.json")?),
            "--" => words.extend(args.by_ref()),
            _ if flag.starts_with("--") => {
                return Err(BadArgs(format!(
                    "There is no flag `{flag}`. `umbel record --help` lists those there are."
                )));
            }
            _ => words.push(arg),
        }
    }
    let message = words.join(" ").trim().to_owned();
    match (model, tape) {
        (Some(model), Some(tape)) if !message.is_empty() => {
            Ok(Some(Options { model, tape: tape.into(), message }))
        }
        (None, _) => Err(BadArgs("Which model? Say so with `--model provider/model`.".to_owned())),
        (_, None) => Err(BadArgs("Where to? Say so with `--tape FILE`.".to_owned())),
        _ => Err(BadArgs("What is the model to be asked? Put a message behind the flags.".to_owned())),
    }
}

/// Does it.
pub fn main(options: &Options) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(record(options))
}

async fn record(options: &Options) -> io::Result<ExitCode> {
    let tape = match std::fs::read_to_string(&options.tape) {
        Ok(text) => Tape::from_json(&text).map_err(io::Error::other)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Tape::new(),
        Err(error) => return Err(io::Error::other(format!("{}: {error}", options.tape.display()))),
    };
    let before = tape.len();
    let invalid =
        |error: umbel::Error| io::Error::new(io::ErrorKind::InvalidInput, error.message().to_owned());
    let model = model(&options.model).map_err(invalid)?.record(&tape);
    let answered = ask(options, model).await;
    // What was said up to a failure is worth having, too.
    std::fs::write(&options.tape, tape.to_json())
        .map_err(|error| io::Error::other(format!("{}: {error}", options.tape.display())))?;
    let requests = tape.len() - before;
    writeln!(io::stderr(), "{requests} requests and their answers are in {}", options.tape.display())?;
    answered.map_err(io::Error::other)?;
    Ok(ExitCode::SUCCESS)
}

async fn ask(options: &Options, model: umbel::models::HttpModel) -> Result<()> {
    let runner = demo::guide_on(model)?;
    let session = runner.create_session("local").await?;
    let config = RunConfig { streaming: true, ..RunConfig::default() };
    let mut run = runner.run_with(&session.key, options.message.as_str(), config);
    let mut said = false;
    while let Some(event) = run.next().await {
        let event = event?;
        if event.partial == Some(true) {
            let text = event.text();
            said |= !text.is_empty();
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

    fn parsed(args: &[&str]) -> Result<Option<Options>, BadArgs> {
        parse(args.iter().map(|arg| (*arg).to_owned()))
    }

    #[test]
    fn flags_and_message_are_told_apart() {
        let options = Options {
            model: "a/b".to_owned(),
            tape: "t.json".into(),
            message: "weather in Paris".to_owned(),
        };
        let args = ["--model", "a/b", "--tape=t.json", "weather", "in", "Paris"];
        assert_eq!(parsed(&args), Ok(Some(options)));
        assert_eq!(parsed(&["--help"]), Ok(None));
    }

    #[test]
    fn what_is_missing_is_asked_for() {
        for (args, word) in [
            (&["hi"][..], "--model"),
            (&["--model", "a/b", "hi"], "--tape"),
            (&["--model=a/b", "--tape=t"], "message"),
            (&["--model"], "needs a name"),
            (&["--colour", "x"], "--help"),
        ] {
            assert!(parsed(args).unwrap_err().0.contains(word), "{args:?}");
        }
    }

    #[tokio::test]
    async fn a_tape_is_written_that_plays_again_and_grows() {
        let folder = tempfile::tempdir().unwrap();
        let tape = folder.path().join("t.json");
        let options = Options {
            model: "http://127.0.0.1:1/v1#m".to_owned(),
            tape: tape.clone(),
            message: "hi".to_owned(),
        };
        // Nobody is there: the failure is told, and the tape is there nevertheless.
        assert!(record(&options).await.unwrap_err().to_string().contains("refused"));
        assert!(Tape::from_json(&std::fs::read_to_string(&tape).unwrap()).unwrap().is_empty());
        std::fs::write(&tape, "{").unwrap();
        assert!(record(&options).await.unwrap_err().to_string().contains("cannot be read"));
    }
}
