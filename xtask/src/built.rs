//! What `cargo test` builds: the tests, programs and examples of the whole workspace.
//!
//! Checks that need some of it find it here. Built alone, a crate would want its dependencies with other features, and so most
//! of them once more.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cargo;
use crate::test::{passed, root, succeed};

/// Something that can be started.
struct Executable {
    /// The name of the program or example, or of the file of tests.
    name: String,
    /// Where its crate is.
    folder: PathBuf,
    path: PathBuf,
    is_test: bool,
}

/// Builds what is not built, and says what there is.
fn build() -> Result<Vec<Executable>, String> {
    let mut build = cargo::command(&root());
    build.args(["test", "--workspace", "--no-run", "--quiet", "--message-format=json-render-diagnostics"]);
    let output = build.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !output.status.success() {
        return Err("the workspace cannot be built".to_owned());
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    Ok(lines.lines().filter_map(|line| executable(&serde_json::from_str(line).ok()?)).collect())
}

/// What a message of cargo says was built, if it can be started.
fn executable(message: &Value) -> Option<Executable> {
    let text = |path: &str| message.pointer(path).and_then(Value::as_str);
    Some(Executable {
        name: text("/target/name")?.to_owned(),
        folder: Path::new(text("/manifest_path")?).parent()?.to_owned(),
        path: PathBuf::from(text("/executable")?),
        is_test: message.pointer("/profile/test")?.as_bool()?,
    })
}

/// A program or an example, by its name.
pub(crate) fn program(name: &str) -> Result<PathBuf, String> {
    let found = build()?.into_iter().find(|built| !built.is_test && built.name == name);
    found.map(|built| built.path).ok_or_else(|| format!("nothing that is built is called `{name}`"))
}

/// The tests that stand in `tests/NAME` of a crate, by the crate's folder in the workspace.
pub(crate) fn tests(folder: &str, name: &str) -> Result<PathBuf, String> {
    let found = build()?
        .into_iter()
        .find(|built| built.is_test && built.name == name && built.folder == root().join(folder));
    found.map(|built| built.path).ok_or_else(|| format!("{folder} has no tests called `{name}`"))
}

/// Runs the tests of some crates, those in the documentation left out. Arguments choose among them; variables are set for them.
pub(crate) fn run_tests(folders: &[&str], args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    let folders: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    let built = build()?;
    let chosen: Vec<_> =
        built.iter().filter(|built| built.is_test && folders.contains(&built.folder)).collect();
    if chosen.is_empty() {
        return Err(format!("there are no tests in {folders:?}"));
    }
    for tests in chosen {
        let mut command = Command::new(&tests.path);
        command.args(args).envs(env.iter().copied()).current_dir(&tests.folder);
        passed(succeed(&mut command))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_can_be_started_is_found_in_what_cargo_says() {
        let mut message = json!({
            "manifest_path": "/a/crates/b/Cargo.toml",
            "target": {"name": "it"},
            "profile": {"test": true},
            "executable": "/a/target/it-1",
        });
        let built = executable(&message).unwrap();
        assert_eq!((built.name.as_str(), built.is_test), ("it", true));
        assert_eq!((built.folder, built.path), ("/a/crates/b".into(), "/a/target/it-1".into()));
        message["executable"] = Value::Null;
        assert!(executable(&message).is_none(), "a library");
    }
}
