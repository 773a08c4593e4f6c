//! A sandbox that is there, and how it is asked.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::Child;
use umbel_core::{CodeFile, CodeInput, CodeOutcome, CodeOutput, Error, ErrorKind, Result};

use super::cgroup::Cgroup;
use super::launch::{Launch, Place};
use super::pool::SandboxPermit;
use super::watch::{self, Watch};
use super::{Limits, files, verdict};
use crate::process::{Group, kill_child, spawn_from_lasting_thread};

/// How long it may take until a sandbox is there, however often one is started.
pub(super) const START: Duration = Duration::from_secs(30);
/// How often one is started until nothing that is open comes along.
const ATTEMPTS: u32 = 20;
/// How long a sandbox that could not be made may take to say why.
const LAST_WORDS: Duration = Duration::from_secs(2);
const LAST_WORDS_BYTES: usize = 4096;
/// How much processor time a sandbox may use between codes: clearing up after the last one takes some.
const REST: Duration = Duration::from_millis(200);
/// The longest line of an answer.
const LINE: u64 = 128;

/// A sandbox that is there. Dropped, it ends, with all that is in it.
#[derive(Debug)]
pub(super) struct Live {
    launch: Arc<Launch>,
    /// None once it is left to others to wait for it.
    child: Option<Child>,
    pid: u32,
    watch: Watch,
    control: BufReader<UnixStream>,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
    /// The files that the code was given or has left, by what is in them: only others are news.
    known: HashMap<String, u64>,
    /// The files that it was given: they are not given again, since the code may have changed them.
    given: HashMap<String, u64>,
    /// All that is in the sandbox is in it, where there are control groups.
    group: Option<Arc<Cgroup>>,
    permit: Option<Arc<SandboxPermit>>,
    _place: Option<Place>,
}

/// What came of code, and whether its sandbox can run more.
pub(super) struct Ended {
    pub(super) output: CodeOutput,
    pub(super) is_alive: bool,
}

/// A sandbox between codes, where nothing is to go on.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    watch: Watch,
    used: Duration,
}

impl Rest {
    /// Whether something goes on all the same, or it uses too much.
    pub(super) async fn is_broken(&self) -> bool {
        self.watch.look(self.used, REST).await.is_some()
    }
}

/// What the supervisor says.
struct Reply {
    /// The command that runs code has ended, and not only the code.
    is_over: bool,
    /// The code and its files did not fit in.
    is_full: bool,
    status: i32,
    /// An archive; none if the files are too large.
    files: Option<Vec<u8>>,
}

impl Live {
    /// Makes a sandbox, and waits until it is there. Between marking what this process has open and starting a program,
    /// something else may be opened that programs inherit; the supervisor then refuses, and another one is started.
    pub(super) async fn start(launch: &Arc<Launch>, permit: Option<Arc<SandboxPermit>>) -> Result<Self> {
        let (mut attempt, until) = (1, tokio::time::Instant::now() + START);
        loop {
            let mut live = Self::spawn(launch, permit.clone()).await?;
            let why = match tokio::time::timeout_at(until, live.let_go()).await {
                Ok(Ok(true)) => return Ok(live),
                Ok(Ok(false)) => live.last_words().await,
                Ok(Err(error)) => {
                    let said = live.last_words().await;
                    if said.is_empty() { error.to_string() } else { said }
                }
                Err(_) => format!("it was not there after {} s", START.as_secs()),
            };
            if !verdict::is_for_a_descriptor(&why) || attempt == ATTEMPTS {
                return Err(Error::new(ErrorKind::Other, verdict::cannot_start(&why)));
            }
            attempt += 1;
        }
    }

    /// Puts the first process into its control group before it starts others, and waits until it is
    /// ready.
    async fn let_go(&mut self) -> io::Result<bool> {
        if line(&mut self.control).await? != "here\n" {
            return Ok(false);
        }
        if let Some(group) = self.group.clone() {
            let first = if self.launch.is_sandboxed() {
                watch::children(self.pid).first().copied().unwrap_or_default()
            } else {
                self.pid
            };
            // The kernel may take some milliseconds.
            tokio::task::spawn_blocking(move || group.add(first)).await.map_err(io::Error::other)??;
        }
        self.control.write_all(b"go\n").await?;
        Ok(line(&mut self.control).await? == "ready\n")
    }

    async fn spawn(launch: &Arc<Launch>, permit: Option<Arc<SandboxPermit>>) -> Result<Self> {
        let failed = |error: io::Error| {
            Error::new(ErrorKind::Other, format!("the sandbox for code could not be started: {error}"))
        };
        let (mut command, place) = launch.command().map_err(failed)?;
        let makes = launch.clone();
        let group = tokio::task::spawn_blocking(move || makes.group()).await.map_err(io::Error::other);
        let group = group.and_then(|group| group).map_err(failed)?;
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let (out, stdout) = pipe::pipe().map_err(failed)?;
        let (err, stderr) = pipe::pipe().map_err(failed)?;
        command.stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
        command.stdout(out.into_blocking_fd().map_err(failed)?);
        command.stderr(err.into_blocking_fd().map_err(failed)?);
        let child = spawn_from_lasting_thread(command).await.map_err(failed)?;
        let pid = child.id().unwrap_or_default();
        let control = BufReader::new(UnixStream::from_std(ours).map_err(failed)?);
        let watch = Watch::new(pid, launch.clone(), group.clone());
        let (known, given) = (HashMap::new(), HashMap::new());
        let (launch, child) = (launch.clone(), Some(child));
        Ok(Self {
            launch,
            child,
            pid,
            watch,
            control,
            stdout,
            stderr,
            known,
            given,
            group,
            permit,
            _place: place,
        })
    }

    /// Whether it is still there, as far as can be seen.
    pub(super) fn is_there(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub(super) async fn run(&mut self, input: &CodeInput) -> Result<Ended> {
        let launch = self.launch.clone();
        let limits = &launch.sandbox.limits;
        let news: Vec<&CodeFile> = input
            .files
            .iter()
            .filter(|file| self.given.get(&file.name) != Some(&files::digest(&file.data)))
            .collect();
        let request = files::pack(&input.code, &news).map_err(|error| {
            Error::new(ErrorKind::InvalidInput, format!("the code's files cannot be packed: {error}"))
        })?;
        let count = news.len();
        for file in news {
            let digest = files::digest(&file.data);
            self.known.insert(file.name.clone(), digest);
            self.given.insert(file.name.clone(), digest);
        }
        let mut printed = Printed::default();
        let used = self.watch.time().await;
        let reply = {
            let talk = ask(&mut self.control, &request, count, launch.result_bytes());
            let too_much = printed.read(&mut self.stdout, &mut self.stderr, limits.output);
            tokio::select! {
                reply = talk => Ok(reply),
                () = too_much => Err(CodeOutcome::OutputLimit),
                limit = self.watch.until_over(used) => Err(limit),
                () = tokio::time::sleep(limits.time) => Err(CodeOutcome::TimeLimit),
            }
        };
        // Its control group is gone when it has ended.
        let is_out_of_memory = self.group.as_ref().is_some_and(|group| group.out_of_memory() > 0);
        if !matches!(reply, Ok(Ok(_))) {
            self.end().await;
        }
        // What was printed before the answer is in the pipes, if it was not read yet.
        printed.drain(&self.stdout, &self.stderr, limits.output);
        match reply {
            Ok(Ok(reply)) => Ok(self.ended(reply, &printed, limits)),
            Ok(Err(_)) if is_out_of_memory => Ok(stopped(CodeOutcome::MemoryLimit, &printed, limits)),
            Ok(Err(_)) => Ok(stopped(CodeOutcome::Killed { signal: None }, &printed, limits)),
            Err(limit) => Ok(stopped(limit, &printed, limits)),
        }
    }

    /// What it used until now, for one that rests.
    pub(super) async fn rest(&self) -> Rest {
        Rest { watch: self.watch.clone(), used: self.watch.time().await }
    }

    /// What one that could not be made says about that.
    async fn last_words(&mut self) -> String {
        let _ = tokio::time::timeout(LAST_WORDS, self.stderr.readable()).await;
        self.end().await;
        let mut printed = Printed::default();
        printed.drain(&self.stdout, &self.stderr, LAST_WORDS_BYTES);
        text(&printed.stderr)
    }

    /// Ends it, and waits until nothing is left of it.
    pub(super) async fn end(&mut self) {
        self.kill();
        bury(self.child.as_mut(), self.group.as_deref()).await;
    }

    /// Kills the first process of the sandbox, with which the kernel ends all others; `bwrap` outside then clears up. Killed
    /// itself, it would leave that to whoever adopts processes here, and in containers that is often nobody.
    fn kill(&self) {
        let Some(child) = &self.child else { return };
        if let Some(group) = &self.group {
            group.kill();
        }
        let is_child = |child| watch::children(self.pid).contains(&child);
        let first = watch::children(self.pid).first().copied().filter(|_| self.launch.is_sandboxed());
        // Once the child was waited for, its number is no longer its own, and there is nothing to do.
        if child.id().is_some() && !first.is_some_and(|first| kill_child(first, is_child)) {
            drop(Group::of(child));
        }
    }

    fn ended(&mut self, reply: Reply, printed: &Printed, limits: &Limits) -> Ended {
        if printed.is_too_much {
            return stopped(CodeOutcome::OutputLimit, printed, limits);
        }
        if reply.is_full {
            let output = CodeOutput::ended(CodeOutcome::DiskLimit).note(files::no_room(limits));
            return Ended { output, is_alive: false };
        }
        let mut outcome = verdict::of_status(reply.status, &printed.stderr);
        let mut notes: Vec<String> = verdict::note(outcome, limits).into_iter().collect();
        let unpacked = match reply.files {
            Some(archive) => files::unpack(&archive, limits, &mut self.known),
            None => Err(files::too_large(limits)),
        };
        let (files, left_out) = unpacked.unwrap_or_else(|why| {
            // Code that failed has said why, and that is what counts.
            if outcome.is_ok() {
                outcome = CodeOutcome::DiskLimit;
            }
            (Vec::new(), Some(why))
        });
        notes.extend(left_out);
        let mut output =
            CodeOutput::ended(outcome).stdout(text(&printed.stdout)).stderr(text(&printed.stderr));
        output.files = files;
        output.note = (!notes.is_empty()).then(|| notes.join(" "));
        Ended { output, is_alive: !reply.is_over }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.kill();
        // The permit is given back when its memory is.
        let (mut child, group, permit) = (self.child.take(), self.group.take(), self.permit.take());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                bury(child.as_mut(), group.as_deref()).await;
                drop(permit);
            });
        }
    }
}

/// Waits until the processes of a sandbox that was killed are gone, and removes its control group.
async fn bury(child: Option<&mut Child>, group: Option<&Cgroup>) {
    if let Some(child) = child {
        let _ = child.wait().await;
    }
    if let Some(group) = group {
        group.remove().await;
    }
}

/// Code that was stopped from here.
fn stopped(outcome: CodeOutcome, printed: &Printed, limits: &Limits) -> Ended {
    let mut output = CodeOutput::ended(outcome).stdout(text(&printed.stdout)).stderr(text(&printed.stderr));
    output.note = verdict::note(outcome, limits);
    Ended { output, is_alive: false }
}

/// Asks the supervisor to run what is packed, with so many files. Nothing that comes back is trusted: the code may have got
/// hold of it.
async fn ask(
    control: &mut BufReader<UnixStream>,
    request: &[u8],
    files: usize,
    most: u64,
) -> io::Result<Reply> {
    let strange = || io::Error::new(io::ErrorKind::InvalidData, "no answer");
    let word = format!("{:016x}", RandomState::new().hash_one(request.len()));
    control.write_all(format!("{} {word} {files}\n", request.len()).as_bytes()).await?;
    control.write_all(request).await?;
    let line = line(control).await?;
    let [said, status, size] =
        line.split_whitespace().collect::<Vec<_>>().try_into().map_err(|_| strange())?;
    if said != word && said != "ended" && said != "full" {
        return Err(strange());
    }
    let status = status.parse().map_err(|_| strange())?;
    let files = match size {
        "-" => None,
        size => {
            let size: u64 = size.parse().map_err(|_| strange())?;
            let mut archive = Vec::new();
            if size > most || (&mut *control).take(size).read_to_end(&mut archive).await? as u64 != size {
                return Err(strange());
            }
            Some(archive)
        }
    };
    Ok(Reply { is_over: said == "ended", is_full: said == "full", status, files })
}

async fn line(control: &mut BufReader<UnixStream>) -> io::Result<String> {
    let mut line = Vec::new();
    control.take(LINE).read_until(b'\n', &mut line).await?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// What code printed, as far as it may.
#[derive(Default)]
struct Printed {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    is_too_much: bool,
}

impl Printed {
    /// Reads what comes. It ends when it is too much, and never otherwise.
    async fn read(&mut self, stdout: &mut pipe::Receiver, stderr: &mut pipe::Receiver, limit: usize) {
        let (mut out, mut err) = (vec![0; 16 << 10], vec![0; 16 << 10]);
        let (mut is_out, mut is_err) = (true, true);
        while !self.is_too_much {
            tokio::select! {
                count = stdout.read(&mut out), if is_out => {
                    is_out = self.take(false, out.get(..count.unwrap_or(0)).unwrap_or_default(), limit);
                }
                count = stderr.read(&mut err), if is_err => {
                    is_err = self.take(true, err.get(..count.unwrap_or(0)).unwrap_or_default(), limit);
                }
                else => std::future::pending().await,
            }
        }
    }

    /// Reads what is there already.
    fn drain(&mut self, stdout: &pipe::Receiver, stderr: &pipe::Receiver, limit: usize) {
        let mut buffer = vec![0; 16 << 10];
        for (is_error, pipe) in [(false, stdout), (true, stderr)] {
            while !self.is_too_much {
                let count = pipe.try_read(&mut buffer).unwrap_or(0);
                if !self.take(is_error, buffer.get(..count).unwrap_or_default(), limit) {
                    break;
                }
            }
        }
    }

    /// Keeps it while there is room. Says whether there may be more.
    fn take(&mut self, is_error: bool, bytes: &[u8], limit: usize) -> bool {
        let room = limit.saturating_sub(self.stdout.len() + self.stderr.len());
        let kept = if is_error { &mut self.stderr } else { &mut self.stdout };
        kept.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        self.is_too_much |= bytes.len() > room;
        !bytes.is_empty()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
