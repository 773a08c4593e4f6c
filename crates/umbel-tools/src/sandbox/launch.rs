//! The command line that makes a sandbox.
//!
//! Everything is done by programs that are made for it: a shell opens the filter of system calls, `setpriv` gives up the
//! rights of root, `bwrap` makes the namespaces, `prlimit` sets what the kernel counts. Each becomes the next one, so that the
//! process that is started here is the one that the sandbox ends with.

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;
use tokio::process::Command;

use super::cgroup::{Cgroup, Cgroups};
use super::pool::{SandboxPermit, SandboxPool};
use super::{Sandbox, seccomp};

const SUPERVISOR: &str = include_str!("supervisor.sh");
const SESSION: &str = include_str!("session.py");
/// Becomes a program with the variables that are set for the code.
const WITH_VARIABLES: &str = r#"
at=0
while eval "[ -n \"\${CODE_ENV_$at+x}\" ]"; do
    eval "export \"\$CODE_ENV_$at\""
    unset "CODE_ENV_$at"
    at=$((at + 1))
done
exec "$@"
"#;
/// Where programs are looked for, outside and inside.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What of `/` is a part of `/usr`, or once was.
const SYSTEM: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// What of `/etc` programs need to find their libraries.
const SETTINGS: [&str; 4] = ["ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives"];
/// Processes beside the code's: the supervisor with what packs its files.
const OWN_PROCESSES: u64 = 8;
/// Room for the stack of a thread. The kernel counts it as memory, though little of it is used.
const STACK: u64 = 8 << 20;
/// Files that a process may have open.
const OPEN_FILES: u64 = 256;

/// Users that are nobody's. The first is for machines, the second where only so many users are known, as in a container.
const NOBODIES: (u32, u32) = (0x7000_0000, 60_000);

/// How sandboxes are made.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) sandbox: Sandbox,
    /// The cap that it shares with others.
    pub(super) pool: SandboxPool,
    /// The filter of system calls, which `bwrap` reads; none without a sandbox. It is a file without a name.
    filter: Option<File>,
    /// First of the users that code runs as, and how many there are; none if this process is no root.
    users: Option<(u32, u32)>,
}

/// What is needed of this machine for code that has no sandbox, and ends with it.
#[derive(Debug)]
pub(super) struct Place {
    /// Where the code works.
    folder: TempDir,
    /// Nobody writes to it: who reads from it hears when this process is gone.
    lifeline: (PipeReader, PipeWriter),
}

impl Place {
    fn new() -> std::io::Result<Self> {
        Ok(Self { folder: folder()?, lifeline: std::io::pipe()? })
    }

    /// Where another process finds the lifeline.
    fn lifeline(&self) -> String {
        open_here(&self.lifeline.0)
    }
}

/// The path under which others find what this process has open.
fn open_here(what: &impl AsRawFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), what.as_raw_fd())
}

impl Launch {
    pub(super) fn prepare(sandbox: Sandbox) -> Result<Self, String> {
        let pool = sandbox.pool.clone().unwrap_or_else(SandboxPool::of_process);
        if sandbox.is_unsandboxed {
            return Ok(Self { sandbox, pool, filter: None, users: None });
        }
        for (program, package) in
            [("bwrap", "bubblewrap"), ("prlimit", "util-linux"), ("setpriv", "util-linux")]
        {
            if !is_program(program) {
                return Err(format!("`{program}` is missing: install the package {package}"));
            }
        }
        let filter = seccomp::filter()
            .ok_or("the system calls of this machine are not known: x86-64 and arm64 are")?;
        let filter =
            temporary(&filter).map_err(|error| format!("a temporary file cannot be written: {error}"))?;
        let users = rustix::process::geteuid().is_root().then(nobodies);
        Ok(Self { sandbox, pool, filter: Some(filter), users })
    }

    /// The command that makes a sandbox, and what has to live as long as that. It is to be given a socket to be asked over.
    pub(super) fn command(&self) -> std::io::Result<(Command, Option<Place>)> {
        let place = if self.is_sandboxed() { None } else { Some(Place::new()?) };
        let folder = place.as_ref().map_or(Path::new(""), |place| place.folder.path());
        let mut argv: Vec<String> = Vec::new();
        if let Some(filter) = &self.filter {
            argv.extend(["sh", "-c", r#"exec 9<"$0" && exec "$@""#].map(str::to_owned));
            argv.push(open_here(filter));
            argv.extend(self.drop_root());
            argv.extend(self.bwrap());
        }
        argv.extend(self.limits());
        argv.extend(["sh", "-c", SUPERVISOR, "supervisor"].map(str::to_owned));
        argv.push(if self.sandbox.keeps.is_some() { "session" } else { "once" }.to_owned());
        argv.push(folder.to_string_lossy().into_owned());
        argv.push(place.as_ref().map(Place::lifeline).unwrap_or_default());
        argv.push(self.sandbox.limits.files.to_string());
        argv.extend(self.run_code(folder));
        let mut argv = argv.into_iter();
        let mut command = Command::new(argv.next().unwrap_or_default());
        command.args(argv).env_clear().process_group(0);
        command.envs(environment(folder));
        // They are not on the command line, where everybody could read them; and not by their names, or they would count for
        // other programs than the code's.
        let set = self.sandbox.env.iter().enumerate();
        command.envs(set.map(|(at, (name, value))| (format!("CODE_ENV_{at}"), format!("{name}={value}"))));
        Ok((command, place))
    }

    /// Root could do too much, and no limit on processes holds for it.
    fn drop_root(&self) -> Vec<String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let Some((first, count)) = self.users else { return Vec::new() };
        // Each gets another one, so that limits by user are limits by sandbox.
        let start = std::process::id().wrapping_mul(7919);
        let user = first + start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        let ids = [format!("--reuid={user}"), format!("--regid={user}")];
        ["setpriv".to_owned()].into_iter().chain(ids).chain(["--clear-groups".to_owned()]).collect()
    }

    fn bwrap(&self) -> Vec<String> {
        let mut argv: Vec<String> =
            "bwrap --unshare-all --unshare-user --disable-userns --uid 1000 --gid 1000 \
            --hostname sandbox --cap-drop ALL --cap-add CAP_SETPCAP --new-session --die-with-parent --as-pid-1 \
            --seccomp 9 --ro-bind /usr /usr"
                .split_whitespace()
                .map(str::to_owned)
                .collect();
        let mut add = |words: &[&str]| argv.extend(words.iter().map(|word| (*word).to_owned()));
        for name in SYSTEM {
            let path = format!("/{name}");
            match std::fs::read_link(&path) {
                Ok(target) => add(&["--symlink", &target.to_string_lossy(), &path]),
                Err(_) => add(&["--ro-bind-try", &path, &path]),
            }
        }
        for name in SETTINGS {
            let path = format!("/etc/{name}");
            add(&["--ro-bind-try", &path, &path]);
        }
        // `/dev/full` gives zeros as well, but no memory that nobody counts.
        add(&["--proc", "/proc", "--dev", "/dev", "--dev-bind", "/dev/full", "/dev/zero"]);
        // How many terminals there may be is counted for the whole machine.
        add(&["--tmpfs", "/dev/pts", "--remount-ro", "/dev/pts"]);
        for (path, size) in self.spaces() {
            add(&["--size", &size.max(PAGE).to_string(), "--tmpfs", path]);
        }
        for path in &self.sandbox.seen {
            let path = path.to_string_lossy();
            add(&["--ro-bind", &path, &path]);
        }
        add(&["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/work", "--"]);
        argv
    }

    /// The file systems that code can write to, and how large they are. They are memory.
    fn spaces(&self) -> [(&'static str, u64); 5] {
        let disk = self.sandbox.limits.disk;
        [
            ("/dev/shm", disk / 4),
            ("/work", disk),
            ("/tmp", disk),
            ("/code", (self.sandbox.limits.code as u64).saturating_add(PAGE)),
            ("/own", self.result_bytes()),
        ]
    }

    /// How large the largest file system is that code can write to.
    pub(super) fn largest_space(&self) -> u64 {
        self.spaces().iter().map(|(_, size)| *size).max().unwrap_or_default()
    }

    /// The memory that a sandbox may take: that of its processes, and its file systems.
    pub(super) fn all_memory(&self) -> u64 {
        let spaces = self.spaces().into_iter().filter(|_| self.is_sandboxed());
        spaces.fold(self.sandbox.limits.memory, |all, (_, size)| all.saturating_add(size))
    }

    /// How many processes and threads the kernel lets there be: twice as many as code may have, so
    /// that who starts too many is seen, and named, before the kernel refuses.
    fn tasks(&self) -> u64 {
        self.sandbox.limits.processes.saturating_mul(2).saturating_add(OWN_PROCESSES)
    }

    /// The same, with those who look after the code.
    fn all_tasks(&self) -> u64 {
        self.tasks().saturating_add(2 * OWN_PROCESSES)
    }

    /// Waits for the permit to make a sandbox, as long as code may run.
    pub(super) async fn admit(&self) -> umbel_core::Result<Arc<SandboxPermit>> {
        self.pool.acquire(self.all_memory(), self.sandbox.limits.time).await.map(Arc::new)
    }

    /// Makes a control group for a sandbox, where that can be had.
    pub(super) fn group(&self) -> std::io::Result<Option<Arc<Cgroup>>> {
        let group = Cgroups::here().map(|here| here.create(self.all_memory(), self.all_tasks()));
        group.transpose().map(|group| group.map(Arc::new))
    }

    /// Whether there is a sandbox.
    pub(super) fn is_sandboxed(&self) -> bool {
        self.filter.is_some()
    }

    /// How large an archive with the files that code leaves may be: a header for each, and its last block is filled up.
    pub(super) fn result_bytes(&self) -> u64 {
        let limits = &self.sandbox.limits;
        let headers = (limits.files as u64).saturating_add(1).saturating_mul(2048);
        (limits.file_bytes as u64).saturating_add(headers).saturating_add(64 * 1024)
    }

    /// What the kernel holds all of the sandbox to. Together with what [`super::watch`] sees of all its processes.
    fn limits(&self) -> Vec<String> {
        let limits = &self.sandbox.limits;
        let file = limits.disk.max(self.result_bytes());
        let mut argv = vec!["prlimit".to_owned()];
        // 1 keeps the kernel from handing what is left of a process to a program of this machine.
        argv.extend(["--core=1".to_owned(), format!("--nofile={OPEN_FILES}")]);
        let data = limits.memory.saturating_add(self.tasks().saturating_mul(STACK));
        argv.extend([format!("--data={data}"), format!("--stack={STACK}"), format!("--fsize={file}")]);
        // Without a sandbox, all processes of the user would count.
        if self.is_sandboxed() {
            argv.push(format!("--nproc={}", self.all_tasks()));
        }
        argv
    }

    /// The command that runs the code.
    fn run_code(&self, folder: &Path) -> Vec<String> {
        let limits = &self.sandbox.limits;
        let mut argv: Vec<String> = Vec::new();
        if self.is_sandboxed() {
            // The supervisor keeps a right, which is of no use but for this: who has it not may not look into its memory.
            let without = ["setpriv", "--ambient-caps=-all", "--inh-caps=-all", "--bounding-set=-all"];
            argv.extend(without.map(str::to_owned));
        }
        argv.extend(["prlimit".to_owned(), format!("--fsize={}", limits.disk)]);
        if self.is_sandboxed() {
            argv.push(format!("--nproc={}", self.tasks()));
        }
        // That of a session may take as long for each code.
        if self.sandbox.keeps.is_none() {
            argv.push(format!("--cpu={}", limits.cpu.as_secs().saturating_add(2)));
        }
        if !self.sandbox.env.is_empty() {
            argv.extend(["sh", "-c", WITH_VARIABLES, "sh"].map(str::to_owned));
        }
        argv.extend(self.sandbox.interpreter.iter().cloned());
        if self.sandbox.keeps.is_some() {
            argv.extend(["-c", SESSION].map(str::to_owned));
        }
        argv.push(folder.join("code/main").to_string_lossy().into_owned());
        if folder.as_os_str().is_empty() {
            argv.last_mut().into_iter().for_each(|path| path.insert(0, '/'));
        }
        argv
    }
}

const PAGE: u64 = 4096;

/// The variables that programs find. What Python prints comes at once, so that code that is stopped has said what it did.
fn environment(folder: &Path) -> Vec<(&'static str, String)> {
    let folder = folder.display();
    vec![
        ("PATH", PATH.to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("HOME", "/tmp".to_owned()),
        ("USER", "sandbox".to_owned()),
        ("PYTHONPATH", format!("{folder}/work")),
        ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
        ("PYTHONUNBUFFERED", "1".to_owned()),
    ]
}

/// A folder of this machine, with what the supervisor expects there.
fn folder() -> std::io::Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("umbel-code-").tempdir()?;
    ["work", "code", "own"].iter().try_for_each(|name| std::fs::create_dir(folder.path().join(name)))?;
    Ok(folder)
}

fn temporary(bytes: &[u8]) -> std::io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(bytes)?;
    Ok(file)
}

fn is_program(name: &str) -> bool {
    PATH.split(':').any(|folder| PathBuf::from(folder).join(name).is_file())
}

/// Users for code: many, unless this process knows of few itself.
fn nobodies() -> (u32, u32) {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let known = map.split_whitespace().nth(2).and_then(|count| count.parse::<u64>().ok()).unwrap_or(u64::MAX);
    let is_whole = known > u64::from(NOBODIES.0) + 0x0fff_ffff;
    if is_whole { (NOBODIES.0, 0x0fff_fff0) } else { (NOBODIES.1, 1000) }
}
