"""A missing optional package raises one sentence that names the extra."""

import sys
import tomllib
from pathlib import Path

import pytest

from trl_spiral.extras import EXTRAS, explain_missing, require_extra


PYPROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture
def uninstall(monkeypatch):
    """Make packages look as if they were not installed."""

    def uninstall(package):
        loaded = {name for name in sys.modules if name.partition(".")[0] == package}
        for name in {package, *loaded}:
            monkeypatch.setitem(sys.modules, name, None)

    return uninstall


def load_adapter(tmp_path):
    from trl_spiral.engines.build import saved_player
    from trl_spiral.types import Sampling

    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "no/model"}')
    saved_player(str(tmp_path), Sampling())


def draw(tmp_path):
    from trl_spiral.opponents.plots import draw_win_rates
    from trl_spiral.opponents.transitivity import Matrix

    draw_win_rates(Matrix(("a", "b"), ((0.0, 1.0), (0.0, 0.0)), ((0, 1), (1, 0))), tmp_path / "picture.png")


def grade_math(tmp_path):
    from trl_spiral import MathCallback

    MathCallback(None, "gsm8k")


def average(tmp_path):
    from trl_spiral.evaluation.nash import nash_average

    nash_average([[0.0]])


def solve_leduc(tmp_path):
    from trl_spiral import EquilibriumPlayer

    EquilibriumPlayer("Leduc-v0")


def generate_with_vllm(tmp_path):
    from types import SimpleNamespace

    from trl_spiral.training.preflight import check_vllm

    check_vllm(SimpleNamespace(use_vllm=True), None)


USES = {
    load_adapter: ("peft", "peft"),
    draw: ("matplotlib", "plots"),
    grade_math: ("math_verify", "eval"),
    average: ("scipy", "eval"),
    solve_leduc: ("pyspiel", "eval"),
    generate_with_vllm: ("vllm", "vllm"),
}


class TestMissingPackages:
    @pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
    def test_are_named_with_their_extra(self, use, uninstall, tmp_path):
        package, extra = USES[use]
        uninstall(package)

        with pytest.raises(ImportError, match=rf"pip\s+install trl-spiral\[{extra}\]") as raised:
            use(tmp_path)
        assert len(str(raised.value).split(". ")) <= 2

    def test_do_not_prevent_the_import_of_public_names(self, uninstall):
        import trl_spiral

        for package in EXTRAS:
            uninstall(package)
        for name in trl_spiral.__all__:
            assert getattr(trl_spiral, name) is not None


class TestExtras:
    def test_are_those_of_the_package(self):
        declared = set(PYPROJECT["project"]["optional-dependencies"])

        assert set(EXTRAS.values()) == declared - {"dev"}

    def test_an_installed_package_is_accepted(self):
        require_extra("peft", "A test")

    @pytest.mark.parametrize("error", [ValueError("peft"), ImportError("peft"), ModuleNotFoundError(name="mine")])
    def test_other_errors_are_not_explained(self, error):
        assert explain_missing(error) is None

    def test_a_module_of_a_missing_package_is_explained(self):
        error = ModuleNotFoundError("No module named 'vllm.lora'", name="vllm.lora")

        assert explain_missing(error) == (
            "This needs vllm, which is not installed. Install it with `pip install trl-spiral[vllm]`."
        )
