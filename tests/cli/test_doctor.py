"""`trl-spiral doctor`."""

import shutil
from importlib import metadata

import pytest

from trl_spiral.cli import doctor, main
from trl_spiral.sandbox import helper, kernel, landlock, local


class TestDoctor:
    def test_shows_what_there_is(self, capsys):
        assert main(["doctor"]) == 0

        shown = capsys.readouterr().out
        for words in (
            metadata.version("trl"),
            metadata.version("torch"),
            "cores",
            "eval",
            "seccomp",
            "Landlock",
            "bubblewrap",
        ):
            assert words in shown

    def test_says_what_lacks_and_what_that_costs(self, capsys, monkeypatch):
        monkeypatch.setattr(landlock, "version", lambda: 0)
        monkeypatch.setattr(shutil, "which", lambda name: None)
        monkeypatch.setattr(doctor, "installed", lambda name: None)

        assert main(["doctor"]) == 0
        shown = capsys.readouterr().out
        assert "no: a program can read every file that you can read" in shown
        assert "no: `BubblewrapSandbox` is refused" in shown
        assert "missing: install it to train" in shown
        assert "lacks vllm" in shown  # which `trl[vllm]` stands for
        assert "allow_degraded=True" in shown

    def test_says_why_a_program_cannot_be_run(self, monkeypatch):
        monkeypatch.setattr(local.LocalSandbox, "run", self.lose)
        monkeypatch.setattr(local, "check", lambda *_: None)

        assert doctor.verdict() == "A program could not be run: The helper process of the sandbox has ended."

    def lose(self, jobs):
        raise helper.HelperLost("The helper process of the sandbox has ended.")

    def test_runs_a_program(self):
        if any(layer.needed and layer.found is None for layer in kernel.features()):
            pytest.skip("programs are refused here")

        assert doctor.verdict() == "A program was run, and is contained."
