//! `umbel completions`: what a shell needs to complete the command line.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use clap_complete::Shell;

use crate::Cli;
use crate::args::Line;

/// For which shell.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  umbel completions bash > ~/.local/share/bash-completion/completions/umbel
  umbel completions zsh > ~/.zfunc/_umbel
  umbel completions fish > ~/.config/fish/completions/umbel.fish")]
pub struct Options {
    /// The shell.
    shell: Shell,
}

/// Prints it.
pub fn main(_: &Cli, options: &Options) -> io::Result<ExitCode> {
    let mut command = Line::command_for(std::env::args_os().next().as_ref());
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, name, &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
