//! Control groups, where they can be had.

use std::path::{Path, PathBuf};
use std::time::Duration;

use umbel_core::CodeOutcome;
use umbel_tools::Sandbox;

use super::{NAMESPACE, build, eventually, in_session, run};

/// Whether there must be control groups: this process is at the root of what it sees, or in a child
/// of a group that was handed over, where no process is in the way; and memory and tasks can be
/// limited there. If not, it says that the test is not run.
#[allow(clippy::print_stderr)]
fn are_control_groups_here() -> bool {
    // A process that is alone in its group goes to a child of it when the first sandbox is made.
    build(Sandbox::python());
    let root = Path::new("/sys/fs/cgroup");
    let is_here = folder_of("self").is_some_and(|own| {
        let mut value = [0; 8];
        let is_handed_over = own == root
            || own.parent().is_some_and(|above| {
                rustix::fs::getxattr(above, "user.delegate", &mut value).is_ok_and(|_| value[0] == b'1')
            });
        let controllers = std::fs::read_to_string(own.join("cgroup.controllers")).unwrap_or_default();
        let has = |name: &str| controllers.split_whitespace().any(|word| word == name);
        is_handed_over && has("memory") && has("pids")
    });
    if !is_here {
        eprintln!(
            "not run, since no control groups were handed over to this process (cgroup2 with memory and pids)"
        );
    }
    is_here
}

/// The folder of a process's control group.
fn folder_of(pid: &str) -> Option<PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = Path::new("/sys/fs/cgroup").join(path);
    folder.join("cgroup.controllers").exists().then_some(folder)
}

/// The folders of all processes in a namespace.
fn folders_in(namespace: &str) -> Vec<Option<PathBuf>> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let of_it = processes.filter(|process| {
        std::fs::read_link(process.path().join("ns/pid"))
            .is_ok_and(|link| link.to_string_lossy() == namespace)
    });
    of_it.map(|process| folder_of(&process.file_name().to_string_lossy())).collect()
}

#[tokio::test]
async fn a_sandbox_has_a_control_group_of_its_own() {
    if !are_control_groups_here() {
        return;
    }
    let python = build(Sandbox::python().memory(100 << 20).disk(4 << 20).file_bytes(1 << 20).stateful());
    let output = python.run(in_session(&format!("{NAMESPACE}_ = os.fork()"), "a")).await.unwrap();
    let namespace = output.stdout.lines().next().unwrap();
    let folders = folders_in(namespace);
    let folder = folders[0].clone().unwrap();
    assert!(folders.len() > 1 && folders.iter().all(|other| other.as_ref() == Some(&folder)), "{folders:?}");
    assert_ne!(Some(&folder), folder_of("self").as_ref());
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default().trim().to_owned();
    // Its own memory, its file systems, and no more than that.
    let memory: u64 = read("memory.max").parse().unwrap();
    assert!((110 << 20..112 << 20).contains(&memory), "{memory}");
    assert_eq!((read("pids.max"), read("memory.oom.group")), ("88".to_owned(), "1".to_owned()));
    let swap = read("memory.swap.max");
    assert!(swap == "0" || swap.is_empty(), "{swap}");
    drop(python);
    eventually("the group is gone", || !folder.exists()).await;
}

#[tokio::test]
async fn memory_of_the_kernel_counts_in_a_control_group() {
    if !are_control_groups_here() {
        return;
    }
    // What is sent and not received is in no process.
    let code = "import os, socket, time\n\
        for _ in range(9):\n\
        \x20 if os.fork() == 0: break\n\
        sockets = []\n\
        for _ in range(100):\n\
        \x20 for one in socket.socketpair():\n\
        \x20   sockets.append(one); one.setblocking(False)\n\
        \x20   try:\n\
        \x20     while True: one.send(bytes(4096))\n\
        \x20   except BlockingIOError: pass\n\
        time.sleep(60)";
    let sandbox = Sandbox::python().memory(96 << 20).disk(1 << 20).file_bytes(1 << 20);
    let output = run(&build(sandbox.time(Duration::from_secs(30))), code).await;
    assert_eq!(output.outcome, CodeOutcome::MemoryLimit, "{output:?}");
}
