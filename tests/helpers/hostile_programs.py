"""
Hostile programs and their allowed endings.

A program prints `BREACH` if a forbidden action works. Standard library only, so that another user's Python can run
them.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

from trl_spiral.sandbox import Job, JobResult, Limits, ProgramEnding, Sandbox


FINISHED, RAISED, TIMEOUT = ProgramEnding.FINISHED, ProgramEnding.RAISED, ProgramEnding.TIMEOUT
KILLED, OUTPUT_LIMIT, SYNTAX_ERROR = ProgramEnding.KILLED, ProgramEnding.OUTPUT_LIMIT, ProgramEnding.SYNTAX_ERROR

LIMITS = Limits(cpu_seconds=0.5, wall_seconds=2.0, memory_mb=256, output_bytes=8192)
"""Low, so that programs reach them soon."""

MARK = "trl_spiral_hostile"
"""Part of the name of every file that a program tries to create."""
PORT = "PORT"
"""Placeholder in programs for the port on which the test listens."""

TRY = """
import os, sys
def attempt(what, *arguments):
    try:
        what(*arguments)
    except (OSError, ValueError) as error:
        print(type(error).__name__)
    else:
        print("BREACH", what, arguments)
"""
CALL = (
    TRY
    + """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
column = ["x86_64", "aarch64"].index(platform.machine())
def call(numbers, *arguments):
    if numbers[column] is not None:
        result = libc.syscall(numbers[column], *arguments)
        error = ctypes.get_errno()
        # Any other error means that the kernel allowed the call and rejected only its arguments.
        print("BREACH" if result >= 0 or error not in (errno.EPERM, errno.ENOSYS) else "denied", error, numbers)
"""
)
# The only socket of a program, which sends its results.
SOCKET = """
import os, stat
def is_socket(fd):
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False
fds = [fd for fd in range(3, 1024) if is_socket(fd)]
fd = fds[0]
"""


@dataclass(frozen=True)
class Hostile:
    """
    A hostile program.

    Attributes:
        code (`str`):
            The program.
        endings (`tuple[ProgramEnding, ...]`):
            Its allowed endings.
        error (`str`, *optional*):
            The error that ends it, if only one is possible.
        calls (`tuple[str, ...]`):
            Its calls.
        answers (`tuple[str | None, ...]`):
            Errors of the calls, if it finishes.
    """

    code: str
    endings: tuple[ProgramEnding, ...]
    error: str | None = None
    calls: tuple[str, ...] = ()
    answers: tuple[str | None, ...] = ()

    def job(self, port: int) -> Job:
        """Return the job, with a port to attack."""
        return Job(self.code.replace(PORT, str(port)), self.calls)

    def escaped(self, result: JobResult) -> str | None:
        """Return the error in a result; `None` if the program is contained."""
        if "BREACH" in result.output:
            return f"it escaped: {result.output}"
        if result.ending not in self.endings or self.error not in (None, result.error):
            return f"it ended as {result}"
        if result.ending is FINISHED and self.answers and tuple(a.error for a in result.answers) != self.answers:
            return f"its calls returned {result.answers}"
        if len(result.error or "") > 200 or len(result.message) > 200:
            return f"its message has {len(result.message)} characters"
        return None


def denied(*statements: str, prelude: str = TRY) -> Hostile:
    """A program that finishes although each of its statements is denied."""
    return Hostile(prelude + "\n".join(statements), (FINISHED,))


HOSTILE = {
    # Processes
    "a fork bomb": Hostile("import os\nwhile True: os.fork()", (RAISED,), "PermissionError"),
    "a fork bomb that catches errors": Hostile(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass", (TIMEOUT,)
    ),
    "a detached double fork": denied("attempt(os.fork)", "attempt(os.setsid)", "attempt(os.setpgid, 0, 0)"),
    "other programs": denied(
        "import subprocess, multiprocessing",
        "attempt(subprocess.run, ['/bin/true'])",
        "attempt(os.execv, sys.executable, ['python', '-O'])",
        "attempt(os.posix_spawn, '/bin/true', ['true'], {})",
        "attempt(multiprocessing.Process(target=print).start)",
    ),
    "another hash seed by exec": denied(
        "os.environ['PYTHONHASHSEED'] = '1'", "attempt(os.execve, sys.executable, ['python'], dict(os.environ))"
    ),
    "libc's own ways to start a process": Hostile(
        CALL + "print('BREACH' if libc.system(b'true') == 0 or libc.fork() > 0 or libc.vfork() > 0 else 'denied')",
        (FINISHED,),
    ),
    "hundreds of threads": Hostile(
        "import threading, time\nfor _ in range(300): threading.Thread(target=time.sleep, args=(9,)).start()",
        (RAISED,),
        "RuntimeError",
    ),
    # Signals
    "signals to others": denied(
        "import signal",
        "attempt(os.kill, os.getppid(), 9)",
        "attempt(os.kill, -1, 9)",
        "attempt(os.kill, 0, 9)",
        "attempt(os.killpg, 1, 9)",
        "attempt(os.pidfd_open, os.getppid())",
    ),
    "a signal to the parent through a descriptor's owner": denied(
        "import fcntl, signal",
        "ends = os.pipe()",
        "attempt(fcntl.fcntl, ends[0], fcntl.F_SETOWN, os.getppid())",
        "attempt(fcntl.fcntl, ends[0], 10, signal.SIGKILL)  # F_SETSIG",
        "attempt(fcntl.ioctl, ends[0], 0x8901, os.getppid())  # FIOSETOWN",
    ),
    "signals queued to the parent": denied(
        "info = ctypes.create_string_buffer(128)",
        "call((129, 138), os.getppid(), 9, info)  # rt_sigqueueinfo",
        "call((297, 240), os.getppid(), os.getppid(), 9, info)  # rt_tgsigqueueinfo",
        "call((234, 131), os.getppid(), os.getppid(), 9)  # tgkill",
        "call((200, 130), os.getppid(), 9)  # tkill",
        "call((424, 424), 3, 9, 0, 0)  # pidfd_send_signal",
        prelude=CALL,
    ),
    "stopping itself": Hostile(
        TRY + "import signal\nattempt(signal.raise_signal, signal.SIGSTOP)\nattempt(os.kill, os.getpid(), 19)",
        (FINISHED,),
    ),
    "an alarm": Hostile(
        "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ntime.sleep(5)", (KILLED,), "SIGALRM"
    ),
    "a segmentation fault": Hostile("import ctypes\nctypes.string_at(0)", (KILLED,), "SIGSEGV"),
    "abort": Hostile("import os\nos.abort()", (KILLED,)),
    "overwritten types": Hostile("import ctypes\nctypes.memset(id(int), 0, 400)\nint(3)", (KILLED,)),
    # Time
    "sleep": Hostile("import time\ntime.sleep(60)", (TIMEOUT,)),
    "an endless loop": Hostile("while True: pass", (TIMEOUT,)),
    "ignored signals": Hostile(
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        (TIMEOUT,),
    ),
    "an endless loop that catches everything": Hostile(
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass", (TIMEOUT,)
    ),
    "huge integers": Hostile("x = 9 ** 9 ** 9", (TIMEOUT, RAISED)),
    "a regular expression that backtracks": Hostile("import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')", (TIMEOUT,)),
    "closed outputs, then sleep": Hostile("import os, time\nos.closerange(0, 64)\ntime.sleep(60)", (TIMEOUT,)),
    "an exception with an endless message": Hostile(
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E", (TIMEOUT,)
    ),
    "an endless exit handler": Hostile(
        "import atexit\ndef last():\n    while True: pass\natexit.register(last)\n"
        "class D:\n    def __del__(self):\n        global d\n        d = D()\nd = D()",
        (FINISHED,),
    ),
    # Memory
    "a memory bomb": Hostile("x = []\nwhile True: x.append(bytes(1 << 24))", (RAISED,), "MemoryError"),
    "a huge mapping": Hostile("import mmap\nmmap.mmap(-1, 1 << 40)", (RAISED,), "OSError"),
    "a string that doubles": Hostile("x = 'a'\nwhile True: x += x", (RAISED, TIMEOUT)),
    "deep recursion": Hostile("def f(): f()\nf()", (RAISED,), "RecursionError"),
    "deep recursion without a limit": Hostile(
        "import sys\nsys.setrecursionlimit(10 ** 9)\n"
        "class A:\n    def __getattr__(self, name): return getattr(self, name + 'a')\n"
        "def f(): return f()\nA().a\nf()",
        (KILLED, TIMEOUT, RAISED),
    ),
    "deep recursion in C": Hostile(
        "import sys, json\nsys.setrecursionlimit(10 ** 9)\n"
        "x = []\nfor _ in range(10 ** 5): x = [x]\nrepr(x)\njson.dumps(x)",
        (KILLED, RAISED, TIMEOUT),
    ),
    "nesting too deep for the compiler": Hostile("x = " + "-" * 200_000 + "1", (KILLED, RAISED, SYNTAX_ERROR)),
    "its own limits raised": denied(
        "import resource",
        "for limit in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):",
        "    attempt(resource.setrlimit, limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))",
        "    attempt(resource.prlimit, 0, limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))",
        "attempt(os.nice, -5)",
        "attempt(os.sched_setaffinity, 0, [0])",
    ),
    # Output
    "endless output": Hostile("while True: print('a' * 1000)", (OUTPUT_LIMIT,)),
    "endless output past Python's buffers": Hostile(
        "import os\nwhile True: os.write(2, b'a' * 65536)", (OUTPUT_LIMIT,)
    ),
    "a huge value": Hostile("x = 'a' * 10 ** 7", (OUTPUT_LIMIT,), calls=("x",)),
    "a huge integer as value": Hostile("x = 1 << 10**7", (FINISHED,), calls=("x",), answers=("NotPlain",)),
    "a value with shared lists at 60 levels": Hostile(
        "x = []\nfor _ in range(60): x = [x, x]", (OUTPUT_LIMIT,), calls=("x",)
    ),
    "a value that contains itself": Hostile("x = []\nx.append(x)", (FINISHED,), calls=("x",), answers=("NotPlain",)),
    "a deeply nested value": Hostile(
        "x = []\nfor _ in range(10 ** 5): x = [x]", (FINISHED,), calls=("x",), answers=("NotPlain",)
    ),
    "closed output": Hostile("import sys\nprint(1)\nsys.stdout.close()\nsys.stderr.close()", (FINISHED,)),
    "output replaced": Hostile("import sys\nsys.stdout = sys.stderr = sys.stdin = None", (FINISHED,)),
    "a huge exception": Hostile("raise Exception('a' * 10 ** 7)", (RAISED,), "Exception"),
    "an exception with a long class name": Hostile("raise type('A' * 10 ** 6, (Exception,), {})", (RAISED,)),
    "an exception whose message raises": Hostile(
        "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E", (RAISED,), "E"
    ),
    "an exception whose message is a subclass of str": Hostile(
        "class S(str):\n    def split(self, *a): return 5\n    __getitem__ = split\n"
        "class E(Exception):\n    def __str__(self): return S('a')\nraise E",
        (RAISED,),
        "E",
    ),
    "an exception whose metaclass hides its name": Hostile(
        "class M(type):\n    @property\n    def __name__(self): raise KeyboardInterrupt\n"
        "class E(Exception, metaclass=M): pass\nraise E",
        (RAISED,),
        "E",
    ),
    "an exception that ends Python": Hostile("raise SystemExit(object())", (RAISED,), "SystemExit"),
    "an exit before the calls": Hostile("import sys\nf = 1\nsys.exit(0)", (RAISED,), "SystemExit", ("f",)),
    "an exit without a report": Hostile("import os\nos._exit(0)", (KILLED,), "exit", ("1",)),
    "an exit in a call": Hostile("import os", (KILLED,), "exit", ("1", "os._exit(0)", "2")),
    # Files
    "files written": denied(
        "for folder in ('/tmp', '/dev/shm', '/var/tmp', '/', os.path.dirname(os.__file__), '.'):",
        f"    path = folder + '/{MARK}'",
        "    attempt(open, path, 'w')",
        "    attempt(open, path, 'ab')",
        "    attempt(os.mkdir, path)",
        "    attempt(os.symlink, '/etc/passwd', path)",
        "    attempt(os.link, os.__file__, path)",
        "    attempt(os.mkfifo, path)",
        "    attempt(os.mknod, path)",
        "    attempt(os.open, folder, os.O_RDWR | os.O_TMPFILE)",
    ),
    "thousands of tiny files": Hostile(
        f"for i in range(5000):\n    try:\n        open(f'/tmp/{MARK}{{i}}', 'w').close()\n        print('BREACH')\n"
        "    except OSError:\n        pass",
        (FINISHED,),
    ),
    "files changed": denied(
        "attempt(os.truncate, os.__file__, 0)",
        "attempt(os.open, os.__file__, os.O_RDONLY | os.O_TRUNC)",
        "attempt(os.chmod, os.__file__, 0o777)",
        "attempt(os.chown, os.__file__, os.getuid(), os.getgid())",
        "attempt(os.utime, os.__file__)",
        "attempt(os.rename, os.__file__, os.__file__ + 'x')",
        "attempt(os.remove, os.__file__)",
        "attempt(os.setxattr, os.__file__, 'user.x', b'')",
    ),
    "files read": denied(
        "folders = ['/root', '/home', '/tmp', '/usr/bin', '/proc']",
        "for path in (*folders, '/etc/passwd', '/etc/hostname', '/dev/null', '/dev/tty'):",
        "    attempt(os.listdir if os.path.isdir(path) else open, path)",
        "attempt(os.readlink, '/proc/self/exe')",
        "attempt(os.chroot, '/')",
    ),
    "third-party packages listed": denied(
        "library = os.path.dirname(os.__file__)",
        "for folder in (library, f'{library}/..', '/usr/lib/python3', '/usr/local/lib'):",
        "    for below in ('', '/site-packages', '/dist-packages'):",
        "        attempt(os.listdir, folder + below)",
        "        attempt(os.scandir, folder + below)",
        "        attempt(os.open, folder + below, os.O_RDONLY)",
        "print('BREACH' if next(os.walk(library), None) else 'denied')",
    ),
    "path of the installation": Hostile(
        TRY
        + """
import ctypes, gc, types
count, arguments = ctypes.c_int(), ctypes.POINTER(ctypes.c_wchar_p)()
ctypes.pythonapi.Py_GetArgcArgv(ctypes.byref(count), ctypes.byref(arguments))
waiting, seen, texts = [sys.modules, sys._getframe(), arguments[: count.value]], {}, set()
while waiting:
    each = waiting.pop()
    if isinstance(each, str):
        texts.add(each)
    elif id(each) not in seen:
        seen[id(each)] = each
        waiting += gc.get_referents(each)
        if isinstance(each, types.CodeType):
            waiting += [each.co_filename, each.co_consts]
folders = {text[:at] for text in texts if "/" in text for at, letter in enumerate(text) if letter == "/"} | texts
found = [folder for folder in folders if os.path.isfile(f"{folder[:1000]}/trl_spiral/sandbox/zygote.py")]
print(len(texts), "BREACH" if found or len(texts) < 1000 else "nothing", found)
""",
        (FINISHED,),
    ),
    "contents of /proc": denied(
        "for who in ('self', 'thread-self', str(os.getppid()), '1'):",
        "    for what in ('environ', 'maps', 'mem', 'cmdline', 'status', 'fd', 'root', 'cwd'):",
        "        path = f'/proc/{who}/{what}'",
        "        attempt(os.listdir if what in ('fd', 'root', 'cwd') else open, path)",
        "attempt(open, '/proc/sys/kernel/core_pattern', 'w')",
        "attempt(open, '/proc/self/oom_score_adj', 'w')",
    ),
    # The network
    "sockets": denied(
        "import socket",
        "for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET):",
        "    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):",
        "        attempt(socket.socket, family, kind)",
        f"attempt(socket.create_connection, ('127.0.0.1', {PORT}))",
        "attempt(socket.create_server, ('127.0.0.1', 0))",
        "attempt(socket.getaddrinfo, 'example.org', 80)",
        "attempt(socket.gethostbyname, 'localhost')",
        "attempt(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)",
    ),
    "a request": Hostile(
        f"import urllib.request\nurllib.request.urlopen('http://127.0.0.1:{PORT}')\nprint('BREACH')",
        (RAISED,),
        "URLError",
    ),
    "descriptors and addresses sent over its own socket pair": denied(
        "import socket",
        "a, b = socket.socketpair()",
        "attempt(socket.send_fds, a, [b'x'], [0])",
        "attempt(a.sendto, b'x', '/dev/log')",
        "attempt(a.bind, '\\0name')",
        "attempt(a.connect, '/dev/log')",
        "attempt(a.listen)",
    ),
    # The kernel
    "unusual system calls": denied(
        "buffer = ctypes.create_string_buffer(4096)",
        "call((101, 117), 16, os.getppid(), 0, 0)  # ptrace",
        "call((310, 270), os.getppid(), buffer, 1, buffer, 1, 0)  # process_vm_readv",
        "call((311, 271), os.getppid(), buffer, 1, buffer, 1, 0)  # process_vm_writev",
        "call((312, 272), os.getpid(), os.getppid(), 0, 0, 0)  # kcmp",
        "call((434, 434), os.getppid(), 0)  # pidfd_open",
        "call((438, 438), 3, 0, 0)  # pidfd_getfd",
        "call((448, 448), 3, 0)  # process_mrelease",
        "call((440, 440), 3, buffer, 1, 0, 0)  # process_madvise",
        "call((298, 241), buffer, 0, -1, -1, 0)  # perf_event_open",
        "call((321, 280), 0, buffer, 64)  # bpf",
        "call((425, 425), 8, buffer)  # io_uring_setup",
        "call((323, 282), 1)  # userfaultfd, for its own faults only, which needs no privilege",
        "call((294, 26), 0)  # inotify_init1",
        "call((300, 262), 0, 0)  # fanotify_init",
        "call((319, 279), b'x', 0)  # memfd_create",
        "call((447, 447), 0)  # memfd_secret",
        "call((322, 281), 3, b'', buffer, buffer, 0x1000)  # execveat",
        "call((250, 219), 0, -3, 0)  # keyctl",
        "call((248, 217), b'user', b'x', b'y', 1, -3)  # add_key",
        "call((29, 194), 0, 4096, 0o1600)  # shmget",
        "call((68, 186), 0, 0o1600)  # msgget",
        "call((240, 180), b'x', 0o101, 0o600, 0)  # mq_open",
        "call((272, 97), 0x10000000)  # unshare",
        "call((308, 268), 3, 0)  # setns",
        "call((165, 40), b'none', b'/', b'tmpfs', 0, 0)  # mount",
        "call((155, 41), b'/', b'/')  # pivot_root",
        "call((304, 265), -100, buffer, 0)  # open_by_handle_at",
        "call((303, 264), -100, b'/', buffer, buffer, 0)  # name_to_handle_at",
        "call((437, 437), -100, b'/etc/passwd', buffer, 24)  # openat2",
        "call((176, 106), b'x', 0)  # delete_module",
        "call((246, 104), 0, 0, buffer, 0)  # kexec_load",
        "call((169, 142), 0xfee1dead, 672274793, 0x89ABCDEF, 0)  # reboot",
        "call((105, 146), 0)  # setuid",
        "call((126, 91), buffer, buffer)  # capset",
        "call((157, 167), 1, 0, 0, 0, 0)  # prctl: no signal when the parent ends",
        "call((157, 167), 4, 1, 0, 0, 0)  # prctl: readable by others",
        "call((317, 277), 1, 0, buffer)  # seccomp",
        "call((444, 444), 0, 0, 1)  # landlock_create_ruleset",
        "call((135, 92), 0x0040000)  # personality",
        "call((172, None), 3)  # iopl",
        "call((103, 116), 3, buffer, 100)  # syslog",
        "call((435, 435), buffer, 88)  # clone3",
        prelude=CALL,
    ),
    # Itself
    "patched builtins": Hostile(
        "import builtins, sys\n"
        "for name in ('type', 'len', 'isinstance', 'print', 'compile', 'eval', 'exec', 'str', 'bytes'):\n"
        "    setattr(builtins, name, lambda *a, **k: True)",
        (FINISHED, KILLED),
        calls=("1",),
    ),
    "no builtins": Hostile("import builtins\nvars(builtins).clear()", (FINISHED, KILLED, RAISED), calls=("1",)),
    "no modules": Hostile("import sys\nsys.modules.clear()", (FINISHED, KILLED), calls=("1",)),
    "a trace function": Hostile(
        "import sys\ndef trace(frame, event, argument):\n    frame.f_locals.clear()\n    return trace\n"
        "sys.settrace(trace)\nsys.setprofile(trace)\nf = lambda: 1",
        (FINISHED, KILLED),
        calls=("f()",),
    ),
    "objects that equal everything": Hostile(
        "class A:\n    __eq__ = lambda *a: True\n    __hash__ = lambda a: 1\n"
        "class I(int):\n    __eq__ = lambda *a: True\n"
        "class S(str): pass\nclass L(list): pass\nclass D(dict): pass\n",
        (FINISHED,),
        calls=("A()", "I(1)", "S()", "L()", "D()", "[1, {2: (I(3),)}]", "{A()}", "True"),
        answers=("NotPlain",) * 7 + (None,),
    ),
    "hooks": Hostile(
        "import sys, gc\nsys.excepthook = sys.unraisablehook = sys.displayhook = None\ngc.callbacks.append(1)\n"
        "sys.addaudithook(lambda *a: 1 / 0)",
        (FINISHED, KILLED, RAISED),
    ),
    "changed encoders": Hostile(
        "import sys\nfor name, module in list(sys.modules.items()):\n    if name.startswith('trl_spiral'):\n"
        "        for key in list(vars(module)):\n            if not key.startswith('__'): setattr(module, key, print)",
        (KILLED, FINISHED, OUTPUT_LIMIT),
        calls=("1",),
    ),
    "inherited descriptors": Hostile(
        "import os\nopen_ones = []\nfor fd in range(4096):\n"
        "    try:\n        os.fstat(fd)\n        open_ones.append(fd)\n"
        "    except OSError:\n        pass\nprint('BREACH' if len(open_ones) > 4 else 'contained', open_ones)",
        (FINISHED,),
    ),
    "malformed messages on the result socket": Hostile(
        SOCKET + "os.write(fd, b'\\0\\0\\0\\1X')\nimport time\ntime.sleep(60)", (KILLED,), "protocol"
    ),
    "an incomplete message": Hostile(SOCKET + "os.write(fd, b'\\xff' * 100)", (KILLED,), "exit"),
    "endless messages": Hostile(
        SOCKET + "while True: os.write(fd, b'\\0\\0\\0\\x0a' + b's\\0\\0\\0\\5aaaaa')", (KILLED, OUTPUT_LIMIT)
    ),
    "more results than calls": Hostile(
        SOCKET + "os.write(fd, 2 * (b'\\0\\0\\0\\7t\\0\\0\\0\\2TN'))", (KILLED,), "protocol", calls=("1",)
    ),
    "a value of unknown type": Hostile(
        SOCKET + "os.write(fd, b'\\0\\0\\0\\x0bt\\0\\0\\0\\2TS\\0\\0\\0\\1l')", (KILLED,), "protocol", calls=("1",)
    ),
    "descriptors sent over the result socket": denied(
        "import socket",
        "channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=os.dup(fd))",
        "attempt(socket.send_fds, channel, [b'x'], [0])",
        prelude=TRY + SOCKET,
    ),
}

if platform.machine() == "x86_64":
    HOSTILE |= {
        "the second set of system calls": Hostile(CALL + "call((0x40000000 + 57, None))", (KILLED,), "SIGSYS"),
        "32-bit system calls": Hostile(
            "import ctypes, mmap\npage = mmap.mmap(-1, 4096, prot=7)\n"
            "page.write(b'\\xb8\\x02\\0\\0\\0\\xcd\\x80\\xc3')\n"
            "address = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
            "print('BREACH', ctypes.CFUNCTYPE(ctypes.c_int)(address)())",
            (KILLED,),
            "SIGSYS",
        ),
    }


def run_all(sandbox: Sandbox, port: int) -> dict[str, str | None]:
    """Run all programs. Return the error of each, or `None` if it is contained."""
    results = sandbox.run([hostile.job(port) for hostile in HOSTILE.values()])
    return {name: each.escaped(result) for (name, each), result in zip(HOSTILE.items(), results, strict=True)}
