//! The cap over all sandboxes that share a pool.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use umbel_core::{CodeInput, CodeOutput, ErrorKind, Result};
use umbel_tools::{Sandbox, SandboxExecutor, SandboxPool};

use super::{NAMESPACE, build_shared, eventually, in_session, open_folder, processes_in};

/// Code that runs until a file is there, and says when it began and when it ended, by a clock that
/// all sandboxes share.
fn until(file: &Path) -> String {
    let file = file.display();
    format!(
        "import os, subprocess, time\nbegan = time.monotonic()\n\
         subprocess.run(['sh', '-c', 'while [ ! -e {file} ]; do sleep 0.02; done', '{file}'])\n\
         print(began, time.monotonic())"
    )
}

/// How many sandboxes run that code now: namespaces of processes in which there is its shell, or a
/// child of that.
fn running(file: &Path) -> usize {
    let end = format!("\0{}\0", file.display());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let of_it = processes.filter(|process| {
        let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.starts_with("sh\0-c\0while") && line.ends_with(&end)
    });
    let namespaces = of_it.filter_map(|process| std::fs::read_link(process.path().join("ns/pid")).ok());
    namespaces.collect::<BTreeSet<_>>().len()
}

/// How many ran at the same time, at most.
fn at_once(outputs: &[CodeOutput]) -> usize {
    let times: Vec<Vec<f64>> = outputs
        .iter()
        .map(|output| output.stdout.split_whitespace().map(|word| word.parse().unwrap()).collect())
        .collect();
    let at = |moment: f64| times.iter().filter(|time| time[0] <= moment && moment < time[1]).count();
    times.iter().map(|time| at(time[0])).max().unwrap()
}

async fn refused(hurried: &SandboxExecutor, option: &str) {
    let error = hurried.run(CodeInput::new("print(1)", "python")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimited, "{error}");
    assert!(error.message().contains(option), "{error}");
}

/// Runs twelve at once in a pool that has room for three.
async fn twelve_in(pool: SandboxPool, sandbox: Sandbox, option: &str) {
    let folder = open_folder();
    let go = folder.path().join("go");
    let sandbox = sandbox.read_only(folder.path()).pool(pool);
    let python = build_shared(sandbox.clone().time(Duration::from_secs(120)));
    let hurried = build_shared(sandbox.time(Duration::from_secs(1)));
    let code = until(&go);
    let all = join_all((0..12).map(|_| python.run(CodeInput::new(code.clone(), "python"))));
    let watch = async {
        eventually("three run", || running(&go) >= 3).await;
        // It was full for a whole second, while nine more were waiting before this one.
        refused(&hurried, option).await;
        assert_eq!(running(&go), 3);
        std::fs::write(&go, "").unwrap();
    };
    let (outputs, ()) = tokio::join!(all, watch);
    let outputs: Vec<CodeOutput> = outputs.into_iter().collect::<Result<_>>().unwrap();
    assert!(outputs.iter().all(|output| output.outcome.is_ok()), "{outputs:?}");
    assert_eq!(at_once(&outputs), 3, "{outputs:?}");
}

#[tokio::test]
async fn sandboxes_of_a_pool_have_so_much_memory_together() {
    // 128 MiB, twice and a quarter 16 MiB, 16 MiB for files and some more: three times that is more
    // than 512 MiB, and four times that more than 700.
    let sandbox = Sandbox::python().memory(128 << 20).disk(16 << 20);
    twelve_in(SandboxPool::new().memory(700 << 20), sandbox, "SandboxPool::memory").await;
}

#[tokio::test]
async fn sandboxes_of_a_pool_are_so_many_at_once() {
    twelve_in(SandboxPool::new().count(3), Sandbox::python().memory(64 << 20), "SandboxPool::count").await;
}

#[tokio::test]
async fn sandboxes_for_which_nothing_is_said_share_a_pool() {
    let executors = [Sandbox::python(), Sandbox::python().stateful()].map(build_shared);
    let shown = executors.map(|executor| format!("{executor:?}"));
    let pools = shown.each_ref().map(|shown| shown.split_once("SandboxPool(").unwrap().1.to_owned());
    assert!(pools.iter().all(|pool| pool.starts_with("32 of ")), "{shown:?}");
    // One that may have all the memory leaves none for others while it runs.
    let folder = open_folder();
    let go = folder.path().join("go");
    let large = Sandbox::python().memory(1 << 50).read_only(folder.path()).time(Duration::from_secs(120));
    let large = build_shared(large);
    let hurried = build_shared(Sandbox::python().time(Duration::from_secs(1)));
    let code = until(&go);
    let ((), output) = tokio::join!(
        async {
            eventually("it runs", || running(&go) == 1).await;
            refused(&hurried, "SandboxPool::memory").await;
            std::fs::write(&go, "").unwrap();
        },
        large.run(CodeInput::new(code, "python"))
    );
    assert!(output.unwrap().outcome.is_ok());
    let output = hurried.run(CodeInput::new("print(1)", "python")).await.unwrap();
    assert_eq!(output.stdout, "1\n");
}

#[tokio::test]
async fn a_session_counts_while_it_lives_and_makes_room_when_it_rests() {
    let folder = open_folder();
    let go = folder.path().join("go");
    let pool = SandboxPool::new().count(2);
    let sandbox = Sandbox::python().read_only(folder.path()).pool(pool);
    let kept = build_shared(sandbox.clone().stateful().time(Duration::from_secs(120)));
    let python = build_shared(sandbox.clone().time(Duration::from_secs(60)));
    let hurried = build_shared(sandbox.time(Duration::from_secs(1)));
    let run = async |code: &str, session: &'static str| kept.run(in_session(code, session)).await.unwrap();
    let a = run(NAMESPACE, "a").await.stdout;
    let b = run(NAMESPACE, "b").await.stdout;
    assert!(processes_in(a.trim()) > 0 && processes_in(b.trim()) > 0);
    // Other code of the process ends the session that was not used for longest, and no other: see
    // below.
    let output = python.run(CodeInput::new("print(1)", "python")).await.unwrap();
    assert_eq!(output.stdout, "1\n");
    // Nobody ends those that are at work.
    let code = until(&go);
    let (first, second, ()) = tokio::join!(run(&code, "b"), run(&code, "c"), async {
        eventually("both run", || running(&go) == 2).await;
        refused(&hurried, "SandboxPool::count").await;
        // Who waits gets the place of one that comes to rest meanwhile.
        let (output, written) =
            tokio::join!(python.run(CodeInput::new("print(2)", "python")), async { std::fs::write(&go, "") });
        written.unwrap();
        assert_eq!(output.unwrap().stdout, "2\n");
    });
    assert!(first.outcome.is_ok() && second.outcome.is_ok());
    assert_eq!(first.note, None, "it is the interpreter of before, so `a` made room");
    let output = run("print(3)", "a").await;
    assert!(output.note.unwrap().contains("new interpreter"));
}
