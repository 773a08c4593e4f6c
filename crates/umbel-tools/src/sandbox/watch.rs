//! What all processes of a sandbox use together, as `/proc` shows it. The kernel's own limits are for one process each.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use umbel_core::CodeOutcome;

use super::cgroup::Cgroup;
use super::launch::Launch;

/// How often it is looked at, unless looking takes long.
const PAUSE: Duration = Duration::from_millis(25);
/// Processes that are not the code's: `bwrap`, the supervisor, and what it runs.
const OWN_PROCESSES: u64 = 4;
/// How many files there may be in all: they take memory even if they are empty.
const INODES: u64 = 20_000;
/// Where code can make files.
const WRITABLE: [&str; 5] = ["work", "tmp", "dev/shm", "code", "own"];

/// What processes use.
#[derive(Debug, Default, PartialEq, Eq)]
struct Usage {
    /// Processor time of all, with that of children that are gone, in ticks of the kernel's clock.
    ticks: u64,
    /// Processor time of each alone, by its number and when it began.
    own_ticks: Vec<((u32, u64), u64)>,
    /// Processes and threads.
    tasks: u64,
    /// Memory that is theirs, in bytes. What processes share counts for each.
    memory: u64,
    pids: Vec<u32>,
}

/// Looks at a sandbox, and remembers what was seen.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    pid: u32,
    launch: Arc<Launch>,
    group: Option<Arc<Cgroup>>,
    seen: Arc<Mutex<Seen>>,
}

/// The processor time that was seen. Who ends may take his time along: the kernel adds it to the parent's only if that waits
/// for its children. So neither sum may fall.
#[derive(Debug, Default)]
struct Seen {
    ticks: u64,
    own_ticks: HashMap<(u32, u64), u64>,
    /// Of those that are gone.
    gone_ticks: u64,
}

impl Seen {
    fn add(&mut self, usage: &Usage) {
        self.ticks = self.ticks.max(usage.ticks);
        let now: HashMap<_, _> = usage.own_ticks.iter().copied().collect();
        let gone = self.own_ticks.iter().filter(|(process, _)| !now.contains_key(*process));
        self.gone_ticks += gone.map(|(_, ticks)| ticks).sum::<u64>();
        self.own_ticks = now;
    }

    fn time(&self) -> Duration {
        time(self.ticks.max(self.gone_ticks + self.own_ticks.values().sum::<u64>()))
    }
}

impl Watch {
    pub(super) fn new(pid: u32, launch: Arc<Launch>, group: Option<Arc<Cgroup>>) -> Self {
        Self { pid, launch, group, seen: Arc::default() }
    }

    /// Waits until a limit is passed, and says which. Processor time that was used before does not count.
    pub(super) async fn until_over(&self, used: Duration) -> CodeOutcome {
        let cpu = self.launch.sandbox.limits.cpu;
        let mut pause = PAUSE;
        loop {
            tokio::time::sleep(pause).await;
            let began = Instant::now();
            if let Some(limit) = self.look(used, cpu).await {
                return limit;
            }
            // Many processes take the kernel long to count.
            pause = PAUSE.max(began.elapsed() * 2);
        }
    }

    /// The limit that is passed, if one is. What the kernel says may take long, so it is asked where others can wait.
    pub(super) async fn look(&self, used: Duration, cpu: Duration) -> Option<CodeOutcome> {
        let watch = self.clone();
        tokio::task::spawn_blocking(move || watch.over(used, cpu)).await.unwrap_or_default()
    }

    /// The processor time that was used until now.
    pub(super) async fn time(&self) -> Duration {
        let watch = self.clone();
        tokio::task::spawn_blocking(move || watch.see().1).await.unwrap_or_default()
    }

    fn see(&self) -> (Usage, Duration) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let usage = usage_below(self.pid);
        seen.add(&usage);
        // A control group forgets nobody.
        (usage, self.group.as_ref().map_or(Duration::ZERO, |group| group.time()).max(seen.time()))
    }

    fn over(&self, used: Duration, cpu: Duration) -> Option<CodeOutcome> {
        let limits = &self.launch.sandbox.limits;
        let (usage, time) = self.see();
        if usage.tasks > limits.processes.saturating_add(OWN_PROCESSES) {
            return Some(CodeOutcome::ProcessLimit);
        }
        if time.saturating_sub(used) > cpu {
            return Some(CodeOutcome::CpuLimit);
        }
        let first = usage.pids.get(1).filter(|_| self.launch.is_sandboxed());
        if first.is_some_and(|first| inodes(*first, self.launch.largest_space()) > INODES) {
            return Some(CodeOutcome::DiskLimit);
        }
        let is_over = usage.memory > limits.memory && exact_memory(&usage.pids) > limits.memory;
        is_over.then_some(CodeOutcome::MemoryLimit)
    }
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
        let stat = of_stat(&String::from_utf8_lossy(&stat)).unwrap_or_default();
        usage.ticks += stat.own_ticks + stat.ticks_of_gone;
        usage.own_ticks.push(((pid, stat.began), stat.own_ticks));
        usage.tasks += stat.tasks;
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

/// What the kernel says of a process in one line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stat {
    /// Its processor time.
    own_ticks: u64,
    /// That of its children that are gone.
    ticks_of_gone: u64,
    /// Its threads.
    tasks: u64,
    /// When it began.
    began: u64,
}

/// The second field is a name that may hold anything.
fn of_stat(stat: &str) -> Option<Stat> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<u64> = rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
    Some(Stat {
        own_ticks: fields.get(11..13)?.iter().sum(),
        ticks_of_gone: fields.get(13..15)?.iter().sum(),
        tasks: *fields.get(17)?,
        began: *fields.get(19)?,
    })
}

fn private_memory(pid: u32) -> u64 {
    let status = status(pid);
    ["RssAnon:", "RssShmem:", "VmSwap:", PAGE_TABLES].iter().map(|name| kilobytes(&status, name)).sum()
}

/// What the kernel itself needs to know where the memory of a process is: much, if that is scattered.
const PAGE_TABLES: &str = "VmPTE:";

/// What the kernel says of a process in many lines. Once its first thread is gone, only the others know of its memory.
fn status(pid: u32) -> String {
    let first = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    if first.contains(PAGE_TABLES) {
        return first;
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut others = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    others.find(|status| status.contains(PAGE_TABLES)).unwrap_or(first)
}

/// The same, where what is shared counts once. It takes the kernel longer to say.
fn exact_memory(pids: &[u32]) -> u64 {
    let of = |pid: &u32| match fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
        Ok(rollup) if rollup.contains("Pss:") => {
            let own = ["Pss:", "SwapPss:"].iter().map(|name| kilobytes(&rollup, name)).sum::<u64>();
            own + kilobytes(&status(*pid), PAGE_TABLES)
        }
        _ => private_memory(*pid),
    };
    pids.iter().map(of).sum()
}

/// The memory of this machine.
pub(super) fn machine_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    Some(kilobytes(&text, "MemTotal:")).filter(|bytes| *bytes > 0)
}

fn kilobytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// How many files there are, as the sandbox's first process sees it. What cannot be seen is not counted, nor are file systems
/// that are larger than those of a sandbox: then it is still in the making, or there is none.
fn inodes(first: u32, largest: u64) -> u64 {
    let count = |name: &&str| {
        let space = rustix::fs::statvfs(format!("/proc/{first}/root/{name}")).ok()?;
        let is_its_own =
            space.f_blocks.saturating_mul(space.f_frsize) <= largest.saturating_add(space.f_frsize);
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
        assert_eq!(of_stat(stat), Some(Stat { own_ticks: 30, ticks_of_gone: 7, tasks: 5, began: 99 }));
        assert_eq!(of_stat("7 (a"), None);
        assert_eq!(of_stat("7 (a) S 1"), None);
    }

    #[test]
    fn who_ends_does_not_take_processor_time_along() {
        let usage =
            |ticks, own: &[((u32, u64), u64)]| Usage { ticks, own_ticks: own.to_vec(), ..Usage::default() };
        let mut seen = Seen::default();
        let second = rustix::param::clock_ticks_per_second();
        // Nobody waits for the second process, nor for another one that gets its number.
        seen.add(&usage(3 * second, &[((1, 1), second), ((2, 2), 2 * second)]));
        seen.add(&usage(5 * second, &[((1, 1), second), ((2, 9), 4 * second)]));
        seen.add(&usage(second, &[((1, 1), second)]));
        assert_eq!(seen.time(), Duration::from_secs(7));
        // Those that are waited for count once.
        seen.add(&usage(20 * second, &[((1, 1), second)]));
        assert_eq!(seen.time(), Duration::from_secs(20));
    }

    #[test]
    fn memory_that_was_put_aside_counts() {
        let rollup = "Pss:   10 kB\nPss_Anon: 5 kB\nSwapPss:  7 kB\n";
        assert_eq!(kilobytes(rollup, "Pss:") + kilobytes(rollup, "SwapPss:"), 17 << 10);
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
