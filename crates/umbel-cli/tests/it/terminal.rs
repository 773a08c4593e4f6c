//! `umbel chat` at a terminal, as a person would use it: keys in, a screen out.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::oauth_server::{OAuthServer, PUBLIC_CLIENT};

/// How long something may take to appear.
const PATIENCE: Duration = Duration::from_secs(20);

/// The key that stops, and the one that brings back the line before.
const CTRL_C: &str = "\x03";
const ARROW_UP: &str = "\x1b[A";

/// A chat behind a pseudo-terminal, which util-linux's `script` makes.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    bytes: Receiver<Vec<u8>>,
    /// All that was shown.
    shown: String,
    /// How far it was looked at.
    seen: usize,
}

impl Terminal {
    fn start(folder: &Path, environment: &str, args: &str) -> Self {
        let command =
            format!("stty cols 100 rows 40; {environment}exec {} {args}", env!("CARGO_BIN_EXE_umbel"));
        let mut child = Command::new("script")
            .args(["--quiet", "--return", "--command", &command, "/dev/null"])
            .current_dir(folder)
            .env("UMBEL_MODEL", "script")
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .env_remove("NO_COLOR")
            .env_remove("UMBEL_STORE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, bytes) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut buffer) {
                if send.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, bytes, shown: String::new(), seen: 0 }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits until these words appear, in this order, after what was seen before.
    fn see(&mut self, words: &[&str]) {
        let end = Instant::now() + PATIENCE;
        for word in words {
            loop {
                if let Some(place) = self.shown[self.seen..].find(word) {
                    self.seen += place + word.len();
                    break;
                }
                let left = end.saturating_duration_since(Instant::now());
                match self.bytes.recv_timeout(left) {
                    Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                    Err(_) => panic!("`{word}` did not appear in:\n{}", self.shown),
                }
            }
        }
    }

    /// Waits until one of these words appears, and tells which.
    fn see_any(&mut self, words: &[&str]) -> usize {
        let end = Instant::now() + PATIENCE;
        loop {
            let found = words.iter().position(|word| self.shown[self.seen..].contains(word));
            if let Some(found) = found {
                self.see(&[words[found]]);
                return found;
            }
            match self.bytes.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.shown.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("none of {words:?} appeared in:\n{}", self.shown),
            }
        }
    }

    /// Waits until it ends, and tells its exit code.
    fn ended(mut self) -> Option<i32> {
        while let Ok(bytes) = self.bytes.recv_timeout(PATIENCE) {
            self.shown.push_str(&String::from_utf8_lossy(&bytes));
        }
        self.child.wait().unwrap().code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stops an answer midway. On a busy machine it may be over before that; then it is asked for again.
fn stop_midway(chat: &mut Terminal) {
    for _ in 0..20 {
        chat.press("where should I go?\r");
        chat.see(&["Somewhere"]);
        chat.press(CTRL_C);
        let is_over = chat.see_any(&["Stopped.", "Press Ctrl-C again to leave"]) == 1;
        chat.see(&["you>"]);
        if !is_over {
            return;
        }
    }
    panic!("every answer was over before it could be stopped");
}

#[test]
fn a_person_sees_cards_approves_stops_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut chat = Terminal::start(folder.path(), "", "chat --agent guide --session trip");
    chat.see(&["guide: A travel guide", "Model: a script", "Try:  weather in Paris and Rome", "you>"]);
    chat.press("weather in Paris and Rome\r");
    chat.see(&["→ get_weather(city: \"Paris\")", "← ", " ms get_weather: city Paris", "Rome:", "you>"]);

    chat.press("book 3 nights in Lisbon\r");
    chat.see(&["guide asks you to approve: book_trip", "Approve? [y/n/e]"]);
    chat.press("e\r");
    chat.see(&["Arguments>", "\"nights\":3}"]);
    // The arguments stand there to be changed: three becomes five.
    chat.press("\x7f\x7f5}\r");
    chat.see(&["Booked: 5 nights in Lisbon", "you>"]);

    stop_midway(&mut chat);

    // The line before the last one, not the answers that were given in between.
    chat.press(&format!("{ARROW_UP}{ARROW_UP}{ARROW_UP}"));
    chat.see(&["weather in Paris and Rome"]);
    chat.press("\r");
    chat.see(&["get_weather(city: \"Rome\")", "Rome:", "you>"]);
    chat.press("/quit\r");
    chat.see(&["Bye."]);
    assert_eq!(chat.ended(), Some(0));

    let mut again = Terminal::start(folder.path(), "", "chat --continue");
    again.see(&["This is conversation trip", "you>"]);
    again.press("/history\r");
    again.see(&["you>", "weather in Paris and Rome", "Booked: 5 nights in Lisbon", "you>"]);
    again.press(&format!("{ARROW_UP}{ARROW_UP}{ARROW_UP}"));
    again.see(&["weather in Paris and Rome"]);
    again.press(CTRL_C);
    again.see(&["Press Ctrl-C again to leave"]);
    // Between two prompts, or at the next one already.
    again.press(CTRL_C);
    again.see(&["Bye."]);
    assert_eq!(again.ended(), Some(0));
    let history = folder.path().join(".umbel/history");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(history.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let typed = std::fs::read_to_string(history).unwrap();
    assert!(typed.contains("book 3 nights in Lisbon") && !typed.contains("\ne\n"), "{typed}");
}

#[test]
fn one_press_of_a_key_is_enough_wherever_it_comes() {
    let folder = tempfile::tempdir().unwrap();
    let mut chat = Terminal::start(folder.path(), "", "chat --agent guide --store memory:");
    chat.see(&["Model: a script", "you>"]);
    for _ in 0..30 {
        // At the prompt.
        chat.press(CTRL_C);
        chat.see(&["Press Ctrl-C again to leave"]);
        // While the next prompt comes.
        chat.press("/help\r");
        chat.see(&["/quit", "you>"]);
        // While the answer is being said, or when it is over.
        chat.press("where should I go?\r");
        chat.see(&["Somewhere"]);
        chat.press(CTRL_C);
        chat.see_any(&["Stopped.", "Press Ctrl-C again to leave"]);
        chat.see(&["you>"]);
        chat.press("/help\r");
        chat.see(&["/quit", "you>"]);
    }
    chat.press(CTRL_C);
    chat.see(&["Press Ctrl-C again to leave"]);
    chat.press(CTRL_C);
    chat.see(&["Bye."]);
    assert_eq!(chat.ended(), Some(0));
}

#[test]
fn colours_are_left_out_where_nobody_wants_them() {
    let folder = tempfile::tempdir().unwrap();
    for (wish, coloured) in [("", true), ("NO_COLOR=1 ", false)] {
        let mut chat = Terminal::start(folder.path(), wish, "chat --store memory:");
        chat.see(&["Model: a script", "you>"]);
        assert_eq!(chat.shown.contains("\x1b[2mguide:"), coloured, "{}", chat.shown);
        // Ctrl-D leaves.
        chat.press("\x04");
        assert_eq!(chat.ended(), Some(0));
    }
}

/// A folder with an agent that wants somebody to sign in there, and to come back to this port.
fn with_sign_in(server: &OAuthServer, port: u16) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let document = serde_json::json!({
        "openapi": "3.1.0",
        "servers": [{"url": server.url("")}],
        "paths": {"/api": {"get": {"operationId": "weather", "security": [{"login": ["see"]}]}}},
        "components": {"securitySchemes": {"login": {"type": "oauth2", "flows": {"authorizationCode": {
            "authorizationUrl": server.url("/authorize"), "tokenUrl": server.url("/token")}}}}},
    });
    std::fs::write(folder.path().join("weather.json"), document.to_string()).unwrap();
    let agents = format!(
        "[agents.guide]\nscript = [{{ call = 'weather' }}, 'Look up.']\ntools = ['weather']\n\
         [tools.weather]\nkind = 'openapi'\nfile = 'weather.json'\nallow_private = ['{}']\n\
         [tools.weather.security]\n\
         login = {{ client_id = '{PUBLIC_CLIENT}', redirect_uri = 'http://127.0.0.1:{port}/back' }}\n",
        server.host()
    );
    std::fs::write(folder.path().join("agents.toml"), agents).unwrap();
    folder
}

#[test]
fn a_person_signs_in_with_a_browser_or_pastes_where_it_was_sent() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(OAuthServer::start());
    for pastes in [false, true] {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = with_sign_in(&server, port);
        let mut chat = Terminal::start(folder.path(), "", "chat --agents agents.toml --store memory:");
        chat.see(&["you>"]);
        chat.press("how is it?\r");
        chat.see(&["It is for `127.0.0.1", "/login`, with the scopes see.", "Sign in at "]);
        let begin = chat.seen;
        chat.see(&["This goes on when your browser is back. To paste its address, or"]);
        let link = chat.shown[begin..].lines().next().unwrap().trim().to_owned();
        let to = runtime.block_on(server.sign_in(&link));
        if pastes {
            chat.press(CTRL_C);
            chat.see(&["Now paste the address"]);
            chat.see(&["Address>"]);
            chat.press(&format!("{to}\r"));
        } else {
            let mut browser = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            let target = to.strip_prefix(&format!("http://127.0.0.1:{port}")).unwrap();
            browser.write_all(format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
            let mut page = String::new();
            browser.read_to_string(&mut page).unwrap();
            assert!(page.contains("You may close this window"), "{page}");
        }
        chat.see(&["weather: ", "sunny", "Look up.", "you>"]);
        assert!(!chat.shown.contains("CANARY"), "{}", chat.shown);
        chat.press("/quit\r");
        chat.see(&["Bye."]);
        assert_eq!(chat.ended(), Some(0));
    }
}
