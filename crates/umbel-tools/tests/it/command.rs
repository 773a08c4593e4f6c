//! Programs: what a model says stays an argument.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use umbel_core::{Confirm, Tool};
use umbel_tools::Command;

use crate::{call, error, fails, text_argument};

/// A program that shows its arguments, a line each.
fn show(args: &[&str]) -> Command {
    Command::new("show", "Shows it.", "printf")
        .args(["<%s>\n"])
        .args(args.to_vec())
        .schema(text_argument("x"))
}

async fn run(command: Command, args: Value) -> Value {
    call(command.build().unwrap(), args).await
}

#[tokio::test]
async fn what_a_shell_would_act_on_is_passed_on_as_it_is() {
    for text in [
        "$(touch /tmp/x)",
        "`id`",
        "; ls",
        "| cat",
        "&& id",
        "> /tmp/x",
        "a b  c",
        "*",
        "~",
        "$HOME",
        "\"'",
        "\\",
        "line\nbreak",
        "{x}",
        "ü 🦀",
        "",
        "%s%n",
    ] {
        let said = run(show(&["{x}"]), json!({"x": text})).await;
        assert_eq!(said, json!({"exit_code": 0, "stdout": format!("<{text}>\n"), "stderr": ""}));
        let said = run(show(&["a={x}!", "end"]), json!({"x": text})).await;
        assert_eq!(said["stdout"], format!("<a={text}!>\n<end>\n"));
    }
}

#[tokio::test]
async fn a_value_never_becomes_an_option() {
    for text in ["-rf", "--help", "-", "--"] {
        let said = run(show(&["{x}"]), json!({"x": text})).await;
        assert!(error(&said).contains("must not begin with `-`"), "{said}");
        // Behind `--`, or as part of an argument, it cannot be taken for one.
        let said = run(show(&["--", "{x}"]), json!({"x": text})).await;
        assert_eq!(said["stdout"], format!("<-->\n<{text}>\n"));
        let said = run(show(&["x={x}"]), json!({"x": text})).await;
        assert_eq!(said["stdout"], format!("<x={text}>\n"));
    }
    // A `--` that comes from the model does not count.
    let schema = json!({"type": "object", "properties": {"a": {}, "b": {}}});
    let said = run(show(&["x{a}", "{b}"]).schema(schema), json!({"a": "--", "b": "-f"})).await;
    assert!(error(&said).contains("`b` must not begin"), "{said}");
    // A number may be negative, and is none the less an option to some.
    let said =
        run(show(&["{x}"]).schema(json!({"type": "object", "properties": {"x": {}}})), json!({"x": -1}))
            .await;
    assert!(error(&said).contains("must not begin"), "{said}");
}

#[tokio::test]
async fn arguments_are_held_against_the_schema() {
    let schema = json!({
        "type": "object",
        "properties": {"x": {"type": "string", "enum": ["a", "b"]}, "n": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": false,
    });
    let command = show(&["{x}", "{n}"]).schema(schema);
    assert_eq!(run(command.clone(), json!({"x": "a", "n": 5})).await["stdout"], "<a>\n<5>\n");
    // What is left out is left out.
    assert_eq!(run(command.clone(), json!({"x": "b"})).await["stdout"], "<b>\n");
    for args in [json!({"x": "c"}), json!({}), json!({"x": "a", "n": "5"}), json!({"x": "a", "y": 1})] {
        let said = run(command.clone(), args).await;
        assert!(error(&said).starts_with("the arguments do not fit"), "{said}");
    }
    let open = show(&["{x}"]).schema(json!({"type": "object", "properties": {"x": {}}}));
    for value in [json!([1]), json!({"a": 1})] {
        let said = run(open.clone(), json!({"x": value})).await;
        assert!(error(&said).contains("must be one text or number"), "{said}");
    }
    let said = run(open.clone(), json!({"x": "a\0b"})).await;
    assert!(error(&said).contains("zero byte"), "{said}");
    assert_eq!(run(open, json!({"x": true})).await["stdout"], "<true>\n");
}

#[test]
fn what_cannot_be_safe_is_not_built() {
    let build = |command: Command| command.build().unwrap_err().message().to_owned();
    let x = || text_argument("x");
    let command =
        |program: &str, args: &[&str]| Command::new("c", "", program).args(args.to_vec()).schema(x());
    let cases = [
        (Command::new("c", "", ""), "has no program"),
        (Command::new("c", "", "{x}").schema(x()), "cannot be left to the model"),
        (Command::new("c", "", "sh").args(["-c", "echo {x}"]).schema(x()), "would be taken for commands"),
        (
            Command::new("c", "", "/bin/bash").args(["script", "{x}"]).schema(x()),
            "would be taken for commands",
        ),
        (command("env", &["bash", "-c", "{x}"]), "would be taken for commands"),
        (command("/usr/bin/env", &["-i", "A=1", "/bin/sh", "-c", "{x}"]), "would be taken for commands"),
        (command("env", &["-i", "{x}"]), "would be taken for commands"),
        (command("busybox", &["sh", "-c", "{x}"]), "would be taken for commands"),
        (command("python3.12", &["-c", "print('{x}')"]), "would be taken for commands"),
        (command("node", &["--eval", "{x}"]), "would be taken for commands"),
        (command("env", &["perl", "-e", "{x}"]), "would be taken for commands"),
        (command("timeout", &["5", "bash", "-c", "{x}"]), "by `timeout`"),
        (command("timeout", &["5", "bash", "-c", "{x}"]).allow("timeout"), "by `bash`"),
        (command("nice", &["-n", "10", "/bin/sh", "-c", "{x}"]), "by `nice`"),
        (command("xargs", &["{x}"]), "by `xargs`"),
        (command("setsid", &["{x}"]), "by `setsid`"),
        (command("nohup", &["sh", "{x}"]), "by `nohup`"),
        (command("sudo", &["-u", "root", "{x}"]), "by `sudo`"),
        (command("find", &[".", "-exec", "{x}", ";"]), "by `find`"),
        (command("ssh", &["host", "ls {x}"]), "by `ssh`"),
        (command("python3", &["-c{x}"]), "by `python3`"),
        (command("python3", &["-I", "{x}"]), "by `python3`"),
        (command("python3", &["-m", "{x}"]), "by `python3`"),
        (command("node", &["--eval={x}"]), "by `node`"),
        (command("perl", &["-ne", "{x}"]), "by `perl`"),
        (command("awk", &["{x}", "file"]), "by `awk`"),
        (command("deno", &["eval", "{x}"]), "by `deno`"),
        (command("watch", &["sh -c {x}"]), "by `sh`"),
        (command("tool", &["--shell=/bin/dash", "{x}"]), "by `dash`"),
        (Command::new("c", "", "cmd.EXE").args(["/c", "{x}"]).schema(x()), "would be taken for commands"),
        (Command::new("c", "", "ls").args(["{y}"]).schema(x()), "`{y}` is not in its schema"),
        (Command::new("c", "", "ls").args(["{x"]), "`{x}` is not in its schema"),
        (Command::new("c", "", "ls").args(["{}"]), "holds no name"),
        (Command::new("c", "", "ls").args(["a}"]), "a `}` too many"),
        (Command::new("c", "", "ls").schema(json!({"type": 5})), "its schema cannot be used"),
    ];
    for (command, why) in cases {
        let shown = format!("{command:?}");
        let message = build(command);
        assert!(message.starts_with("the command `c`: ") && message.contains(why), "{shown}: {message}");
    }
    assert!(Command::new("c", "", "sh").args(["script.sh"]).build().is_ok());
    for good in [
        command("python3", &["script.py", "{x}"]),
        command("perl", &["-ne", "print if /a/", "{x}"]),
        command("grep", &["--", "{x}", "notes.txt"]),
        command("timeout", &["5", "grep", "--", "{x}", "notes.txt"]).allow("timeout"),
        command("grep", &["--", "{x}", "bash"]).allow("bash"),
    ] {
        let shown = format!("{good:?}");
        assert!(good.build().is_ok(), "{shown}");
    }
}

#[tokio::test]
async fn braces_can_be_said() {
    assert_eq!(run(show(&["{{x}}", "{{{x}}}"]), json!({"x": "a"})).await["stdout"], "<{x}>\n<{a}>\n");
}

#[tokio::test]
async fn a_program_sees_of_the_environment_what_it_is_given() {
    // Cargo sets this for tests; so it is there to leak.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    let said = run(Command::new("env", "", "env"), json!({})).await;
    let names: Vec<_> =
        said["stdout"].as_str().unwrap().lines().filter_map(|line| line.split('=').next()).collect();
    assert!(names.iter().all(|name| matches!(*name, "PATH" | "LANG" | "UMBEL_PROCESS")), "{names:?}");
    let command = Command::new("env", "", "env").keep_env("CARGO_MANIFEST_DIR").env("COLOUR", "blue");
    let said = run(command, json!({})).await;
    let said = said["stdout"].as_str().unwrap();
    assert!(said.contains("CARGO_MANIFEST_DIR=") && said.contains("COLOUR=blue"), "{said}");
}

#[tokio::test]
async fn a_program_runs_in_its_folder_and_reads_what_it_is_given() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let said = run(Command::new("pwd", "", "pwd").folder(&folder), json!({})).await;
    assert_eq!(said["stdout"].as_str().unwrap().trim(), folder.to_str().unwrap());
    let echo = || Command::new("cat", "", "cat").schema(text_argument("x"));
    assert_eq!(run(echo().stdin_json(), json!({"x": "a"})).await["stdout"], "{\"x\":\"a\"}");
    assert_eq!(run(echo(), json!({"x": "a"})).await["stdout"], "");
}

#[tokio::test]
async fn a_failure_is_told_with_its_code_and_words() {
    let said =
        run(Command::new("fail", "", "sh").args(["-c", "echo out; echo why >&2; exit 3"]), json!({})).await;
    assert_eq!(said, json!({"exit_code": 3, "stdout": "out\n", "stderr": "why\n"}));
    assert!(fails(Command::new("f", "", "false").build().unwrap(), json!({})).await);
    assert!(!fails(Command::new("t", "", "true").build().unwrap(), json!({})).await);
    let said = run(Command::new("none", "", "/nowhere/umbel-none"), json!({})).await;
    assert!(error(&said).starts_with("`umbel-none` could not be started"), "{said}");
}

#[tokio::test]
async fn long_output_is_cut_and_the_program_goes_on_to_its_end() {
    let script = "head -c 1000000 /dev/zero | tr '\\0' x; echo end >&2";
    let said = run(Command::new("long", "", "sh").args(["-c", script]).output_bytes(100), json!({})).await;
    assert_eq!(said["stdout"], "x".repeat(100));
    assert_eq!(
        (&said["stderr"], &said["exit_code"], &said["truncated"]),
        (&json!("end\n"), &json!(0), &json!(true))
    );
}

/// Waits until a file is there, and gives the process that it names.
async fn process_in(file: &std::path::Path) -> String {
    loop {
        match std::fs::read_to_string(file) {
            Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Waits until a process is gone, or is but a name that nobody has asked for yet.
async fn gone(process: &str) {
    let is_there = || match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => !stat.contains(") Z "),
        Err(_) => false,
    };
    let begun = Instant::now();
    while is_there() {
        assert!(begun.elapsed() < Duration::from_secs(10), "process {process} goes on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_program_that_takes_too_long_ends_with_all_that_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let script = "setsid sleep 600 & echo $! > child; wait";
    let command = Command::new("slow", "", "sh").args(["-c", script]).folder(folder.path());
    let begun = Instant::now();
    let said = run(command.timeout(Duration::from_millis(300)), json!({})).await;
    assert_eq!(error(&said), "`slow` took longer than 0.3 s and was stopped");
    assert!(begun.elapsed() < Duration::from_secs(5));
    gone(&process_in(&folder.path().join("child")).await).await;
}

#[tokio::test]
async fn a_program_has_no_time_or_all_the_time_there_is() {
    let command = || Command::new("hello", "", "echo").args(["hello"]);
    let said = run(command().timeout(Duration::MAX), json!({})).await;
    assert_eq!(said["stdout"], "hello\n");
    let said = run(Command::new("slow", "", "sleep").args(["600"]).timeout(Duration::ZERO), json!({})).await;
    assert_eq!(error(&said), "`slow` took longer than 0 s and was stopped");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn what_a_program_leaves_behind_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let script = "sleep 600 & echo $! > child; echo done";
    let command = Command::new("fork", "", "sh").args(["-c", script]).folder(folder.path());
    let begun = Instant::now();
    let said = run(command, json!({})).await;
    assert_eq!((&said["stdout"], &said["exit_code"]), (&json!("done\n"), &json!(0)));
    assert!(begun.elapsed() < Duration::from_secs(10));
    gone(&process_in(&folder.path().join("child")).await).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_call_that_is_dropped_ends_its_program() {
    let folder = tempfile::tempdir().unwrap();
    let script = "sleep 600 & echo $! > child; wait";
    let tool = Command::new("slow", "", "sh").args(["-c", script]).folder(folder.path()).build().unwrap();
    let process = {
        let calling = std::pin::pin!(call(tool, json!({})));
        let file = folder.path().join("child");
        tokio::select! {
            said = calling => panic!("{said}"),
            process = process_in(&file) => process,
        }
    };
    gone(&process).await;
}

#[test]
fn what_is_said_of_a_tool_is_in_its_spec() {
    let spec = |command: Command| command.build().unwrap().spec().clone();
    let plain = spec(Command::new("a", "Does it.", "true"));
    assert_eq!((plain.description.as_str(), plain.read_only), ("Does it.", false));
    assert_eq!(plain.timeout, Some(Duration::from_secs(35)));
    let other = spec(Command::new("a", "", "true").read_only().confirm(Confirm::Always));
    assert!(other.read_only && matches!(other.confirm, Confirm::Always));
    let tool: Arc<dyn Tool> = Arc::new(Command::new("a", "", "true").build().unwrap());
    assert_eq!(tool.spec().name, "a");
}

#[test]
fn programs_that_take_no_values_for_code_can_have_them() {
    let command = |program: &str, args: &[&str]| {
        Command::new("c", "", program).args(args.to_vec()).schema(text_argument("x"))
    };
    assert!(command("busybox", &["grep", "--", "{x}", "notes"]).allow("busybox").build().is_ok());
    assert!(command("python3", &["count.py", "{x}"]).build().is_ok());
    assert!(command("python3", &["script.py", "{x}"]).build().is_ok());
    assert!(command("grep", &["sh", "{x}"]).allow("sh").build().is_ok());
    assert!(Command::new("c", "", "bash").args(["-c", "date"]).build().is_ok(), "no value, no harm");
}

#[test]
fn what_is_set_for_a_program_is_not_shown() {
    let command = Command::new("c", "", "date").env("KEY", "hunter2");
    assert_eq!(format!("{command:?}"), "Command(c, date)");
    assert!(!format!("{:?}", command.build().unwrap()).contains("hunter2"));
}
