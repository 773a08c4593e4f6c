//! The filter of system calls: an allow-list, as a program that the kernel runs before each call.
//!
//! Namespaces and lost privileges keep code from most of the kernel already. The filter is for what
//! they leave open: sockets that no network namespace holds back (`vsock` reaches the host of a
//! virtual machine), keys, memory that no limit counts, and parts of the kernel in which mistakes
//! were found before. What stands in no list is refused: by `EPERM` if this table knows it, and by
//! `ENOSYS` if it is newer, so that libraries fall back to older calls.

use super::calls::{ALLOWED, CLONE, Call, IOCTL, MISSING, MMAP, NEWEST, PRLIMIT, SOCKET, SOCKETPAIR};

const EPERM: u32 = 1;
const ENOMEM: u32 = 12;
const ENOSYS: u32 = 38;
const EAFNOSUPPORT: u32 = 97;

/// What the kernel is told: to make the call, or to fail with the error in the lower half.
const ALLOW: u32 = 0x7fff_0000;
const FAIL: u32 = 0x0005_0000;

/// Kinds of sockets that a network namespace holds back: `AF_UNIX`, `AF_INET`, `AF_INET6`.
const FAMILIES: [u32; 3] = [1, 2, 10];
/// The flags of `clone` that make namespaces: those of mounts, control groups, names, messages, users, processes, networks.
const NAMESPACES: u32 = 0x7e02_0000;
/// Memory that is shared and no file, in the flags of `mmap`: it may be there without being seen in a process.
const SHARED_MEMORY: u32 = 0x21;
/// What puts letters into a terminal's input: `TIOCSTI` and `TIOCLINUX`.
const TERMINAL: [u32; 2] = [0x5412, 0x541c];

/// The machine that programs are built for, as the kernel names it, and which number of a call is its own.
#[derive(Clone, Copy)]
enum Machine {
    X86,
    Arm,
}

impl Machine {
    fn here() -> Option<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Self::X86),
            "aarch64" => Some(Self::Arm),
            _ => None,
        }
    }

    fn name(self) -> u32 {
        match self {
            Self::X86 => 0xc000_003e,
            Self::Arm => 0xc000_00b7,
        }
    }

    fn number(self, call: Call) -> Option<u32> {
        let number = match self {
            Self::X86 => call.1,
            Self::Arm => call.2,
        };
        u32::try_from(number).ok()
    }
}

/// A program in the making, eight bytes per instruction.
#[derive(Default)]
struct Program(Vec<u8>);

impl Program {
    fn add(&mut self, code: u16, if_true: u8, if_false: u8, value: u32) {
        self.0.extend(code.to_ne_bytes());
        self.0.extend([if_true, if_false]);
        self.0.extend(value.to_ne_bytes());
    }

    /// Takes four bytes of what is known of the call: 0 is its number, 4 the machine.
    fn load(&mut self, place: u32) {
        self.add(0x20, 0, 0, place);
    }

    /// Takes the lower half of an argument.
    fn load_argument(&mut self, nth: u32) {
        self.load(16 + 8 * nth);
    }

    /// Keeps only these bits of what was taken.
    fn mask(&mut self, bits: u32) {
        self.add(0x54, 0, 0, bits);
    }

    /// Passes over the next instructions unless what was taken is equal.
    fn unless_equal_pass(&mut self, value: u32, count: u8) {
        self.add(0x15, 0, count, value);
    }

    /// Ends with an answer if what was taken is this number.
    fn return_if(&mut self, number: Option<u32>, answer: u32) {
        if let Some(number) = number {
            self.unless_equal_pass(number, 1);
            self.add(0x06, 0, 0, answer);
        }
    }

    fn allow(&mut self) {
        self.add(0x06, 0, 0, ALLOW);
    }

    fn fail(&mut self, error: u32) {
        self.add(0x06, 0, 0, FAIL | error);
    }
}

/// The filter for this machine, as the kernel takes it; `None` if its calls are not known here.
pub(super) fn filter() -> Option<Vec<u8>> {
    Machine::here().map(filter_for)
}

fn filter_for(machine: Machine) -> Vec<u8> {
    let mut program = Program::default();
    // Calls of another machine's kind have other numbers.
    program.load(4);
    program.add(0x15, 1, 0, machine.name());
    program.fail(ENOSYS);
    program.load(0);
    if matches!(machine, Machine::X86) {
        // Those of x32 count from here.
        program.add(0x35, 0, 1, 0x4000_0000);
        program.fail(ENOSYS);
    }
    for call in [SOCKET, SOCKETPAIR] {
        let Some(number) = machine.number(call) else { continue };
        program.unless_equal_pass(number, 8);
        program.load_argument(0);
        for family in FAMILIES {
            program.unless_equal_pass(family, 1);
            program.allow();
        }
        program.fail(EAFNOSUPPORT);
    }
    // Then bits that must not be there. A call may stand here more than once, and goes on to the
    // list.
    for (call, argument, bits, is_forbidden, error) in [
        (CLONE, 0, NAMESPACES, None, EPERM),
        // Nobody sets the limits of another process, such as the supervisor.
        (PRLIMIT, 0, u32::MAX, None, EPERM),
        (MMAP, 3, SHARED_MEMORY, Some(SHARED_MEMORY), ENOMEM),
        (IOCTL, 1, u32::MAX, TERMINAL.first().copied(), EPERM),
        (IOCTL, 1, u32::MAX, TERMINAL.last().copied(), EPERM),
    ] {
        let Some(number) = machine.number(call) else { continue };
        program.load(0);
        program.unless_equal_pass(number, 4);
        program.load_argument(argument);
        program.mask(bits);
        match is_forbidden {
            Some(value) => program.add(0x15, 0, 1, value),
            // Any of them will do.
            None => program.add(0x15, 1, 0, 0),
        }
        program.fail(error);
    }
    program.load(0);
    let looked_at = [CLONE, PRLIMIT, MMAP, IOCTL];
    for call in ALLOWED.into_iter().chain(looked_at) {
        program.return_if(machine.number(call), ALLOW);
    }
    for call in MISSING {
        program.return_if(machine.number(call), FAIL | ENOSYS);
    }
    // Greater than the newest: nobody knows it yet.
    program.add(0x25, 0, 1, NEWEST);
    program.fail(ENOSYS);
    program.fail(EPERM);
    program.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would make of a call.
    fn answer(machine: Machine, arch: u32, number: u32, args: [u32; 4]) -> u32 {
        let program = filter_for(machine);
        let (mut at, mut taken) = (0, 0);
        loop {
            let word = &program[at * 8..at * 8 + 8];
            let code = u16::from_ne_bytes([word[0], word[1]]);
            let value = u32::from_ne_bytes([word[4], word[5], word[6], word[7]]);
            let (yes, no) = (usize::from(word[2]), usize::from(word[3]));
            at += 1;
            match code {
                0x20 => {
                    taken = match value {
                        0 => number,
                        4 => arch,
                        place => args[(place as usize - 16) / 8],
                    }
                }
                0x54 => taken &= value,
                0x15 => at += if taken == value { yes } else { no },
                0x25 => at += if taken > value { yes } else { no },
                0x35 => at += if taken >= value { yes } else { no },
                0x06 => return value,
                other => panic!("{other:#x} is no instruction that is used"),
            }
        }
    }

    /// Calls that must never be on the allow-list.
    const FORBIDDEN: [(i32, i32); 46] = [
        (101, 117), // ptrace
        (310, 270), // process_vm_readv
        (311, 271), // process_vm_writev
        (438, 438), // pidfd_getfd
        (312, 272), // kcmp
        (321, 280), // bpf
        (298, 241), // perf_event_open
        (248, 217), // add_key
        (249, 218), // request_key
        (250, 219), // keyctl
        (165, 40),  // mount
        (166, 39),  // umount2
        (155, 41),  // pivot_root
        (161, 51),  // chroot
        (428, 428), // open_tree
        (429, 429), // move_mount
        (430, 430), // fsopen
        (431, 431), // fsconfig
        (432, 432), // fsmount
        (433, 433), // fspick
        (442, 442), // mount_setattr
        (272, 97),  // unshare
        (308, 268), // setns
        (303, 264), // name_to_handle_at
        (304, 265), // open_by_handle_at
        (179, 60),  // quotactl
        (443, 443), // quotactl_fd
        (167, 224), // swapon
        (168, 225), // swapoff
        (169, 142), // reboot
        (246, 104), // kexec_load
        (320, 294), // kexec_file_load
        (175, 105), // init_module
        (313, 273), // finit_module
        (176, 106), // delete_module
        (103, 116), // syslog
        (163, 89),  // acct
        (135, 92),  // personality
        (154, -1),  // modify_ldt
        (172, -1),  // iopl
        (173, -1),  // ioperm
        (256, 238), // migrate_pages
        (279, 239), // move_pages
        (300, 262), // fanotify_init
        (227, 112), // clock_settime
        (170, 161), // sethostname
    ];

    #[test]
    fn what_is_on_no_list_fails_on_both_machines() {
        for machine in [Machine::X86, Machine::Arm] {
            let of = |number| answer(machine, machine.name(), number, [0; 4]);
            let call = |call: Call| machine.number(call).map(of);
            for allowed in ALLOWED {
                assert!(call(allowed).is_none_or(|answer| answer == ALLOW), "{allowed:?}");
            }
            for missing in MISSING {
                assert!(call(missing).is_none_or(|answer| answer == FAIL | ENOSYS), "{missing:?}");
            }
            for (x86, arm) in FORBIDDEN {
                assert!(call(("", x86, arm)).is_none_or(|answer| answer == FAIL | EPERM), "{x86} {arm}");
            }
            // All numbers that there are, against the list: no jump leads elsewhere.
            let listed: Vec<u32> = ALLOWED
                .into_iter()
                .chain([SOCKET, SOCKETPAIR, CLONE, PRLIMIT, MMAP, IOCTL])
                .filter_map(|call| machine.number(call))
                .collect();
            let allowed = (0..1024).filter(|number| of(*number) == ALLOW).collect::<Vec<_>>();
            let unlisted: Vec<_> = allowed.iter().filter(|number| !listed.contains(number)).collect();
            assert!(unlisted.is_empty(), "{unlisted:?}");
            for newer in [NEWEST + 1, 9999, 0x3fff_ffff, 0x4000_0000, u32::MAX] {
                assert_eq!(of(newer), FAIL | ENOSYS, "{newer}");
            }
            assert_eq!(of(NEWEST), FAIL | EPERM);
        }
    }

    #[test]
    fn arguments_are_looked_at_on_both_machines() {
        for machine in [Machine::X86, Machine::Arm] {
            let call =
                |call: Call, args| answer(machine, machine.name(), machine.number(call).unwrap(), args);
            for family in 0..64 {
                let expected = if FAMILIES.contains(&family) { ALLOW } else { FAIL | EAFNOSUPPORT };
                assert_eq!(call(SOCKET, [family, 1, 0, 0]), expected, "{family}");
                assert_eq!(call(SOCKETPAIR, [family, 1, 0, 0]), expected, "{family}");
            }
            // A thread is no namespace, each of which is refused.
            assert_eq!(call(CLONE, [0x003d_0f00, 0, 0, 0]), ALLOW);
            for bit in
                [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000]
            {
                assert_eq!(call(CLONE, [bit | 0x11, 0, 0, 0]), FAIL | EPERM, "{bit:#x}");
            }
            // Private memory and mapped files are fine.
            assert_eq!(call(MMAP, [0, 0, 3, 0x22]), ALLOW);
            assert_eq!(call(MMAP, [0, 0, 3, 0x01]), ALLOW);
            assert_eq!(call(MMAP, [0, 0, 3, 0x21]), FAIL | ENOMEM);
            assert_eq!(call(MMAP, [0, 0, 3, 0x4023]), FAIL | ENOMEM);
            assert_eq!(call(PRLIMIT, [0, 7, 1, 1]), ALLOW, "its own limits");
            assert_eq!(call(PRLIMIT, [1, 7, 1, 1]), FAIL | EPERM, "those of another");
            assert_eq!(call(IOCTL, [0, 0x5401, 0, 0]), ALLOW);
            assert_eq!(call(IOCTL, [0, 0x5412, 0, 0]), FAIL | EPERM);
            assert_eq!(call(IOCTL, [0, 0x541c, 0, 0]), FAIL | EPERM);
            assert_eq!(answer(machine, 0x4000_0003, 1, [0; 4]), FAIL | ENOSYS, "calls of 32 bits");
        }
        assert_eq!(answer(Machine::X86, 0xc000_003e, 0x4000_0000, [0; 4]), FAIL | ENOSYS, "x32");
    }
}
