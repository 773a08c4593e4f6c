//! Every example, run as a program of its own, with what it says.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs a program to its end and gives what it said.
fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(output.status.success(), "{program} failed: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_example_is_run_here() {
    let tests = include_str!("examples.rs");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin");
    for file in std::fs::read_dir(folder).unwrap() {
        let name = file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned();
        assert!(tests.contains(&format!("CARGO_BIN_EXE_{name}\"")), "{name} is not run by any test");
    }
}

#[test]
fn weather() {
    assert_eq!(said(env!("CARGO_BIN_EXE_weather"), &[]), "Sunny, 18 °C.\n");
}

#[test]
fn mcp() {
    let expected = "\
May I call lamp_switch? Yes.
lamp_switch: {\"result\":\"the lamp is on\"}
butler> It is bright now.
";
    assert_eq!(said(env!("CARGO_BIN_EXE_mcp"), &[]), expected);
}

#[test]
fn telemetry() {
    let expected = "\
weather> 18 °C.
chat demo (Client)
execute_tool get_weather (Internal)
chat demo (Client)
invoke_agent weather (Internal)
invocation (Internal)
";
    assert_eq!(said(env!("CARGO_BIN_EXE_telemetry"), &[]), expected);
}

#[test]
fn memory() {
    let expected = "\
guide> Hello, Ann. The night train it is.
  load_memory found it: true
guide> You wanted to take the night train to Rome.
The model was told: You speak with Ann.
";
    assert_eq!(said(env!("CARGO_BIN_EXE_memory"), &[]), expected);
}

#[test]
fn sign_in() {
    let told = said(env!("CARGO_BIN_EXE_sign_in"), &[]);
    assert!(told.starts_with("A person signs in at the page authorize\ntoday: "), "{told}");
    assert!(told.contains("\"body\":\"10:00 Dentist\"") && told.contains("\"status\":200"), "{told}");
    assert!(told.ends_with("clerk> You see the dentist at ten.\nA secret in the log: false\n"), "{told}");
}

#[test]
fn approval_waits_in_the_database_for_another_process() {
    let folder = tempfile::tempdir().unwrap();
    for (answer, result, words) in [
        ("yes", "40 € are on their way to Bob", "Bob gets 40 € back."),
        ("no", "ask for a photo first", "I have paid nothing."),
    ] {
        let database = folder.path().join(answer);
        let database = database.to_str().unwrap();
        let asked = said(env!("CARGO_BIN_EXE_approval"), &[database]);
        assert_eq!(asked, "May I call refund({\"customer\":\"Bob\",\"euros\":40})?\n");
        let told = said(env!("CARGO_BIN_EXE_approval"), &[database, answer]);
        assert!(told.starts_with("refund: ") && told.contains(result), "{told}");
        assert!(told.ends_with(&format!("desk> {words}\n")), "{told}");
    }
}

#[test]
fn code_is_run_in_a_sandbox_once_a_person_agrees() {
    let expected = "\
data_1_2.csv: 3 rows, 2 columns
- who: 3 values, 2 different: Ann, Bob
- euros: 3 values, 3 different: 12, 30, 54
May I run this?
    import csv
    from collections import Counter
    spent = Counter()
    for row in csv.DictReader(open(\"data_1_2.csv\")):
        spent[row[\"who\"]] += int(row[\"euros\"])
    print(spent[\"Ann\"] - spent[\"Bob\"])
    open(\"spent.txt\", \"w\").write(str(dict(spent)))
36

Saved artifacts:
`spent.txt`
clerk> Bob owes Ann 18 €.
spent.txt: {'Ann': 66, 'Bob': 30}
";
    assert_eq!(said(env!("CARGO_BIN_EXE_code"), &[]), expected);
}

#[test]
fn streaming() {
    let expected = "  → search_trains({\"to\":\"Rome\"})
  … {\"searched\":\"day trains\"}
  … {\"searched\":\"night trains\"}
  ← {\"to\":\"Rome\",\"leaves\":\"20:10\"}
(The night train saves a day.)
Take the train at 20:10.
The run has Some(Finished).
";
    assert_eq!(said(env!("CARGO_BIN_EXE_streaming"), &[]), expected);
}

#[test]
fn team() {
    let expected = "\
you> What is hello in French?
translator> Bonjour !
desk> They say: Bonjour !
you> What do I owe?
  desk hands over to billing
billing> You owe 5 €.
you> Until when?
billing> Until Friday.
";
    assert_eq!(said(env!("CARGO_BIN_EXE_team"), &[]), expected);
}

#[test]
fn workflow() {
    let expected = "\
hotels> Room 7 is free.
trains> Night train at 20:10.
writer> Train, room.
critic> Say when it leaves.
writer> Take the night train at 20:10 to room 7.
plan: \"Take the night train at 20:10 to room 7.\"
The writer was told: Write a plan from: Night train at 20:10. Room 7 is free. What the critic said: Say when it leaves.
";
    assert_eq!(said(env!("CARGO_BIN_EXE_workflow"), &[]), expected);
}

#[test]
fn structured_output() {
    let expected = "\
Ticket { summary: \"paid twice\", kind: Billing, urgent: false }
Ticket { summary: \"order 7 is late\", kind: Delivery, urgent: true }
It was urgent: true. The model was asked 3 times.
Delivery looks at: order 7 is late
";
    assert_eq!(said(env!("CARGO_BIN_EXE_structured_output"), &[]), expected);
}

#[test]
fn own_handler() {
    let expected = "\
The phone is paid. The car is too much for today.
  ann: pay of 30 €
  ann: refused pay of 300 €
  ann: Finished
";
    assert_eq!(said(env!("CARGO_BIN_EXE_own_handler"), &[]), expected);
}

#[test]
fn tool_layers() {
    let told = said(env!("CARGO_BIN_EXE_tool_layers"), &[]);
    let lines: Vec<&str> = told.lines().collect();
    let [first, second, third, last] = lines.as_slice() else { panic!("{told}") };
    // The second is the first again, from the cache; the third finds the quota used up.
    assert_eq!((*first, *second), ("  {\"result\":\"1 EUR is 160 JPY\"}", *first));
    assert!(third.starts_with("  {\"error\":"), "{third}");
    assert_eq!(*last, "160 yen. Of dollars I could not find out.");
}

#[test]
fn real_model_plays_its_tape() {
    let expected = "It is sunny in Paris, 18 °C.\nPlayed all of the tape: true\n";
    assert_eq!(said(env!("CARGO_BIN_EXE_real_model"), &[]), expected);
}

#[test]
fn offline_test() {
    assert!(said(env!("CARGO_BIN_EXE_offline_test"), &[]).starts_with("A table for four.\n"));
}

#[test]
fn desk_tells_what_it_is_made_of() {
    let told = said(env!("CARGO_BIN_EXE_desk"), &["explain", "--all", "--model", "script"]);
    for part in ["find_order", "note_problem", "refund", "audit", "approve"] {
        assert!(told.contains(part), "{part} is missing in {told}");
    }
}

#[test]
fn desk_talks_through_a_pipe_and_asks_before_it_pays() {
    let mut desk = Command::new(env!("CARGO_BIN_EXE_desk"))
        .args(["chat", "--store", "memory:", "--model", "script"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let said = "Where is my order 7?\nI want my money for order 7 back.\ny\n";
    desk.stdin.take().unwrap().write_all(said.as_bytes()).unwrap();
    let output = desk.wait_with_output().unwrap();
    let (told, audit) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(told.contains("kettle, sent on Monday"), "{told}");
    assert!(told.contains("billing asks you to approve: refund(order: 7, euros: 40)"), "{told}");
    assert!(told.contains("40 € for order 7 are on their way"), "{told}");
    assert!(audit.contains("audit: refund for local: waits\naudit: refund for local: done"), "{audit}");
}

#[test]
fn usage() {
    let told = said(env!("CARGO_BIN_EXE_usage"), &[]);
    let lines: Vec<&str> = told.lines().collect();
    let [rome, first, train, second, end, _] = lines.as_slice() else { panic!("{told}") };
    assert_eq!((*rome, *first), ("guide> Rome.", "  so far 1020 tokens, $0.0027"));
    assert_eq!((*train, *second), ("guide> By the night train.", "  so far 2180 tokens, $0.00605"));
    assert!(end.contains("$0.00605 of $0.005 in this session"), "{end}");
}

/// One request, and the whole answer.
fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn serve() {
    let mut server =
        Command::new(env!("CARGO_BIN_EXE_serve")).arg("0").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("http://").unwrap().strip_suffix("/agents/chat").unwrap();

    let own = ask(address, &format!("GET /hello HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"));
    let body = r#"{"threadId":"t1","runId":"r1","messages":[{"id":"m1","role":"user","content":"Hi"}]}"#;
    let head = format!("POST /agents/chat HTTP/1.1\r\nHost: {address}\r\nConnection: close");
    let run =
        format!("{head}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let run = ask(address, &run);
    server.kill().unwrap();
    server.wait().unwrap();

    assert!(own.ends_with("Hello from axum.\n"), "{own}");
    assert!(run.contains("RUN_STARTED") && run.contains("You said: Hi"), "{run}");
    assert!(run.contains("RUN_FINISHED"), "{run}");
}

#[test]
fn mcp_clients_call_an_agent_and_a_tool() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mcp_server"));
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut input = child.stdin.take().unwrap();
    let mut ask = |message: &str| writeln!(input, "{message}").unwrap();
    let mut next = || lines.next().unwrap().unwrap();
    ask(
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#,
    );
    assert!(next().contains(r#""serverInfo":{"name":"travel""#));
    ask(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
    for (call, answer) in [
        (r#"{"name":"guide","arguments":{"request":"To Rome"}}"#, "Take the night train."),
        (r#"{"name":"next_train","arguments":{"station":"Ulm"}}"#, "The next train from Ulm leaves at 9:40."),
    ] {
        ask(&format!(r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{call}}}"#));
        let said = next();
        assert!(said.contains(answer), "{said}");
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}
