//! `umbel explain`: what came of the agents and all that extends them.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use umbel_stores::Stores;

use crate::Cli;
use crate::args::Which;
use crate::style::{clean, for_stdout};

/// What is to be explained.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    which: Which,
    /// All agents, not only the one that is named or the first.
    #[arg(long, conflicts_with = "agent")]
    all: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub fn main(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let offers = match options.all {
        true => cli.offers(&options.which, false)?,
        false => vec![cli.offer(&options.which, false)?],
    };
    let mut explained = Vec::new();
    let mut out = io::stdout().lock();
    for offer in offers {
        let [name, about, model] = [offer.name(), offer.describes(), offer.model_words()].map(str::to_owned);
        let runner = offer.runner(&Stores::in_memory()).map_err(io::Error::other)?;
        let explanations = runner.explain().map_err(io::Error::other)?;
        if !options.json {
            writeln!(out, "{}\n", clean(&heading(&name, &about, &model)))?;
            for explanation in &explanations {
                writeln!(out, "{}", clean(&explanation.to_string()))?;
            }
        } else if options.all {
            explained.push(json!({"name": name, "about": about, "model": model, "agents": explanations}));
        } else {
            explained.push(json!(explanations));
        }
    }
    if options.json {
        let value = if options.all { Value::Array(explained) } else { explained.pop().unwrap_or_default() };
        writeln!(out, "{}", for_stdout(&serde_json::to_string_pretty(&value)?))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Who is explained.
fn heading(name: &str, about: &str, model: &str) -> String {
    let about = if about.is_empty() { String::new() } else { format!(": {about}") };
    let model = if model.is_empty() { String::new() } else { format!("\nModel: {model}.") };
    format!("# {name}{about}{model}")
}
