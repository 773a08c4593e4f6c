//! The system calls that the filter knows, with their numbers on x86-64 and arm64.
//!
//! The numbers are those of the kernel's headers, Linux 6.1 (`asm/unistd_64.h`,
//! `asm-generic/unistd.h`); a test compares them.

/// A system call: its name, and its numbers on x86-64 and on arm64; -1 if there is none.
pub(super) type Call = (&'static str, i32, i32);

/// The highest number that is known here, on both machines. Calls beyond it are newer than this
/// table.
pub(super) const NEWEST: u32 = 450;

/// The allow-list: calls that code may make with any arguments.
#[rustfmt::skip]
pub(super) const ALLOWED: [Call; 225] = [
    // Files: what is in them, and what is known of them.
    ("read", 0, 63), ("write", 1, 64), ("readv", 19, 65), ("writev", 20, 66), ("pread64", 17, 67),
    ("pwrite64", 18, 68), ("preadv", 295, 69), ("pwritev", 296, 70), ("preadv2", 327, 286),
    ("pwritev2", 328, 287), ("lseek", 8, 62), ("open", 2, -1), ("openat", 257, 56),
    ("openat2", 437, 437), ("creat", 85, -1), ("close", 3, 57), ("close_range", 436, 436),
    ("stat", 4, -1), ("fstat", 5, 80), ("lstat", 6, -1), ("newfstatat", 262, 79),
    ("statx", 332, 291), ("statfs", 137, 43), ("fstatfs", 138, 44), ("access", 21, -1),
    ("faccessat", 269, 48), ("faccessat2", 439, 439), ("readlink", 89, -1), ("readlinkat", 267, 78),
    ("getdents", 78, -1), ("getdents64", 217, 61), ("truncate", 76, 45), ("ftruncate", 77, 46),
    ("fallocate", 285, 47), ("fsync", 74, 82), ("fdatasync", 75, 83), ("fadvise64", 221, 223),
    ("sync_file_range", 277, 84), ("sendfile", 40, 71), ("copy_file_range", 326, 285),
    ("splice", 275, 76), ("tee", 276, 77), ("flock", 73, 32), ("fcntl", 72, 25), ("dup", 32, 23),
    ("dup2", 33, -1), ("dup3", 292, 24),
    // Names of files, owners and attributes.
    ("getcwd", 79, 17), ("chdir", 80, 49), ("fchdir", 81, 50), ("rename", 82, -1),
    ("renameat", 264, 38), ("renameat2", 316, 276), ("mkdir", 83, -1), ("mkdirat", 258, 34),
    ("rmdir", 84, -1), ("link", 86, -1), ("linkat", 265, 37), ("unlink", 87, -1),
    ("unlinkat", 263, 35), ("symlink", 88, -1), ("symlinkat", 266, 36), ("mknod", 133, -1),
    ("mknodat", 259, 33), ("umask", 95, 166), ("chmod", 90, -1), ("fchmod", 91, 52),
    ("fchmodat", 268, 53), ("chown", 92, -1), ("fchown", 93, 55), ("lchown", 94, -1),
    ("fchownat", 260, 54), ("utime", 132, -1), ("utimes", 235, -1), ("futimesat", 261, -1),
    ("utimensat", 280, 88), ("setxattr", 188, 5), ("lsetxattr", 189, 6), ("fsetxattr", 190, 7),
    ("getxattr", 191, 8), ("lgetxattr", 192, 9), ("fgetxattr", 193, 10), ("listxattr", 194, 11),
    ("llistxattr", 195, 12), ("flistxattr", 196, 13), ("removexattr", 197, 14),
    ("lremovexattr", 198, 15), ("fremovexattr", 199, 16),
    // Pipes, sockets and waiting for them.
    ("pipe", 22, -1), ("pipe2", 293, 59), ("poll", 7, -1), ("ppoll", 271, 73), ("select", 23, -1),
    ("pselect6", 270, 72), ("epoll_create", 213, -1), ("epoll_create1", 291, 20),
    ("epoll_ctl", 233, 21), ("epoll_wait", 232, -1), ("epoll_pwait", 281, 22),
    ("epoll_pwait2", 441, 441), ("eventfd", 284, -1), ("eventfd2", 290, 19), ("signalfd", 282, -1),
    ("signalfd4", 289, 74), ("timerfd_create", 283, 85), ("timerfd_settime", 286, 86),
    ("timerfd_gettime", 287, 87), ("connect", 42, 203), ("accept", 43, 202), ("accept4", 288, 242),
    ("bind", 49, 200), ("listen", 50, 201), ("sendto", 44, 206), ("recvfrom", 45, 207),
    ("sendmsg", 46, 211), ("recvmsg", 47, 212), ("sendmmsg", 307, 269), ("recvmmsg", 299, 243),
    ("shutdown", 48, 210), ("getsockname", 51, 204), ("getpeername", 52, 205),
    ("setsockopt", 54, 208), ("getsockopt", 55, 209),
    // Memory.
    ("mprotect", 10, 226), ("munmap", 11, 215), ("mremap", 25, 216), ("msync", 26, 227),
    ("mincore", 27, 232), ("madvise", 28, 233), ("brk", 12, 214), ("mlock", 149, 228),
    ("mlock2", 325, 284), ("munlock", 150, 229), ("membarrier", 324, 283),
    // Processes and threads.
    ("fork", 57, -1), ("vfork", 58, -1), ("execve", 59, 221), ("execveat", 322, 281),
    ("exit", 60, 93), ("exit_group", 231, 94), ("wait4", 61, 260), ("waitid", 247, 95),
    ("kill", 62, 129), ("tkill", 200, 130), ("tgkill", 234, 131), ("pidfd_open", 434, 434),
    ("pidfd_send_signal", 424, 424), ("getpid", 39, 172), ("getppid", 110, 173),
    ("gettid", 186, 178), ("setpgid", 109, 154), ("getpgid", 121, 155), ("getpgrp", 111, -1),
    ("setsid", 112, 157), ("getsid", 124, 156), ("set_tid_address", 218, 96),
    ("set_robust_list", 273, 99), ("get_robust_list", 274, 100), ("futex", 202, 98),
    ("rseq", 334, 293), ("arch_prctl", 158, -1), ("prctl", 157, 167), ("sched_yield", 24, 124),
    ("sched_setaffinity", 203, 122), ("sched_getaffinity", 204, 123),
    ("sched_setscheduler", 144, 119), ("sched_getscheduler", 145, 120),
    ("sched_setparam", 142, 118), ("sched_getparam", 143, 121),
    ("sched_get_priority_max", 146, 125), ("sched_get_priority_min", 147, 126),
    ("sched_rr_get_interval", 148, 127), ("getpriority", 140, 141), ("setpriority", 141, 140),
    ("getcpu", 309, 168),
    // Signals.
    ("rt_sigaction", 13, 134), ("rt_sigprocmask", 14, 135), ("rt_sigreturn", 15, 139),
    ("rt_sigpending", 127, 136), ("rt_sigtimedwait", 128, 137), ("rt_sigqueueinfo", 129, 138),
    ("rt_tgsigqueueinfo", 297, 240), ("rt_sigsuspend", 130, 133), ("sigaltstack", 131, 132),
    ("pause", 34, -1), ("restart_syscall", 219, 128),
    // Time.
    ("time", 201, -1), ("gettimeofday", 96, 169), ("clock_gettime", 228, 113),
    ("clock_getres", 229, 114), ("nanosleep", 35, 101), ("clock_nanosleep", 230, 115),
    ("alarm", 37, -1), ("getitimer", 36, 102), ("setitimer", 38, 103), ("timer_create", 222, 107),
    ("timer_settime", 223, 110), ("timer_gettime", 224, 108), ("timer_getoverrun", 225, 109),
    ("timer_delete", 226, 111), ("times", 100, 153),
    // Users and rights: `setpriv` gives up the last ones.
    ("getuid", 102, 174), ("geteuid", 107, 175), ("getgid", 104, 176), ("getegid", 108, 177),
    ("getresuid", 118, 148), ("getresgid", 120, 150), ("getgroups", 115, 158), ("setuid", 105, 146),
    ("setgid", 106, 144), ("setreuid", 113, 145), ("setregid", 114, 143), ("setresuid", 117, 147),
    ("setresgid", 119, 149), ("setfsuid", 122, 151), ("setfsgid", 123, 152),
    ("setgroups", 116, 159), ("capget", 125, 90), ("capset", 126, 91),
    // Limits and facts.
    ("getrlimit", 97, 163), ("setrlimit", 160, 164), ("getrusage", 98, 165), ("sysinfo", 99, 179),
    ("uname", 63, 160), ("getrandom", 318, 278),
];

/// Calls that are refused as if this kernel did not have them (`ENOSYS`), since programs then do
/// without them.
pub(super) const MISSING: [Call; 20] = [
    ("clone3", 435, 435), // what it makes cannot be seen from here; `clone` is used instead
    ("memfd_create", 319, 279), // memory that no limit counts
    ("memfd_secret", 447, 447),
    ("shmget", 29, 194),
    ("msgget", 68, 186),
    ("semget", 64, 190),
    ("mq_open", 240, 180),
    ("io_uring_setup", 425, 425),
    ("io_uring_enter", 426, 426),
    ("io_uring_register", 427, 427),
    ("userfaultfd", 323, 282),
    ("io_setup", 206, 0),      // how much there may be is counted for the whole machine
    ("inotify_init", 253, -1), // how many there may be is counted for the user of the host
    ("inotify_init1", 294, 26),
    ("vmsplice", 278, 75),
    ("seccomp", 317, 277),
    ("landlock_create_ruleset", 444, 444),
    ("pkey_alloc", 330, 289),
    ("get_mempolicy", 239, 236),
    ("futex_waitv", 449, 449),
];

// Calls that code may make with some arguments only.
pub(super) const SOCKET: Call = ("socket", 41, 198);
pub(super) const SOCKETPAIR: Call = ("socketpair", 53, 199);
pub(super) const CLONE: Call = ("clone", 56, 220);
pub(super) const MMAP: Call = ("mmap", 9, 222);
pub(super) const IOCTL: Call = ("ioctl", 16, 29);
pub(super) const PRLIMIT: Call = ("prlimit64", 302, 261);

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn all() -> impl Iterator<Item = Call> {
        let checked = [SOCKET, SOCKETPAIR, CLONE, MMAP, IOCTL, PRLIMIT];
        ALLOWED.into_iter().chain(MISSING).chain(checked)
    }

    #[test]
    fn every_call_stands_in_one_list_and_has_a_number() {
        let mut names = BTreeSet::new();
        let (mut x86, mut arm) = (BTreeSet::new(), BTreeSet::new());
        for (name, on_x86, on_arm) in all() {
            assert!(names.insert(name), "{name} stands there twice");
            // There is no call that only arm64 has.
            assert!(u32::try_from(on_x86).is_ok_and(|number| number <= NEWEST), "{name}");
            assert!(on_arm == -1 || u32::try_from(on_arm).is_ok_and(|number| number <= NEWEST), "{name}");
            assert!(x86.insert(on_x86), "{name} has the number of another call on x86-64");
            assert!(on_arm == -1 || arm.insert(on_arm), "{name} has the number of another call on arm64");
        }
    }

    /// The numbers in one of the kernel's headers. A name may stand for that of another one.
    fn header(path: &str) -> Option<BTreeMap<String, i32>> {
        let text = std::fs::read_to_string(path).ok()?;
        let lines = text.lines().filter_map(|line| {
            let mut words = line.strip_prefix("#define __NR")?.split_whitespace();
            Some((words.next()?, words.next()?))
        });
        let words: BTreeMap<&str, &str> = lines.collect();
        let number = |word: &str| {
            let named = word.strip_prefix("__NR").and_then(|name| words.get(name).copied());
            named.unwrap_or(word).parse::<i32>().ok()
        };
        let calls = words.iter().filter_map(|(name, word)| Some((name.strip_prefix('_')?, number(word)?)));
        Some(calls.map(|(name, number)| (name.to_owned(), number)).collect())
    }

    #[test]
    fn the_numbers_are_those_of_the_kernel_s_headers() {
        let x86 = header("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
            .or_else(|| header("/usr/include/asm/unistd_64.h").filter(|calls| calls.contains_key("fork")));
        let arm = header("/usr/include/asm-generic/unistd.h");
        let number = |call: Call, is_x86: bool| if is_x86 { call.1 } else { call.2 };
        for (machine, is_x86, calls) in [("x86-64", true, x86), ("arm64", false, arm)] {
            let Some(calls) = calls else {
                #[allow(clippy::print_stderr)]
                {
                    eprintln!("not run for {machine}, since its headers are not installed (linux-libc-dev)");
                }
                continue;
            };
            for call in all() {
                let expected = calls.get(call.0).copied().unwrap_or(-1);
                assert_eq!(number(call, is_x86), expected, "{} on {machine}", call.0);
            }
        }
    }
}
