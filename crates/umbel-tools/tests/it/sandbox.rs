//! Code in a sandbox: what it can do, and that it can do nothing else.
//!
//! Without bubblewrap these tests fail, and say what to install; `cargo xtask test sandbox` installs it and runs them as root
//! and as a user.

mod cgroup;
mod pool;
mod programs;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind as Io, Read};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, Command};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{StreamExt, stream};
use tempfile::TempDir;
use umbel_core::{CodeExecutor, CodeFile, CodeInput, CodeOutcome, CodeOutput, SessionKey};
use umbel_tools::{Sandbox, SandboxExecutor, SandboxPool};

use crate::abuse::{Abuse, PRELUDE, PROGRAMS};

/// Makes it in a pool of its own: tests at the same time are not to wait for each other.
fn build(sandbox: Sandbox) -> SandboxExecutor {
    build_shared(sandbox.pool(SandboxPool::new()))
}

fn build_shared(sandbox: Sandbox) -> SandboxExecutor {
    sandbox.build().unwrap_or_else(|error| panic!("{}", error.message()))
}

fn python() -> SandboxExecutor {
    build(Sandbox::python())
}

async fn run(executor: &SandboxExecutor, code: &str) -> CodeOutput {
    executor.run(CodeInput::new(code, "python")).await.unwrap()
}

fn in_session(code: &str, session: &str) -> CodeInput {
    CodeInput::new(code, "python").session(SessionKey::new("app", "ann", session).unwrap())
}

/// Waits until something is so.
async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// How many processes of this machine are in a process namespace.
fn processes_in(namespace: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let links = processes.filter_map(|process| std::fs::read_link(process.path().join("ns/pid")).ok());
    links.filter(|link| link.to_string_lossy() == namespace).count()
}

/// Whether it is one of the programs that are started here, and runs. As a zombie it is gone.
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    ["(sleep)", "(python3"].iter().any(|name| stat.contains(name)) && !stat.contains(") Z ")
}

/// Code that says in which namespace its processes are.
const NAMESPACE: &str = "import os\nprint(os.readlink('/proc/self/ns/pid'),flush=True)\n";

#[tokio::test]
async fn code_runs_and_says_what_it_says() {
    let python = python();
    let output = run(&python, "import sys\nprint('a')\nprint('b', file=sys.stderr)").await;
    assert_eq!(output, CodeOutput::ok("a\n").stderr("b\n"));
    let output = run(&python, "def f():\n    return 1 / 0\nf()").await;
    assert_eq!(output.outcome, CodeOutcome::Failed { exit_code: Some(1) });
    assert!(
        output.stderr.contains("line 2, in f") && output.stderr.contains("ZeroDivisionError"),
        "{output:?}"
    );
    let output = python.run(CodeInput::new("print(1)", "")).await.unwrap();
    assert_eq!(output.stdout, "1\n");
}

#[tokio::test]
async fn files_go_in_and_what_is_new_comes_out() {
    let code = "rows = open('in.csv').read().split()\nopen('out.json', 'w').write(str(len(rows)))\n\
        open('same.txt').read()\nopen('changed.txt', 'w').write('b')\nimport helper\nprint(helper.x)\n\
        import os\nos.mkdir('folder')\nopen('folder/x', 'w').close()";
    let files = [
        CodeFile::new("in.csv", "text/csv", *b"a\nb\nc"),
        CodeFile::new("same.txt", "text/plain", *b"a"),
        CodeFile::new("changed.txt", "text/plain", *b"a"),
        CodeFile::new("helper.py", "text/x-python", *b"x = 5"),
        CodeFile::new("-rf ~ $(id)", "text/plain", *b"a"),
        CodeFile::new("ü".repeat(120), "text/plain", *b"a"),
    ];
    let output = python().run(CodeInput::new(code, "python").files(files)).await.unwrap();
    let expected = [
        CodeFile::new("changed.txt", "text/plain", *b"b"),
        CodeFile::new("out.json", "application/json", *b"3"),
    ];
    assert_eq!(output, CodeOutput::ok("5\n").files(expected));
}

#[tokio::test]
async fn what_code_is_given_does_not_count_as_what_it_leaves() {
    let limits = || Sandbox::python().files(2).file_bytes(1 << 20);
    let file = |name: &str, size: usize| CodeFile::new(name, "text/plain", vec![b'x'; size]);
    let given = || [file("a", 900 << 10), file("b", 1)];
    let write = |name: &str| format!("_ = open('{name}', 'w').write('y' * (600 << 10))");
    let names = |output: &CodeOutput| output.files.iter().map(|file| file.name.clone()).collect::<Vec<_>>();
    for sandbox in [limits(), limits().dangerously_unsandboxed()] {
        let output = build(sandbox).run(CodeInput::new(write("c"), "python").files(given())).await.unwrap();
        assert_eq!((output.outcome, names(&output)), (CodeOutcome::Ok, vec!["c".to_owned()]), "{output:?}");
    }
    // Nor does what earlier code of the session left.
    let python = build(limits().stateful());
    for name in ["c", "d", "e", "f"] {
        let output = python.run(in_session(&write(name), "s").files(given())).await.unwrap();
        assert_eq!((output.outcome, names(&output)), (CodeOutcome::Ok, vec![name.to_owned()]), "{output:?}");
    }
    let output =
        python.run(in_session("open('c', 'w').close()\nopen('a', 'a').write('z')", "s")).await.unwrap();
    assert_eq!(names(&output), ["a", "c"]);
}

#[tokio::test]
async fn files_of_two_names_come_out_as_two() {
    let code = "import os\nopen('a', 'w').write('x')\nos.link('a', 'b')";
    let output = run(&python(), code).await;
    let files = ["a", "b"].map(|name| CodeFile::new(name, "application/octet-stream", *b"x"));
    assert_eq!(output, CodeOutput::ok("").files(files));
}

#[tokio::test]
async fn files_that_cannot_be_given_are_refused() {
    let python = build(Sandbox::python().files(1).file_bytes(10));
    let run = |files: Vec<CodeFile>| python.run(CodeInput::new("", "python").files(files));
    let file = |name: &str, size: usize| CodeFile::new(name, "text/plain", vec![0; size]);
    for (files, why) in
        [(vec![file("../up", 1)], "no name of a file"), (vec![file("/etc/x", 1)], "no name of a file")]
    {
        let error = run(files).await.unwrap_err();
        assert!(error.message().contains(why), "{error}");
    }
    // What does not fit is left out, the oldest first, and said.
    let code = "import os\nprint(os.listdir('.'))";
    for files in [vec![file("a", 1), file("b", 1)], vec![file("b", 1), file("a", 11)]] {
        let output = python.run(CodeInput::new(code, "python").files(files)).await.unwrap();
        assert_eq!(output.stdout, "['b']\n");
        assert!(output.note.clone().unwrap().contains("`a`"), "{output:?}");
    }
}

#[tokio::test]
async fn code_that_is_too_long_or_in_another_language_is_not_tried() {
    let python = build(Sandbox::python().code_bytes(2000));
    let long = format!("x = '{}'", "x".repeat(2000));
    let output = run(&python, &long).await;
    assert!(!output.outcome.is_ok() && output.stderr.contains("2000 are allowed"), "{output:?}");
    let output = python.run(CodeInput::new("1", "javascript")).await.unwrap();
    assert!(!output.outcome.is_ok() && output.stderr.contains("only python"), "{output:?}");
    let fits = format!("print(len('{}'))", "x".repeat(1 << 20).get(..(1 << 20) - 20).unwrap());
    let output = run(&self::python(), &fits).await;
    assert_eq!(output.stdout, format!("{}\n", (1 << 20) - 20));
}

#[tokio::test]
async fn another_interpreter_runs_with_its_own_limits() {
    let shell = build(Sandbox::new("shell", ["sh", "-eu"]).env("COLOUR", "blue"));
    let code = "echo $COLOUR; echo x > made; cat /proc/sys/kernel/hostname; ulimit -n; echo $undefined";
    let output = shell.run(CodeInput::new(code, "shell")).await.unwrap();
    assert_eq!(output.stdout, "blue\nsandbox\n256\n");
    assert_eq!((output.outcome, output.files.len()), (CodeOutcome::Failed { exit_code: Some(2) }, 1));
    assert_eq!(shell.spec().language, "shell");
}

#[tokio::test]
async fn a_folder_of_this_machine_can_be_read_if_it_is_shown() {
    let folder = open_folder();
    std::fs::write(folder.path().join("a"), "shown").unwrap();
    let path = folder.path().to_string_lossy().into_owned();
    let python = build(Sandbox::python().read_only(&path));
    let output = run(&python, &format!("print(open('{path}/a').read())\nopen('{path}/a', 'w')")).await;
    assert_eq!(output.stdout, "shown\n");
    assert!(output.stderr.contains("Read-only file system"), "{output:?}");
}

#[test]
fn what_cannot_work_is_not_built() {
    let error = |sandbox: Sandbox| sandbox.build().unwrap_err().message().to_owned();
    let said = error(Sandbox::new("python", ["python-that-is-not-there"]));
    assert!(
        said.contains("`python-that-is-not-there` cannot be run") && said.contains("Install it"),
        "{said}"
    );
    let said = error(Sandbox::python().read_only("/not/there"));
    assert!(said.contains("a path that code may read is not there"), "{said}");
    let said = error(Sandbox::new("python", [""]));
    assert!(said.contains("no program"), "{said}");
    let said = error(Sandbox::new("shell", ["sh"]).stateful());
    assert!(said.contains("python only"), "{said}");
    let said = error(Sandbox::python().disk(1000));
    assert!(said.contains("its disk has 1000"), "{said}");
    let said = error(Sandbox::python().pool(SandboxPool::new().memory(512 << 20)));
    assert!(said.contains("all together have 512 MiB (`SandboxPool::memory`)"), "{said}");
    let said = error(Sandbox::python().env("a b", ""));
    assert!(said.contains("no name of a variable"), "{said}");
}

#[test]
fn whether_code_may_run_again_is_said() {
    let spec = |sandbox: Sandbox| build(sandbox).spec().clone();
    let plain = spec(Sandbox::python().time(Duration::from_secs(7)));
    assert_eq!((plain.repeatable, plain.stateful), (true, false));
    let kept = spec(Sandbox::python().time(Duration::from_secs(7)).stateful());
    assert_eq!((kept.repeatable, kept.stateful), (false, true));
    assert!(!spec(Sandbox::python().dangerously_unsandboxed()).repeatable);
}

#[test]
fn waiting_for_a_sandbox_or_for_other_code_is_not_the_time_of_the_code() {
    let timeout = |sandbox: Sandbox| build(sandbox.time(Duration::from_secs(7))).spec().timeout.unwrap();
    let (plain, kept) = (timeout(Sandbox::python()), timeout(Sandbox::python().stateful()));
    assert!(plain > Duration::from_secs(7 + 30), "a sandbox may take 30 s to start: {plain:?}");
    assert!(kept >= plain + Duration::from_secs(7 + 30), "so may that of the code before: {kept:?}");
}

/// What is on the host for programs to get at, if they could.
struct Host {
    folder: TempDir,
    tcp: TcpListener,
    udp: UdpSocket,
    unix: UnixListener,
    hidden: UnixListener,
    victim: Child,
}

const CANARY: &str = "untouched";

/// A folder that everybody could write to.
fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

impl Host {
    fn new() -> Self {
        let folder = open_folder();
        let canary = folder.path().join("canary");
        std::fs::write(&canary, CANARY).unwrap();
        std::fs::set_permissions(&canary, std::fs::Permissions::from_mode(0o666)).unwrap();
        let unix = UnixListener::bind(folder.path().join("socket")).unwrap();
        std::fs::set_permissions(folder.path().join("socket"), std::fs::Permissions::from_mode(0o777))
            .unwrap();
        let name = folder.path().to_string_lossy().into_owned();
        let hidden = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        tcp.set_nonblocking(true).unwrap();
        udp.set_nonblocking(true).unwrap();
        unix.set_nonblocking(true).unwrap();
        hidden.set_nonblocking(true).unwrap();
        let victim = Command::new("sleep").arg("600").spawn().unwrap();
        Self { folder, tcp, udp, unix, hidden, victim }
    }

    /// A sandbox that is told where all of it is, with limits that are reached soon.
    fn sandbox(&self) -> Sandbox {
        let path = |name: &str| self.folder.path().join(name).to_string_lossy().into_owned();
        Sandbox::python()
            .env("CANARY", path("canary"))
            .env("UNIX", path("socket"))
            .env("ABSTRACT", self.folder.path().to_string_lossy())
            .env("PORT", self.tcp.local_addr().unwrap().port().to_string())
            .env("UDP", self.udp.local_addr().unwrap().port().to_string())
            .env("VICTIM", self.victim.id().to_string())
            .memory(128 << 20)
            .disk(16 << 20)
            .output_bytes(64 << 10)
            .file_bytes(8 << 20)
    }

    /// Nobody came, and nothing changed.
    fn assert_unharmed(&mut self) {
        assert_eq!(self.tcp.accept().unwrap_err().kind(), Io::WouldBlock);
        assert_eq!(self.udp.recv(&mut [0; 9]).unwrap_err().kind(), Io::WouldBlock);
        assert_eq!(self.unix.accept().unwrap_err().kind(), Io::WouldBlock);
        assert_eq!(self.hidden.accept().unwrap_err().kind(), Io::WouldBlock);
        assert!(self.victim.try_wait().unwrap().is_none(), "a process of the host was killed");
        assert_eq!(std::fs::read_to_string(self.folder.path().join("canary")).unwrap(), CANARY);
        let names: Vec<_> = std::fs::read_dir(self.folder.path()).unwrap().flatten().collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.victim.kill().unwrap();
        self.victim.wait().unwrap();
    }
}

/// Runs a program, and says what is wrong with how it ended.
async fn try_abuse(python: SandboxExecutor, abuse: &Abuse) -> Option<String> {
    let began = Instant::now();
    let output = run(&python, &format!("{NAMESPACE}{PRELUDE}{}", abuse.code)).await;
    let took = began.elapsed();
    let (namespace, printed) = output.stdout.split_once('\n').unwrap_or((&output.stdout, ""));
    assert!(namespace.starts_with("pid:["), "{}: {output:?}", abuse.name);
    eventually(abuse.name, || processes_in(namespace) == 0).await;
    let all = format!("{printed}{}{}", output.stderr, output.note.clone().unwrap_or_default());
    let is_right = abuse.ends.split('|').any(|name| name == output.outcome.name())
        && all.contains(abuse.says)
        && !printed.contains("ESCAPED");
    // Nothing may be followed or come out of programs that are after the host.
    let is_empty = output.files.iter().all(|file| file.data.is_empty());
    let is_in_time = took < Duration::from_secs(60);
    (!is_right || !is_empty || !is_in_time).then(|| {
        let all: String = all.chars().rev().take(600).collect::<Vec<_>>().into_iter().rev().collect();
        format!("{}: {:?} after {took:?}, {:?}: {all}", abuse.name, output.outcome, output.files)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_abuse_ends_with_its_name_and_the_host_unharmed() {
    let mut host = Host::new();
    // Which limit comes first must not depend on what else this machine does.
    let seconds = Duration::from_secs;
    let asleep = build(host.sandbox().time(seconds(10)).cpu(seconds(20)));
    let busy = build(host.sandbox().time(seconds(30)).cpu(seconds(1)));
    let other = build(host.sandbox().time(seconds(30)).cpu(seconds(20)));
    let of = |abuse: &Abuse| if abuse.ends == "cpu_limit" { busy.clone() } else { other.clone() };
    // Those that only wait do so together, beside the others.
    let (waiting, working): (Vec<_>, Vec<_>) = PROGRAMS.iter().partition(|abuse| abuse.ends == "time_limit");
    let waiting = join_all(waiting.into_iter().map(|abuse| try_abuse(asleep.clone(), abuse)));
    let working = stream::iter(working).map(|abuse| try_abuse(of(abuse), abuse)).buffer_unordered(3);
    let (waited, worked) = tokio::join!(waiting, working.collect::<Vec<_>>());
    let wrong: Vec<String> = waited.into_iter().chain(worked).flatten().collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), PROGRAMS.len(), wrong.join("\n\n"));
    host.assert_unharmed();
}

#[tokio::test]
async fn nothing_of_this_process_s_environment_can_be_seen() {
    let code = "import glob\nfor f in glob.glob('/proc/[0-9]*/environ'):\n\
        \x20 try: print(open(f).read().replace('\\0', '\\n'))\n\
        \x20 except PermissionError: pass";
    let output = run(&python(), code).await;
    let seen: BTreeMap<&str, &str> = output.stdout.lines().filter_map(|line| line.split_once('=')).collect();
    let expected = ["HOME", "LANG", "PATH", "PWD", "USER", "OLDPWD", "SHLVL", "_"];
    let others: Vec<_> =
        seen.keys().filter(|name| !expected.contains(name) && !name.starts_with("PYTHON")).collect();
    assert!(others.is_empty() && seen.contains_key("LANG"), "{others:?}");
    assert_eq!(seen["HOME"], "/tmp");
    assert!(std::env::vars().count() > expected.len(), "there must be something to see");
}

#[tokio::test]
async fn code_without_privileges_has_what_it_needs() {
    let code = "import os, re, tempfile, multiprocessing, socket, threading\n\
        s = open('/proc/self/status').read()\n\
        print(re.findall(r'(Cap\\w+|NoNewPrivs|Seccomp):\\s+(\\w+)', s))\n\
        print(os.getuid(), os.getcwd(), os.listdir('.'), sorted(os.listdir('/')))\n\
        tempfile.TemporaryFile().write(b'x')\n\
        print(multiprocessing.Pool(2).map(abs, [-1, -2]))\n\
        a = socket.create_server(('127.0.0.1', 0)); b = socket.create_connection(a.getsockname())\n\
        t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n";
    let output = run(&python(), code).await;
    let zero = "0".repeat(16);
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(output.stdout.contains(&format!("('{name}', '{zero}')")), "{output:?}");
    }
    assert!(output.stdout.contains("('NoNewPrivs', '1'), ('Seccomp', '2')"), "{output:?}");
    assert!(output.stdout.contains("1000 /work []"), "{output:?}");
    assert!(output.stdout.ends_with("[1, 2]\nthread\n") && output.outcome.is_ok(), "{output:?}");
}

#[tokio::test]
async fn whoever_stops_waiting_kills_the_code() {
    let folder = open_folder();
    let python = build(Sandbox::python());
    // It says where it is in the command line of a child, which can be seen from here.
    let mark = format!("mark-{}", folder.path().file_name().unwrap().to_string_lossy());
    let code = format!("import subprocess\nsubprocess.run(['sh', '-c', 'sleep 600', '{mark}'])");
    let is_running = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
        lines.any(|line| String::from_utf8_lossy(&line).starts_with(&format!("sh\0-c\0sleep 600\0{mark}")))
    };
    let input = CodeInput::new(code, "python");
    let running = tokio::spawn(async move { python.run(input).await });
    eventually("it runs", is_running).await;
    running.abort();
    eventually("it is gone", || !is_running()).await;
}

/// A process of this very program: it runs the test below, which runs code for long. Dropped, it is killed.
struct Other(Child);

impl Other {
    /// Starts it, and waits until it has said what is looked for.
    fn start(kind: &str, said: impl Fn(&str) -> Option<String>) -> (Self, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "sandbox::long_code_for_the_tests_that_kill_its_process", "--nocapture"]);
        command.env("UMBEL_LONG_CODE", kind).stdout(std::process::Stdio::piped());
        let mut other = Self(command.spawn().unwrap());
        let (mut all, mut buffer) = (String::new(), [0; 256]);
        loop {
            let count = other.0.stdout.as_mut().unwrap().read(&mut buffer).unwrap();
            assert!(count > 0, "it ended early: {all}");
            all.push_str(&String::from_utf8_lossy(&buffer[..count]));
            if let Some(found) = said(&all) {
                return (other, found);
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// What stands between two words.
fn between(text: &str, before: &str, behind: &str) -> Option<String> {
    text.split_once(before)?.1.split_once(behind).map(|(found, _)| found.to_owned())
}

#[tokio::test]
async fn code_ends_with_the_process_that_runs_it() {
    let (other, number) = Other::start("sandboxed", |said| between(said, "pid:[", "]"));
    let namespace = format!("pid:[{number}]");
    assert!(processes_in(&namespace) > 0);
    drop(other);
    eventually("it is gone", || processes_in(&namespace) == 0).await;
}

#[tokio::test]
async fn code_without_a_sandbox_ends_with_the_process_that_runs_it_too() {
    let (other, pids) = Other::start("unsandboxed", |said| between(said, "pids:[", "]"));
    assert!(pids.split(' ').count() == 2 && pids.split(' ').all(is_running), "{pids}");
    drop(other);
    eventually("they are gone", || !pids.split(' ').any(is_running)).await;
}

#[tokio::test]
async fn long_code_for_the_tests_that_kill_its_process() {
    let kind = std::env::var("UMBEL_LONG_CODE").unwrap_or_default();
    let sandbox = Sandbox::python().stateful();
    let python = build(if kind == "unsandboxed" { sandbox.dangerously_unsandboxed() } else { sandbox });
    let code = "import os, subprocess\nchild = subprocess.Popen(['sleep', '600'])\n\
        print('pids:[%d %d]' % (os.getpid(), child.pid))";
    let output = python.run(in_session(&format!("{NAMESPACE}{code}"), "a")).await.unwrap();
    assert!(output.stdout.starts_with("pid:["), "{output:?}");
    if !kind.is_empty() {
        #[allow(clippy::print_stdout)]
        {
            println!("{}", output.stdout);
        }
        python.run(in_session("import time\ntime.sleep(600)", "a")).await.unwrap();
    }
}

#[tokio::test]
async fn without_a_sandbox_the_limits_hold() {
    let folder = open_folder();
    let mark = folder.path().join("made").to_string_lossy().into_owned();
    let limits = |time: u64| {
        let limits = Sandbox::python().time(Duration::from_secs(time)).cpu(Duration::from_secs(1));
        let limits = limits.memory(128 << 20).output_bytes(1000).disk(1 << 20).file_bytes(1 << 20);
        build(limits.processes(20).dangerously_unsandboxed())
    };
    let (python, hurried) = (limits(30), limits(2));
    let output =
        run(&python, &format!("open('{mark}', 'w').write('x'); open('a', 'w').write('y'); print(1)")).await;
    assert_eq!(output, CodeOutput::ok("1\n").files([CodeFile::new("a", "application/octet-stream", *b"y")]));
    assert_eq!(std::fs::read_to_string(&mark).unwrap(), "x", "it is no sandbox");
    let threads = "import threading, time\n\
        for _ in range(40): threading.Thread(target=time.sleep, args=(9,)).start()";
    let programs = [
        ("while True: pass", "cpu_limit"),
        ("import time; time.sleep(99)", "time_limit"),
        ("x = []\nwhile True: x.append(bytearray(10**6))", "memory_limit"),
        ("while True: print('x' * 999)", "output_limit"),
        ("open('x', 'wb').write(bytes(2 << 20))", "disk_limit"),
        (threads, "process_limit"),
        ("import os; os._exit(3)", "failed"),
        ("import os; os.kill(os.getpid(), 9)", "killed"),
    ];
    let ended = stream::iter(programs).map(async |(code, ends)| {
        let python = if ends == "time_limit" { &hurried } else { &python };
        (code, ends, run(python, code).await.outcome.name())
    });
    for (code, ends, ended) in ended.buffer_unordered(3).collect::<Vec<_>>().await {
        assert_eq!(ended, ends, "{code}");
    }
    let code = "import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid)";
    let pid = run(&python, code).await.stdout;
    eventually("what it started is gone", || !is_running(pid.trim())).await;
    assert!(format!("{python:?}").contains("UNSANDBOXED"));
}

#[tokio::test]
async fn a_session_keeps_definitions_and_files() {
    let python = build(Sandbox::python().stateful());
    let output =
        python.run(in_session("x = 1\nopen('a.txt', 'w').write('1')\ndef f():\n  return 1 / 0", "a")).await;
    let output = output.unwrap();
    assert!(output.note.unwrap().contains("new interpreter"));
    assert_eq!(output.files.len(), 1);
    let output = python.run(in_session("x += 1\nprint(x, open('a.txt').read())", "a")).await.unwrap();
    assert_eq!(output, CodeOutput::ok("2 1\n"));
    // Errors show the lines of the code that they are in, and end nothing.
    let output = python.run(in_session("y = 3\nf()", "a")).await.unwrap();
    assert_eq!(output.outcome, CodeOutcome::Failed { exit_code: Some(1) });
    assert!(output.stderr.contains("return 1 / 0") && !output.stderr.contains("exec("), "{output:?}");
    let output = python.run(in_session("import sys\nprint(y)\nsys.exit(4)", "a")).await.unwrap();
    assert_eq!((output.stdout.as_str(), output.outcome), ("3\n", CodeOutcome::Failed { exit_code: Some(4) }));
    assert_eq!(python.run(in_session("print(x)", "a")).await.unwrap().stdout, "2\n");
    // Others have none of it, whoever they are.
    for session in ["b", "c"] {
        let output =
            python.run(in_session("print('x' in dir(), __import__('os').listdir('.'))", session)).await;
        assert_eq!(output.unwrap().stdout, "False []\n");
    }
    let other = SessionKey::new("app", "bob", "a").unwrap();
    let output = python.run(CodeInput::new("print('x' in dir())", "python").session(other)).await.unwrap();
    assert_eq!(output.stdout, "False\n");
    // Without a session nothing is kept.
    let output = run(&python, "print('x' in dir())").await;
    assert_eq!((output.stdout.as_str(), output.note), ("False\n", None));
}

#[tokio::test]
async fn a_session_that_dies_begins_anew_and_says_so() {
    let limits = |time: u64| {
        let limits = Sandbox::python().time(Duration::from_secs(time)).cpu(Duration::from_secs(1));
        build(limits.memory(128 << 20).output_bytes(1000).stateful())
    };
    let (python, hurried) = (limits(30), limits(10));
    let programs = [
        ("while True: pass", "cpu_limit"),
        ("import time; time.sleep(99)", "time_limit"),
        ("y = []\nwhile True: y.append(bytearray(10**6))", "memory_limit"),
        ("while True: print('x' * 999)", "output_limit"),
        ("import os; os._exit(3)", "failed"),
        ("import os; os.kill(os.getpid(), 9)", "killed"),
        ("import os; os.kill(-1, 9); os._exit(0)", "killed"),
    ];
    let ended = stream::iter(programs.into_iter().enumerate()).map(async |(at, (code, ends))| {
        let (python, session) = (if ends == "time_limit" { &hurried } else { &python }, at.to_string());
        for code in ["x = 1", code, "x = 1"] {
            let output = python.run(in_session(code, &session)).await.unwrap();
            let is_new = output.note.clone().unwrap_or_default().contains("new interpreter");
            let expected = if code == "x = 1" { ("ok", true) } else { (ends, false) };
            assert_eq!((output.outcome.name(), is_new), expected, "{code}: {output:?}");
        }
    });
    ended.buffer_unordered(3).collect::<Vec<_>>().await;
    // Each code has its time: what was used before does not count.
    for _ in 0..4 {
        let code = "import time\nt = time.process_time()\nwhile time.process_time() < t + 0.4: pass";
        assert_eq!(python.run(in_session(code, "b")).await.unwrap().outcome, CodeOutcome::Ok);
    }
}

#[tokio::test]
async fn code_of_a_session_cannot_answer_for_later_code() {
    let python = build(Sandbox::python().time(Duration::from_secs(10)).stateful());
    let forged = "import os, glob\n\
        for fd in os.listdir('/proc/self/fd'):\n\
        \x20 if int(fd) > 2:\n\
        \x20   for line in (b'0 0\\n', b'0123456789abcdef 0\\n', b'x 0 99999999\\n', b'\\0\\xff\\n'):\n\
        \x20     try: os.write(int(fd), line * 3)\n\
        \x20     except OSError: pass\n\
        print('ended 0 512'); print('0123456789abcdef 0 512')";
    let output = python.run(in_session(forged, "a")).await.unwrap();
    assert!(output.outcome.is_ok() && output.stdout.starts_with("ended 0 512"), "{output:?}");
    let output = python.run(in_session("import sys\nprint('mine'); sys.exit(7)", "a")).await.unwrap();
    assert_eq!(output.stdout, "mine\n");
    assert_eq!(output.outcome, CodeOutcome::Failed { exit_code: Some(7) });
    // It may know its own word. What it says with it are no lines of ours.
    let early = "import sys, os\nword = sys._getframe(1).f_locals['word'].strip()\n\
        os.write(6, (word + r' 0 -\\nended 0 -\\nended 0' + '\\n').encode())\nx = 5";
    let output = python.run(in_session(early, "a")).await.unwrap();
    assert_eq!(output.outcome, CodeOutcome::Failed { exit_code: Some(255) }, "{output:?}");
    let output = python.run(in_session("import sys\nprint('mine', x); sys.exit(7)", "a")).await.unwrap();
    assert_eq!(
        (output.stdout.as_str(), output.outcome),
        ("mine 5\n", CodeOutcome::Failed { exit_code: Some(7) })
    );
    // It can say that it ended: then it did.
    let output =
        python.run(in_session("import os, time\nos.write(6, b'ended 0\\n'); time.sleep(60)", "a")).await;
    assert_eq!(output.unwrap().outcome, CodeOutcome::Ok);
    let output = python.run(in_session("print(1)", "a")).await.unwrap();
    assert!(output.stdout == "1\n" && output.note.unwrap().contains("new interpreter"));
}

#[tokio::test]
async fn what_goes_on_behind_a_session_stands_still_between_its_code() {
    let python = build(Sandbox::python().stateful());
    // It notes for how long it stood still.
    let code = "import threading, time\nlongest, ticks = 0, 0\ndef tick():\n\
        \x20 global longest, ticks\n  last = time.monotonic()\n\
        \x20 while True:\n    time.sleep(0.001); now = time.monotonic()\n\
        \x20   longest, last, ticks = max(longest, now - last), now, ticks + 1\n\
        threading.Thread(target=tick, daemon=True).start()\nwhile ticks < 10: time.sleep(0.001)\nprint(longest)";
    let run = async |code: &str| -> f64 {
        python.run(in_session(code, "a")).await.unwrap().stdout.trim().parse().unwrap()
    };
    let before = run(code).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = run("seen = ticks\nwhile ticks < seen + 2: time.sleep(0.001)\nprint(longest)").await;
    assert!(before < 0.9 && after > 0.9, "{before} {after}");
}

#[tokio::test]
async fn sessions_end_when_there_are_too_many_or_they_are_idle() {
    let python = build(Sandbox::python().sessions(2));
    let start = async |session: &'static str| {
        let output = python.run(in_session(NAMESPACE, session)).await.unwrap();
        output.stdout.trim().to_owned()
    };
    let (a, b) = (start("a").await, start("b").await);
    assert_eq!(start("a").await, a);
    // The one that was not used for longest makes room.
    let c = start("c").await;
    eventually("b is gone", || processes_in(&b) == 0).await;
    assert!(processes_in(&a) > 0 && processes_in(&c) > 0);
    // Nobody is thrown out who is at work.
    let long = "import time\ntime.sleep(1)";
    let wait = async |session: &'static str| python.run(in_session(long, session)).await;
    let (first, second, third) = tokio::join!(wait("d"), wait("e"), wait("f"));
    assert!(first.is_ok() && second.is_ok());
    assert!(third.unwrap_err().message().contains("all 2 sessions"));
    // Nobody stays who has nothing to do.
    let python = build(Sandbox::python().idle(Duration::from_millis(500)));
    let namespace = python.run(in_session(NAMESPACE, "a")).await.unwrap().stdout;
    eventually("an idle one is gone", || processes_in(namespace.trim()) == 0).await;
    let output = python.run(in_session("print(1)", "a")).await.unwrap();
    assert!(output.note.unwrap().contains("new interpreter"));
}

/// Something of the host that is open, and that every program would get.
fn inheritable(what: impl AsFd) {
    rustix::io::fcntl_setfd(what, rustix::io::FdFlags::empty()).unwrap();
}

#[tokio::test]
async fn nothing_that_this_process_has_open_reaches_the_code() {
    let (root, tcp) = (File::open("/").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let code = "import os, socket\n\
        for fd in range(3, 256):\n\
        \x20 try: print('ESCAPED', os.stat('etc/passwd', dir_fd=fd))\n\
        \x20 except OSError: pass\n\
        \x20 try: print('ESCAPED', socket.socket(fileno=os.dup(fd)).getsockname())\n\
        \x20 except OSError: pass\n\
        print('done')";
    let sandboxes =
        [Sandbox::python(), Sandbox::python().stateful(), Sandbox::python().dangerously_unsandboxed()];
    for sandbox in sandboxes {
        let python = build(sandbox);
        inheritable(&root);
        inheritable(&tcp);
        let output = python.run(in_session(code, "a")).await.unwrap();
        assert_eq!(output.stdout, "done\n", "{python:?}: {output:?}");
    }
}

#[tokio::test]
async fn what_is_opened_while_a_sandbox_starts_does_not_reach_the_code_either() {
    // Two, since one of them may have the number that the filter of system calls gets.
    let roots = [(); 2].map(|()| File::open("/").unwrap());
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let opens = std::thread::spawn(move || {
        while stopped.recv_timeout(Duration::from_micros(300)) == Err(RecvTimeoutError::Timeout) {
            roots.iter().for_each(inheritable);
        }
    });
    let python = python();
    for _ in 0..40 {
        let output = run(&python, "import os\nprint(os.listdir('/proc/self/fd'))").await;
        assert_eq!(output.stdout, "['0', '1', '2', '3']\n", "3 is the folder itself");
    }
    drop(stop);
    opens.join().unwrap();
}

#[tokio::test]
async fn a_session_that_wakes_itself_between_its_code_ends() {
    let python = build(Sandbox::python().stateful());
    // A timer of the kernel sends it the signal to go on, again and again. Not too often: one that waits when all is stopped
    // keeps the timer from sending another.
    let code = "import ctypes, signal, threading\nlibc = ctypes.CDLL(None)\n\
        signal.signal(signal.SIGCONT, lambda *_: None)\n\
        event, timer = (ctypes.c_int * 16)(0, 0, 18, 0), ctypes.c_void_p()\n\
        print(libc.timer_create(1, event, ctypes.byref(timer)), flush=True)\n\
        print(libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 10**8, 0, 10**8), None), flush=True)\n\
        def burn():\n  while True: pass\n\
        threading.Thread(target=burn, daemon=True).start()\n";
    let output = python.run(in_session(&format!("{NAMESPACE}{code}"), "a")).await.unwrap();
    let said: Vec<&str> = output.stdout.lines().collect();
    assert_eq!(said[1..], ["0", "0"], "{output:?}");
    eventually("it is gone", || processes_in(said[0]) == 0).await;
    let output = python.run(in_session("print(1)", "a")).await.unwrap();
    assert!(output.note.unwrap().contains("new interpreter"));
}

#[tokio::test]
async fn files_that_do_not_fit_in_are_not_cut() {
    let python = build(Sandbox::python().disk(1 << 20).file_bytes(1 << 20).stateful());
    let fill = "open('mine', 'wb').write(bytes(900 << 10))";
    assert!(python.run(in_session(fill, "a")).await.unwrap().outcome.is_ok());
    let large = CodeFile::new("large.csv", "text/csv", vec![b'x'; 600 << 10]);
    let output = python.run(in_session("print('run')", "a").files([large.clone()])).await.unwrap();
    assert_eq!((output.outcome, output.stdout.as_str()), (CodeOutcome::DiskLimit, ""));
    assert!(output.files.is_empty() && output.note.clone().unwrap().contains("no room"), "{output:?}");
    let output =
        python.run(in_session("import os\nprint(os.path.getsize('large.csv'))", "a").files([large])).await;
    assert_eq!(output.unwrap().stdout, "614400\n");
}

#[tokio::test]
async fn files_that_were_refused_come_when_there_are_fewer() {
    let python = build(Sandbox::python().files(3).stateful());
    let make = "for name in 'abcd': open(name, 'w').write(name)";
    let output = python.run(in_session(make, "a")).await.unwrap();
    assert_eq!((output.outcome, output.files.len()), (CodeOutcome::DiskLimit, 0), "{output:?}");
    let output = python.run(in_session("import os\nos.remove('a')", "a")).await.unwrap();
    let names: Vec<&str> = output.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["b", "c", "d"], "{output:?}");
    let output = python.run(in_session("print(1)", "a")).await.unwrap();
    assert!(output.files.is_empty(), "they were taken: {output:?}");
}

#[tokio::test]
async fn a_session_gets_a_file_once() {
    let python = build(Sandbox::python().stateful());
    let run = async |code: &str, data: &str| {
        let file = CodeFile::new("a.txt", "text/plain", data.as_bytes());
        python.run(in_session(code, "a").files([file])).await.unwrap()
    };
    let read = "print(open('a.txt').read())";
    assert_eq!(run(read, "1").await.stdout, "1\n");
    assert_eq!(run("_ = open('a.txt', 'w').write('mine')", "1").await.files.len(), 1);
    assert_eq!(run(read, "1").await.stdout, "mine\n");
    assert_eq!(run(read, "2").await.stdout, "2\n");
}

#[tokio::test]
async fn a_child_of_code_does_not_answer_for_it() {
    let python = build(Sandbox::python().stateful());
    let code = "import os, sys, time\nchild = os.fork()\n\
        if child: os.waitpid(child, 0)\n\
        else: sys.exit(9)\nx = 'parent'";
    let output = python.run(in_session(code, "a")).await.unwrap();
    assert!(output.outcome.is_ok(), "{output:?}");
    for _ in 0..4 {
        assert_eq!(
            python.run(in_session("print(x, len(os.listdir('/proc')) > 0)", "a")).await.unwrap().stdout,
            "parent True\n"
        );
    }
}

#[tokio::test]
async fn no_limit_is_a_limit_too() {
    let all = Duration::MAX;
    let python = Sandbox::python().time(all).cpu(all).memory(u64::MAX >> 1).processes(10_000).idle(all);
    assert_eq!(build(python).run(in_session("print(1)", "a")).await.unwrap().stdout, "1\n");
}

#[tokio::test]
async fn variables_count_for_the_code_alone() {
    let sandbox =
        Sandbox::python().env("LD_PRELOAD", "/not/there.so").env("GREETING", "a \"b\" $(c) 'd'\n\\");
    let output =
        run(&build(sandbox.clone()), "import os\nprint(os.environ['GREETING'], sorted(os.environ))").await;
    assert!(output.stdout.starts_with("a \"b\" $(c) 'd'\n\\ ["), "{output:?}");
    assert!(output.stdout.contains("LD_PRELOAD") && !output.stdout.contains("CODE_ENV"), "{output:?}");
    // The loader complains for each program that has the variable: the code's, and no others.
    assert_eq!(output.stderr.matches("cannot be preloaded").count(), 1, "{output:?}");
    let python = build(sandbox.stateful());
    let output = python.run(in_session("import os\nprint(os.environ['GREETING'])", "a")).await.unwrap();
    assert_eq!(output.stdout, "a \"b\" $(c) 'd'\n\\\n");
}
