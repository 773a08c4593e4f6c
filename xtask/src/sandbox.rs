//! `cargo xtask test sandbox`: programs that try to get out of the sandbox for code, as this user and, if that is root, as another
//! one who may do nothing.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::built;
use crate::test::{Verdict, ensure, passed, succeed};

/// Who may do nothing, on every machine.
const NOBODY: &str = "65534";

/// Installs what a sandbox is made of, and what runs in it.
pub(crate) fn prepare() -> Result<(), String> {
    ensure("bwrap", "bubblewrap")?;
    ensure("setpriv", "util-linux")?;
    ensure("/usr/bin/python3", "python3")
}

pub(crate) fn check() -> Verdict {
    match try_abuses() {
        Ok(()) => Verdict::Passed,
        Err(why) => Verdict::Failed(why),
    }
}

fn try_abuses() -> Result<(), String> {
    prepare()?;
    let tests = built::tests("crates/umbel-tools", "it")?;
    passed(succeed(Command::new(&tests).arg("sandbox::")))?;
    if !rustix::process::geteuid().is_root() {
        println!("this is no root, so it was tried as a user only");
        return Ok(());
    }
    // Another user may not reach where things are built.
    let failed = |error: std::io::Error| format!("the tests cannot be copied: {error}");
    let folder = tempfile::tempdir().map_err(failed)?;
    let copy = folder.path().join("tests");
    std::fs::copy(&tests, &copy).map_err(failed)?;
    for path in [folder.path(), &copy] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    passed(succeed(&mut as_nobody(&copy)))
}

fn as_nobody(tests: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]);
    command.arg(tests).arg("sandbox::").current_dir("/");
    command
}
