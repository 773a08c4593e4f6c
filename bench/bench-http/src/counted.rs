//! The same work for callgrind: instructions of a server with one thread. Clocks do not matter to them.

use std::path::PathBuf;

use crate::child::{Served, block_on, record};
use crate::client::{Client, Thread, one_turn};

/// A server under callgrind. `what` is `umbel`, or the path of the raw handler.
pub struct Counting {
    pub server: Served,
    path: String,
    told: PathBuf,
    stream: PathBuf,
}

impl Counting {
    pub fn start(what: &str, scenario: &str, store: &str) -> Self {
        let own = std::env::temp_dir().join(format!("bench-http-{}", std::process::id()));
        let (told, stream) = (own.with_extension("callgrind"), own.with_extension("json"));
        let log = format!("--log-file={}", told.display());
        let within = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", &log];
        let (path, server) = match what {
            "umbel" => {
                let args = ["umbel", store, "1", &(64 << 20).to_string()];
                (format!("/{scenario}"), Served::start(&within, &args))
            }
            raw => {
                record(scenario, &stream);
                let args = ["raw", &stream.display().to_string(), "1"];
                (format!("/{raw}"), Served::start(&within, &args))
            }
        };
        Self { server, path, told, stream }
    }

    /// The instructions that it took until now, from its start to its end.
    pub fn end(self) -> u64 {
        self.server.end();
        let told = std::fs::read_to_string(&self.told).expect("what callgrind tells");
        let _ = std::fs::remove_file(&self.told);
        let _ = std::fs::remove_file(&self.stream);
        let count = told.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
        count.expect("a count")
    }
}

/// Instructions of a process that does so many runs.
pub fn runs(what: &str, scenario: &str, runs: usize, store: &str) -> u64 {
    let counting = Counting::start(what, scenario, store);
    block_on(async {
        let mut client = Client::connect(counting.server.address).await;
        for n in 0..runs {
            client.run(&counting.path, &one_turn(format!("thread-{n:06}"))).await;
        }
    });
    counting.end()
}

/// Instructions of a process that does so many turns of one thread; with the raw handler only the last ones are asked for.
pub fn turns(what: &str, turns: usize, more: usize) -> u64 {
    let counting = Counting::start(what, "chat", "memory:");
    block_on(async {
        let mut client = Client::connect(counting.server.address).await;
        let mut thread = Thread::new("thread".to_owned());
        for turn in 0..turns + more {
            let body = thread.ask();
            if what == "umbel" || turn >= turns {
                client.run(&counting.path, &body).await;
            }
            let frames = if what == "umbel" { client.frames() } else { Vec::new() };
            thread.hear(&frames);
        }
    });
    counting.end()
}
