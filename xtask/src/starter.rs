//! `cargo xtask test starter`: a project that `umbel new` makes builds and passes its own tests, with this checkout as the
//! dependency.

use std::process::Command;

use crate::built;
use crate::cargo;
use crate::test::{Verdict, root, succeed, target};

/// The name of the project.
const NAME: &str = "starter-check";

pub(crate) fn check() -> Verdict {
    let umbel = match built::program("umbel") {
        Ok(umbel) => umbel,
        Err(why) => return Verdict::Failed(why),
    };
    let folder = target().join("starter");
    let project = folder.join(NAME);
    // What an earlier check left.
    let _ = std::fs::remove_dir_all(&project);
    if let Err(error) = std::fs::create_dir_all(&folder) {
        return Verdict::Failed(format!("{} cannot be made: {error}", folder.display()));
    }
    let mut new = Command::new(umbel);
    new.args(["new", NAME, "--path"]).arg(root()).current_dir(&folder);
    if let Verdict::Failed(why) = succeed(&mut new) {
        return Verdict::Failed(why);
    }
    let mut test = cargo::command(&project);
    test.args(["test", "--quiet"]);
    // The same place and the same settings, so that what is built already need not be built again.
    test.env("CARGO_TARGET_DIR", target());
    if std::env::var_os("CARGO_PROFILE_DEV_DEBUG").is_none() {
        test.env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
    }
    succeed(&mut test)
}
