//! Processes that were started here, and how they end.

use tokio::process::{Child, Command};

/// The variable by which what a program started is found again, whatever group or session it has gone to.
const MARK: &str = "UMBEL_PROCESS";

/// A program and all that it started. Dropped, they end. On Linux that includes what went to a group or a session of its own,
/// as long as it kept the variable `UMBEL_PROCESS`.
#[derive(Debug)]
pub struct Group {
    #[cfg(unix)]
    leader: Option<rustix::process::Pid>,
    /// What its processes have in their environment.
    #[cfg(target_os = "linux")]
    mark: Option<String>,
}

/// Marks a program that is about to be started, so that what it starts can be found.
pub(crate) fn mark(command: &mut Command) {
    let id = umbel_core::Ids::mint(&umbel_core::RandomIds, umbel_core::IdKind::Run);
    command.env(MARK, id.as_str());
}

impl Group {
    /// Starts a program, in a group of its own.
    pub fn start(command: &mut Command) -> std::io::Result<(Child, Self)> {
        let child = command.spawn()?;
        #[allow(unused_mut, reason = "there is nothing to find elsewhere")]
        let mut group = Self::of(&child);
        #[cfg(target_os = "linux")]
        {
            let marks = command.as_std().get_envs().filter(|(name, _)| *name == MARK);
            group.mark = marks.filter_map(|(_, value)| Some(value?.to_string_lossy().into_owned())).last();
        }
        Ok((child, group))
    }

    /// A program that was started in a group of its own.
    #[cfg(unix)]
    pub(crate) fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self {
            leader: id.and_then(rustix::process::Pid::from_raw),
            #[cfg(target_os = "linux")]
            mark: None,
        }
    }

    /// A program that was started.
    #[cfg(not(unix))]
    pub(crate) fn of(_: &Child) -> Self {
        Self {}
    }

    /// Tells them to end, where there is a way to say so. They may take their time, or not listen.
    pub fn tell_to_end(&self) {
        #[cfg(unix)]
        self.signal(rustix::process::Signal::TERM);
    }

    #[cfg(unix)]
    fn signal(&self, signal: rustix::process::Signal) {
        if let Some(leader) = self.leader {
            // Nobody may be left of it.
            let _ = rustix::process::kill_process_group(leader, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        #[cfg(unix)]
        self.signal(rustix::process::Signal::KILL);
        #[cfg(target_os = "linux")]
        if let Some(mark) = &self.mark {
            kill_marked(mark);
        }
    }
}

/// How often processes are looked for: those that were found last may have started others before they ended.
#[cfg(target_os = "linux")]
const LOOKS: usize = 8;

/// Kills the processes of this user that have a mark in their environment, until there are none.
#[cfg(target_os = "linux")]
fn kill_marked(mark: &str) {
    let entry = format!("{MARK}={mark}");
    let has_mark = |id: u32| {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == entry.as_bytes())
    };
    for _ in 0..LOOKS {
        let Ok(processes) = std::fs::read_dir("/proc") else { return };
        let ids = processes.filter_map(|process| process.ok()?.file_name().to_str()?.parse::<u32>().ok());
        let found: Vec<u32> = ids.filter(|id| has_mark(*id)).collect();
        if found.is_empty() {
            return;
        }
        found.into_iter().for_each(|id| {
            kill_child(id, has_mark);
        });
    }
}

/// Keeps what this process has open from programs that it starts. What it opens itself is marked so anyway; what it was
/// started with, or what a library in C opened, often is not. It is marked now, so no program that anybody here starts later
/// gets it.
#[cfg(unix)]
pub(crate) fn keep_descriptors() {
    close_fds::set_fds_cloexec_threadsafe(3, &[]);
}

/// Kills one process, if it is still the one that was found.
#[cfg(target_os = "linux")]
pub(crate) fn kill_child(child: u32, is_child: impl Fn(u32) -> bool) -> bool {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) else { return false };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    // Now the number cannot become that of another process any more.
    is_child(child) && pidfd_send_signal(&process, Signal::KILL).is_ok()
}

/// Starts a program that asks the kernel to end with its parent. To the kernel that is the thread which started it, so
/// it has to be one that lives as long as this process; those of a runtime come and go.
#[cfg(target_os = "linux")]
pub(crate) async fn spawn_from_lasting_thread(
    mut command: tokio::process::Command,
) -> std::io::Result<Child> {
    use std::io;
    use std::sync::LazyLock;
    use std::sync::mpsc::{Sender, channel};

    type Job = Box<dyn FnOnce() + Send>;
    static THREAD: LazyLock<Option<Sender<Job>>> = LazyLock::new(|| {
        let (jobs, waiting) = channel::<Job>();
        let work = move || waiting.into_iter().for_each(|job| job());
        std::thread::Builder::new().name("umbel-sandbox".to_owned()).spawn(work).ok().map(|_| jobs)
    });
    let gone = || io::Error::other("the thread that starts programs is gone");
    let runtime = tokio::runtime::Handle::current();
    let (tell, told) = tokio::sync::oneshot::channel();
    let job = move || {
        let _entered = runtime.enter();
        keep_descriptors();
        // Who asked may have gone: then the child is dropped, and ends.
        let _ = tell.send(command.spawn());
    };
    THREAD.as_ref().ok_or_else(gone)?.send(Box::new(job)).map_err(|_| gone())?;
    told.await.map_err(|_| gone())?
}
