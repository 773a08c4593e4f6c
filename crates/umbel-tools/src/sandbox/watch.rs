//! What all processes of a sandbox use together, as `/proc` shows it. The kernel's own limits are for one process each.

use std::fs;
use std::time::Duration;

use umbel_core::CodeOutcome;

use super::Limits;

/// How often it is looked at.
const PAUSE: Duration = Duration::from_millis(25);
/// Processes that are not the code's: `bwrap`, the supervisor, and what it runs.
const OWN_PROCESSES: u64 = 4;
/// How many files there may be in all: they take memory even if they are empty.
const INODES: u64 = 20_000;
/// Where code can make files.
const WRITABLE: [&str; 3] = ["work", "tmp", "dev/shm"];

/// What processes use.
#[derive(Debug, Default, PartialEq, Eq)]
struct Usage {
    /// Processor time, in ticks of the kernel's clock.
    ticks: u64,
    /// Processes and threads.
    tasks: u64,
    /// Memory that is theirs, in bytes. What processes share counts for each.
    memory: u64,
    pids: Vec<u32>,
}

/// Waits until a limit is passed, and says which. Processor time that was used before does not count.
pub(super) async fn until_over(pid: u32, limits: &Limits, used: Duration) -> CodeOutcome {
    loop {
        tokio::time::sleep(PAUSE).await;
        let usage = usage_below(pid);
        if usage.tasks > limits.processes + OWN_PROCESSES {
            return CodeOutcome::ProcessLimit;
        }
        if usage.memory > limits.memory && exact_memory(&usage.pids) > limits.memory {
            return CodeOutcome::MemoryLimit;
        }
        if time(usage.ticks).saturating_sub(used) > limits.cpu {
            return CodeOutcome::CpuLimit;
        }
        if usage.pids.get(1).is_some_and(|first| inodes(*first, limits.disk) > INODES) {
            return CodeOutcome::DiskLimit;
        }
    }
}

/// The processor time that a process has used, with all that it started.
pub(super) fn processor_time(pid: u32) -> Duration {
    time(usage_below(pid).ticks)
}

fn time(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1))
}

/// Walks the tree. No process of a sandbox can leave it: those that lose their parent become children of its first one.
fn usage_below(pid: u32) -> Usage {
    let mut usage = Usage::default();
    let mut next = vec![pid];
    while let Some(pid) = next.pop() {
        let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { continue };
        let [ticks, tasks] = of_stat(&String::from_utf8_lossy(&stat)).unwrap_or_default();
        usage.ticks += ticks;
        usage.tasks += tasks;
        usage.memory += private_memory(pid);
        usage.pids.push(pid);
        next.extend(children(pid));
    }
    usage
}

/// The children of a process, whichever of its threads started them.
pub(super) fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|child| child.parse().ok()).collect::<Vec<u32>>())
        .collect()
}

/// The processor time of a process and of its children that are gone, and how many threads it has. The second field is a name
/// that may hold anything.
fn of_stat(stat: &str) -> Option<[u64; 2]> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<u64> = rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    let ticks = fields.get(11..15)?.iter().sum();
    Some([ticks, *fields.get(17)?])
}

fn private_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    kilobytes(&status, "RssAnon:") + kilobytes(&status, "RssShmem:")
}

/// The same, where what is shared counts once. It takes the kernel longer to say.
fn exact_memory(pids: &[u32]) -> u64 {
    let of = |pid: &u32| match fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
        Ok(rollup) => kilobytes(&rollup, "Pss:"),
        Err(_) => private_memory(*pid),
    };
    pids.iter().map(of).sum()
}

fn kilobytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// How many files there are, as the sandbox's first process sees it. What cannot be seen is not counted, nor are file systems
/// that are larger than those of a sandbox: then it is still in the making, or there is none.
fn inodes(first: u32, disk: u64) -> u64 {
    let count = |name: &&str| {
        let space = rustix::fs::statvfs(format!("/proc/{first}/root/{name}")).ok()?;
        let is_its_own = space.f_blocks.saturating_mul(space.f_frsize) <= disk + space.f_frsize;
        is_its_own.then(|| space.f_files.saturating_sub(space.f_ffree))
    };
    WRITABLE.iter().filter_map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_cannot_hide_what_it_uses() {
        let stat = "7 (a) R 1 2) S 1 7 7 0 -1 0 0 0 0 0 10 20 3 4 20 0 5 0 99 0 0";
        assert_eq!(of_stat(stat), Some([37, 5]));
        assert_eq!(of_stat("7 (a"), None);
        assert_eq!(of_stat("7 (a) S 1"), None);
    }

    #[test]
    fn what_this_process_uses_is_seen() {
        let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
        let usage = usage_below(std::process::id());
        assert!(usage.tasks >= 2 && usage.memory > 100_000, "{usage:?}");
        assert!(usage.pids.contains(&child.id()), "{usage:?}");
        let exact = exact_memory(&usage.pids);
        assert!(exact > 100_000, "{exact}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
