//! Servers that are programs.

use std::time::Duration;

use serde_json::json;
use umbel_core::Outcome;
use umbel_mcp::client::{Approval, FilePins, McpToolset, Protocol, Stdio};
use umbel_runtime::ScriptedModel;

use crate::desk;

/// A server in a few lines of shell: the ids of requests are known, as each is answered in turn.
fn shell(answer: &str) -> String {
    let tool = json!({"name": "a", "description": "Does.", "inputSchema": {"type": "object"}});
    let hello = json!({"protocolVersion": "2025-11-25", "serverInfo": {"name": "sh", "version": "1"},
        "capabilities": {"tools": {}}});
    let say = |id: u32, result: serde_json::Value| {
        format!("read line; printf '%s\\n' '{}'\n", json!({"jsonrpc": "2.0", "id": id, "result": result}))
    };
    format!("{}read line\n{}read line; {answer}\nread line", say(0, hello), say(1, json!({"tools": [tool]})))
}

fn program(answer: &str) -> Stdio {
    Stdio::new("sh").args(["-c", &shell(answer)])
}

fn toolset(program: Stdio) -> McpToolset {
    McpToolset::new("prog", program).protocol(Protocol::Handshake)
}

fn model() -> ScriptedModel {
    ScriptedModel::new("m").call("a", json!({})).text("done")
}

/// Prints a result with a text that the shell makes.
const SAY: &str =
    r#"printf '{"jsonrpc":"2.0","id":2,"result":{"content":[{"type":"text","text":"%s"}]}}\n' "$said""#;

#[tokio::test]
async fn a_program_sees_of_the_environment_what_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let answer = format!("said=\"$MINE,$HOME,$PWD,$(echo complaint >&2)\"; {SAY}");
    let bare = desk(toolset(program(&answer).env("MINE", "yes").folder(folder.path())), model()).await;
    let place = folder.path().canonicalize().unwrap();
    assert_eq!(bare.result().await, json!({"result": format!("yes,,{},", place.display())}));
    let home = std::env::var("HOME").unwrap_or_default();
    let kept = desk(toolset(program(&format!("said=\"$HOME\"; {SAY}")).keep_env("HOME")), model()).await;
    assert_eq!(kept.result().await, json!({ "result": home }));
}

#[tokio::test]
async fn a_program_and_all_that_it_started_end_with_the_connection() {
    // One stays, one goes to a session of its own, and one has nobody to belong to any more.
    for start in [
        "sleep 1000 & echo $! > child",
        "setsid sleep 1000 & echo $! > child",
        "(setsid sh -c 'echo $$ > child; exec sleep 1000' &)",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let answer = format!("{start}; while ! test -s child; do :; done; said=ok; {SAY}");
        let toolset = toolset(program(&answer).folder(folder.path()));
        let desk = desk(toolset.clone(), model()).await;
        assert_eq!(desk.result().await, json!({"result": "ok"}));
        let child = std::fs::read_to_string(folder.path().join("child")).unwrap();
        let place = format!("/proc/{}/stat", child.trim());
        // A process that ended may still be listed until its parent looks.
        let is_alive = || std::fs::read_to_string(&place).is_ok_and(|stat| !stat.contains(") Z "));
        assert!(is_alive(), "{start}");
        toolset.close().await;
        drop(desk);
        let mut looks = 0;
        while is_alive() {
            looks += 1;
            assert!(looks < 2_000, "it is still there: {start}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn a_program_may_end_by_itself_when_its_connection_does() {
    let at_the_end = format!("said=ok; {SAY}; read line; read line; echo bye > bye");
    let when_told =
        format!("trap 'echo bye > bye; exit' TERM; said=ok; {SAY}; while :; do read line; sleep 0.05; done");
    for answer in [at_the_end, when_told] {
        let folder = tempfile::tempdir().unwrap();
        let toolset = toolset(program(&answer).folder(folder.path()));
        let desk = desk(toolset.clone(), model()).await;
        assert_eq!(desk.result().await, json!({"result": "ok"}));
        toolset.close().await;
        drop(desk);
        let place = folder.path().join("bye");
        for _ in 0..2_000 {
            if place.exists() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(place.exists(), "{answer}");
    }
}

#[tokio::test]
async fn a_program_that_listens_to_nothing_is_killed_when_its_connection_ends() {
    let folder = tempfile::tempdir().unwrap();
    let answer = format!("echo $$ > pid; trap '' TERM HUP INT; said=ok; {SAY}; while :; do sleep 1000; done");
    let desk = desk(toolset(program(&answer).folder(folder.path())), model()).await;
    assert_eq!(desk.result().await, json!({"result": "ok"}));
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    let place = format!("/proc/{}/stat", pid.trim());
    let is_alive = || std::fs::read_to_string(&place).is_ok_and(|stat| !stat.contains(") Z "));
    let begin = std::time::Instant::now();
    drop(desk);
    assert!(is_alive(), "it gets its time");
    while is_alive() {
        assert!(begin.elapsed() < Duration::from_secs(30), "it is still there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(
        begin.elapsed() > Duration::from_secs(3),
        "its input was closed, and it was told to end, before that"
    );
}

#[tokio::test]
async fn a_program_that_writes_garbage_without_end_is_given_up() {
    let limits = umbel_mcp::client::ToolsetLimits { message_bytes: 1 << 20, ..Default::default() };
    for garbage in ["yes garbage", "cat /dev/zero"] {
        let desk = desk(toolset(program(garbage)).limits(limits), model()).await;
        let words = desk.result().await["error"].as_str().unwrap().to_owned();
        let is_known =
            words.contains("it writes what are no messages") || words.contains("more than 1048576 bytes");
        assert!(is_known, "{garbage}: {words}");
    }
}

#[tokio::test]
async fn a_program_that_ends_in_the_middle_of_a_call_is_told_of() {
    let desk = desk(toolset(program("exit 3")), model()).await;
    let words = desk.result().await["error"].as_str().unwrap().to_owned();
    assert!(words.contains("went away: it closed the connection"), "{words}");
}

#[tokio::test]
async fn what_was_agreed_to_of_one_server_counts_for_no_other_of_the_same_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pins.json");
    let say = format!("said=ok; {SAY}");
    let server =
        |answer: &str, approval| toolset(program(answer)).pins(FilePins::new(&path)).changes(approval);
    let offered = async |toolset: McpToolset| {
        let desk = desk(toolset, ScriptedModel::new("m").text("hi")).await;
        (desk.say("go").await.1, desk.offered())
    };
    // The first one is trusted, as servers are that were never seen.
    assert_eq!(
        offered(server(&say, Approval::Refuse)).await,
        (Outcome::Finished, vec![vec!["a".to_owned()]])
    );
    // The other one says the same of its tool, and is another.
    let other = format!("{say}; true");
    assert_eq!(offered(server(&other, Approval::Refuse)).await.1, [Vec::<String>::new()]);
    let asking = server(&other, Approval::Ask);
    let desk = desk(asking.clone(), ScriptedModel::new("m").text("hi")).await;
    let Outcome::Interrupted { interrupts } = desk.say("go").await.1 else { panic!("it should ask") };
    assert!(interrupts[0].message.as_ref().unwrap().contains("`a` is new"), "{interrupts:?}");
    // It tells its tools once for each time it is started.
    asking.close().await;
    assert_eq!(desk.say(interrupts[0].answer(true)).await.1, Outcome::Finished);
    // Each has its own record from now on, over restarts.
    for one in [&say, &other] {
        assert_eq!(offered(server(one, Approval::Refuse)).await.1, [["a"]]);
    }
    let kept: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let names: Vec<&String> = kept.keys().collect();
    assert!(names.len() == 2 && names[0] == "prog" && names[1].starts_with("prog @ "), "{names:?}");
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let desk = desk(toolset(Stdio::new("/no/such/program-of-mine")), model()).await;
    let Outcome::Failed { failure } = desk.say("go").await.1 else { panic!("it should fail") };
    assert!(failure.message.starts_with("`program-of-mine` could not be started"), "{}", failure.message);
}

#[tokio::test]
async fn what_is_set_for_a_program_is_not_shown() {
    let program = Stdio::new("server").env("KEY", "hunter2").args(["--key", "hunter2"]);
    assert_eq!(format!("{program:?}"), "Stdio(server)");
}
