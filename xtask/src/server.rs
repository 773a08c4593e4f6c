//! A server that a check needs: it says where it listens, and is killed when the check is over.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How the address begins that a server says once it can be reached, somewhere in a line.
const SCHEME: &str = "http://";

/// How long it may take until then.
const START: Duration = Duration::from_secs(60);

/// A server. It is killed when this is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: String,
}

impl Server {
    /// Starts it and waits until it says where it listens.
    pub(crate) fn start(mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let program = command.get_program().display().to_string();
        let process = command.spawn().map_err(|error| format!("{program} cannot be started: {error}"))?;
        let mut server = Self { process, address: String::new() };
        let output = server.process.stdout.take().ok_or("the server has no output")?;
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            // It goes on reading after that, so that the server never waits for its reader.
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(address) = address_of(&line) {
                    drop(sender.send(address));
                }
            }
        });
        server.address = receiver
            .recv_timeout(START)
            .map_err(|_| format!("{program} ended or never said where it listens"))?;
        Ok(server)
    }
}

/// `umbel serve` on any free port, with its sessions in a file of that folder.
pub(crate) fn serve_umbel(umbel: &Path, folder: &Path) -> Command {
    let mut command = Command::new(umbel);
    let store = format!("sqlite:{}", folder.join("sessions.db").display());
    command.args(["serve", "--port", "0", "--model", "script", "--store", &store]).current_dir(folder);
    command
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("a server could not be stopped: {error}");
        }
    }
}

/// The address in what a server says, without a path.
fn address_of(line: &str) -> Option<String> {
    let (_, rest) = line.split_once(SCHEME)?;
    let host = rest.split(|c: char| c == '/' || c.is_whitespace()).next()?;
    Some(format!("{SCHEME}{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_what_a_server_says() {
        let address = Some("http://127.0.0.1:1".to_owned());
        assert_eq!(address_of("listening on http://127.0.0.1:1\n"), address);
        assert_eq!(address_of("[mock] server listening on http://127.0.0.1:1"), address);
        assert_eq!(address_of("  http://127.0.0.1:1/guide  a travel guide"), address);
        assert_eq!(address_of("hello"), None);
    }
}
