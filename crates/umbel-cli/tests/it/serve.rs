//! `umbel serve`, as a shell would start it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

/// A server in a process of its own.
pub(crate) struct Served {
    pub(crate) child: Child,
    out: BufReader<ChildStdout>,
    /// What it said when it began.
    pub(crate) greeting: String,
}

impl Served {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_as(command(args))
    }

    pub(crate) fn start_as(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut greeting = String::new();
        while !greeting.contains("Ctrl-C") {
            assert_ne!(out.read_line(&mut greeting).unwrap(), 0, "{greeting}");
        }
        Self { child, out, greeting }
    }

    /// Where it listens, as `HOST:PORT`.
    fn address(&self) -> String {
        let (_, rest) = self.greeting.split_once("http://").unwrap();
        rest.split(|c: char| c == '/' || c.is_whitespace()).next().unwrap().to_owned()
    }

    /// Sends a request as it stands, and gives all that comes back.
    pub(crate) fn ask(&self, line: &str, headers: &[&str], body: &str) -> String {
        let mut stream = self.send(line, headers, body);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn send(&self, line: &str, headers: &[&str], body: &str) -> TcpStream {
        let address = self.address();
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let more: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let length = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{more}\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    pub(crate) fn ended(&mut self) -> (ExitStatus, String) {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap(), rest)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_umbel"));
    command
        .arg("serve")
        .args(args)
        .env("UMBEL_STORE", "memory:")
        .env("UMBEL_MODEL", "script")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(crate) fn refused(args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command(args).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

pub(crate) fn message(run: &str, text: &str) -> String {
    format!(
        r#"{{"threadId": "t1", "runId": "{run}", "messages": [{{"id": "{run}", "role": "user", "content": "{text}"}}]}}"#
    )
}

fn write(path: &Path, text: &str) -> String {
    std::fs::write(path, text).unwrap();
    path.display().to_string()
}

#[test]
fn it_says_where_it_listens_answers_and_stops_when_told() {
    for signal in ["-INT", "-TERM"] {
        let mut served = Served::start(&["--port", "0"]);
        assert!(served.greeting.contains("curl -N http://127.0.0.1:"), "{}", served.greeting);
        let answer = served.ask("POST /guide", &[], &message("r1", "weather in Paris"));
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("sunny"), "{answer}");
        let answer = served.ask("POST /team", &[], &message("r1", "a day in Oslo"));
        assert!(answer.contains("RUN_FINISHED"), "{answer}");
        served.signal(signal);
        let (status, rest) = served.ended();
        assert!(status.success() && rest.starts_with("Stopping"), "{status} {rest}");
    }
}

/// Begins a run that takes some seconds, and waits until its stream begins.
fn begin_long(served: &Served) -> TcpStream {
    let cities = "weather in Paris and Rome and Oslo and Lisbon and Berlin and Madrid and Vienna and Prague";
    let mut stream = served.send("POST /guide", &[], &message("r1", cities));
    let mut begun = [0; 64];
    stream.read_exact(&mut begun).unwrap();
    stream
}

#[test]
fn a_run_under_way_may_end_when_the_server_is_told_to_stop() {
    let mut served = Served::start(&["--port", "0"]);
    let mut stream = begin_long(&served);
    served.signal("-TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("RUN_FINISHED") && rest.contains("Lisbon"), "{rest}");
    assert!(served.ended().0.success());
}

#[test]
fn under_load_each_stream_has_its_end_when_the_server_is_told_to_stop() {
    let mut served = Served::start(&["--port", "0"]);
    let streams: Vec<TcpStream> = (0..24)
        .map(|number| {
            let cities = "weather in Paris and Rome and Oslo and Lisbon and Berlin and Madrid and Vienna";
            let body = message("r", cities).replace("\"t1\"", &format!("\"t{number}\""));
            let mut stream =
                served.send("POST /guide", &[], &body.replace("\"r\"", &format!("\"r{number}\"")));
            stream.read_exact(&mut [0; 64]).unwrap();
            stream
        })
        .collect();
    let reading: Vec<_> = streams
        .into_iter()
        .map(|mut stream| {
            std::thread::spawn(move || {
                let mut rest = String::new();
                stream.read_to_string(&mut rest).map(|_| rest)
            })
        })
        .collect();
    served.signal("-TERM");
    for stream in reading {
        let rest = stream.join().unwrap().unwrap();
        assert_eq!(rest.matches("\"type\":\"RUN_FINISHED\"").count(), 1, "{rest}");
        assert!(rest.ends_with("0\r\n\r\n"), "the response has an end, too: {rest}");
    }
    let (status, _) = served.ended();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn told_twice_to_stop_it_does_not_wait_for_runs() {
    let mut served = Served::start(&["--port", "0"]);
    let mut stream = begin_long(&served);
    served.signal("-TERM");
    served.signal("-INT");
    assert_eq!(served.ended().0.code(), Some(130));
    let mut rest = Vec::new();
    // Whether the connection is closed or reset, the run had no time to end.
    let _ = stream.read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("RUN_FINISHED"));
}

#[test]
fn where_others_can_reach_it_it_wants_to_know_who_asks() {
    // That comes first: another port would not help.
    let taken = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for port in ["0", &port] {
        let (code, text) = refused(&["--port", port, "--host", "0.0.0.0"]);
        assert_eq!(code, Some(2));
        assert!(text.contains("--tokens FILE") && text.contains("TOKEN USER"), "{text}");
    }
    let folder = tempfile::tempdir().unwrap();
    let tokens = write(&folder.path().join("tokens"), "abc ann\n");
    let mut served = Served::start(&["--port", "0", "--host", "0.0.0.0", "--tokens", &tokens]);
    assert!(served.greeting.contains("Bearer $TOKEN") && served.greeting.contains("http://127.0.0.1:"));
    let answer = served.ask("GET /guide/threads", &[], "");
    assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("www-authenticate: Bearer"), "{answer}");
    assert!(served.ask("GET /guide/threads", &["authorization: Bearer abc"], "").starts_with("HTTP/1.1 200"));
    served.signal("-TERM");
    let mut log = String::new();
    served.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("chmod 600"), "others may read the file: {log}");
}

#[test]
fn what_cannot_be_served_is_told_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let bad = write(&folder.path().join("tokens"), "abc ann\nx\n");
    let missing = folder.path().join("none").display().to_string();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (args, code, word) in [
        (&["--colour"][..], 2, "umbel serve [OPTIONS]"),
        (&["--tokens", &bad], 1, "line 2"),
        (&["--tokens", &missing], 1, "cannot be read"),
        (&["--port", &port], 1, "--port"),
        (&["--store", "paper:trips"], 1, "sqlite:"),
        (&["--host", "no such host"], 1, "cannot listen"),
        (&["--otlp", "localhost:4318"], 1, "http://localhost:4318"),
        (&["--otlp-content"], 2, "--otlp http://localhost:4318"),
        (&["--trust-traces", "maybe"], 2, "--trust-traces"),
    ] {
        let (status, text) = refused(args);
        assert!(status == Some(code) && text.contains(word), "{args:?}: {status:?} {text}");
    }
}

#[test]
fn origins_hosts_and_a_base_path_count() {
    let mut served = Served::start(&[
        "--port=0",
        "--allow-origin=http://localhost:3000",
        "--allow-host=agents.example",
        "--base-path=/umbel",
    ]);
    assert!(served.greeting.contains("/umbel/guide "), "{}", served.greeting);
    let get = |path: &str, headers: &[&str]| served.ask(&format!("GET {path}"), headers, "");
    assert!(get("/umbel/guide/capabilities", &[]).starts_with("HTTP/1.1 200"));
    assert!(get("/guide/capabilities", &[]).starts_with("HTTP/1.1 404"));
    let answer = get("/umbel/guide/capabilities", &["origin: http://localhost:3000"]);
    assert!(answer.contains("access-control-allow-origin: http://localhost:3000"), "{answer}");
    assert!(get("/umbel/guide/capabilities", &["origin: http://evil.example"]).starts_with("HTTP/1.1 403"));
    let by_name = |name: &str| {
        let mut stream = TcpStream::connect(served.address()).unwrap();
        let head = format!("GET /umbel/health HTTP/1.1\r\nhost: {name}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(by_name("agents.example").starts_with("HTTP/1.1 200"));
    assert!(by_name("evil.example").starts_with("HTTP/1.1 403"));
    served.signal("-TERM");
    assert!(served.ended().0.success());
}

#[test]
fn a_store_keeps_conversations_and_shares_them_with_the_chat() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("trips.db").display());
    let chat = Command::new(env!("CARGO_BIN_EXE_umbel"))
        .args(["run", "--model", "script", "--store", &store, "--session", "t1", "pack an umbrella"])
        .output()
        .unwrap();
    assert!(chat.status.success());
    let mut served = Served::start(&["--port", "0", "--store", &store]);
    let thread = served.ask("GET /guide/threads/t1", &[], "");
    assert!(thread.contains("pack an umbrella") && thread.contains("packing_list"), "{thread}");
    served.signal("-TERM");
    assert!(served.ended().0.success());
}

#[test]
fn its_help_lists_every_flag() {
    let help = command(&["--help"]).output().unwrap();
    let text = String::from_utf8(help.stdout).unwrap();
    for flag in [
        "--host",
        "--port",
        "--store",
        "--tokens",
        "--allow-origin",
        "--allow-host",
        "--base-path",
        "--inspect",
        "--no-studio",
        "--open",
        "--otlp",
        "--otlp-content",
        "--trust-traces",
        "--unix",
        "--unix-group",
        "--tls-cert",
        "--tls-key",
    ] {
        assert!(text.contains(flag), "{flag}");
    }
}

#[test]
fn a_port_that_nobody_named_may_be_another_one() {
    // Whoever has the usual port already, or this test.
    let _taken = std::net::TcpListener::bind("127.0.0.1:8123");
    let mut served = Served::start(&[]);
    assert!(!served.address().ends_with(":8123"), "{}", served.greeting);
    assert!(served.greeting.contains("Another program has port 8123"), "{}", served.greeting);
    assert!(served.ask("GET /health", &[], "").starts_with("HTTP/1.1 200"));
    served.signal("-TERM");
    assert!(served.ended().0.success());
}

#[test]
fn the_studio_is_served_unless_nobody_wants_it() {
    let mut served = Served::start(&["--port", "0"]);
    let address = served.address();
    assert!(served.greeting.contains(&format!("listening on http://{address}\n")), "{}", served.greeting);
    assert!(served.greeting.contains(&format!("http://{address}/studio/\n")), "{}", served.greeting);
    assert!(served.greeting.contains("Model: a script"), "{}", served.greeting);
    assert!(served.ask("GET /studio/", &[], "").starts_with("HTTP/1.1 200"));
    let agents = served.ask("GET /agents", &[], "");
    assert!(agents.contains("make it dark") && agents.contains("\"inspect\":true"), "{agents}");
    served.signal("-TERM");
    assert!(served.ended().0.success());
    let mut alone = Served::start(&["--port", "0", "--no-studio"]);
    assert!(!alone.greeting.contains("studio"), "{}", alone.greeting);
    assert!(alone.ask("GET /studio/", &[], "").starts_with("HTTP/1.1 404"));
    alone.signal("-TERM");
    assert!(alone.ended().0.success());
}

#[test]
fn prompts_and_logs_are_shown_to_others_only_if_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = write(&folder.path().join("tokens"), "abc ann\n");
    for (more, expected) in [(&[][..], "404"), (&["--inspect"][..], "200")] {
        let mut served = Served::start(&[&["--port", "0", "--tokens", &tokens], more].concat());
        let answer = served.ask("GET /guide/graph", &["authorization: Bearer abc"], "");
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{answer}");
        served.signal("-TERM");
        assert!(served.ended().0.success());
    }
}

#[cfg(unix)]
#[test]
fn the_studio_is_opened_in_the_browser() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let browser = folder.path().join("browser");
    let (page, script) = (
        folder.path().join("page"),
        "#!/bin/sh\nprintf %s \"$1\" > \"$0.part\" && mv \"$0.part\" \"${0%browser}page\"\n",
    );
    std::fs::write(&browser, script).unwrap();
    std::fs::set_permissions(&browser, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut child = command(&["--port", "0", "--open"]).env("BROWSER", &browser).spawn().unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !page.exists() && std::time::Instant::now() < end {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let opened = std::fs::read_to_string(page).unwrap();
    assert!(opened.starts_with("http://127.0.0.1:") && opened.ends_with("/studio/"), "{opened}");
}

#[test]
fn tools_of_the_front_end_are_called_if_it_has_them() {
    let mut served = Served::start(&["--port", "0"]);
    let body = |tools: &str| {
        format!(
            r#"{{"threadId": "t{0}", "runId": "r{0}", "tools": [{tools}], "messages": [{{"id": "m", "role": "user", "content": "make it dark"}}]}}"#,
            tools.len()
        )
    };
    let tool = r#"{"name": "set_theme", "description": "Sets the theme.", "parameters": {"type": "object"}}"#;
    let answer = served.ask("POST /painter", &[], &body(tool));
    assert!(
        answer.contains("TOOL_CALL_START") && answer.contains("set_theme") && answer.contains("dark"),
        "{answer}"
    );
    let answer = served.ask("POST /painter", &[], &body(""));
    assert!(!answer.contains("TOOL_CALL_START") && answer.contains("studio"), "{answer}");
    served.signal("-TERM");
    assert!(served.ended().0.success());
}

#[test]
fn a_greeting_does_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agents.toml");
    let evil = r"\u001b]0;owned\u0007\u009b1m\u202e";
    let text = format!(
        "[agents.a]\ndescription = \"about {evil}\"\nscript = [\"x\"]\nsuggestions = [\"try {evil}\"]\n"
    );
    std::fs::write(&file, text).unwrap();
    let served = Served::start(&["--port", "0", "--store", "memory:", file.to_str().unwrap()]);
    assert!(served.greeting.contains("about ") && served.greeting.contains("try "), "{}", served.greeting);
    assert!(!served.greeting.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{7}']), "{:?}", served.greeting);
}
