"""
The system calls that a program may make: a seccomp filter that allows what Python and its standard library need.

All others fail with EPERM, which Python turns into a `PermissionError`. The list was found by importing and trying the
whole standard library on Python 3.11 to 3.13 with glibc. Calls that a later Python or another C library needs must be
added here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from trl_spiral.sandbox.libc import prctl


# Numbers from arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (Linux 6.18): x86_64,
# aarch64. Frequent calls first, since the filter checks them in order.
_ALLOWED: dict[str, tuple[int, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "mmap": (9, 222),
    "munmap": (11, 215),
    "brk": (12, 214),
    "lseek": (8, 62),
    "close": (3, 57),
    "fstat": (5, 80),
    "newfstatat": (262, 79),
    "futex": (202, 98),
    "clock_gettime": (228, 113),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "mprotect": (10, 226),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "readv": (19, 65),
    "writev": (20, 66),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "stat": (4, None),
    "lstat": (6, None),
    "statx": (332, 291),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "epoll_create": (213, None),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "recvfrom": (45, 207),
    "sigaltstack": (131, 132),
    "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137),
    "pause": (34, None),
    "alarm": (37, None),
    "setitimer": (38, 103),
    "getitimer": (36, 102),
    "restart_syscall": (219, 128),
    "set_robust_list": (273, 99),
    "rseq": (334, 293),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getrandom": (318, 278),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "uname": (63, 160),
    "getrlimit": (97, 163),
}
# Additional calls if some folder is writable. Landlock restricts which one.
_FOR_WRITING: dict[str, tuple[int, int | None]] = {
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rmdir": (84, None),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "ftruncate": (77, 46),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "sendfile": (40, 71),
}
_FCNTL, _IOCTL, _OPEN, _OPENAT, _CLONE = (72, 25), (16, 29), (2, None), (257, 56), (56, 220)
_SOCKETPAIR, _SENDTO, _PRLIMIT64, _CLONE3 = (53, 199), (44, 206), (302, 261), (435, 435)

_ALL = 0xFFFFFFFF
_CLONE_THREAD = 0x00010000
_O_TMPFILE = 0x00400000  # without the O_DIRECTORY that `os.O_TMPFILE` includes
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | _O_TMPFILE

# include/uapi/asm-generic/fcntl.h, linux/fcntl.h and asm-generic/ioctls.h
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL, _F_DUPFD_CLOEXEC = 0, 1, 2, 3, 4, 1030
_TCGETS, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX = 0x5401, 0x541B, 0x5421, 0x5450, 0x5451
_AF_UNIX, _SOCK_STREAM, _SOCKET_TYPES = 1, 1, 0xF

# Instructions of classic BPF, include/uapi/linux/bpf_common.h, and the filter's verdicts, seccomp.h.
_LOAD, _AND, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # audit.h
_X32 = 0x40000000  # numbers of x86_64's second, 32-bit way to make system calls

_PR_GET_SECCOMP, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 21, 22, 2  # prctl.h

ENOSYS, EPERM = _ERRNO | errno.ENOSYS, _ERRNO | errno.EPERM

# A condition: index of an argument, whether to test its upper half, mask, allowed values.
Condition = tuple[int, bool, int, tuple[int, ...]]


def is_there() -> bool:
    """Return whether this kernel supports filters and the numbers of its system calls are known."""
    if platform.machine() not in _ARCHITECTURES:
        return False
    try:
        prctl(_PR_GET_SECCOMP)
    except OSError:  # EINVAL: the kernel was built without seccomp
        return False
    return True


def install_filter(filter: bytes) -> None:
    """Install a filter in the calling process irrevocably."""
    code = ctypes.create_string_buffer(filter, len(filter))
    program = struct.pack("@HP", len(filter) // 8, ctypes.addressof(code))  # struct sock_fprog
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(program))


def build_filter(writes: bool, threads: bool) -> bytes:
    """
    Build the filter for this machine.

    Args:
        writes (`bool`):
            Whether files may be opened for writing, created, renamed and removed.
        threads (`bool`):
            Whether threads may be started.

    Returns:
        `bytes`: Instructions, eight bytes each.
    """
    machine = platform.machine()
    column = list(_ARCHITECTURES).index(machine)
    code = [_step(_LOAD, _ARCHITECTURE_AT), _step(_IF_EQUAL, _ARCHITECTURES[machine], 1, 0), _step(_RETURN, _KILL)]
    code.append(_step(_LOAD, _NUMBER_AT))
    if machine == "x86_64":
        code += [_step(_IF_AT_LEAST, _X32, 0, 1), _step(_RETURN, _KILL)]

    def rule(numbers: tuple[int, int | None], conditions: tuple[Condition, ...] = (), verdict: int = _ALLOW) -> None:
        number = numbers[column]
        if number is None:  # this architecture lacks the call
            return
        block = [step for condition in conditions for step in _check(*condition)] + [_step(_RETURN, verdict)]
        code.extend([_step(_IF_EQUAL, number, 0, len(block)), *block])

    for numbers in (*_ALLOWED.values(), *(_FOR_WRITING.values() if writes else ())):
        rule(numbers)
    kept = 0 if writes else _WRITES
    rule(_OPENAT, ((2, False, kept, (0,)),))
    rule(_OPEN, ((1, False, kept, (0,)),))
    # Not F_SETOWN and F_SETSIG: they send any signal, even SIGKILL, to the owner of a descriptor without `kill`.
    commands = (_F_GETFL, _F_SETFL, _F_GETFD, _F_SETFD, _F_DUPFD, _F_DUPFD_CLOEXEC)
    rule(_FCNTL, ((1, False, _ALL, commands),))
    # `isatty` and non-blocking sockets; not FIOSETOWN, which is F_SETOWN.
    rule(_IOCTL, ((1, False, _ALL, (_TCGETS, _FIONREAD, _FIONBIO, _FIONCLEX, _FIOCLEX)),))
    if threads:
        rule(_CLONE, ((0, False, _CLONE_THREAD, (_CLONE_THREAD,)),))
    rule(_CLONE3, verdict=ENOSYS)  # a filter cannot read its flags; libc falls back on `clone`
    # asyncio wakes itself through a socket pair. Streams only: a datagram socket reaches any address.
    rule(_SOCKETPAIR, ((0, False, _ALL, (_AF_UNIX,)), (1, False, _SOCKET_TYPES, (_SOCK_STREAM,))))
    rule(_SENDTO, _null(4))
    rule(_PRLIMIT64, _null(2))  # to read limits, not to set them
    code.append(_step(_RETURN, EPERM))
    return b"".join(code)


def _null(argument: int) -> tuple[Condition, Condition]:
    return (argument, False, _ALL, (0,)), (argument, True, _ALL, (0,))


def _check(argument: int, upper: bool, kept: int, values: tuple[int, ...]) -> list[bytes]:
    """Return steps that continue if the argument has one of the values, and deny the call otherwise."""
    choices = [_step(_IF_EQUAL, value, len(values) - at, 0) for at, value in enumerate(values)]
    where = _ARGUMENTS_AT + 8 * argument + 4 * upper  # both architectures are little-endian
    return [_step(_LOAD, where), _step(_AND, kept), *choices, _step(_RETURN, EPERM)]


def _step(instruction: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", instruction, if_true, if_false, value)
