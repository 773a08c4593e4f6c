//! `umbel eval`, as a shell would start it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Runs `umbel eval` in a folder.
fn eval(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umbel"));
    command.arg("eval").args(args).current_dir(folder).env("UMBEL_STORE", "memory:");
    command.env_remove("NO_COLOR").env_remove("UMBEL_MODEL").output().unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn write(folder: &TempDir, name: &str, text: &str) {
    std::fs::write(folder.path().join(name), text).unwrap();
}

fn json_of(path: PathBuf) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Two cases, of which the second wants a city that nobody asks for.
const CASES: &str = r#"
[[case]]
name = "paris"
[[case.turn]]
user = "weather in Paris"
tools = [{ name = "get_weather", args = { city = "Paris" } }]

[[case]]
name = "rome"
[[case.turn]]
user = "weather in Paris"
tools = [{ name = "get_weather", args = { city = "Rome" } }]
"#;

#[test]
fn the_examples_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/evals");
    let mut found = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name != "test_config.json" {
            let output = eval(&folder, &[&name]);
            assert_eq!(output.status.code(), Some(0), "{}\n{}", out(&output), err(&output));
            found += 1;
        }
    }
    assert!(found >= 2, "there are examples");
}

#[test]
fn what_differs_is_shown_side_by_side_and_fails() {
    let folder = TempDir::new().unwrap();
    write(&folder, "cases.toml", CASES);
    let output = eval(folder.path(), &["cases.toml"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let shown = out(&output);
    assert!(shown.contains("✓ paris") && shown.contains("✗ rome"), "{shown}");
    assert!(shown.contains(r#"get_weather(city: "Rome") | get_weather(city: "Paris")"#), "{shown}");
    assert!(shown.contains("✗ pass rate 0.50, must be 1.00"), "{shown}");
    assert!(!shown.contains('\x1b') && err(&output).is_empty(), "no colours and no bar: {output:?}");
}

#[test]
fn gates_names_and_repeats_can_be_said_on_the_command_line() {
    let folder = TempDir::new().unwrap();
    write(&folder, "cases.toml", CASES);
    let code = |args: &[&str]| {
        let args: Vec<&str> = ["cases.toml"].iter().chain(args).copied().collect();
        eval(folder.path(), &args).status.code()
    };
    assert_eq!(code(&["--min-pass", "0.5"]), Some(0));
    assert_eq!(code(&["--min-pass", "0.6"]), Some(1));
    assert_eq!(code(&["--case", "par"]), Some(0));
    assert_eq!(code(&["--case", "par", "--case", "rom"]), Some(1));
    assert_eq!(code(&["--case", "nobody"]), Some(2));
    assert_eq!(code(&["--min-pass", "2"]), Some(2));
    assert_eq!(code(&["--runs", "0"]), Some(2));
    assert_eq!(code(&["--agent", "nobody"]), Some(2));
    write(&folder, "cases.toml", &format!("agent = \"nobody\"\n{CASES}"));
    assert_eq!(code(&["--case", "paris"]), Some(2));
    assert_eq!(code(&["--case", "paris", "--agent", "guide"]), Some(0), "the command line counts more");
    write(&folder, "cases.toml", CASES);
    let output = eval(folder.path(), &["cases.toml", "--runs", "3", "--jobs", "2"]);
    assert!(out(&output).contains("3/3") && out(&output).contains("0/3"), "{}", out(&output));
}

#[test]
fn the_report_is_written_as_json_and_compared_with_an_earlier_one() {
    let folder = TempDir::new().unwrap();
    write(&folder, "cases.toml", &CASES.replace("Rome", "Paris"));
    let output = eval(folder.path(), &["cases.toml", "--json", "before.json"]);
    assert!(output.status.success() && out(&output).contains("✓ rome"), "{output:?}");
    let before = json_of(folder.path().join("before.json"));
    assert_eq!(before["passed"], json!(true));
    assert_eq!(before["files"][0]["cases"][1]["runs"][0]["metrics"]["tools"]["score"], json!(1.0));

    let same = eval(folder.path(), &["cases.toml", "--baseline", "before.json"]);
    assert!(same.status.success() && !out(&same).contains("REGRESSION"), "{same:?}");

    write(&folder, "cases.toml", CASES);
    let args = ["cases.toml", "--baseline", "before.json", "--min-pass", "0", "--json", "-"];
    let worse = eval(folder.path(), &args);
    assert_eq!(worse.status.code(), Some(1), "the gates hold, but it passed before: {worse:?}");
    let report: Value = serde_json::from_str(&out(&worse)).unwrap();
    assert_eq!(report["files"][0]["changes"][0], json!({"case": "rome", "was": 1.0, "is": 0.0}));
    let shown = out(&eval(folder.path(), &args[..3]));
    assert!(shown.contains("REGRESSION: rome, pass rate was 1.00, is 0.00"), "{shown}");
    assert_eq!(eval(folder.path(), &["cases.toml", "--baseline", "cases.toml"]).status.code(), Some(2));
}

#[test]
fn a_baseline_is_found_however_the_path_is_spelled_and_must_have_the_file() {
    let folder = TempDir::new().unwrap();
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    write(&folder, "cases.toml", &CASES.replace("Rome", "Paris"));
    assert!(eval(folder.path(), &["cases.toml", "--json", "before.json"]).status.success());
    write(&folder, "cases.toml", CASES);
    write(&folder, "other.toml", CASES);
    let whole = folder.path().join("cases.toml").display().to_string();
    let code = |files: &[&str], baseline: &str| {
        let args = [files, &["--baseline", baseline, "--min-pass", "0"]].concat();
        let output = eval(folder.path(), &args);
        (output.status.code(), out(&output) + &err(&output))
    };
    for path in ["cases.toml", "./cases.toml", "sub/../cases.toml", &whole] {
        let (code, told) = code(&[path], "before.json");
        assert!(code == Some(1) && told.contains("REGRESSION: rome"), "{path}: {told}");
    }
    let (other, told) = code(&["cases.toml", "other.toml"], "before.json");
    assert!(other == Some(2) && told.contains("other.toml is not in the baseline before.json"), "{told}");
    let (missing, told) = code(&["cases.toml"], "none.json");
    assert!(missing == Some(2) && told.contains("none.json"), "{told}");
}

#[test]
fn the_tape_of_a_judge_holds_what_it_said_of_all_files() {
    let folder = TempDir::new().unwrap();
    let judge = crate::model::says(Some(r#"{"reason": "It does.", "holds": true}"#));
    for (name, rubric) in [("one.toml", "It greets."), ("two.toml", "It is short.")] {
        let case = "[[case]]\nname = \"x\"\n[[case.turn]]\nuser = \"hi\"\n";
        write(&folder, name, &format!("{case}rubrics = [\"{rubric}\"]\n"));
    }
    let both = ["one.toml", "two.toml", "--judge-tape", "tape.jsonl", "--judge", &judge];
    for time in ["recorded", "played"] {
        let output = eval(folder.path(), &both);
        assert_eq!(output.status.code(), Some(0), "{time}: {output:?}");
    }
    let tape = std::fs::read_to_string(folder.path().join("tape.jsonl")).unwrap();
    assert_eq!(tape.lines().count(), 2, "{tape}");
    // It is the tape that answers the second time.
    write(&folder, "tape.jsonl", "");
    assert_eq!(eval(folder.path(), &both).status.code(), Some(1));
}

#[test]
fn a_case_is_not_run_without_end() {
    let folder = TempDir::new().unwrap();
    write(&folder, "cases.toml", CASES);
    let output = eval(folder.path(), &["cases.toml", "--runs", "4000000000"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(err(&output).contains("10000 are the most"), "{output:?}");
}

#[test]
fn junit_is_xml_whatever_is_in_the_cases() {
    let folder = TempDir::new().unwrap();
    let odd = r#"
[[case]]
name = "a <b> & \"c\" \u0007"
[[case.turn]]
user = "hi"
response.contains = "]]> <!-- & \u001b[31m ✗"
"#;
    write(&folder, "odd.toml", odd);
    write(&folder, "cases.toml", CASES);
    let args = ["odd.toml", "cases.toml", "--runs", "2", "--junit", "report.xml"];
    let output = eval(folder.path(), &args);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!out(&output).contains(['\x1b', '\x07']), "nothing steers the terminal");
    let text = std::fs::read_to_string(folder.path().join("report.xml")).unwrap();
    let xml = roxmltree::Document::parse(&text).unwrap();
    let suites: Vec<_> =
        xml.root_element().children().filter(|node| node.has_tag_name("testsuite")).collect();
    assert_eq!(
        suites.iter().map(|suite| suite.attribute("name").unwrap()).collect::<Vec<_>>(),
        ["odd.toml", "cases.toml"]
    );
    for suite in &suites {
        let count =
            |name: &str| suite.descendants().filter(|node| node.has_tag_name(name)).count().to_string();
        assert_eq!(suite.attribute("tests").unwrap(), count("testcase"));
        assert_eq!(suite.attribute("failures").unwrap(), count("failure"));
    }
    let first = suites[0].children().find(|node| node.has_tag_name("testcase")).unwrap();
    assert_eq!(first.attribute("name"), Some("a <b> & \"c\" \u{fffd} (run 1)"));
    let failure = first.children().find(|node| node.has_tag_name("failure")).unwrap();
    assert!(failure.text().unwrap().contains("has: ]]> <!-- & \u{fffd}[31m ✗\n"), "{:?}", failure.text());
}

#[test]
fn bad_files_say_where_and_what_to_do() {
    let folder = TempDir::new().unwrap();
    let turn = "[[case.turn]]\nuser = \"hi\"\n";
    let named = format!("[[case]]\nname = \"x\"\n{turn}");
    for (name, text, words) in [
        ("a.toml", "[[case]\n".to_owned(), vec!["line 1"]),
        ("a.toml", format!("\n{named}tool = 3\n"), vec!["line 6", "tool", "`tools`"]),
        ("a.toml", format!("{named}tools_match = \"exactly\"\n"), vec!["line 5", "in_order"]),
        ("a.toml", format!("{named}response.regex = \"(\"\n"), vec!["line 2", "no regex"]),
        // A tool of the same name is not the case.
        (
            "a.toml",
            format!(
                "[[case]]\nname = \"y\"\n{turn}tools = [{{ name = \"x\" }}]\n{named}response.regex = \"(\"\n"
            ),
            vec!["line 7: case `x`", "no regex"],
        ),
        (
            "a.jsonl",
            concat!(
                "{\"name\": \"y\", \"turn\": [{\"user\": \"hi\", \"tools\": [{\"name\": \"x\"}]}]}\n",
                "{\"name\": \"x\", \"turn\": [{\"user\": \"hi\", \"response\": {\"regex\": \"(\"}}]}\n"
            )
            .to_owned(),
            vec!["line 2: case `x`", "no regex"],
        ),
        ("a.toml", format!("{named}{named}"), vec!["line 6", "two cases", "another"]),
        ("a.toml", format!("{named}\n[gates]\nmin_pass = 3\n"), vec!["min_pass", "between 0 and 1"]),
        ("a.toml", format!("[gates.metrics]\nspeed = 1\n{named}"), vec!["line 2", "latency"]),
        ("a.toml", format!("{named}rubrics = [\"kind\"]\n"), vec!["judge"]),
        ("a.toml", String::new(), vec!["no cases", "[[case]]"]),
        (
            "a.jsonl",
            "{\"name\": \"x\", \"turn\": [{\"user\": \"hi\"}]}\n{\"nam\": 1}\n".to_owned(),
            vec!["line 2", "nam"],
        ),
        ("a.json", "{\n  \"case\": [{\"nam\": 1}]\n}".to_owned(), vec!["line 2", "nam"]),
        ("a.json", "{\"eval_cases\": [{\"eval_id\": \"x\"}]}".to_owned(), vec!["`x`", "conversation"]),
        ("a.yaml", String::new(), vec![".toml"]),
    ] {
        write(&folder, name, &text);
        let output = eval(folder.path(), &[name]);
        assert_eq!(output.status.code(), Some(2), "{text}\n{output:?}");
        let told = err(&output);
        assert!(words.iter().all(|word| told.contains(word)), "{words:?} in:\n{told}");
        assert!(told.contains(name) && told.contains("docs/eval.md"), "{told}");
        assert!(out(&output).is_empty());
    }
    let missing = eval(folder.path(), &["none.toml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(err(&missing).contains("none.toml"), "{missing:?}");
}

#[test]
fn eval_sets_of_google_adk_are_read() {
    let folder = TempDir::new().unwrap();
    let set = |city: &str, answer: &str| {
        json!({"eval_set_id": "s", "eval_cases": [{"eval_id": "one", "conversation": [{
            "invocation_id": "i",
            "user_content": {"role": "user", "parts": [{"text": "weather in Paris"}]},
            "final_response": {"role": "model", "parts": [{"text": answer}]},
            "intermediate_data": {"tool_uses": [{"name": "get_weather", "args": {"city": city}}],
                                  "intermediate_responses": []},
        }], "session_input": {"app_name": "demo", "user_id": "ann", "state": {"a": 1}}}]})
    };
    let code = |value: &Value| {
        write(&folder, "x.evalset.json", &value.to_string());
        eval(folder.path(), &["x.evalset.json"]).status.code()
    };
    assert_eq!(code(&set("Paris", "Paris: sunny, 21 °C.")), Some(0));
    assert_eq!(code(&set("Rome", "Paris: sunny, 21 °C.")), Some(1));
    assert_eq!(code(&set("Paris", "I do not know that city.")), Some(1));
    write(
        &folder,
        "test_config.json",
        r#"{"criteria": {"tool_trajectory_avg_score": {"threshold": 1.0, "match_type": "ANY_ORDER"}}}"#,
    );
    assert_eq!(code(&set("Paris", "I do not know that city.")), Some(0), "answers are not measured then");
    for (match_type, expected) in [
        (json!("EXACT"), Some(0)),
        (json!("IN_ORDER"), Some(0)),
        (json!(2), Some(0)),
        (json!("any_order"), Some(2)),
        (json!("SOMEHOW"), Some(2)),
        (json!(7), Some(2)),
        (json!(true), Some(2)),
    ] {
        let criterion = json!({"threshold": 1.0, "match_type": match_type});
        let config = json!({"criteria": {"tool_trajectory_avg_score": criterion}});
        write(&folder, "test_config.json", &config.to_string());
        assert_eq!(code(&set("Paris", "anything")), expected, "{match_type}");
    }
    write(&folder, "test_config.json", r#"{"criteria": {"response_match_score": 0.0}}"#);
    assert_eq!(code(&set("Rome", "anything")), Some(0));
    write(&folder, "test_config.json", r#"{"criteria": {"hallucinations_v1": 0.5}}"#);
    assert_eq!(code(&set("Rome", "anything")), Some(2));
    std::fs::remove_file(folder.path().join("test_config.json")).unwrap();

    let camel = json!({"evalCases": [{"evalId": "one", "conversation": [{
        "userContent": {"role": "user", "parts": [{"text": "weather in Paris"}]},
        "intermediateData": {"invocationEvents": [{"author": "guide", "content": {"parts": [
            {"functionCall": {"name": "get_weather", "args": {"city": "Paris"}}}]}}]},
    }]}]});
    assert_eq!(code(&camel), Some(0));
    let old = json!([{"query": "weather in Paris", "reference": "Paris: sunny, 21 °C.",
        "expected_tool_use": [{"tool_name": "get_weather", "tool_input": {"city": "Paris"}}]}]);
    assert_eq!(code(&old), Some(0));
    let older = json!([{"name": "n", "data": [{"query": "weather in Paris",
        "expected_tool_use": [{"tool_name": "get_weather", "tool_input": {"city": "Rome"}}]}]}]);
    assert_eq!(code(&older), Some(1));
}

#[test]
fn cases_in_json_and_in_json_lines_are_read() {
    let folder = TempDir::new().unwrap();
    let case =
        |name: &str| json!({"name": name, "turn": [{"user": "hi", "response": {"contains": "Hello"}}]});
    write(&folder, "a.jsonl", &format!("{}\n\n{}\n", case("one"), case("two")));
    write(&folder, "a.json", &json!({"runs": 2, "case": [case("one")]}).to_string());
    let output = eval(folder.path(), &["a.jsonl", "a.json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(out(&output).contains("✓ two") && out(&output).contains("2/2"), "{}", out(&output));
}

#[tokio::test]
async fn rubrics_are_judged_from_a_tape_without_a_network() {
    use umbel::eval::{Case, Eval, Judge, Suite, Turn};
    use umbel::{RecordingModel, Runner, ScriptedModel};

    let folder = TempDir::new().unwrap();
    let model = ScriptedModel::new("strict").text(r#"{"reason": "It says hello.", "holds": true}"#);
    let recording = RecordingModel::new(model.text(r#"{"reason": "It is too short.", "holds": false}"#));
    let cases = vec![Case::new("x", [Turn::new("hi").rubric("It greets.").rubric("It is long.")])];
    let make = || Ok(Runner::builder("demo", umbel_cli::demo::guide(None)));
    let suite = Suite { cases, ..Suite::default() };
    Eval::new(make).judge(Judge::new(recording.clone())).run(&suite).await.unwrap();
    write(&folder, "judge.jsonl", &recording.to_json_lines().unwrap());
    write(
        &folder,
        "cases.toml",
        "judge = { model = \"openai/strict\" }\n[[case]]\nname = \"x\"\n[[case.turn]]\nuser = \"hi\"\n\
         rubrics = [\"It greets.\", \"It is long.\"]\n",
    );
    let output = eval(folder.path(), &["cases.toml", "--judge-tape", "judge.jsonl"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let shown = out(&output);
    assert!(shown.contains("It is long.") && shown.contains("It is too short."), "{shown}");
    assert!(!shown.contains("It greets."), "{shown}");
    // What is not on the tape is not asked elsewhere.
    let more = eval(folder.path(), &["cases.toml", "--judge-tape", "judge.jsonl", "--samples", "2"]);
    assert!(out(&more).contains("It is too short."), "{}", out(&more));
    assert_eq!(eval(folder.path(), &["cases.toml", "--judge", "nobody"]).status.code(), Some(2));
}
