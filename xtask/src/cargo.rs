//! Cargo, started from here.

use std::path::Path;
use std::process::Command;

use crate::test::{Verdict, root, succeed};

/// What cargo tells programs that it runs. Some crates are built anew whenever it changes, and for cargo itself it means
/// nothing.
const OF_XTASK: [&str; 2] = ["CARGO_MANIFEST_", "CARGO_PKG_"];

/// Cargo, in a folder, as if it had been started from a shell.
pub(crate) fn command(folder: &Path) -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    for (name, _) in std::env::vars_os() {
        if OF_XTASK.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.current_dir(folder);
    command
}

/// Runs cargo in the workspace.
pub(crate) fn run(args: &[&str], env: &[(&str, &str)]) -> Verdict {
    succeed(command(&root()).args(args).envs(env.iter().copied()))
}

/// What cargo prints, run in a folder.
pub(crate) fn output(folder: &Path, args: &[&str], env: &[(&str, &Path)]) -> Result<String, String> {
    let mut command = command(folder);
    command.args(args).envs(env.iter().copied());
    let output = command.output().map_err(|error| format!("cargo cannot be started: {error}"))?;
    if output.status.success() {
        return String::from_utf8(output.stdout).map_err(|error| format!("cargo printed no text: {error}"));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let name = args.first().copied().unwrap_or_default();
    Err(format!("`cargo {name}` ended with {}: {}", output.status, said.trim()))
}
