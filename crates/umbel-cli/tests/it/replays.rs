//! `umbel replay`, as a shell would start it, and for agents of one's own.

use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;
use umbel::{LlmAgent, Runner, ScriptedModel, tool};
use umbel_cli::{Cli, Offer};

fn umbel(folder: &Path, args: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umbel"));
    command.args(args).current_dir(folder).env("UMBEL_STORE", "sqlite:s.db").env_remove("UMBEL_MODEL");
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A conversation with the guide of the demo that shows all that it can.
const TALK: &str = "weather in Paris and Rome\npack an umbrella\nbook 3 nights in Lisbon\ny\nbook 2 nights in Rome\nn\n\
    plan a day in Oslo\nwhat can I eat in Rome?\nback\nconvert 5 EUR to XYZ\n";

#[test]
fn a_session_of_the_demo_is_the_same_again() {
    let folder = TempDir::new().unwrap();
    let talked = umbel(folder.path(), &["chat", "--session", "one"], TALK);
    assert!(talked.status.success() && out(&talked).contains("UMB-1"), "{talked:?}");
    let args = ["replay", "--session", "one", "--save", "requests.json"];
    let again = umbel(folder.path(), &args, "");
    assert_eq!(again.status.code(), Some(0), "{}", out(&again));
    assert!(out(&again).starts_with("The same: ") && out(&again).contains("Not known: "), "{}", out(&again));

    let exact =
        umbel(folder.path(), &["replay", "--session", "one", "--against", "requests.json", "--json"], "");
    assert_eq!(exact.status.code(), Some(0), "{}", out(&exact));
    let report: Value = serde_json::from_str(&out(&exact)).unwrap();
    assert_eq!((&report["same"], &report["differences"]), (&json!(true), &json!([])));
    let agents: Vec<&str> =
        report["requests"].as_array().unwrap().iter().map(|sent| sent["agent"].as_str().unwrap()).collect();
    assert!(
        ["guide", "sights", "evening", "writer", "foodie"].iter().all(|agent| agents.contains(agent)),
        "{agents:?}"
    );
}

#[test]
fn other_requests_than_were_saved_are_shown_line_by_line() {
    let folder = TempDir::new().unwrap();
    umbel(folder.path(), &["chat", "--session", "one"], "hi\n");
    umbel(folder.path(), &["replay", "--session", "one", "--save", "r.json"], "");
    let path = folder.path().join("r.json");
    let saved = std::fs::read_to_string(&path).unwrap();
    let changed = saved.replacen("You are a travel guide", "You were a travel guide", 1);
    assert_ne!(saved, changed);
    std::fs::write(&path, changed.replace("\"session\": \"one\"", "\"session\": \"two\"")).unwrap();
    let other = umbel(folder.path(), &["replay", "--session", "one", "--against", "r.json"], "");
    assert_eq!(other.status.code(), Some(2), "that is another session: {other:?}");
    std::fs::write(&path, changed).unwrap();
    let output = umbel(folder.path(), &["replay", "--session", "one", "--against", "r.json"], "");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let shown = out(&output);
    assert!(shown.starts_with("instruction, run 1, guide, request 1\n"), "{shown}");
    assert!(
        shown.contains("- You were a travel guide") && shown.contains("+ You are a travel guide"),
        "{shown}"
    );
    assert!(shown.contains("1 difference(s)") && !shown.contains('\x1b'), "{shown}");
}

#[test]
fn what_cannot_be_run_again_says_why() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("odd.jsonl"), "{\"line\": \"event\"}\n").unwrap();
    std::fs::write(folder.path().join("none.jsonl"), "{}\n").unwrap();
    std::fs::write(folder.path().join("text.jsonl"), "hello\n").unwrap();
    for (args, words) in [
        (vec!["replay"], "--session"),
        (vec!["replay", "--session", "one"], "no session `one`"),
        (vec!["replay", "no.jsonl"], "no.jsonl"),
        (vec!["replay", "odd.jsonl"], "line 1"),
        (vec!["replay", "none.jsonl"], "no line of an export"),
        (vec!["replay", "text.jsonl"], "line 1"),
    ] {
        let output = umbel(folder.path(), &args, "");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(words), "{args:?}: {output:?}");
    }
}

/// How often it was added.
static ADDED: AtomicUsize = AtomicUsize::new(0);

/// Adds.
#[tool]
async fn add(a: i64, b: i64) -> i64 {
    ADDED.fetch_add(1, Ordering::SeqCst);
    a + b
}

/// Takes away.
#[tool]
async fn subtract(a: i64, b: i64) -> i64 {
    a - b
}

/// A command line for an agent that may have changed.
fn cli(instruction: &'static str, reversed: bool) -> Cli {
    Cli::new(move |_| {
        let model = ScriptedModel::new("demo").call("add", json!({"a": 1, "b": 2})).text("Three.");
        let agent = LlmAgent::new("adder").instruction(instruction).model(model);
        let agent = if reversed { agent.tool(subtract).tool(add) } else { agent.tool(add).tool(subtract) };
        Ok(vec![Offer::new("adder", Runner::builder("adder", agent))])
    })
}

#[tokio::test]
async fn an_exported_session_is_compared_between_two_builds() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let store = umbel_stores::Sqlite::open(folder.path().join("s.db")).await.unwrap();
    let model = ScriptedModel::new("demo").call("add", json!({"a": 1, "b": 2})).text("Three.");
    let agent = LlmAgent::new("adder").instruction("Add.").model(model).tool(add).tool(subtract);
    let runner = Runner::builder("adder", agent).sessions(store.clone()).build().unwrap();
    let key = runner.create_session("local").await.unwrap().key;
    runner.run(&key, "one and two").text().await.unwrap();
    store.export(std::fs::File::create(path("s.jsonl")).unwrap()).await.unwrap();

    let run = |cli: Cli, args: &[&str]| {
        let (file, requests) = (path("s.jsonl"), path("r.json"));
        let args: Vec<String> = args.iter().map(|arg| arg.replace("R", &requests)).collect();
        let all = ["adder".to_owned(), "replay".to_owned(), file].into_iter().chain(args);
        // Commands have a runtime of their own.
        std::thread::spawn(move || cli.run(all)).join().unwrap()
    };
    let is = |code: ExitCode, expected: ExitCode| assert_eq!(format!("{code:?}"), format!("{expected:?}"));
    is(run(cli("Add.", false), &["--save", "R"]), ExitCode::SUCCESS);
    is(run(cli("Add.", false), &["--against", "R"]), ExitCode::SUCCESS);
    is(run(cli("Add well.", false), &["--against", "R"]), ExitCode::FAILURE);
    is(run(cli("Add.", true), &["--against", "R"]), ExitCode::FAILURE);
    is(run(cli("Add well.", true), &[]), ExitCode::SUCCESS);
    is(run(cli("Add.", false), &["--session", "none"]), ExitCode::from(2));
    assert_eq!(ADDED.load(Ordering::SeqCst), 1, "only when it was recorded");
    is(run(cli("Add.", false), &["--session", key.id(), "--live-tools"]), ExitCode::SUCCESS);
    assert_eq!(ADDED.load(Ordering::SeqCst), 2);
}
