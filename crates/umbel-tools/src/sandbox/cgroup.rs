//! Control groups, version 2: where this process may make them, each sandbox has one of its own.
//! The kernel then holds all its processes together to a limit of memory and of tasks, and kills
//! them together.
//!
//! A group is made only where the one who manages groups has handed them over (delegation): where
//! systemd says so by an attribute of the folder (`Delegate=`), or at the root of what a container
//! sees. Elsewhere others would not expect it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the names of groups begin with; then the number of the process that made it, and which one
/// it is.
const PREFIX: &str = "umbel-sandbox-";
/// Where this process goes if it is in the way: a group whose limits are set for its children has
/// no processes.
const OWN: &str = "umbel";
/// The controllers that are needed.
const CONTROLLERS: [&str; 2] = ["memory", "pids"];
/// What says that a group was handed over, set by systemd. The second one only root can read.
const DELEGATED: [&str; 2] = ["user.delegate", "trusted.delegate"];
/// How often, and after which pause, a group is removed whose processes may still be ending.
const REMOVALS: usize = 200;
const PAUSE: Duration = Duration::from_millis(10);
/// The same where nothing else can be done meanwhile.
const HASTY_REMOVALS: usize = 20;
const HASTY_PAUSE: Duration = Duration::from_millis(1);

/// Where groups can be made here. It is found out once, and logged.
static HERE: LazyLock<Option<Cgroups>> = LazyLock::new(|| {
    let found =
        Hierarchy::second().ok_or_else(|| "there is no cgroup2".to_owned()).and_then(|here| here.find());
    match found {
        Ok(cgroups) => {
            let path = cgroups.base.display();
            tracing::info!(confinement = "cgroup", %path, "sandboxes have control groups");
            Some(cgroups)
        }
        Err(reason) => {
            tracing::info!(
                confinement = "rlimit",
                reason,
                "sandboxes have no control groups: rlimits and the watcher hold them"
            );
            None
        }
    }
});

/// A hierarchy of groups as this process sees it.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// Where it is mounted.
    mount: PathBuf,
    /// The folder of this process.
    own: PathBuf,
}

/// Where groups for sandboxes are made.
#[derive(Debug)]
pub(super) struct Cgroups {
    base: PathBuf,
}

/// The group of a sandbox. It is killed and removed when it is dropped, and by [`Self::remove`]
/// where its processes can be waited for.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: PathBuf,
}

/// The least limit of memory that holds for this process, by its groups of either version.
pub(super) fn memory_limit() -> Option<u64> {
    let second = Hierarchy::second().and_then(|here| here.least("memory.max"));
    let first = Hierarchy::first("memory").and_then(|here| here.least("memory.limit_in_bytes"));
    second.into_iter().chain(first).min()
}

impl Hierarchy {
    fn second() -> Option<Self> {
        let (groups, mounts) = Self::read()?;
        Self::parse(&groups, &mounts, None)
    }

    fn first(controller: &str) -> Option<Self> {
        let (groups, mounts) = Self::read()?;
        Self::parse(&groups, &mounts, Some(controller))
    }

    fn read() -> Option<(String, String)> {
        let read = |name| fs::read_to_string(format!("/proc/self/{name}")).ok();
        Some((read("cgroup")?, read("mountinfo")?))
    }

    /// From `/proc/self/cgroup` and `/proc/self/mountinfo`: that of version 2, or that of a
    /// controller of version 1.
    fn parse(groups: &str, mounts: &str, controller: Option<&str>) -> Option<Self> {
        let mut groups = groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        let is_it = |controllers: &str| match controller {
            None => controllers.is_empty(),
            Some(controller) => controllers.split(',').any(|name| name == controller),
        };
        let (_, path) = groups.find(|(controllers, _)| is_it(controllers))?;
        mounts.lines().find_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let mut kind = kind.split(' ');
            let (name, options) = (kind.next()?, kind.nth(1)?);
            let is_it = match controller {
                None => name == "cgroup2",
                Some(controller) => name == "cgroup" && options.split(',').any(|option| option == controller),
            };
            let mut place = place.split(' ').skip(3);
            let (root, mount) = (place.next()?, PathBuf::from(place.next()?));
            let below = Path::new(path).strip_prefix(root).ok().filter(|_| is_it)?;
            let is_plain = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
            is_plain.then(|| Self { own: mount.components().chain(below.components()).collect(), mount })
        })
    }

    /// The least number that stands in a file of that name, from the group of this process upwards.
    fn least(&self, file: &str) -> Option<u64> {
        let folders = self.own.ancestors().take_while(|folder| folder.starts_with(&self.mount));
        folders.filter_map(|folder| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()).min()
    }

    /// Finds where groups can be made, by making one: in the group of this process, or beside it.
    /// Says why there is no place.
    fn find(&self) -> Result<Cgroups, String> {
        let parent = self.own.parent().filter(|parent| parent.starts_with(&self.mount));
        let mut why = format!("{} was not handed over to this process", self.own.display());
        for base in [Some(self.own.as_path()), parent].into_iter().flatten() {
            if !self.is_delegated(base) {
                continue;
            }
            match self.enable(base).and_then(|()| Cgroups::try_out(base)) {
                Ok(cgroups) => return Ok(cgroups),
                Err(error) => why = format!("{}: {error}", base.display()),
            }
        }
        Err(why)
    }

    /// Whether this process may make groups there as it likes: by the word of systemd, or since
    /// nobody else can, because it is the root for this process. The root of the whole machine has
    /// no type, and belongs to those who are in it.
    fn is_delegated(&self, base: &Path) -> bool {
        let is_said = DELEGATED.iter().any(|name| {
            let mut value = [0; 8];
            rustix::fs::getxattr(base, *name, &mut value).is_ok_and(|size| value.get(..size) == Some(b"1"))
        });
        is_said || (base == self.mount && (base == self.own || base.join("cgroup.type").exists()))
    }

    /// Has the controllers count for each child of the group. If this process is in the way, alone,
    /// it steps aside.
    fn enable(&self, base: &Path) -> io::Result<()> {
        let has = |file: &str| {
            let text = fs::read_to_string(base.join(file)).unwrap_or_default();
            CONTROLLERS.iter().all(|name| text.split_whitespace().any(|word| word == *name))
        };
        if !has("cgroup.controllers") {
            return Err(io::Error::other("the controllers memory and pids are not to be had"));
        }
        if has("cgroup.subtree_control") {
            return Ok(());
        }
        let enable = || write(base, "cgroup.subtree_control", "+memory +pids");
        let Err(error) = enable() else { return Ok(()) };
        let alone = std::process::id().to_string();
        let members = fs::read_to_string(base.join("cgroup.procs"))?;
        if base != self.own || members.trim() != alone {
            return Err(error);
        }
        let aside = base.join(OWN);
        make(&aside)?;
        write(&aside, "cgroup.procs", &alone)?;
        enable()
    }
}

impl Cgroups {
    /// Where groups can be made here, if anywhere.
    pub(super) fn here() -> Option<&'static Self> {
        HERE.as_ref()
    }

    fn try_out(base: &Path) -> io::Result<Self> {
        let cgroups = Self { base: base.to_owned() };
        cgroups.sweep();
        drop(cgroups.create(1 << 30, 64)?);
        Ok(cgroups)
    }

    /// Makes a group with so much memory and so many processes and threads.
    pub(super) fn create(&self, memory: u64, tasks: u64) -> io::Result<Cgroup> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = self.base.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&path)?;
        let group = Cgroup { path };
        group.write("memory.max", &memory.to_string())?;
        // Where the kernel keeps no account of swap, there is none to limit.
        match group.write("memory.swap.max", "0") {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Half a sandbox is of no use to anybody.
        group.write("memory.oom.group", "1")?;
        group.write("pids.max", &tasks.to_string())?;
        Ok(group)
    }

    /// Removes groups that processes left which are gone. The kernel keeps those where something
    /// still runs.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.base).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let maker = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
            if maker.is_some_and(|maker| !Path::new("/proc").join(maker).exists()) {
                let _ = fs::remove_dir(entry.path());
            }
        }
    }
}

impl Cgroup {
    /// Moves a process into it. What that starts from then on is in it, too.
    pub(super) fn add(&self, pid: u32) -> io::Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Kills all that is in it, at once.
    pub(super) fn kill(&self) {
        // If it is gone, so are its processes.
        let _ = self.write("cgroup.kill", "1");
    }

    /// How many of its processes were killed because it had used up its memory.
    pub(super) fn out_of_memory(&self) -> u64 {
        self.number("memory.events", "oom_kill").unwrap_or(0)
    }

    /// The processor time of all that is or was in it.
    pub(super) fn time(&self) -> Duration {
        Duration::from_micros(self.number("cpu.stat", "usage_usec").unwrap_or(0))
    }

    /// Waits until its processes are gone, and removes it.
    pub(super) async fn remove(&self) {
        self.kill();
        for _ in 0..REMOVALS {
            if fs::remove_dir(&self.path).is_ok() || !self.path.exists() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn number(&self, file: &str, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.path.join(file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    }

    fn write(&self, file: &str, value: &str) -> io::Result<()> {
        write(&self.path, file, value)
    }
}

/// It is gone already, unless the runtime ended before it could be waited for.
impl Drop for Cgroup {
    fn drop(&mut self) {
        if !self.path.exists() {
            return;
        }
        self.kill();
        for _ in 0..HASTY_REMOVALS {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(HASTY_PAUSE);
        }
    }
}

fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Writes to a file that is there: the kernel makes them.
fn write(folder: &Path, file: &str, value: &str) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{file}: {error}"));
    let mut open = fs::OpenOptions::new().write(true).open(folder.join(file)).map_err(named)?;
    io::Write::write_all(&mut open, value.as_bytes()).map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 0:20 / /proc rw - proc proc rw\n\
        30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n\
        31 22 0:27 /docker/a /old/memory rw - cgroup cgroup rw,memory\n";
    const GROUPS: &str = "4:cpu,cpuacct:/\n3:memory:/docker/a/b\n0::/system.slice/umbel.service\n";

    #[test]
    fn the_group_of_a_process_is_found_in_either_version() {
        let parse = |groups, controller| Hierarchy::parse(groups, MOUNTS, controller);
        let here = |mount: &str, own: &str| Some(Hierarchy { mount: mount.into(), own: own.into() });
        let second = here("/sys/fs/cgroup", "/sys/fs/cgroup/system.slice/umbel.service");
        assert_eq!(parse(GROUPS, None), second);
        assert_eq!(parse(GROUPS, Some("memory")), here("/old/memory", "/old/memory/b"));
        assert_eq!(parse(GROUPS, Some("pids")), None);
        assert_eq!(parse("0::/\n", None), here("/sys/fs/cgroup", "/sys/fs/cgroup"));
        // A process outside of what can be seen.
        assert_eq!(parse("0::/../x\n", None), None);
        assert_eq!(parse("3:memory:/elsewhere\n", Some("memory")), None);
    }

    /// A folder that looks like a group with the files that are given.
    fn group(path: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(path).unwrap();
        files.iter().for_each(|(name, text)| fs::write(path.join(name), text).unwrap());
    }

    #[test]
    fn the_least_limit_of_all_groups_above_counts() {
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().join("cgroup");
        group(folder.path(), &[("memory.max", "1")]);
        group(&mount.join("a"), &[("memory.max", "4096\n")]);
        group(&mount.join("a/b"), &[("memory.max", "max\n")]);
        group(&mount.join("a/c"), &[("memory.max", "1024\n")]);
        let least = |own: &str| Hierarchy { own: mount.join(own), mount: mount.clone() }.least("memory.max");
        assert_eq!((least("a/b"), least("a/c"), least("")), (Some(4096), Some(1024), None));
    }

    #[test]
    fn no_group_is_made_where_none_was_handed_over_or_nothing_can_be_limited() {
        let folder = tempfile::tempdir().unwrap();
        let mount = folder.path().to_owned();
        let all = [("cgroup.controllers", "cpu memory pids"), ("cgroup.subtree_control", "memory pids")];
        group(&mount, &[("cgroup.controllers", "cpu pids")]);
        group(&mount.join("a/b"), &all);
        let find = |own: &str| Hierarchy { own: mount.join(own), mount: mount.clone() }.find().unwrap_err();
        assert!(find("a/b").contains("was not handed over"), "{}", find("a/b"));
        assert!(find("").contains("the controllers memory and pids"), "{}", find(""));
        let left: Vec<_> = fs::read_dir(mount.join("a/b")).unwrap().flatten().collect();
        assert_eq!(left.len(), all.len(), "{left:?}");
    }
}
