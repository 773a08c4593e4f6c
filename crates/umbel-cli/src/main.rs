//! The `umbel` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    umbel_cli::main(std::env::args_os().skip(1))
}
