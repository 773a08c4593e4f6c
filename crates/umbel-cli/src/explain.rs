//! `umbel explain`: what came of the agents and all that extends them.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use umbel_stores::Stores;

use crate::Cli;
use crate::args::Which;

/// What is to be explained.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    which: Which,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub fn main(cli: &Cli, options: &Options) -> io::Result<ExitCode> {
    let runner = cli.offer(&options.which, false)?.runner(&Stores::in_memory()).map_err(io::Error::other)?;
    let explanations = runner.explain().map_err(io::Error::other)?;
    let mut out = io::stdout().lock();
    if options.json {
        serde_json::to_writer_pretty(&mut out, &explanations)?;
        writeln!(out)?;
    } else {
        explanations.iter().try_for_each(|explanation| writeln!(out, "{explanation}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
