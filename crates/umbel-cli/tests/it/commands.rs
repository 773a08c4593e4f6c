//! The commands for scripts, as a shell would start them.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs `umbel` in a folder, on the script, with that input.
fn umbel_with(folder: &Path, args: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_umbel"))
        .args(args)
        .current_dir(folder)
        .env("UMBEL_MODEL", "script")
        .env_remove("UMBEL_STORE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may be gone before it reads.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn umbel(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    umbel_with(folder, args, "")
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn an_answer_goes_to_standard_output_and_notes_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = umbel(folder.path(), &["run", "weather", "in", "Paris"]);
    assert_eq!((code, out.as_str()), (Some(0), "Paris: sunny, 21 °C.\n"));
    assert_eq!(err, "→ get_weather(city: \"Paris\")\n");
    let (code, out, _) = umbel_with(folder.path(), &["run", "-"], "weather in Rome\n");
    assert_eq!((code, out.as_str()), (Some(0), "Rome: sunny, 18 °C.\n"));
    assert_eq!(umbel_with(folder.path(), &["run", "-"], " \n").0, Some(2));
}

#[test]
fn a_run_is_told_as_one_object_or_event_by_event() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, _) = umbel(folder.path(), &["run", "--json", "--session", "t1", "weather in Paris"]);
    let told = json(&out);
    assert_eq!(code, Some(0));
    assert_eq!((&told["outcome"], &told["session"]), (&"finished".into(), &"t1".into()));
    assert_eq!(told["text"], "Paris: sunny, 21 °C.");
    assert_eq!(told["toolCalls"][0]["name"], "get_weather");
    assert_eq!(told["toolCalls"][0]["result"]["celsius"], 21);
    assert_eq!(told["usage"]["calls"], 2);
    assert_eq!(told.get("cost"), None, "nobody knows what a script costs");

    let (code, out, err) = umbel(folder.path(), &["run", "--events", "--session", "t1", "hi"]);
    let events: Vec<Value> = out.lines().map(json).collect();
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let last = events.last().unwrap();
    assert_eq!(last["author"], "guide");
    assert!(last["content"]["parts"][0]["text"].as_str().unwrap().starts_with("Hello!"));
    let (_, shown, _) = umbel(folder.path(), &["sessions", "show", "t1"]);
    assert!(shown.contains("you> weather in Paris\n") && shown.contains("you> hi\nguide> Hello!"), "{shown}");
}

#[test]
fn approvals_are_given_on_the_command_line_or_awaited() {
    let folder = tempfile::tempdir().unwrap();
    let book = |more: &[&str]| {
        let args = [&["run", "--agent", "booking"], more, &["book 3 nights in Lisbon"]].concat();
        umbel(folder.path(), &args)
    };
    let (code, out, err) = book(&["--session", "b", "--json"]);
    assert_eq!(code, Some(3));
    assert_eq!(json(&out)["questions"][0]["call"]["name"], "book_trip");
    assert_eq!(json(&out)["agent"], "booking");
    assert!(err.contains("It waits for you: book_trip(city: \"Lisbon\", nights: 3)"), "{err}");
    assert!(err.contains("umbel chat --session b"), "{err}");
    let (code, out, _) = book(&["--yes"]);
    assert!(code == Some(0) && out.starts_with("Booked: 3 nights in Lisbon"), "{out}");
    let (code, out, _) = book(&["--no"]);
    assert_eq!((code, out.as_str()), (Some(0), "All right, nothing was booked.\n"));
    let (code, _, _) = book(&["--no", "--yes"]);
    assert_eq!(code, Some(2));
}

#[test]
fn an_answer_must_fit_its_schema() {
    let folder = tempfile::tempdir().unwrap();
    let schema = folder.path().join("schema.json");
    std::fs::write(&schema, r#"{"type": "object"}"#).unwrap();
    let (code, out, err) = umbel(folder.path(), &["run", "--schema", "schema.json", "hi"]);
    assert!(code == Some(1) && out.starts_with("Hello!") && err.contains("does not fit the schema"), "{err}");
    std::fs::write(&schema, r#"{"type": "#).unwrap();
    let (code, _, err) = umbel(folder.path(), &["run", "--schema", "schema.json", "hi"]);
    assert!(code == Some(2) && err.contains("is not JSON"), "{err}");
    let (code, _, err) = umbel(folder.path(), &["run", "--schema", "none.json", "hi"]);
    assert!(code == Some(2) && err.contains("none.json"), "{err}");
}

#[test]
fn a_run_that_takes_too_long_fails() {
    // Somebody who takes connections and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let model = format!("http://{}/v1#m", silent.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (code, _, err) = umbel(folder.path(), &["run", "--model", &model, "--timeout", "1", "hi"]);
    assert!(code == Some(1) && err.starts_with("error: "), "{code:?} {err}");
}

#[test]
fn conversations_are_listed_moved_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    assert!(umbel(here, &["sessions", "list"]).2.contains("There are no conversations yet"));
    for (agent, id, text) in
        [("guide", "one", "pack a map"), ("booking", "two", "hi"), ("guide", "three", "hi")]
    {
        assert_eq!(umbel(here, &["run", "--agent", agent, "--session", id, text]).0, Some(0));
    }
    let ids = |args: &[&str]| -> Vec<String> {
        let (_, out, _) = umbel(here, &[&["sessions", "list", "--json"], args].concat());
        json(&out).as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&[]), ["three", "two", "one"]);
    assert_eq!(ids(&["--agent", "guide"]), ["three", "one"]);
    assert!(ids(&["--user", "bob"]).is_empty());
    let (_, list, _) = umbel(here, &["sessions", "list"]);
    let line = list.lines().find(|line| line.contains("one")).unwrap();
    assert!(
        line.starts_with("guide ") && line.contains("just now") && line.ends_with("4 events  pack a map"),
        "{list}"
    );
    let (_, events, _) = umbel(here, &["sessions", "show", "one", "--json"]);
    assert_eq!(events.lines().map(json).count(), 4);

    // One conversation, then all.
    let (code, out, _) = umbel(here, &["sessions", "export", "one"]);
    assert_eq!(code, Some(0));
    assert_eq!(out.matches("\"line\":\"session\"").count(), 1, "{out}");
    assert!(out.contains("pack a map") && !out.contains("\"id\":\"three\""), "{out}");
    let other = ["--store", "sqlite:other/copy.db"];
    let (code, _, err) = umbel_with(here, &[&["sessions", "import", "-"], &other[..]].concat(), &out);
    assert!(code == Some(0) && err.contains("taken in"), "{err}");
    assert_eq!(ids(&other), ["one"]);
    let (code, _, err) = umbel_with(here, &[&["sessions", "import", "-"], &other[..]].concat(), &out);
    assert_eq!(code, Some(2), "what is there already is refused: {err}");
    assert_eq!(umbel(here, &["sessions", "export", "--output", "all.jsonl"]).0, Some(0));
    assert_eq!(
        umbel(here, &["sessions", "export", "--output", "all.jsonl"]).0,
        Some(1),
        "nothing is overwritten"
    );
    let third = ["--store", "sqlite:third.db"];
    assert_eq!(umbel(here, &[&["sessions", "import", "all.jsonl"], &third[..]].concat()).0, Some(0));
    assert_eq!(ids(&third), ["three", "two", "one"]);

    // Nobody can be asked in a pipe.
    let (code, _, err) = umbel(here, &["sessions", "delete", "one"]);
    assert!(code == Some(2) && err.contains("--yes"), "{err}");
    assert!(umbel(here, &["sessions", "delete", "t", "--yes"]).2.contains("several conversations"));
    assert_eq!(
        umbel(here, &["sessions", "delete", "on", "--yes"]).0,
        Some(0),
        "the first letters are enough"
    );
    assert_eq!(ids(&[]), ["three", "two"]);
    assert_eq!(umbel(here, &["sessions", "delete", "--all", "--agent", "booking", "--yes"]).0, Some(0));
    assert_eq!(ids(&[]), ["three"]);
    assert!(umbel(here, &["sessions", "show", "one"]).2.contains("there is no conversation one"));
}

#[test]
fn the_doctor_says_what_is_well_and_what_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, _) = umbel(folder.path(), &["doctor"]);
    assert_eq!(code, Some(0), "{out}");
    for line in [
        "ok    version   Umbel ",
        "ok    agents    guide, booking",
        "ok    store     sqlite:.umbel/umbel.db opens",
        #[cfg(target_os = "linux")]
        "ok    sandbox   Python runs in it",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert!(out.contains("schema 4") && out.contains(".umbel is yours alone"), "{out}");
    let (code, out, _) =
        umbel(folder.path(), &["doctor", "--json", "--store", "sqlite:/dev/null/x.db", "--model", "groq/m"]);
    assert_eq!(code, Some(1));
    let told = json(&out);
    let verdict = |check: &str| {
        let found = told.as_array().unwrap().iter().find(|one| one["check"] == check).unwrap();
        (found["verdict"].as_str().unwrap(), found["todo"].as_str().unwrap_or_default().to_owned())
    };
    assert!(verdict("store").0 == "fail" && verdict("store").1.contains("--store"), "{out}");
    assert_eq!(verdict("model").0, "fail");
    let (code, out, _) = umbel(folder.path(), &["doctor", "--online", "--model", "http://127.0.0.1:1/v1#m"]);
    assert!(code == Some(1) && out.contains("FAIL  online"), "{out}");
}

#[test]
fn shells_get_their_completions() {
    let folder = tempfile::tempdir().unwrap();
    for (shell, word) in
        [("bash", "complete -F _umbel"), ("zsh", "#compdef umbel"), ("fish", "complete -c umbel")]
    {
        let (code, out, _) = umbel(folder.path(), &["completions", shell]);
        assert!(code == Some(0) && out.contains(word) && out.contains("sessions"), "{shell}");
    }
}

#[test]
fn a_project_is_made_once_and_only_with_a_good_name() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, _) = umbel(folder.path(), &["new", "my-helper"]);
    assert!(code == Some(0) && out.contains("cd my-helper"), "{out}");
    for file in ["Cargo.toml", "Cargo.lock", "src/main.rs", "src/script.rs", "README.md", ".gitignore"] {
        assert!(folder.path().join("my-helper").join(file).is_file(), "{file}");
    }
    let (code, _, err) = umbel(folder.path(), &["new", "my-helper"]);
    assert!(code == Some(2) && err.contains("is there already"), "{err}");
    assert_eq!(umbel(folder.path(), &["new", "../up"]).0, Some(2));
    let (code, _, err) = umbel(folder.path(), &["new", "other", "--path", "my-helper"]);
    assert!(code == Some(2) && err.contains("no checkout") && !folder.path().join("other").exists(), "{err}");
}

#[test]
fn what_agents_are_made_of_is_shown_for_one_or_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let (_, one, _) = umbel(folder.path(), &["explain", "--agent", "thinker"]);
    assert!(one.starts_with("# thinker: ") && one.contains("get_weather (from agent)"), "{one}");
    assert!(!one.contains("# guide"), "{one}");
    let (_, all, _) = umbel(folder.path(), &["explain", "--all"]);
    assert!(
        all.contains("# guide: ") && all.contains("# thinker: ") && all.contains("agent day_plan"),
        "{all}"
    );
    let told = json(&umbel(folder.path(), &["explain", "--all", "--json"]).1);
    assert_eq!(told[4]["agents"][0]["agent"], "thinker");
}

#[test]
fn a_pipe_may_have_events_in_the_place_of_text() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) =
        umbel_with(folder.path(), &["chat", "--agent", "booking", "--json"], "book 2 nights in Rome\ny\n");
    assert_eq!(code, Some(0));
    let events: Vec<Value> = out.lines().map(json).collect();
    let text = events.last().unwrap()["content"]["parts"][0]["text"].as_str().unwrap().to_owned();
    assert!(text.starts_with("Booked: 2 nights in Rome"), "{text}");
    assert!(err.contains("booking asks you to approve"), "words for people go elsewhere: {err}");
}

#[test]
fn help_does_not_show_what_the_environment_holds() {
    for command in ["serve", "chat", "run", "explain", "eval", "replay", "record", "doctor"] {
        let mut umbel = Command::new(env!("CARGO_BIN_EXE_umbel"));
        for variable in ["UMBEL_STORE", "UMBEL_MODEL", "UMBEL_AGENTS"] {
            umbel.env(variable, "postgres://ann:hunter2@db/umbel");
        }
        let help = umbel.args([command, "--help"]).output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        assert!(help.contains("UMBEL_MODEL") && !help.contains("hunter2"), "{help}");
    }
}

#[test]
fn an_empty_id_is_no_conversation() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(umbel(folder.path(), &["run", "--session", "one", "hi"]).0, Some(0));
    for args in [&["delete", "", "--yes"][..], &["show", ""], &["export", ""]] {
        let (code, out, err) = umbel(folder.path(), &[&["sessions"], args].concat());
        assert!(code == Some(2) && out.is_empty() && err.contains("an id is empty"), "{args:?}: {err}");
    }
    assert!(umbel(folder.path(), &["sessions", "list"]).1.contains("one"));
}

#[test]
fn a_store_that_is_not_there_is_not_made_by_looking_into_it() {
    let folder = tempfile::tempdir().unwrap();
    for args in
        [&["export"][..], &["export", "one"], &["list"], &["show", "one"], &["delete", "one", "--yes"]]
    {
        let args = [&["sessions"], args, &["--store", "sqlite:none.db"]].concat();
        let (code, out, err) = umbel(folder.path(), &args);
        assert!(code == Some(2) && out.is_empty() && err.contains("no store at none.db"), "{args:?}: {err}");
    }
    assert_eq!(umbel(folder.path(), &["sessions", "export"]).0, Some(2));
    assert_eq!(umbel(folder.path(), &["sessions", "list", "--json"]).1, "[]\n");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn files_with_conversations_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let suite = "[[case]]\nname = \"hi\"\n[[case.turn]]\nuser = \"hi\"\n";
    std::fs::write(folder.path().join("suite.toml"), suite).unwrap();
    let store = ["--store", "sqlite:new.db"];
    assert_eq!(umbel(folder.path(), &[&["run", "--session", "one", "hi"], &store[..]].concat()).0, Some(0));
    let save = ["replay", "--session", "one", "--save", "saved.json"];
    let (_, _, err) = umbel(folder.path(), &[&save, &store[..]].concat());
    assert!(err.is_empty(), "{err}");
    let (_, _, err) = umbel(folder.path(), &["eval", "suite.toml", "--json", "results.json"]);
    assert!(folder.path().join("results.json").exists(), "{err}");
    let record = ["record", "--model", "http://127.0.0.1:1/v1#m", "--tape", "tape.json", "hi"];
    umbel(folder.path(), &record);
    for file in ["new.db", "saved.json", "results.json", "tape.json"] {
        let mode = std::fs::metadata(folder.path().join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
}

#[test]
fn a_password_in_the_address_of_a_model_is_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    for args in [&["doctor"][..], &["doctor", "--json"], &["explain"]] {
        let told = Command::new(env!("CARGO_BIN_EXE_umbel"))
            .args(args)
            .current_dir(folder.path())
            .env_clear()
            .env("OPENAI_BASE_URL", "http://ann:hunter2@localhost:1/v1")
            .output()
            .unwrap();
        let (out, err) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
        assert!(!out.contains("hunter2") && !err.contains("hunter2"), "{args:?}: {out}{err}");
        assert!(args != ["doctor"] || out.contains("http://localhost:1/v1#default"), "{out}");
    }
}

#[test]
fn a_pipe_ends_with_how_the_last_answer_ended() {
    let folder = tempfile::tempdir().unwrap();
    let refuses = crate::model::says(None);
    let booking = ["chat", "--agent", "booking"];
    for (args, input, expected) in [
        (booking.to_vec(), "book 2 nights in Rome\ny\n", 0),
        (booking.to_vec(), "book 2 nights in Rome\n", 3),
        ([&booking[..], &["--session", "open"]].concat(), "book 2 nights in Rome\n", 3),
        // What was left open is asked again, and nobody answers again.
        ([&booking[..], &["--session", "open"]].concat(), "", 3),
        ([&booking[..], &["--session", "open"]].concat(), "y\n", 0),
        (vec!["chat", "--model", &refuses], "hi\n", 1),
        (vec!["chat", "--model", &refuses], "", 0),
    ] {
        let (code, out, err) = umbel_with(folder.path(), &args, input);
        assert_eq!(code, Some(expected), "{args:?} {input:?}: {out}{err}");
    }
}

#[test]
fn an_export_that_nobody_reads_any_more_is_no_failure() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(umbel(folder.path(), &["run", "--session", "one", "hi"]).0, Some(0));
    for id in [&["one"][..], &[]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_umbel"));
        command.args(["sessions", "export"]).args(id).current_dir(folder.path()).stdout(writer);
        let output = command.env_remove("UMBEL_STORE").stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn what_others_wrote_does_not_steer_the_terminal() {
    const STEERING: [char; 4] = ['\u{1b}', '\u{9b}', '\u{202e}', '\u{7}'];
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let evil = r"\u001b]0;owned\u0007\u001b[31m\u009b1m\u202e";
    write(
        "agents.toml",
        &format!(
            "[agents.a]\ndescription = \"about {evil}\"\ninstruction = \"do {evil}\"\nscript = [\"says {evil}\"]\n\
             tools = [\"now\"]\nsuggestions = [\"try {evil}\"]\n"
        ),
    );
    write(
        "cases.toml",
        &format!(
            "[[case]]\nname = \"case {evil}\"\n[[case.turn]]\nuser = \"hi\"\nanswer = \"wants {evil}\"\n"
        ),
    );
    let agents = ["--agents", "agents.toml"];
    let with = |args: &[&str]| umbel(folder.path(), &[args, &agents].concat());
    let mut all = vec![
        ("run", with(&["run", "hi", "--store", "sqlite:s.db", "--session", "one"])),
        ("explain", with(&["explain"])),
        ("explain --all", with(&["explain", "--all"])),
        ("eval", with(&["eval", "cases.toml"])),
        ("sessions", with(&["sessions", "list", "--store", "sqlite:s.db"])),
        ("show", with(&["sessions", "show", "one", "--store", "sqlite:s.db"])),
        ("doctor", with(&["doctor"])),
    ];
    let changed =
        std::fs::read_to_string(folder.path().join("agents.toml")).unwrap().replace("says", "tells");
    write("agents.toml", &changed);
    all.push(("replay", with(&["replay", "--store", "sqlite:s.db", "--session", "one"])));
    for (name, (_, out, err)) in all {
        // What an agent says goes to a program as it is, and is cleaned for terminals.
        let shown = if name == "run" { err } else { format!("{out}{err}") };
        assert!(name == "run" || !shown.is_empty(), "{name}");
        assert!(!shown.contains(STEERING), "{name}: {shown:?}");
    }
}
