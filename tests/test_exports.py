"""The public names of `trl_spiral`."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import trl_spiral
from trl_spiral import callbacks


ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "recipes").glob("*.py"))


def imported(source: str) -> set[tuple[str, str]]:
    """Return the modules and names of all `from trl_spiral… import` statements."""
    return {
        (node.module, alias.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "trl_spiral"
        for alias in node.names
    }


def readme_blocks() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "trl_spiral" in block]


class TestExports:
    @pytest.mark.parametrize("name", trl_spiral.__all__)
    def test_every_public_name_can_be_imported(self, name):
        assert getattr(trl_spiral, name) is not None

    def test_every_public_name_is_that_of_its_module(self):
        for name in set(trl_spiral.__all__) - {"__version__"}:
            assert getattr(trl_spiral, name).__name__ == name

    def test_no_name_is_exported_twice(self):
        assert len(trl_spiral.__all__) == len(set(trl_spiral.__all__))

    def test_dir_lists_the_public_names(self):
        assert dir(trl_spiral) == sorted(trl_spiral.__all__)

    def test_an_unknown_name_raises(self):
        with pytest.raises(AttributeError, match="'trl_spiral' has no attribute 'SpiralTraner'"):
            trl_spiral.SpiralTraner  # noqa: B018

    def test_all_callbacks_are_public(self):
        assert set(callbacks.__all__) <= set(trl_spiral.__all__)

    def test_the_package_loads_neither_torch_nor_textarena(self):
        script = "import sys, trl_spiral; sys.exit('torch' in sys.modules or 'textarena' in sys.modules)"

        assert subprocess.run([sys.executable, "-c", script]).returncode == 0


class TestDocumentation:
    @pytest.mark.parametrize("block", readme_blocks(), ids=range(len(readme_blocks())))
    def test_the_readme_imports_from_the_package_alone(self, block):
        names = imported(block)

        assert {module for module, _ in names} <= {"trl_spiral"}
        assert {name for _, name in names} <= set(trl_spiral.__all__)

    @pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
    def test_recipes_import_public_names_from_the_package(self, recipe):
        names = imported(recipe.read_text(encoding="utf-8"))

        assert {name for module, name in names if module == "trl_spiral"} <= set(trl_spiral.__all__)
        assert {name for module, name in names if module != "trl_spiral"}.isdisjoint(trl_spiral.__all__)
