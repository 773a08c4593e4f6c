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
    served.ask("POST /helper", &[], &message(thread))
}

fn message(thread: &str) -> String {
    format!(
        "{{\"threadId\": \"{thread}\", \"runId\": \"r-{thread}\", \"messages\": [\
         {{\"id\": \"m-{thread}\", \"role\": \"user\", \"content\": \"hi\"}}]}}"
    )
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

#[cfg(unix)]
#[test]
fn a_program_beside_the_file_runs_wherever_one_stands() {
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("project");
    std::fs::create_dir_all(project.join("bin")).unwrap();
    std::os::unix::fs::symlink("/bin/echo", project.join("bin/say")).unwrap();
    let source = "[agents.helper]\ntools = [\"t\"]\nscript = [{ call = \"t\" }, \"Done.\"]\n\
                  [tools.t]\nkind = \"command\"\nprogram = \"bin/say\"\nargs = [\"it runs\"]\n";
    std::fs::write(project.join("agents.toml"), source).unwrap();
    let ran = Command::new(env!("CARGO_BIN_EXE_umbel"))
        .args(["run", "--json", "--allow-commands", "--agents", "project/agents.toml", "go"])
        .current_dir(folder.path())
        .env("UMBEL_STORE", "memory:")
        .env("UMBEL_MODEL", "script")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&ran.stdout).contains("it runs"), "{ran:?}");
}

#[test]
fn what_a_model_says_does_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agents.toml");
    let source = r#"
        [agents.helper]
        script = [{ call = "x\u001b[2J\nerror: y", args = { "a\u202eb" = 1 } }, "Done \u001b[1mnow."]
    "#;
    std::fs::write(&file, source).unwrap();
    let ran = umbel(&["run", "go"], &file);
    let told = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(told.starts_with("→ x\u{fffd}[2J error: y(a\u{fffd}b: 1)\n"), "{told:?}");
    // A program gets the answer as it is.
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "Done \x1b[1mnow.\n");
}

/// An agent whose tool writes down its process and goes on for long.
#[cfg(target_os = "linux")]
fn slow(folder: &Path) -> std::path::PathBuf {
    let file = folder.join("agents.toml");
    let source = "[agents.helper]\ntools = [\"t\"]\nscript = [{ call = \"t\" }, \"Done.\"]\n\
                  [tools.t]\nkind = \"command\"\nprogram = \"sh\"\ntimeout = 300\n\
                  args = [\"-c\", \"echo $$ > pid.new; mv pid.new pid; exec sleep 300\"]\n";
    std::fs::write(&file, source).unwrap();
    file
}

/// Waits until something is so.
#[cfg(target_os = "linux")]
fn wait<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = std::time::Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Whether a process has ended. One that nobody has asked about yet has no command line any more.
#[cfg(target_os = "linux")]
fn has_ended(pid: &str) -> bool {
    let process = Path::new("/proc").join(pid.trim()).join("cmdline");
    std::fs::read(process).unwrap_or_default().is_empty()
}

#[cfg(target_os = "linux")]
#[test]
fn a_program_of_a_tool_ends_when_the_server_is_told_to_stop_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = slow(folder.path());
    let mut served = Served::start(&["--port", "0", "--allow-commands", file.to_str().unwrap()]);
    let _stream = served.send("POST /helper", &[], &message("t"));
    let pid = wait("the tool begins", || std::fs::read_to_string(folder.path().join("pid")).ok());
    assert!(!has_ended(&pid));
    // Two signals at the same moment may count as one.
    let status = wait("the server ends", || {
        served.signal("-TERM");
        served.child.try_wait().unwrap()
    });
    assert_eq!(status.code(), Some(130));
    wait("the tool ends", || has_ended(&pid).then_some(()));
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_that_waits_for_its_message_ends_when_it_is_told_to_stop() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_umbel"))
        .args(["run", "--model", "script", "--store", "memory:", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let _input = child.stdin.take().unwrap();
    // The kernel says where it waits: it has begun to read from 0.
    let place = format!("/proc/{}/wchan", child.id());
    wait("it reads", || std::fs::read_to_string(&place).ok().filter(|at| at.contains("pipe")));
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    wait("it ends", || child.try_wait().unwrap());
}

#[cfg(target_os = "linux")]
#[test]
fn a_program_of_a_tool_ends_when_the_command_is_told_to_stop() {
    use std::io::Write;
    for (args, signal) in
        [(&["run", "go"][..], "INT"), (&["run", "go"], "TERM"), (&["chat"], "INT"), (&["chat"], "TERM")]
    {
        let folder = tempfile::tempdir().unwrap();
        let file = slow(folder.path());
        let mut child = Command::new(env!("CARGO_BIN_EXE_umbel"))
            .args(args)
            .args(["--allow-commands", "--store", "memory:", "--agents"])
            .arg(&file)
            .env("UMBEL_MODEL", "script")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let _ = input.write_all(b"go\n");
        let pid = wait("the tool begins", || std::fs::read_to_string(folder.path().join("pid")).ok());
        let told = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
        assert!(told.success());
        assert_eq!(child.wait().unwrap().code(), Some(130), "{args:?} {signal}");
        wait("the tool ends", || has_ended(&pid).then_some(()));
    }
}
