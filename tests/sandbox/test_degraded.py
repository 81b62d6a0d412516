"""What holds where the kernel lacks a layer, and that it is the layers which hold."""

import pytest

from tests.helpers.hostile_programs import HOSTILE, LIMITS
from trl_spiral.sandbox import LocalSandbox, helper, kernel


LACKING = [layer.name for layer in kernel.features() if layer.needed and layer.found is None]
pytestmark = pytest.mark.skipif(bool(LACKING), reason=f"this kernel lacks {', '.join(LACKING)}")


class TestDegraded:
    """Helper processes that take the kernel for one which lacks something."""

    WITHOUT = "from trl_spiral.sandbox import landlock, seccomp, zygote; {}; zygote.main()"
    LANDLOCK = "landlock.version = lambda: 0"
    SECCOMP = "seccomp.is_there = lambda: False"

    def escaped(self, monkeypatch, without, names):
        monkeypatch.setattr(helper, "START", self.WITHOUT.format(without))
        with LocalSandbox(LIMITS, workers=1) as sandbox:
            outcomes = sandbox.run([HOSTILE[name].job(9) for name in names])
        return [HOSTILE[name].escaped(outcome) is not None for name, outcome in zip(names, outcomes, strict=True)]

    def test_without_landlock_a_program_reads_and_does_no_more(self, monkeypatch):
        names = ["files read", "files written", "files changed", "a fork bomb", "signals to others"]

        assert self.escaped(monkeypatch, self.LANDLOCK, names) == [True, False, False, False, False]

    def test_without_seccomp_files_stay_closed(self, monkeypatch):
        names = ["what /proc knows", "thousands of tiny files", "sockets"]

        assert self.escaped(monkeypatch, self.SECCOMP, names) == [False, False, True]

    def test_without_both_the_same_programs_get_through(self, monkeypatch):
        # What shows that they try in earnest.
        names = ["files read", "what /proc knows", "sockets"]

        assert self.escaped(monkeypatch, f"{self.LANDLOCK}; {self.SECCOMP}", names) == [True, True, True]
