//! From how code ended to its outcome, and to words about it.

use umbel_core::{CodeOutcome, CodeOutput};

use super::Limits;

/// What programs say last when the kernel refuses them more, and which limit that is.
const LAST_WORDS: [(&str, CodeOutcome); 11] = [
    ("MemoryError", CodeOutcome::MemoryLimit),
    ("Cannot allocate memory", CodeOutcome::MemoryLimit),
    ("std::bad_alloc", CodeOutcome::MemoryLimit),
    ("heap out of memory", CodeOutcome::MemoryLimit),
    ("can't start new thread", CodeOutcome::ProcessLimit),
    ("Cannot fork", CodeOutcome::ProcessLimit),
    ("fork: retry", CodeOutcome::ProcessLimit),
    ("No space left on device", CodeOutcome::DiskLimit),
    ("Disk quota exceeded", CodeOutcome::DiskLimit),
    ("File too large", CodeOutcome::DiskLimit),
    ("File size limit exceeded", CodeOutcome::DiskLimit),
];
/// What the kernel says to who cannot have another process, and to others who are to come again.
const AGAIN: &str = "Resource temporarily unavailable";
/// How it is told that it was about a process.
const STARTS: [&str; 4] = ["fork", "thread", "clone", "spawn"];

/// How many lines are looked through for it, from the end.
const LAST_LINES: usize = 40;

const SIGKILL: i32 = 9;
const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;

/// From the status that a shell gives: 128 and a signal, if there was one.
pub(super) fn of_status(status: i32, stderr: &[u8]) -> CodeOutcome {
    let signal = status.checked_sub(128).filter(|signal| (1..=64).contains(signal));
    match signal {
        Some(SIGXCPU) => CodeOutcome::CpuLimit,
        Some(SIGXFSZ) => CodeOutcome::DiskLimit,
        _ if status == 0 => CodeOutcome::Ok,
        _ => {
            let stderr = String::from_utf8_lossy(stderr);
            let last = last_words(&stderr);
            let limit = LAST_WORDS.iter().find(|(words, _)| last.contains(words)).map(|(_, limit)| *limit);
            let limit =
                limit.or_else(|| is_out_of_processes(&stderr, last).then_some(CodeOutcome::ProcessLimit));
            limit.unwrap_or(match signal {
                Some(signal) => CodeOutcome::Killed { signal: Some(signal) },
                None => CodeOutcome::Failed { exit_code: Some(status) },
            })
        }
    }
}

/// The line that says why it ended. Processes that end together write between each other's lines, and some are killed while
/// they do: what only belongs to a traceback is not the last word of anybody.
fn last_words(stderr: &str) -> &str {
    let lines = || stderr.lines().rev().filter(|line| !line.trim().is_empty());
    let is_trace = |line: &&str| line.starts_with([' ', '\t']) || line.starts_with("Traceback ");
    lines().take(LAST_LINES).find(|line| !is_trace(line)).or_else(|| lines().next()).unwrap_or_default()
}

/// Whether it could not start another process. The line itself may not say so, but then those around it do: they are where
/// that happened.
fn is_out_of_processes(stderr: &str, last: &str) -> bool {
    let mut lines = stderr.lines().rev().filter(|line| !line.trim().is_empty()).take(LAST_LINES);
    last.contains(AGAIN) && lines.any(|line| STARTS.iter().any(|word| line.contains(word)))
}

/// How large the limit was.
pub(super) fn note(outcome: CodeOutcome, limits: &Limits) -> Option<String> {
    let note = match outcome {
        CodeOutcome::TimeLimit => format!("It may run for {} s.", limits.time.as_secs_f64()),
        CodeOutcome::CpuLimit => format!("It may compute for {} s.", limits.cpu.as_secs_f64()),
        CodeOutcome::MemoryLimit => format!("It may use {} of memory.", bytes(limits.memory)),
        CodeOutcome::OutputLimit => {
            format!("It may print {}: print less, or write a file.", bytes(limits.output as u64))
        }
        CodeOutcome::ProcessLimit => {
            format!("It may have {} processes and threads at a time.", limits.processes)
        }
        CodeOutcome::DiskLimit => format!("It may write {} to files.", bytes(limits.disk)),
        CodeOutcome::Killed { signal: Some(SIGKILL) } => "This machine may be short of memory.".to_owned(),
        _ => return None,
    };
    Some(note)
}

/// A size that people can read.
pub(super) fn bytes(count: u64) -> String {
    match count {
        0..0x400 => format!("{count} bytes"),
        0x400..0x10_0000 => format!("{} KiB", count >> 10),
        _ => format!("{} MiB", count >> 20),
    }
}

/// Whether the supervisor refused because something of this process came along.
pub(super) fn is_for_a_descriptor(said: &str) -> bool {
    said.starts_with("supervisor: descriptor")
}

/// Why there is no sandbox, and what to do.
pub(super) fn cannot_start(said: &str) -> String {
    let said = said.lines().next().unwrap_or_default();
    let todo = if said.contains("Unknown option") {
        "bubblewrap is too old: version 0.8 or newer is needed"
    } else if is_for_a_descriptor(said) {
        "something is opened again and again that programs inherit: open it with `O_CLOEXEC`"
    } else if said.contains("find source path") || said.contains("Can't bind mount") {
        "a path that code may read is not there, or not for everybody"
    } else if ["ermission", "not permitted", "namespace", "uid map"].iter().any(|word| said.contains(word)) {
        "this machine does not let programs make namespaces. In a container, allow them: \
         `--security-opt seccomp=unconfined --security-opt apparmor=unconfined` for Docker. On Ubuntu, \
         `sysctl kernel.apparmor_restrict_unprivileged_userns=0`; on older systems, \
         `sysctl kernel.unprivileged_userns_clone=1`"
    } else {
        "bubblewrap, util-linux, GNU tar and findutils are needed"
    };
    format!("no sandbox could be made ({said}): {todo}")
}

/// Why even an empty program does not run.
pub(super) fn cannot_run(interpreter: &[String], output: &CodeOutput) -> String {
    let program = interpreter.first().map(String::as_str).unwrap_or_default();
    let said = output.stderr.lines().next().unwrap_or_default();
    let why = match output.outcome {
        CodeOutcome::Failed { exit_code: Some(126 | 127) } => {
            "it is not there, or not for everybody. Install it (`python3`), or let code read where it is \
             (`read_only`)"
                .to_owned()
        }
        outcome => outcome.words(),
    };
    format!("`{program}` cannot be run ({said}): {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_a_name() {
        let of = |status, stderr: &str| of_status(status, stderr.as_bytes());
        assert_eq!(of(0, "MemoryError"), CodeOutcome::Ok);
        assert_eq!(of(3, "x"), CodeOutcome::Failed { exit_code: Some(3) });
        assert_eq!(of(255, ""), CodeOutcome::Failed { exit_code: Some(255) });
        assert_eq!(of(137, ""), CodeOutcome::Killed { signal: Some(9) });
        assert_eq!(of(128 + 24, ""), CodeOutcome::CpuLimit);
        assert_eq!(of(128 + 25, ""), CodeOutcome::DiskLimit);
        assert_eq!(of(1, "Traceback\nMemoryError\n\n"), CodeOutcome::MemoryLimit);
        assert_eq!(of(1, "MemoryError\nValueError: x"), CodeOutcome::Failed { exit_code: Some(1) });
        assert_eq!(of(1, "OSError: [Errno 28] No space left on device"), CodeOutcome::DiskLimit);
        let again = "BlockingIOError: [Errno 11] Resource temporarily unavailable";
        assert_eq!(of(1, again), CodeOutcome::Failed { exit_code: Some(1) });
        assert_eq!(of(1, &format!("    os.fork()\n    ~~^^\n{again}\n")), CodeOutcome::ProcessLimit);
        // 32 processes that end together.
        let mixed = "    os.fork()\nTraceback (most recent call last):\n";
        let mixed = format!("{}{again}\n{}  File \"main\", line 9\n", mixed.repeat(9), mixed.repeat(9));
        assert_eq!(of(1, &mixed), CodeOutcome::ProcessLimit);
        assert_eq!(of(1, "    MemoryError\n"), CodeOutcome::MemoryLimit);
        assert_eq!(of(1, "RuntimeError: can't start new thread"), CodeOutcome::ProcessLimit);
    }

    #[test]
    fn who_cannot_have_a_sandbox_hears_what_to_do() {
        let old = cannot_start("bwrap: Unknown option --disable-userns\n");
        assert!(old.contains("0.8 or newer"), "{old}");
        let forbidden = cannot_start("bwrap: No permissions to create new namespace, likely because\n");
        assert!(forbidden.contains("seccomp=unconfined"), "{forbidden}");
        let missing = cannot_start("bwrap: Can't find source path /nowhere: No such file or directory\n");
        assert!(missing.contains("a path that code may read"), "{missing}");
        let open = cannot_start("supervisor: descriptor 7 of this process is open\n");
        assert!(open.contains("O_CLOEXEC"), "{open}");
    }
}
