"""Containment on kernels that lack a layer; shows that the layers are what contains."""

import pytest

from tests.helpers.hostile_programs import HOSTILE, LIMITS
from trl_spiral.sandbox import LocalSandbox, helper, kernel


LACKING = [layer.name for layer in kernel.features() if layer.needed and layer.found is None]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"this kernel lacks {', '.join(LACKING)}")


class TestDegraded:
    """Helper processes that do not find a layer of the kernel."""

    WITHOUT = "from trl_spiral.sandbox import landlock, seccomp, zygote; {}; zygote.main()"
    LANDLOCK = "landlock.version = lambda: 0"
    SECCOMP = "seccomp.is_there = lambda: False"

    def escaped(self, monkeypatch, without, names):
        monkeypatch.setattr(helper, "START", self.WITHOUT.format(without))
        with LocalSandbox(LIMITS, workers=1) as sandbox:
            results = sandbox.run([HOSTILE[name].job(9) for name in names])
        return [HOSTILE[name].escaped(result) is not None for name, result in zip(names, results, strict=True)]

    def test_without_landlock_a_program_can_only_read_files(self, monkeypatch):
        names = ["files read", "files written", "files changed", "a fork bomb", "signals to others"]

        assert self.escaped(monkeypatch, self.LANDLOCK, names) == [True, False, False, False, False]

    def test_without_seccomp_files_stay_denied(self, monkeypatch):
        names = ["contents of /proc", "thousands of tiny files", "sockets"]

        assert self.escaped(monkeypatch, self.SECCOMP, names) == [False, False, True]

    def test_without_both_layers_the_programs_escape(self, monkeypatch):
        # Shows that the programs would do harm.
        names = ["files read", "contents of /proc", "sockets"]

        assert self.escaped(monkeypatch, f"{self.LANDLOCK}; {self.SECCOMP}", names) == [True, True, True]
