//! The server as a process: what it has in use.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What a server has in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Bytes of resident memory.
    pub(crate) memory: u64,
    pub(crate) descriptors: u64,
    pub(crate) threads: u64,
    /// Tasks of its runtime.
    pub(crate) tasks: u64,
}

/// A server that was started. It is killed when this is dropped.
pub(crate) struct SoakServer {
    child: Child,
    pipes: Mutex<Option<(ChildStdin, BufReader<ChildStdout>)>>,
    pub(crate) address: SocketAddr,
}

impl SoakServer {
    pub(crate) fn start(program: &Path, file: &Path) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.arg(format!("sqlite:{}", file.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("the server cannot be started: {error}"))?;
        let (input, output) = child.stdin.take().zip(child.stdout.take()).ok_or("the server has no pipes")?;
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line).map_err(|error| format!("the server says nothing: {error}"))?;
        let address = line.trim().rsplit('/').next().and_then(|address| address.parse().ok());
        let address = address.ok_or_else(|| format!("the server says no address: {line}"))?;
        Ok(Self { child, pipes: Mutex::new(Some((input, output))), address })
    }

    /// What it has in use now.
    pub(crate) fn sample(&self) -> Result<Sample, String> {
        let folder = format!("/proc/{}", self.child.id());
        let status = std::fs::read_to_string(format!("{folder}/status"))
            .map_err(|error| format!("the server is gone: {error}"))?;
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            value.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
        };
        let descriptors = std::fs::read_dir(format!("{folder}/fd")).map_or(0, Iterator::count) as u64;
        let threads = field("Threads:").unwrap_or_default();
        Ok(Sample {
            memory: field("VmRSS:").unwrap_or_default() * 1024,
            descriptors,
            threads,
            tasks: self.tasks()?,
        })
    }

    fn tasks(&self) -> Result<u64, String> {
        let mut pipes = self.pipes.lock().map_err(|_| "the pipes are broken")?;
        let (input, output) = pipes.as_mut().ok_or("the server was stopped")?;
        let mut line = String::new();
        input
            .write_all(b"?")
            .and_then(|()| output.read_line(&mut line))
            .map_err(|error| error.to_string())?;
        let number = line.trim().strip_prefix("tasks ").and_then(|number| number.parse().ok());
        number.ok_or_else(|| format!("the server counts no tasks: {line}"))
    }

    /// Waits until it has no more in use than before, or until nothing changes any more.
    pub(crate) fn settle(&self, most: Duration, before: Option<Sample>) -> Result<Sample, String> {
        const STEADY: u32 = 12;
        let (started, mut steady, mut last) = (Instant::now(), 0, self.sample()?);
        while started.elapsed() < most {
            std::thread::sleep(Duration::from_millis(250));
            let now = self.sample()?;
            let same = (now.descriptors, now.tasks) == (last.descriptors, last.tasks);
            steady = if same { steady + 1 } else { 0 };
            last = now;
            let is_back = before
                .is_none_or(|before| now.descriptors <= before.descriptors && now.tasks <= before.tasks);
            if steady >= STEADY && is_back {
                break;
            }
        }
        Ok(last)
    }

    /// Lets it end by itself.
    pub(crate) fn stop(mut self) -> Result<(), String> {
        // The end of its input stops it.
        drop(self.pipes.get_mut().map_err(|_| "the pipes are broken")?.take());
        let status =
            self.child.wait().map_err(|error| format!("the server cannot be waited for: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("the server ended with {status}")) }
    }
}

impl Drop for SoakServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
