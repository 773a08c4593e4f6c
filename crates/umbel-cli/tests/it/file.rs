//! Agents in a file, as a shell would start them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::serve::Served;

fn umbel(args: &[&str], file: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umbel"));
    command.args(args).arg("--agents").arg(file).env("UMBEL_STORE", "memory:").env("UMBEL_MODEL", "script");
    command.stdin(Stdio::null()).output().unwrap()
}

fn agent(answer: &str) -> String {
    format!("[agents.helper]\ndescription = \"Helps.\"\nscript = [\"{answer}\"]\n")
}

fn ask(served: &Served, thread: &str) -> String {
    let body = format!(
        "{{\"threadId\": \"{thread}\", \"runId\": \"r-{thread}\", \"messages\": [\
         {{\"id\": \"m-{thread}\", \"role\": \"user\", \"content\": \"hi\"}}]}}"
    );
    served.ask("POST /helper", &[], &body)
}

#[test]
fn commands_work_on_the_agents_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agents.toml");
    std::fs::write(&file, agent("Hello!")).unwrap();
    let explained = umbel(&["explain"], &file);
    assert!(explained.status.success());
    assert!(String::from_utf8_lossy(&explained.stdout).contains("helper"));
    let answered = umbel(&["run", "hi"], &file);
    assert_eq!(String::from_utf8_lossy(&answered.stdout).trim(), "Hello!", "{answered:?}");
}

#[test]
fn a_file_that_is_wrong_is_bad_usage_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agents.toml");
    std::fs::write(&file, "[agents.helper]\nscript = [\"x\"]\ntols = []\n").unwrap();
    let refused = umbel(&["explain"], &file);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{told}");
    assert!(told.contains("agents.toml:3:1: the key `tols` is not known"), "{told}");
    assert!(told.contains("did you mean `tools`?"), "{told}");
}

#[test]
fn programs_run_only_if_they_are_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agents.toml");
    let source = "[agents.helper]\ntools = [\"t\"]\nscript = [{ call = \"t\" }, \"Done.\"]\n\
                  [tools.t]\nkind = \"command\"\nprogram = \"touch\"\nargs = [\"touched\"]\n";
    std::fs::write(&file, source).unwrap();
    let refused = umbel(&["run", "go"], &file);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--allow-commands"), "{refused:?}");
    assert!(!folder.path().join("touched").exists());
    let allowed = umbel(&["run", "go", "--allow-commands"], &file);
    assert_eq!(String::from_utf8_lossy(&allowed.stdout).trim(), "Done.", "{allowed:?}");
    assert!(folder.path().join("touched").exists());
}

#[test]
fn a_file_that_changes_is_read_again_and_a_bad_one_is_not_taken_over() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agents.toml");
    std::fs::write(&file, agent("The first.")).unwrap();
    let mut served = Served::start(&["--port", "0", file.to_str().unwrap()]);
    let mut told = BufReader::new(served.child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(
        served.greeting.contains("agents.toml") && served.greeting.contains("Helps."),
        "{}",
        served.greeting
    );
    assert!(ask(&served, "t1").contains("first"));
    std::fs::write(&file, agent("The second one.")).unwrap();
    assert!(told.any(|line| line == "The file has changed and was read again. Agents: helper."));
    assert!(ask(&served, "t2").contains("second"));
    // The thread that the first one began goes on.
    let thread = served.ask("GET /helper/threads/t1", &[], "");
    assert!(thread.contains("The first."), "{thread}");
    std::fs::write(&file, "[agents.helper]\nscrpt = []\n").unwrap();
    assert!(told.any(|line| line.contains("agents.toml:2:1: the key `scrpt` is not known")));
    assert!(told.any(|line| line == "The file has changed; the agents stay as they were."));
    assert!(ask(&served, "t3").contains("second"));
    std::fs::write(&file, agent("And the third.")).unwrap();
    assert!(told.any(|line| line == "The file has changed and was read again. Agents: helper."));
    assert!(ask(&served, "t4").contains("third"));
}
