//! Programs that try to get out of the sandbox or to use it up, each with how it must end. Whatever gets through prints
//! `ESCAPED`.

/// A program in Python.
pub(crate) struct Abuse {
    pub(crate) name: &'static str,
    pub(crate) code: &'static str,
    /// The name of its outcome. Where machines differ, there are two.
    pub(crate) ends: &'static str,
    /// What it prints then, or what is noted of it.
    pub(crate) says: &'static str,
}

const fn abuse(name: &'static str, ends: &'static str, says: &'static str, code: &'static str) -> Abuse {
    Abuse { name, code, ends, says }
}

/// What every program may use. It stands before each, in one line.
pub(crate) const PRELUDE: &str = "import ctypes,fcntl,mmap,os,resource,signal,socket,subprocess,sys,threading,time; E=os.environ; libc=ctypes.CDLL(None,use_errno=True)
def call(name,*args):
    if getattr(libc,name)(*args)<0: raise OSError(ctypes.get_errno(),os.strerror(ctypes.get_errno()),name)
    print('ESCAPED')
def write(path,mode='w'):
    with open(path,mode) as f: f.write('x' if 'b' not in mode else b'x')
    print('ESCAPED')
";

pub(crate) const PROGRAMS: &[Abuse] = &[
    // Processes.
    abuse("fork bomb", "process_limit", "32 processes", "while True: os.fork()"),
    abuse(
        "fork bomb that does not care",
        "process_limit",
        "32 processes",
        "while True:\n  try: os.fork()\n  except OSError: pass",
    ),
    abuse(
        "fork bomb in a shell",
        "process_limit",
        "32 processes",
        "subprocess.run(['sh','-c','while :; do sleep 99 & done'],stderr=subprocess.DEVNULL); time.sleep(99)",
    ),
    abuse(
        "threads bomb",
        "process_limit",
        "32 processes",
        "while True: threading.Thread(target=time.sleep,args=(9,)).start()",
    ),
    abuse(
        "raises its own limit of processes",
        "failed",
        "not allowed to raise maximum limit",
        "resource.setrlimit(resource.RLIMIT_NPROC,(10**6,10**6)); print('ESCAPED')",
    ),
    abuse(
        "leaves its children unburied",
        "process_limit",
        "32 processes",
        "for _ in range(200):\n  if os.fork()==0: os._exit(0)\ntime.sleep(9)",
    ),
    abuse(
        "limits the supervisor",
        "failed",
        "Operation not permitted",
        "resource.prlimit(1,resource.RLIMIT_NOFILE,(0,0)); print('ESCAPED')",
    ),
    // Memory.
    abuse("memory bomb", "memory_limit", "128 MiB", "x=[]\nwhile True: x.append(bytearray(10**6))"),
    abuse("one allocation", "memory_limit", "MemoryError", "bytearray(10**12)"),
    abuse(
        "memory in many processes",
        "memory_limit",
        "128 MiB",
        "for _ in range(4):\n  if os.fork()==0: x=bytearray(60*10**6); time.sleep(9)\ntime.sleep(9)",
    ),
    abuse("shared memory", "memory_limit", "Cannot allocate memory", "mmap.mmap(-1,10**6); print('ESCAPED')"),
    abuse(
        "memory of a device",
        "failed",
        "No such device",
        "mmap.mmap(os.open('/dev/zero',os.O_RDWR),4096); print('ESCAPED')",
    ),
    abuse("memory as a file", "failed", "Function not implemented", "os.memfd_create('x'); print('ESCAPED')"),
    abuse("memory of System V", "failed", "Function not implemented", "call('shmget',0,1<<30,0o1600)"),
    abuse(
        "memory that only the kernel sees",
        "memory_limit",
        "128 MiB",
        "m=mmap.mmap(-1,1<<38,mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS|0x4000,mmap.PROT_READ); m.madvise(15)\nfor at in range(0,1<<38,1<<21): m[at]\ntime.sleep(9)\nprint('ESCAPED')",
    ),
    abuse(
        "memory of a process without its first thread",
        "memory_limit",
        "128 MiB",
        "def fill():\n  x=[bytearray(10**6) for _ in range(300)]; time.sleep(9); print('ESCAPED',flush=True); os._exit(0)\nthreading.Thread(target=fill).start()\nlibc.syscall(60 if os.uname().machine=='x86_64' else 93,0)",
    ),
    abuse(
        "memory behind the ends of files",
        "disk_limit|failed",
        "",
        "open('x','w').close()\nfor n in range(1000): os.setxattr('x','user.%d'%n,bytes(60000))\ntime.sleep(1); print('ESCAPED')",
    ),
    // Time.
    abuse("endless loop", "cpu_limit", "1 s", "while True: pass"),
    abuse("endless loops in children", "cpu_limit", "1 s", "for _ in range(3): os.fork()\nwhile True: pass"),
    abuse("sleep", "time_limit", "10 s", "print('begun'); time.sleep(99)"),
    abuse(
        "does not listen",
        "time_limit",
        "10 s",
        "for s in range(1,65):\n  try: signal.signal(s,signal.SIG_IGN)\n  except (OSError,ValueError): pass\ntime.sleep(99)",
    ),
    abuse("stops itself", "time_limit", "10 s", "os.kill(os.getpid(),signal.SIGSTOP)"),
    abuse(
        "leaves its session and lives on",
        "ok",
        "",
        "if os.fork()==0:\n  os.setsid()\n  if os.fork()==0:\n    os.close(0); os.close(1); os.close(2)\n    while True: time.sleep(1)",
    ),
    abuse(
        "leaves its session and computes on",
        "cpu_limit",
        "1 s",
        "if os.fork()==0:\n  os.setsid()\n  while True: pass\ntime.sleep(99)",
    ),
    abuse(
        "computes in children that nobody waits for",
        "cpu_limit",
        "1 s",
        "signal.signal(signal.SIGCHLD,signal.SIG_IGN)\nwhile True:\n  if os.fork()==0:\n    while time.process_time()<0.3: pass\n    os._exit(0)\n  try: os.wait()\n  except ChildProcessError: pass",
    ),
    // Files.
    abuse(
        "fills the working directory",
        "disk_limit",
        "No space left on device",
        "for n in range(99):\n  with open(str(n),'wb') as f: f.write(bytes(10**6))",
    ),
    abuse(
        "fills /tmp",
        "disk_limit",
        "No space left on device",
        "for n in range(99):\n  with open('/tmp/'+str(n),'wb') as f: f.write(bytes(10**6))",
    ),
    abuse(
        "fills /dev/shm",
        "disk_limit",
        "No space left on device",
        "for n in range(99):\n  with open('/dev/shm/'+str(n),'wb') as f: f.write(bytes(10**6))",
    ),
    abuse(
        "fills where the supervisor works",
        "disk_limit",
        "too large",
        "try:\n  for n in range(99):\n    with open('/own/'+str(n),'wb') as f: f.write(bytes(10**6))\nexcept OSError: pass",
    ),
    abuse("a hole of a terabyte", "disk_limit", "File too large", "open('x','wb').truncate(1<<40)"),
    abuse(
        "a hundred thousand files",
        "disk_limit",
        "",
        "os.mkdir('d')\nfor n in range(10**5): open('d/%d'%n,'w').close()\ntime.sleep(9)",
    ),
    abuse(
        "a hundred thousand files beside its code",
        "disk_limit",
        "",
        "os.mkdir('/code/d')\nfor n in range(10**5): open('/code/d/%d'%n,'w').close()\ntime.sleep(9)",
    ),
    abuse(
        "a hundred thousand files where the supervisor works",
        "disk_limit",
        "",
        "os.mkdir('/own/d')\nfor n in range(10**5): open('/own/d/%d'%n,'w').close()\ntime.sleep(9)",
    ),
    abuse(
        "thousands of files",
        "disk_limit",
        "it may leave 64",
        "for n in range(5000): open('%d'%n,'w').close()",
    ),
    abuse(
        "files that are too large",
        "disk_limit",
        "too large",
        "for n in range(3): open('%d'%n,'wb').write(bytes(3*10**6))",
    ),
    abuse(
        "holes that are too large",
        "disk_limit",
        "too large",
        "for n in range(3): open('%d'%n,'wb').truncate(15<<20)",
    ),
    abuse("writes to the root", "failed", "Read-only file system", "write('/x')"),
    abuse("writes to /usr", "failed", "Read-only file system", "write('/usr/x')"),
    abuse("writes to /dev", "failed", "Read-only file system", "write('/dev/x')"),
    abuse("writes to /etc", "failed", "Read-only file system", "write('/etc/x')"),
    abuse("writes to a file of the host", "failed", "No such file", "write(E['CANARY'],'a')"),
    abuse("reads a file of the host", "failed", "No such file", "print('ESCAPED',open(E['CANARY']).read())"),
    abuse(
        "reads a file of the host past its folder",
        "failed",
        "No such file",
        "print('ESCAPED',open('../'*20+E['CANARY']).read())",
    ),
    abuse("reads passwords", "failed", "No such file", "print('ESCAPED',open('/etc/shadow').read())"),
    abuse("reads users", "failed", "No such file", "print('ESCAPED',open('/etc/passwd').read())"),
    abuse("reads the home of root", "failed", "No such file", "print('ESCAPED',os.listdir('/root'))"),
    abuse("reads homes", "failed", "No such file", "print('ESCAPED',os.listdir('/home'))"),
    abuse("looks for sockets of services", "failed", "No such file", "print('ESCAPED',os.listdir('/run'))"),
    abuse("reads /sys", "failed", "No such file", "print('ESCAPED',os.listdir('/sys'))"),
    abuse(
        "reads the kernel's memory",
        "failed",
        "Errno",
        "print('ESCAPED',open('/proc/kcore','rb').read(1))",
    ),
    abuse("reads a disk", "failed", "No such file", "print('ESCAPED',open('/dev/vda','rb').read(1))"),
    abuse(
        "sees processes of the host",
        "failed",
        "No such process",
        "os.kill(int(E['VICTIM']),9); print('ESCAPED')",
    ),
    abuse(
        "the file system of the first process",
        "failed",
        "Permission denied",
        "print('ESCAPED',open('/proc/1/root'+E['CANARY']).read())",
    ),
    abuse(
        "the environment of the first process",
        "failed",
        "Permission denied",
        "print('ESCAPED',open('/proc/1/environ').read())",
    ),
    abuse(
        "links to a file of the host",
        "failed",
        "No such file",
        "os.link(E['CANARY'],'x'); print('ESCAPED')",
    ),
    // What it leaves.
    abuse(
        "leaves a link to a file of the host",
        "ok",
        "",
        "os.symlink(E['CANARY'],'link'); os.symlink('/proc/self/environ','e'); os.symlink('/usr','d')",
    ),
    abuse("leaves a pipe and a socket", "ok", "", "os.mkfifo('p'); socket.socket(socket.AF_UNIX).bind('s')"),
    abuse("leaves a device of nothing", "ok", "", "os.mknod('x',0o20666,0)"),
    abuse(
        "leaves a strange name",
        "ok",
        "cannot be used",
        "open(b'\\xff\\xfe','w').close(); open('a\\nb','w').close()",
    ),
    abuse("leaves a file that nobody may read", "ok", "", "open('x','w').close(); os.chmod('x',0)"),
    abuse("locks its working directory", "ok", "", "open('x','w').close(); os.chmod('.',0)"),
    // What it prints.
    abuse("prints a gigabyte", "output_limit", "64 KiB", "while True: os.write(1,b'x'*65536)"),
    abuse("complains a gigabyte", "output_limit", "64 KiB", "while True: os.write(2,b'x'*65536)"),
    abuse("lets another print a gigabyte", "output_limit", "64 KiB", "os.execvp('yes',['yes'])"),
    abuse("prints no text", "ok", "\u{fffd}", "os.write(1,b'a\\xff\\xfeb')"),
    abuse("closes its output", "ok", "", "os.close(1); os.close(2)"),
    abuse("closes its output and goes on", "time_limit", "10 s", "os.closerange(0,99); time.sleep(99)"),
    abuse("says nothing", "ok", "", ""),
    abuse("ends early", "failed", "", "os._exit(3)"),
    abuse(
        "speaks as those who make the sandbox",
        "killed",
        "bwrap: x",
        "os.write(2,b'bwrap: x\\n'); os.kill(os.getpid(),9)",
    ),
    abuse("breaks", "killed", "", "os.kill(os.getpid(),signal.SIGSEGV)"),
    abuse("kills itself", "killed", "", "os.kill(os.getpid(),9)"),
    // The network.
    abuse(
        "connects to this machine",
        "failed",
        "Connection refused",
        "socket.create_connection(('127.0.0.1',int(E['PORT'])),1); print('ESCAPED')",
    ),
    abuse(
        "connects to the world",
        "failed",
        "Network is unreachable",
        "socket.create_connection(('1.1.1.1',53),1); print('ESCAPED')",
    ),
    abuse(
        "sends a packet to this machine",
        "ok",
        "",
        "socket.socket(socket.AF_INET,socket.SOCK_DGRAM).sendto(b'x',('127.0.0.1',int(E['UDP'])))",
    ),
    abuse(
        "sends a packet to the world",
        "failed",
        "Network is unreachable",
        "socket.socket(socket.AF_INET,socket.SOCK_DGRAM).sendto(b'x',('8.8.8.8',53)); print('ESCAPED')",
    ),
    abuse(
        "looks up a name",
        "failed",
        "name resolution",
        "print('ESCAPED',socket.getaddrinfo('example.com',80))",
    ),
    abuse(
        "connects to a socket of the host",
        "failed",
        "No such file",
        "socket.socket(socket.AF_UNIX).connect(E['UNIX']); print('ESCAPED')",
    ),
    abuse(
        "connects to an abstract socket",
        "failed",
        "Connection refused",
        "socket.socket(socket.AF_UNIX).connect('\\0'+E['ABSTRACT']); print('ESCAPED')",
    ),
    abuse(
        "asks the host of a virtual machine",
        "failed",
        "Address family not supported",
        "socket.socket(40,socket.SOCK_STREAM); print('ESCAPED')",
    ),
    abuse(
        "asks the kernel over netlink",
        "failed",
        "Address family not supported",
        "socket.socket(16,socket.SOCK_RAW,9); print('ESCAPED')",
    ),
    abuse(
        "reads raw packets",
        "failed",
        "Operation not permitted",
        "socket.socket(socket.AF_INET,socket.SOCK_RAW,1); print('ESCAPED')",
    ),
    abuse(
        "holds files open in a socket",
        "failed",
        "Too many references",
        "import array\na,b=socket.socketpair()\nfor n in range(2000): a.sendmsg([b'x'],[(socket.SOL_SOCKET,socket.SCM_RIGHTS,array.array('i',[0,1,2]))],socket.MSG_DONTWAIT)\nprint('ESCAPED')",
    ),
    // Privileges.
    abuse("becomes root", "failed", "Invalid argument", "os.setuid(0); print('ESCAPED')"),
    abuse(
        "becomes root by a program",
        "failed",
        "",
        "r=subprocess.run(['su','-c','id'],stdin=subprocess.DEVNULL); sys.exit(r.returncode or print('ESCAPED'))",
    ),
    abuse("mounts", "failed", "Operation not permitted", "call('mount',b'x',b'/tmp',b'tmpfs',0,None)"),
    abuse("unmounts", "failed", "Operation not permitted", "call('umount2',b'/work',2)"),
    abuse("takes a mount with it", "failed", "Operation not permitted", "call('syscall',428,-100,b'/usr',1)"),
    abuse("opens a file system", "failed", "Operation not permitted", "call('syscall',430,b'tmpfs',0)"),
    abuse("makes a user namespace", "failed", "Operation not permitted", "call('unshare',0x10000000)"),
    abuse(
        "enters a namespace",
        "failed",
        "Operation not permitted",
        "call('setns',os.open('/proc/self/ns/net',0),0)",
    ),
    abuse(
        "clones into a user namespace",
        "failed",
        "Operation not permitted",
        "call('syscall',56 if os.uname().machine=='x86_64' else 220,0x10000011,0,0,0,0)",
    ),
    abuse("changes its root", "failed", "Operation not permitted", "os.chroot('/tmp'); print('ESCAPED')"),
    abuse(
        "makes a device",
        "failed",
        "Operation not permitted",
        "os.mknod('x',0o60666,os.makedev(254,0)); print('ESCAPED')",
    ),
    abuse("traces its parent", "failed", "Operation not permitted", "call('ptrace',16,1,0,0)"),
    abuse(
        "takes a key",
        "failed",
        "Operation not permitted",
        "call('syscall',250 if os.uname().machine=='x86_64' else 219,0,-4,1)",
    ),
    abuse(
        "loads a program into the kernel",
        "failed",
        "Operation not permitted",
        "call('syscall',321 if os.uname().machine=='x86_64' else 280,0,0,0)",
    ),
    abuse("sets up a ring", "failed", "Function not implemented", "call('syscall',425,8,0)"),
    abuse(
        "makes a call that no kernel has",
        "failed",
        "Function not implemented",
        "call('syscall',9999,0,0,0)",
    ),
    abuse(
        "makes a call that is newer than the allow-list",
        "failed",
        "Function not implemented",
        "call('syscall',451,0,0,0)",
    ),
    abuse(
        "asks for quotas",
        "failed",
        "Operation not permitted",
        "call('syscall',179 if os.uname().machine=='x86_64' else 60,0,0,0,0)",
    ),
    abuse(
        "loads another kernel",
        "failed",
        "Operation not permitted",
        "call('syscall',246 if os.uname().machine=='x86_64' else 104,0,0,0,0)",
    ),
    abuse(
        "reads the memory of another process",
        "failed",
        "Operation not permitted",
        "call('syscall',310 if os.uname().machine=='x86_64' else 270,os.getpid(),None,0,None,0,0)",
    ),
    abuse(
        "watches folders at the cost of the host's user",
        "failed",
        "Function not implemented",
        "call('inotify_init1',0)",
    ),
    abuse(
        "writes out the disks of the host",
        "failed",
        "Operation not permitted",
        "call('syncfs',os.open('/usr',0))",
    ),
    abuse(
        "sets up a queue for files",
        "failed",
        "Function not implemented",
        "q=ctypes.c_ulong(0); call('syscall',206 if os.uname().machine=='x86_64' else 0,60000,ctypes.byref(q))",
    ),
    abuse(
        "watches all files",
        "failed",
        "Operation not permitted",
        "call('syscall',300 if os.uname().machine=='x86_64' else 262,0x200,0)",
    ),
    abuse(
        "handles its own page faults",
        "failed",
        "Function not implemented",
        "call('syscall',323 if os.uname().machine=='x86_64' else 282,1)",
    ),
    abuse(
        "clones past the filter",
        "failed",
        "Function not implemented",
        "call('syscall',435,(ctypes.c_ulong*11)(0x10000000),88)",
    ),
    abuse(
        "goes before others",
        "failed",
        "Permission denied",
        "os.setpriority(os.PRIO_PROCESS,0,-20); print('ESCAPED')",
    ),
    abuse(
        "names the machine",
        "failed",
        "Operation not permitted",
        "socket.sethostname('x'); print('ESCAPED')",
    ),
    abuse(
        "sets the clock",
        "failed",
        "Operation not permitted",
        "time.clock_settime(time.CLOCK_REALTIME,0); print('ESCAPED')",
    ),
    abuse("changes the kernel", "failed", "Errno", "write('/proc/sys/kernel/core_pattern')"),
    abuse("restarts the machine", "failed", "Errno", "write('/proc/sysrq-trigger')"),
    abuse("allows itself namespaces", "failed", "Errno", "write('/proc/sys/user/max_user_namespaces')"),
    abuse(
        "types into a terminal",
        "failed",
        "No such device or address",
        "fcntl.ioctl(os.open('/dev/tty',os.O_RDWR),0x5412,b'x'); print('ESCAPED')",
    ),
    abuse(
        "types into its output",
        "failed",
        "Operation not permitted",
        "fcntl.ioctl(1,0x5412,b'x'); print('ESCAPED')",
    ),
    abuse("opens a terminal", "failed", "No such file", "os.openpty(); print('ESCAPED')"),
    // Those who look after it.
    abuse(
        "kills everybody",
        "ok",
        "still here",
        "subprocess.Popen(['sleep','9']); os.kill(-1,9); print('still here')",
    ),
    abuse(
        "kills the supervisor",
        "ok",
        "still here",
        "os.kill(1,9); os.kill(os.getppid(),15); print('still here')",
    ),
    abuse("interrupts the supervisor", "ok", "still here", "os.kill(1,2); print('still here')"),
    abuse("stops the supervisor", "ok", "still here", "os.kill(1,19); print('still here')"),
    abuse(
        "sends the supervisor signals",
        "ok",
        "still here",
        "for s in set(range(1,65))-{32,33}: os.kill(1,s)\nprint('still here')",
    ),
    abuse(
        "takes the supervisor's socket",
        "failed",
        "Permission denied",
        "f=['/proc/1/fd/'+f for f in os.listdir('/proc/1/fd')]; s=[f for f in f if 'socket' in os.readlink(f)]; os.open(s[0],os.O_RDWR); print('ESCAPED')",
    ),
    abuse(
        "overwrites the supervisor",
        "failed",
        "Permission denied",
        "open('/proc/1/mem','r+b',0); print('ESCAPED')",
    ),
];
