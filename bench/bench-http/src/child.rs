//! A server that was started: where it listens, and what it has used.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::client::{Client, one_turn};

/// A server in a process of its own. It ends when this is dropped.
pub struct Served {
    child: Child,
    pub address: SocketAddr,
}

impl Served {
    /// Starts this program again, with those arguments, as part of another command if there is one.
    pub fn start(within: &[&str], args: &[&str]) -> Self {
        let own = std::env::current_exe().expect("this program").display().to_string();
        let line: Vec<&str> =
            within.iter().copied().chain([own.as_str(), "serve"]).chain(args.iter().copied()).collect();
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let mut address = String::new();
        let stdout = child.stdout.take().expect("its output");
        BufReader::new(stdout).read_line(&mut address).expect("an address");
        Self { child, address: address.trim().parse().expect("an address") }
    }

    /// Umbel's server with its usual settings.
    pub fn umbel(store: &str) -> Self {
        Self::start(&[], &["umbel", store, "2", &(64 << 20).to_string()])
    }

    pub fn raw(stream: &str) -> Self {
        Self::start(&[], &["raw", stream, "2"])
    }

    /// Nanoseconds that its threads were at work.
    pub fn cpu(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("its threads");
        let of_task = |task: std::fs::DirEntry| -> Option<u64> {
            let stat = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            stat.split(' ').next()?.parse().ok()
        };
        tasks.filter_map(|task| of_task(task.ok()?)).sum()
    }

    /// Bytes of memory that it has.
    pub fn memory(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
        kilobytes * 1024
    }

    /// Lets it end by itself.
    pub fn end(mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
}

/// Records the stream of one run into a file.
pub fn record(scenario: &str, file: &Path) {
    let server = Served::umbel("memory:");
    let frames = block_on(async {
        let mut client = Client::connect(server.address).await;
        // The first run of a process makes what later ones find.
        for n in 0..20 {
            client.run(&format!("/{scenario}"), &one_turn(format!("thread-{n:06}"))).await;
        }
        client.frames()
    });
    let recorded = serde_json::to_string(&(scenario == "paced", frames)).expect("text");
    std::fs::write(file, recorded).expect("a file");
}
