//! Ordinary programs, which the allow-list of system calls must not stand in the way of.

use umbel_core::CodeInput;
use umbel_tools::Sandbox;

use super::{build, run};

/// What a program is about, and its code. Each says `ok` at its end.
const PROGRAMS: [(&str, &str); 20] = [
    (
        "threads",
        "import concurrent.futures, threading, queue\n\
         with concurrent.futures.ThreadPoolExecutor(4) as pool: assert sum(pool.map(abs, range(-9, 0))) == 45\n\
         q = queue.Queue(); threading.Timer(0.01, q.put, [1]).start(); assert q.get(timeout=9) == 1\n\
         e = threading.Event(); assert not e.wait(0.01)",
    ),
    (
        "subprocess",
        "import subprocess\n\
         assert subprocess.run(['sh', '-c', 'cat | tr a b'], input='aa', text=True, capture_output=True).stdout == 'bb'\n\
         p = subprocess.Popen(['sleep', '99'], start_new_session=True); p.terminate(); assert p.wait(9) == -15",
    ),
    (
        "asyncio",
        "import asyncio, signal, socket\n\
         async def main():\n\
         \x20 a, b = socket.socketpair()\n\
         \x20 r, w = await asyncio.open_connection(sock=a); w.write(b'x\\n'); b.sendall(b'y\\n')\n\
         \x20 assert await r.readline() == b'y\\n' and b.recv(9) == b'x\\n'\n\
         \x20 p = await asyncio.create_subprocess_exec('echo', 'z', stdout=asyncio.subprocess.PIPE)\n\
         \x20 assert (await p.communicate())[0] == b'z\\n'\n\
         \x20 asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print)\n\
         \x20 assert await asyncio.to_thread(abs, -1) == 1\n\
         \x20 async def echo(r, w): w.write(await r.readline()); w.close()\n\
         \x20 async with await asyncio.start_unix_server(echo, '/tmp/s'):\n\
         \x20   r, w = await asyncio.open_unix_connection('/tmp/s'); w.write(b'q\\n'); assert await r.read() == b'q\\n'\n\
         asyncio.run(main())",
    ),
    (
        "a server in a thread",
        "import http.server, threading, urllib.request\n\
         s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n\
         threading.Thread(target=s.serve_forever, daemon=True).start()\n\
         assert urllib.request.urlopen('http://127.0.0.1:%d/' % s.server_port, timeout=9).status == 200",
    ),
    (
        "multiprocessing",
        "import multiprocessing, os\n\
         c = multiprocessing.get_context('fork')\n\
         with c.Pool(2) as pool: assert pool.map(abs, [-1, -2]) == [1, 2]\n\
         q = c.Queue(); p = c.Process(target=q.put, args=(5,)); p.start(); assert q.get(timeout=9) == 5; p.join()\n\
         from multiprocessing import shared_memory\n\
         m = shared_memory.SharedMemory(create=True, size=4096); m.buf[0] = 7; m.close(); m.unlink()\n\
         r, w = os.pipe()\n\
         if os.fork() == 0: os.write(w, b'c'); os._exit(0)\n\
         assert os.read(r, 1) == b'c' and os.wait()[1] == 0",
    ),
    (
        "files",
        "import os, pathlib, shutil, tempfile, glob\n\
         d = pathlib.Path(tempfile.mkdtemp()); f = d / 'a'; f.write_text('x'); f.chmod(0o600); os.utime(f, (1, 2))\n\
         shutil.copy2(f, d / 'b'); shutil.copytree(d, '/tmp/t'); (d / 'b').rename(d / 'c'); os.symlink('a', d / 'l')\n\
         assert sorted(os.listdir(d)) == ['a', 'c', 'l'] and os.readlink(d / 'l') == 'a' and (d / 'c').stat().st_mtime == 2\n\
         os.truncate(f, 0); os.chdir(d); assert glob.glob('*') and shutil.disk_usage('.').total; shutil.rmtree('/tmp/t')\n\
         with tempfile.TemporaryFile() as t, open('c', 'rb') as c: assert os.sendfile(t.fileno(), c.fileno(), 0, 1) == 1\n\
         with open('p', 'wb') as p: p.write(b'x' * 99); p.flush(); os.fsync(p.fileno()); os.posix_fallocate(p.fileno(), 0, 200)\n\
         import fcntl, mmap\n\
         with open('p', 'r+b') as p: fcntl.flock(p, fcntl.LOCK_EX); m = mmap.mmap(p.fileno(), 0); m[0] = 1; m.flush(); m.resize(4096)\n\
         os.sync(); os.mkfifo('f'); os.access('f', os.R_OK)",
    ),
    (
        "archives",
        "import io, zipfile, tarfile, gzip, bz2, lzma, zlib\n\
         with zipfile.ZipFile('a.zip', 'w', zipfile.ZIP_DEFLATED) as z: z.writestr('x', 'y' * 999)\n\
         assert zipfile.ZipFile('a.zip').read('x') == b'y' * 999\n\
         with tarfile.open('/tmp/a.tar.xz', 'w:xz') as t: t.add('a.zip')\n\
         for m in gzip, bz2, lzma, zlib: assert m.decompress(m.compress(b'x')) == b'x'",
    ),
    (
        "sqlite3",
        "import sqlite3\n\
         c = sqlite3.connect('/tmp/a.db'); c.execute('pragma journal_mode=wal')\n\
         c.execute('create table t (x)'); c.executemany('insert into t values (?)', [(1,), (2,)]); c.commit()\n\
         assert c.execute('select sum(x) from t').fetchone() == (3,); c.execute('vacuum'); c.close()",
    ),
    (
        "hashes, random numbers and JSON",
        "import hashlib, json, random, secrets, uuid, hmac, ssl, os\n\
         assert hashlib.sha256(b'').hexdigest().startswith('e3b0'); hashlib.scrypt(b'x', salt=b'y', n=2, r=8, p=1)\n\
         random.seed(1); random.random(); secrets.token_hex(); uuid.uuid4(); uuid.uuid1(); os.getrandom(8)\n\
         assert json.loads(json.dumps({'a': [1, None]})) == {'a': [1, None]}; ssl.create_default_context()",
    ),
    (
        "time and signals",
        "import datetime, signal, time, resource, os, select\n\
         time.sleep(0.01); time.monotonic_ns(); time.process_time(); time.thread_time(); time.get_clock_info('time')\n\
         datetime.datetime.now().astimezone(); time.localtime(); os.times(); resource.getrusage(resource.RUSAGE_CHILDREN)\n\
         got = []; signal.signal(signal.SIGALRM, lambda *_: got.append(1)); signal.setitimer(signal.ITIMER_REAL, 0.01)\n\
         signal.pause(); assert got == [1]; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]); signal.raise_signal(signal.SIGUSR1)\n\
         assert signal.sigtimedwait([signal.SIGUSR1], 9).si_signo == signal.SIGUSR1\n\
         r, w = os.pipe2(os.O_NONBLOCK); e = select.epoll(); e.register(w); assert e.poll(9); select.select([], [w], [], 9); p = select.poll(); p.register(w); p.poll(9)",
    ),
    (
        "facts about the machine",
        "import os, platform, sys, resource, locale, socket, getpass\n\
         os.cpu_count(); os.sched_getaffinity(0); os.getloadavg(); os.uname(); platform.platform(); os.getpriority(0, 0); os.nice(1)\n\
         resource.getrlimit(resource.RLIMIT_AS); resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.getgroups(); os.getresuid()\n\
         socket.gethostname(); os.sysconf('SC_PHYS_PAGES'); os.statvfs('/'); os.isatty(0); os.umask(0o22); os.getpgid(0); os.sched_yield()",
    ),
    (
        "new calls where this Python has them",
        "import os, sys, signal\n\
         pid = os.fork() or os._exit(3)\n\
         fd = os.pidfd_open(pid); assert os.waitid(os.P_PIDFD, fd, os.WEXITED).si_status == 3\n\
         a, b = open('/tmp/a', 'w+b'), open('/tmp/b', 'w+b'); a.write(b'xyz'); a.flush()\n\
         assert os.copy_file_range(a.fileno(), b.fileno(), 3, 0) == 3; assert os.preadv(a.fileno(), [bytearray(2)], 0) == 2\n\
         getattr(os, 'eventfd', id)(0); os.posix_spawn('/bin/true', ['true'], {}); os.wait()",
    ),
    (
        "a shell",
        "import os\nassert os.system('set -e; x=$(seq 9 | sort -rn | head -n1); [ $x = 9 ]; (sleep 0 & wait); test -d /tmp') == 0",
    ),
    (
        "programs for text",
        "import os\nassert os.system(\"printf 'b 2\\\\na 1\\\\n' | sort | awk '{print $2}' | sed s/1/one/ | grep -q one\") == 0",
    ),
    (
        "programs for files",
        "import os\nassert os.system('set -e; cd /tmp; mkdir -p a/b; touch a/b/c; cp -a a d; mv d e; ln -s e f; ln e/b/c g; ls -la >/dev/null; \
         stat e >/dev/null; df . >/dev/null; du -s . >/dev/null; find . -name c | xargs rm; chmod -R u+rwx e; install -m 600 g h; rm -rf a e') == 0",
    ),
    (
        "programs for sums, time and the machine",
        "import os\nassert os.system('set -e; cd /tmp; date; echo x | sha256sum; echo x | md5sum; dd if=/dev/zero of=z bs=1k count=9; split -b 2k z; wc -c z; \
         shuf -i 1-9; nproc; uname -a; id; env; timeout 9 true; nice true; mktemp; truncate -s 9 z; head -c 9 /dev/urandom | od; expr 1 + 1; tac z; cut -c1 z; tee y <z') == 0",
    ),
    (
        "archives by a program",
        "import os\nassert os.system('set -e; echo x >a; tar cf /tmp/a.tar a; tar xf /tmp/a.tar -C /tmp; gzip -k a; zcat a.gz') == 0",
    ),
    ("another programming language", "import os\nassert os.system('perl -e \"print 1 if fork; wait\"') == 0"),
    (
        "its own limits",
        "import os\nassert os.system('ulimit -n 99; ulimit -a; prlimit; taskset -p $$; kill -0 $$; trap : USR1; kill -USR1 $$') == 0",
    ),
    (
        "a module that is compiled",
        "import ctypes, decimal, array, struct\nassert ctypes.CDLL(None).abs(-3) == 3; decimal.Decimal(1) / 3",
    ),
];

#[tokio::test]
async fn ordinary_programs_find_the_system_calls_that_they_need() {
    let python = build(Sandbox::python());
    let mut wrong = Vec::new();
    for (name, code) in PROGRAMS {
        let output = run(&python, &format!("{code}\nprint('ok')")).await;
        if !output.stdout.ends_with("ok\n") || !output.outcome.is_ok() {
            wrong.push(format!("{name}: {output:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), PROGRAMS.len(), wrong.join("\n\n"));
    let shell = build(Sandbox::new("shell", ["sh", "-eu"]));
    let output = shell.run(CodeInput::new("seq 3 | paste -sd+ >x\ncat x", "shell")).await.unwrap();
    assert_eq!((output.stdout.as_str(), output.outcome.name()), ("1+2+3\n", "ok"), "{output:?}");
}
