//! The binary, as a shell would start it.

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs `umbel` with that input.
fn umbel(args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_umbel"))
        .args(args)
        .env_remove("NO_COLOR")
        .env("UMBEL_STORE", "memory:")
        .env("UMBEL_MODEL", "script")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_pipe_is_answered_in_plain_text() {
    let output = umbel(&["chat"], "hi\nweather in Paris\n");
    assert!(output.status.success(), "{output:?}");
    assert!(
        out(&output).starts_with("guide> Hello!") && out(&output).ends_with("guide> Paris: sunny, 21 °C.\n")
    );
    assert!(!out(&output).contains('\x1b') && !out(&output).contains("you>") && err(&output).is_empty());
}

#[test]
fn help_and_version_are_shown() {
    let help = umbel(&["--help"], "");
    assert!(
        help.status.success() && out(&help).contains("serve") && out(&help).contains("Without a command")
    );
    let version = umbel(&["--version"], "");
    assert_eq!(out(&version), concat!("umbel ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn a_flag_that_does_not_exist_is_refused_with_a_hint() {
    let output = umbel(&["--colour"], "");
    assert_eq!(output.status.code(), Some(2));
    assert!(out(&output).is_empty());
    assert!(err(&output).contains("--colour") && err(&output).contains("--help"), "{output:?}");
    assert_eq!(umbel(&["chat", "--user"], "").status.code(), Some(2));
}
