//! Code that a model wrote, run in a sandbox.
//!
//! # Layout
//! - `mod.rs`: what may be set, and the executor
//! - `launch.rs`: the command line that makes a sandbox; `seccomp.rs`: what code may ask of the
//!   kernel, by the numbers in `calls.rs`
//! - `supervisor.sh`: the first process in there; `session.py`: what keeps definitions for later code
//! - `pool.rs`: how many there may be, and how much memory they may take together; `cgroup.rs`:
//!   control groups
//! - `live.rs`: a sandbox that is there, and how it is asked; `watch.rs`: what it uses; `sessions.rs`: those that are kept
//! - `files.rs`: files in and out; `verdict.rs`: from how code ended to its outcome

mod calls;
mod cgroup;
mod files;
mod launch;
mod live;
mod pool;
mod seccomp;
mod sessions;
mod verdict;
mod watch;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;
use umbel_core::{
    BoxFuture, CodeExecutor, CodeInput, CodeOutcome, CodeOutput, CodeSpec, Error, ErrorKind, Result, Run,
};

use self::launch::Launch;
use self::live::Live;
pub use self::pool::SandboxPool;
use self::sessions::Sessions;

/// What the end of code may take, once its time is over.
const MARGIN: Duration = Duration::from_secs(5);

/// How much code may use.
#[derive(Clone, Debug)]
struct Limits {
    time: Duration,
    cpu: Duration,
    memory: u64,
    disk: u64,
    processes: u64,
    output: usize,
    code: usize,
    files: usize,
    file_bytes: usize,
}

/// A sandbox for code that a model wrote, in the making.
///
/// It is a child process in namespaces of its own, by [bubblewrap](https://github.com/containers/bubblewrap): there is no
/// network, nothing of the file system but programs and libraries (read-only) and an empty working directory, no environment
/// and no privileges. Its limits hold for everything that the code starts. Linux only.
///
/// So that nothing of this process reaches the code, all that it has open is marked to be closed in programs that it starts
/// (`FD_CLOEXEC`), whenever a sandbox is made. Who hands descriptors to programs of their own must do so when they start them.
///
/// ```
/// use std::time::Duration;
/// use umbel_core::CodeInput;
/// use umbel_tools::Sandbox;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let python = Sandbox::python().time(Duration::from_secs(10)).build()?;
/// let output = python.run(CodeInput::new("print(6 * 7)", "python")).await?;
/// assert_eq!(output.stdout, "42\n");
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Clone)]
pub struct Sandbox {
    language: SmolStr,
    interpreter: Vec<String>,
    seen: Vec<PathBuf>,
    env: Vec<(String, String)>,
    limits: Limits,
    keeps: Option<Keeps>,
    pool: Option<SandboxPool>,
    is_unsandboxed: bool,
}

/// How definitions are kept for later code.
#[derive(Clone, Copy, Debug)]
struct Keeps {
    sessions: usize,
    idle: Duration,
}

impl Sandbox {
    /// For Python: the `python3` of the system.
    pub fn python() -> Self {
        Self::new("python", ["python3"])
    }

    /// For another language: its name in small letters, and the program that runs a file with code, with arguments that come
    /// before the file. Programs are looked for in `/usr/local/bin`, `/usr/bin` and `/bin`.
    pub fn new<T: Into<String>>(
        language: impl Into<SmolStr>,
        interpreter: impl IntoIterator<Item = T>,
    ) -> Self {
        Self {
            language: language.into(),
            interpreter: interpreter.into_iter().map(Into::into).collect(),
            seen: Vec::new(),
            env: Vec::new(),
            limits: Limits {
                time: Duration::from_secs(30),
                cpu: Duration::from_secs(20),
                memory: 512 << 20,
                disk: 64 << 20,
                processes: 32,
                output: 128 << 10,
                code: 1 << 20,
                files: 64,
                file_bytes: 16 << 20,
            },
            keeps: None,
            pool: None,
            is_unsandboxed: false,
        }
    }

    /// Lets code read a file or folder of this machine, under the same path. It sees `/usr` otherwise, and what belongs to it,
    /// such as `/lib`.
    pub fn read_only(mut self, path: impl Into<PathBuf>) -> Self {
        self.seen.push(path.into());
        self
    }

    /// Sets a variable of its environment. Code can read it, so it is no place for secrets.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// How long code may run; 30 s.
    pub fn time(mut self, time: Duration) -> Self {
        self.limits.time = time;
        self
    }

    /// How much processor time all its processes may use together; 20 s.
    pub fn cpu(mut self, time: Duration) -> Self {
        self.limits.cpu = time;
        self
    }

    /// How much memory all its processes may use together; 512 MiB.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.limits.memory = bytes;
        self
    }

    /// How much it may write to its working directory, and as much again to `/tmp`, a quarter of it to `/dev/shm`; 64 MiB. It
    /// is memory, and comes on top of that.
    pub fn disk(mut self, bytes: u64) -> Self {
        self.limits.disk = bytes;
        self
    }

    /// How many processes and threads there may be at a time; 32.
    pub fn processes(mut self, count: u64) -> Self {
        self.limits.processes = count;
        self
    }

    /// How many bytes it may print, errors included; 128 KiB. Code that prints more is stopped at once.
    pub fn output_bytes(mut self, bytes: usize) -> Self {
        self.limits.output = bytes;
        self
    }

    /// How long code may be; 1 MiB.
    pub fn code_bytes(mut self, bytes: usize) -> Self {
        self.limits.code = bytes;
        self
    }

    /// How many files it may be given, and may leave; 64 each. Of those that it is given the last ones stay.
    pub fn files(mut self, count: usize) -> Self {
        self.limits.files = count;
        self
    }

    /// How many bytes the files together may have that it is given, and those that it leaves; 16 MiB each. It cannot be more
    /// than [`Self::disk`].
    pub fn file_bytes(mut self, bytes: usize) -> Self {
        self.limits.file_bytes = bytes;
        self
    }

    /// Keeps what code defines, and its files, for later code of the same session. Python only. Eight sessions are kept, each
    /// for ten minutes after its last code; [`Self::sessions`] and [`Self::idle`] say otherwise.
    pub fn stateful(mut self) -> Self {
        self.keeps();
        self
    }

    /// The same, with at most so many sessions: for another one, that which was not used for longest ends.
    pub fn sessions(mut self, count: usize) -> Self {
        self.keeps().sessions = count.max(1);
        self
    }

    /// The same, where a session that is not used for so long ends.
    pub fn idle(mut self, time: Duration) -> Self {
        self.keeps().idle = time;
        self
    }

    fn keeps(&mut self) -> &mut Keeps {
        self.keeps.get_or_insert(Keeps { sessions: 8, idle: Duration::from_secs(600) })
    }

    /// The pool that it belongs to: the cap over the number and the memory of all sandboxes that
    /// share it. Without it, that is one for the whole process: 32 sandboxes, and half of the
    /// memory.
    pub fn pool(mut self, pool: SandboxPool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Runs code **without a sandbox**: it can read and write what this process can, and reach the network. For machines that
    /// are a sandbox themselves, and for code that you would run yourself. The limits of time, processor time, memory, output
    /// and files stay; what code starts is killed with it, and with this process, unless it leaves its process group, as `setsid`
    /// does.
    pub fn dangerously_unsandboxed(mut self) -> Self {
        self.is_unsandboxed = true;
        self
    }

    /// Checks that code can be run here, by running some, and makes the executor. Nothing is run unsandboxed instead: what is
    /// missing is said.
    pub fn build(self) -> Result<SandboxExecutor> {
        let refuse = |why: String| Error::new(ErrorKind::Build, format!("the sandbox for code: {why}"));
        if self.interpreter.first().is_none_or(String::is_empty) {
            return Err(refuse("it has no program that runs code: name one".to_owned()));
        }
        if self.keeps.is_some() && self.language != "python" {
            let why = format!("definitions are kept for python only, not for {}", self.language);
            return Err(refuse(why));
        }
        let Limits { disk, file_bytes, .. } = self.limits;
        if file_bytes as u64 > disk {
            let why = format!("its files may have {file_bytes} bytes, and its disk has {disk}: set both");
            return Err(refuse(why));
        }
        let is_name = |name: &str| {
            !name.starts_with(|first: char| first.is_ascii_digit())
                && !name.is_empty()
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if let Some((name, _)) = self.env.iter().find(|(name, _)| !is_name(name)) {
            return Err(refuse(format!("`{}` is no name of a variable", name.escape_debug())));
        }
        // The limits here come first, and say more. Neither waiting for a permit, nor the making of
        // a sandbox, nor waiting for other code of the session is the code's own time, but each has
        // an end.
        let time = self.limits.time.saturating_mul(2).saturating_add(live::START).saturating_add(MARGIN);
        let patience = self.keeps.map_or(Duration::ZERO, |_| time);
        let mut spec = CodeSpec::new(self.language.clone()).timeout(time.saturating_add(patience));
        spec.stateful = self.keeps.is_some();
        // Without definitions and without a way out, code does the same again.
        spec.repeatable = !spec.stateful && !self.is_unsandboxed;
        let keeps = self.keeps;
        let launch = Arc::new(Launch::prepare(self).map_err(refuse)?);
        if let Some(why) = launch.pool.refuse(launch.all_memory()) {
            return Err(refuse(why));
        }
        probe(&launch).map_err(refuse)?;
        let sessions = keeps.map(|keeps| Sessions::new(keeps.sessions, keeps.idle, patience));
        sessions.iter().for_each(|sessions| launch.pool.join(sessions));
        Ok(SandboxExecutor { spec, launch, sessions })
    }
}

/// What is set for the code is not shown.
impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.is_unsandboxed { "UNSANDBOXED" } else { "sandboxed" };
        write!(
            f,
            "Sandbox({}, {:?}, {how}, {:?}, {:?}, {:?})",
            self.language, self.interpreter, self.limits, self.keeps, self.pool
        )
    }
}

/// Runs an empty program the way that others will be run. It has a thread and a runtime of its own, since who builds agents
/// need not be in one.
fn probe(launch: &Arc<Launch>) -> std::result::Result<(), String> {
    let launch = launch.clone();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("it cannot be tried: {error}"))?;
        let input = CodeInput::new("", launch.sandbox.language.clone());
        runtime.block_on(async {
            // An empty program needs no permit: who builds agents does not wait for code that runs.
            let said = async {
                let mut live = Live::start(&launch, None).await?;
                let ended = live.run(&input).await;
                live.end().await;
                ended
            };
            match said.await {
                Ok(ended) if ended.output.outcome.is_ok() => Ok(()),
                Ok(ended) => Err(verdict::cannot_run(&launch.sandbox.interpreter, &ended.output)),
                Err(error) => Err(error.message().to_owned()),
            }
        })
    };
    let thread = std::thread::Builder::new().name("umbel-probe".to_owned()).spawn(run);
    let thread = thread.map_err(|error| format!("it cannot be tried: {error}"))?;
    thread.join().unwrap_or_else(|_| Err("it could not be tried".to_owned()))
}

/// Runs code in a sandbox; [`Sandbox`] makes it. Whoever drops its future kills the code, with all that it started; so does
/// the end of this process.
#[derive(Clone)]
pub struct SandboxExecutor {
    spec: CodeSpec,
    launch: Arc<Launch>,
    sessions: Option<Arc<Sessions>>,
}

impl SandboxExecutor {
    /// Runs code to its end, whatever that is: see [`CodeOutcome`]. An error says that it could not be run at all.
    pub async fn run(&self, mut input: CodeInput) -> Result<CodeOutput> {
        if let Some(refused) = self.refuse(&input) {
            return Ok(refused);
        }
        files::check(&input.files)?;
        let left_out = files::fit(&mut input.files, &self.launch.sandbox.limits);
        let mut output = match (&self.sessions, &input.session) {
            (Some(sessions), Some(session)) => sessions.run(&self.launch, session, &input).await?,
            _ => Live::start(&self.launch, Some(self.launch.admit().await?)).await?.run(&input).await?.output,
        };
        let notes: Vec<String> = output.note.take().into_iter().chain(left_out).collect();
        output.note = (!notes.is_empty()).then(|| notes.join(" "));
        Ok(output)
    }

    /// What the model hears about code that is not even tried.
    fn refuse(&self, input: &CodeInput) -> Option<CodeOutput> {
        let (language, limit) = (&self.spec.language, self.launch.sandbox.limits.code);
        if !input.language.is_empty() && input.language != *language {
            let why = format!("This code is in {}, and only {language} can be run here.", input.language);
            return Some(CodeOutput::failed(why));
        }
        if input.code.len() > limit {
            let why = format!("The code has {} bytes, and {limit} are allowed.", input.code.len());
            return Some(CodeOutput::ended(CodeOutcome::Failed { exit_code: None }).stderr(why));
        }
        None
    }
}

impl CodeExecutor for SandboxExecutor {
    fn spec(&self) -> &CodeSpec {
        &self.spec
    }

    fn execute<'a>(&'a self, _: &'a Run, input: CodeInput) -> BoxFuture<'a, Result<CodeOutput>> {
        Box::pin(self.run(input))
    }
}

impl fmt::Debug for SandboxExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SandboxExecutor({:?}, {:?})", self.launch.sandbox, self.launch.pool)
    }
}
