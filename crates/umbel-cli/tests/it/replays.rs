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
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    let session = |id: &str, parent: Option<&str>| {
        let parent = parent.map(|id| json!({"user": "u", "id": id}));
        json!({"line": "session", "app": "guide", "user": "u", "id": id, "parent": parent}).to_string() + "\n"
    };
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    write("twice.jsonl", session("a", None) + &session("a", Some("a")));
    write("itself.jsonl", session("a", Some("a")));
    write("one.jsonl", session("a", None));
    let chain = (1..5000).map(|at| session(&at.to_string(), Some(&(at - 1).to_string())));
    write("deep.jsonl", session("0", None) + &chain.collect::<String>());
    for (args, words) in [
        (vec!["replay"], "--session"),
        (vec!["replay", "--session", "one"], "no session `one`"),
        (vec!["replay", "no.jsonl"], "no.jsonl"),
        (vec!["replay", "odd.jsonl"], "line 1"),
        (vec!["replay", "none.jsonl"], "no line of an export"),
        (vec!["replay", "text.jsonl"], "line 1"),
        (vec!["replay", "twice.jsonl"], "line 2: session `a` stands here for the second time"),
        (vec!["replay", "itself.jsonl"], "it has 0 sessions"),
        (vec!["replay", "itself.jsonl", "--session", "a"], "no session `a`"),
        (vec!["replay", "deep.jsonl"], "more than 100 deep"),
        (vec!["replay", "one.jsonl", "--against", "none.json"], "none.json"),
        (vec!["replay", "one.jsonl", "--save", "folder"], "folder"),
        (vec!["replay", "--session", "one", "--store", "sqlite:folder"], "folder"),
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
        let args = args.iter().map(|arg| if *arg == "R" { requests.clone() } else { (*arg).to_owned() });
        let args: Vec<String> = args.collect();
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

/// An agent that calls another one as a tool, and both know the person.
fn asking() -> Cli {
    Cli::new(|_| {
        let says = |text: &'static str| {
            ScriptedModel::from_fn("demo", move |request| {
                let told = request.instruction.text();
                vec![Ok(umbel::Chunk::Text(format!("{text} {}", told.lines().next().unwrap_or_default())))]
            })
        };
        let scout = LlmAgent::new("scout").instruction("{user:name} {app:place}").model(says("seen"));
        let model = ScriptedModel::new("demo").call("scout", json!({"request": "look"})).text("Done.");
        let boss = LlmAgent::new("boss").instruction("{user:name} {app:place}").model(model);
        Ok(vec![Offer::new("boss", Runner::builder("boss", boss.tool(umbel::AgentTool::new(scout))))])
    })
}

#[tokio::test]
async fn a_file_has_the_sessions_of_agents_called_as_tools_and_the_state_of_user_and_app() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let store = format!("sqlite:{}", path("s.db"));
    let state = json!({"user:name": "Ann", "app:place": "here"}).as_object().unwrap().clone();
    let stores = umbel_stores::open(&store).await.unwrap();
    let key = umbel::SessionKey::new("boss", "local", "s").unwrap();
    stores.sessions.create(umbel::NewSession::new(key).state(state)).await.unwrap();
    drop(stores);
    let run = |args: &[&str]| {
        let all: Vec<String> = ["boss"].iter().chain(args).map(|arg| (*arg).to_owned()).collect();
        // Commands have a runtime of their own.
        format!("{:?}", std::thread::spawn(move || asking().run(all)).join().unwrap())
    };
    let good = format!("{:?}", ExitCode::SUCCESS);
    assert_eq!(run(&["run", "--store", &store, "--session", "s", "go"]), good);
    assert_eq!(run(&["sessions", "export", "--store", &store, "--output", &path("all.jsonl")]), good);
    assert_eq!(run(&["sessions", "export", "s", "--store", &store, "--output", &path("one.jsonl")]), good);
    let lines = |name: &str, kind: &str| {
        let text = std::fs::read_to_string(path(name)).unwrap();
        text.lines().filter(|line| line.contains(&format!("\"line\":\"{kind}\""))).count()
    };
    assert_eq!((lines("all.jsonl", "session"), lines("one.jsonl", "session")), (2, 2));
    assert_eq!(lines("all.jsonl", "event"), lines("one.jsonl", "event"));
    assert_eq!((lines("all.jsonl", "state"), lines("one.jsonl", "state")), (2, 0));
    // Both agents get the state that they had.
    assert_eq!(run(&["replay", &path("all.jsonl"), "--save", &path("r.json")]), good);
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(path("r.json")).unwrap()).unwrap();
    let told: Vec<&str> = saved["requests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|sent| sent["request"]["instruction"].as_str().unwrap().lines().next().unwrap())
        .collect();
    assert_eq!(told, ["Ann here"; 3], "{saved}");
}

#[test]
fn what_saved_requests_do_not_tell_stays_unknown() {
    let folder = TempDir::new().unwrap();
    umbel(folder.path(), &["chat", "--session", "one"], "hi\n");
    let unknown = |args: &[&str]| {
        let output = umbel(folder.path(), &[&["replay"], args, &["--json"]].concat(), "");
        let report: Value = serde_json::from_str(&out(&output)).unwrap();
        report["unknown"].as_array().unwrap().iter().map(|one| one.to_string()).collect::<Vec<_>>()
    };
    let has = |found: &[String], word: &str| found.iter().any(|one| one.contains(word));
    let exported = umbel(folder.path(), &["sessions", "export", "one", "--output", "one.jsonl"], "");
    assert!(exported.status.success(), "{exported:?}");
    // A rewind that does nothing, since no run has that name.
    let path = folder.path().join("one.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let event = json!({"line": "event", "event": {"id": "e", "invocationId": "r", "author": "user", "timestamp": 1.0,
        "actions": {"rewindBeforeInvocationId": "none"}}});
    std::fs::write(&path, format!("{}\n{event}\n", text.trim_end())).unwrap();
    let found = unknown(&["one.jsonl", "--save", "r.json"]);
    assert!(
        has(&found, "instructions") && has(&found, "rewinding") && has(&found, "state of the user"),
        "{found:?}"
    );
    let found = unknown(&["one.jsonl", "--against", "r.json"]);
    assert!(!has(&found, "instructions") && has(&found, "rewinding") && has(&found, "state"), "{found:?}");
    let found = unknown(&["--session", "one"]);
    assert!(has(&found, "instructions") && !has(&found, "state of the user"), "{found:?}");
}
