"""Rules for the kernel, tested without the kernel if possible."""

import errno
import platform
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from trl_spiral.sandbox import CannotContain, Limits, LocalSandbox, kernel, landlock, seccomp


ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*, include/uapi/linux/audit.h
# Files of Debian's `linux-libc-dev`; `stat` of files has another name there.
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ALLOW, KILL = 0x7FFF0000, 0x80000000  # SECCOMP_RET_*, include/uapi/linux/seccomp.h
DENY, MISSING = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS

# Numbers as x86_64, aarch64, from the same headers.
FORK, CLONE, CLONE3, EXECVE, OPENAT, SOCKET, SOCKETPAIR = (
    (57, None),
    (56, 220),
    (435, 435),
    (59, 221),
    (257, 56),
    (41, 198),
    (53, 199),
)
SENDTO, FCNTL, IOCTL, PRLIMIT, KILL_CALL, MKDIRAT, READ = (
    (44, 206),
    (72, 25),
    (16, 29),
    (302, 261),
    (62, 129),
    (258, 34),
    (0, 63),
)


def decision(filter, architecture, number, *arguments):
    """Return the decision of a filter on a system call. Interprets the five instructions that ours use."""
    data = struct.pack("<iIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = list(struct.iter_unpack("<HBBI", filter))
    at = held = 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x20:
            held = struct.unpack_from("<I", data, value)[0]
        elif code == 0x54:
            held &= value
        elif code == 0x15:
            at += if_true if held == value else if_false
        elif code == 0x35:
            at += if_true if held >= value else if_false
        else:
            assert code == 0x06
            return value


@pytest.fixture(params=ARCHITECTURES)
def machine(request, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: request.param)
    return request.param


class TestSeccomp:
    def ask(self, machine, numbers, *arguments, writes=False, threads=False):
        number = numbers[list(ARCHITECTURES).index(machine)]
        return (
            DENY
            if number is None
            else decision(seccomp.build_filter(writes, threads), ARCHITECTURES[machine], number, *arguments)
        )

    def test_allows_reading(self, machine):
        assert self.ask(machine, READ, 0, 4096, 100) == ALLOW
        assert self.ask(machine, OPENAT, -100 & 0xFFFFFFFF, 4096, 0o2000000) == ALLOW  # O_CLOEXEC

    @pytest.mark.parametrize("numbers", [FORK, CLONE, EXECVE, SOCKET, KILL_CALL, MKDIRAT])
    def test_denies_calls_that_are_not_listed(self, machine, numbers):
        assert self.ask(machine, numbers) == DENY

    @pytest.mark.parametrize("flags", [0o1, 0o2, 0o100, 0o1000, 0o20200000])  # WRONLY, RDWR, CREAT, TRUNC, TMPFILE
    def test_opens_files_for_writing_only_with_writable_folders(self, machine, flags):
        assert self.ask(machine, OPENAT, 0, 0, flags) == DENY
        assert self.ask(machine, OPENAT, 0, 0, flags, writes=True) == ALLOW
        assert self.ask(machine, MKDIRAT, writes=True) == ALLOW

    def test_starts_threads_only_if_allowed_and_never_processes(self, machine):
        thread, process = 0x003D0F00, 0x01200011  # the flags of glibc's pthread_create, and of its fork

        assert self.ask(machine, CLONE, thread) == DENY
        assert self.ask(machine, CLONE, thread, threads=True) == ALLOW
        assert self.ask(machine, CLONE, process, threads=True) == DENY
        assert self.ask(machine, CLONE3, threads=True) == MISSING

    def test_checks_arguments(self, machine):
        assert self.ask(machine, FCNTL, 3, 3) == ALLOW  # F_GETFL
        assert self.ask(machine, FCNTL, 3, 8, 1) == DENY  # F_SETOWN
        assert self.ask(machine, IOCTL, 3, 0x5401) == ALLOW  # TCGETS
        assert self.ask(machine, IOCTL, 3, 0x5412) == DENY  # TIOCSTI, which types into the terminal
        assert self.ask(machine, SOCKETPAIR, 1, 1 | 0o2000000) == ALLOW  # a stream, with SOCK_CLOEXEC
        assert self.ask(machine, SOCKETPAIR, 1, 2) == DENY
        assert self.ask(machine, SOCKETPAIR, 2, 1) == DENY
        assert self.ask(machine, SENDTO, 3, 4096, 1, 0, 0) == ALLOW
        assert self.ask(machine, SENDTO, 3, 4096, 1, 0, 1 << 32) == DENY  # an address whose lower half is 0
        assert self.ask(machine, PRLIMIT, 0, 7, 0, 4096) == ALLOW
        assert self.ask(machine, PRLIMIT, 0, 7, 4096, 0) == DENY

    def test_kills_programs_that_use_another_architecture(self, machine):
        filter = seccomp.build_filter(False, False)

        assert decision(filter, 0x40000003, 0) == KILL  # i386
        assert decision(filter, ARCHITECTURES[machine], 0x40000000) == (KILL if machine == "x86_64" else DENY)  # x32

    def test_numbers_match_the_kernel_headers(self, machine):
        if not HEADERS[machine].exists():
            pytest.skip(f"{HEADERS[machine]} is not installed")
        text = HEADERS[machine].read_text()
        known = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
        known["newfstatat"] = known.get("newfstatat", known.get("fstatat"))
        ours = {**seccomp._ALLOWED, **seccomp._FOR_WRITING}
        column = list(ARCHITECTURES).index(machine)

        assert {name: numbers[column] for name, numbers in ours.items()} == {name: known.get(name) for name in ours}

    def test_filter_fits_into_the_kernel(self):
        # BPF_MAXINSNS, include/uapi/linux/bpf_common.h
        assert len(seccomp.build_filter(True, True)) // 8 <= 4096


class TestCheck:
    def test_error_names_missing_features_and_ways_out(self, monkeypatch):
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(landlock, "version", lambda: 0)
        monkeypatch.setattr(seccomp, "is_there", lambda: False)

        with pytest.raises(CannotContain) as raised:
            LocalSandbox()
        for word in ("seccomp", "Landlock", "BubblewrapSandbox", "allow_degraded=True", "doctor"):
            assert word in str(raised.value)
        kernel.check(Limits(), allow_degraded=True)

    def test_refuses_writable_folders_if_truncating_cannot_be_contained(self, monkeypatch, tmp_path):
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(landlock, "version", lambda: 2)
        monkeypatch.setattr(seccomp, "is_there", lambda: True)

        kernel.check(Limits(), allow_degraded=False)
        with pytest.raises(CannotContain, match="`writable` needs version 3 of Landlock"):
            kernel.check(Limits(writable=(str(tmp_path),)), allow_degraded=False)

    @pytest.mark.parametrize("system", ["darwin", "win32"])
    def test_refuses_other_systems(self, system, monkeypatch):
        monkeypatch.setattr(sys, "platform", system)

        for allowed in (False, True):
            with pytest.raises(CannotContain, match="needs Linux.*`Sandbox` of your own"):
                LocalSandbox(allow_degraded=allowed)
        assert [layer.found for layer in kernel.features()] == [None] * 6

    def test_refuses_windows_without_modules_that_windows_lacks(self):
        code = (
            "import sys\nsys.modules |= dict.fromkeys(['fcntl', 'resource', 'termios', 'pwd', 'grp'])\n"
            "import platform\nsys.platform = 'win32'\nplatform.system = lambda: 'Windows'\n"
            "from trl_spiral.sandbox import LocalSandbox\nLocalSandbox()"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

        assert "CannotContain: `LocalSandbox` needs Linux" in done.stderr
        assert "this is Windows" in done.stderr
