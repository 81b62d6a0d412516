"""`trl-spiral doctor`."""

import shutil
from importlib import metadata

import pytest

from trl_spiral.cli import doctor, main
from trl_spiral.sandbox import helper, kernel, landlock, local


class TestDoctor:
    def test_prints_versions_cores_extras_and_layers(self, capsys):
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

    def test_prints_what_is_missing_and_the_consequences(self, capsys, monkeypatch):
        monkeypatch.setattr(landlock, "version", lambda: 0)
        monkeypatch.setattr(shutil, "which", lambda name: None)
        monkeypatch.setattr(doctor, "installed_version", lambda name: None)

        assert main(["doctor"]) == 0
        shown = capsys.readouterr().out
        assert "no: a program can read every file that you can read" in shown
        assert "no: `BubblewrapSandbox` is refused" in shown
        assert "missing: required for training" in shown
        assert "missing vllm" in shown  # which `trl[vllm]` installs
        assert "allow_degraded=True" in shown

    def test_prints_why_a_program_cannot_be_run(self, monkeypatch):
        monkeypatch.setattr(local.LocalSandbox, "run", self.lose)
        monkeypatch.setattr(local, "check", lambda *_: None)

        assert doctor.try_sandbox() == "A program could not be run: The helper process of the sandbox has ended."

    def lose(self, jobs):
        raise helper.HelperLost("The helper process of the sandbox has ended.")

    def test_runs_a_program(self):
        if any(layer.needed and layer.found is None for layer in kernel.features()):
            pytest.skip("this machine cannot contain programs")

        assert doctor.try_sandbox() == "A program was run, and is contained."
