//! The `umbel` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    umbel_cli::Cli::demo().main()
}
