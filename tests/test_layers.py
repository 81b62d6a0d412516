"""Allowed imports between layers, read from the sources with `ast`, without importing them."""

import ast
from pathlib import Path

import pytest


PACKAGE = Path(__file__).parents[1] / "trl_spiral"

# Low to high. A module imports from lower layers and from its own folder only.
LAYERS = [
    {"types", "seeding", "intervals", "files", "extras"},
    {"text"},
    {"sandbox", "lock"},
    {"games"},
    {"players", "tasks"},
    {"selfplay"},
    {"opponents"},
    {"evaluation", "rewards"},
    {"report"},
    {"engines", "distributed"},
    {"_trl"},
    {"rollout_func", "game_environment", "machine"},
    {"callbacks"},
    {"training"},
    {"algorithms"},
    {"tiny"},
    {"cli"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
FIRST_WITH_TORCH = RANK["engines"]
TORCH_STACK = {"torch", "transformers", "trl", "accelerate", "peft", "datasets", "safetensors", "numpy", "vllm"}

MODULES = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def layer_of(module: str) -> str:
    """Return the first part of a module's path: `games/textarena/adapter.py` belongs to `games`."""
    return module.removesuffix(".py").split("/")[0]


def imports(tree: ast.AST) -> set[str]:
    """Return all imported modules and names of a source, including those in functions and under `TYPE_CHECKING`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "we import by full name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def top(name: str) -> str:
    return name.split(".")[0]


INNER = {name: tree for name, tree in MODULES.items() if name != "__init__.py"}


class TestLayers:
    @pytest.mark.parametrize("module", INNER)
    def test_modules_import_only_from_lower_layers(self, module):
        layer = layer_of(module)
        assert layer in RANK, f"{module} is in no layer. Add it to `LAYERS`."
        ours = {name.split(".")[1] for name in imports(INNER[module]) if name.startswith("trl_spiral.")} - {
            "__version__"
        }

        assert {other for other in ours if other != layer and RANK[other] >= RANK[layer]} == set()

    def test_the_package_itself_imports_lazily(self):
        assert {top(name) for name in imports(MODULES["__init__.py"])} == {"__future__", "importlib", "typing"}

    @pytest.mark.parametrize("module", [name for name in INNER if RANK.get(layer_of(name), 99) < FIRST_WITH_TORCH])
    def test_lower_layers_do_not_import_torch(self, module):
        assert {top(name) for name in imports(INNER[module])} & TORCH_STACK == set()

    @pytest.mark.parametrize(
        "name",
        [
            "http/budget",
            "http/openai",
            "http/vllm_server",
            "http/client",
            "http/engine",
            "http/retrying",
            "policies",
            "vllm/sampling",
        ],
    )
    def test_http_engines_do_not_import_torch(self, name):
        assert {top(name) for name in imports(INNER[f"engines/{name}.py"])} & TORCH_STACK == set()

    def test_only_the_adapter_imports_textarena(self):
        importers = [name for name, tree in MODULES.items() if "textarena" in map(top, imports(tree))]

        assert importers == ["games/textarena/adapter.py"]

    def test_every_layer_is_checked(self):
        # Every name in `LAYERS` must exist.
        found = {layer_of(module) for module in INNER}

        assert set(RANK) - found == set()


def listed_seams() -> set[str]:
    """Return the private names that `_trl/names.py` declares. Another test compares them with the installed TRL."""
    names: set[str] = set()
    for node in MODULES["_trl/names.py"].body:
        if isinstance(node, ast.Assign):
            names |= {
                part.value
                for part in ast.walk(node.value)
                if isinstance(part, ast.Constant) and type(part.value) is str
            }
    return names


def own_names(tree: ast.AST) -> set[str]:
    """Return the names that a source defines: functions, classes, class attributes, and attributes of `self`."""
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                own.add(node.attr)
    return own


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


class TestPrivates:
    """Only `_trl/` uses private names of TRL. Other modules use only names that it declares."""

    OTHERS = {name: tree for name, tree in INNER.items() if layer_of(name) != "_trl"}
    # The name of a transformers model, the copy of a named tuple, the run folder of a trainer, and CPython's path of
    # the interpreter outside the virtual environment, which `venv` and `multiprocessing` use.
    HARMLESS = {"_name_or_path", "_replace", "_get_output_dir", "_base_executable"}

    @pytest.mark.parametrize("module", OTHERS)
    def test_no_other_module_imports_from_inside_trl(self, module):
        inside = {name for name in imports(self.OTHERS[module]) if top(name) == "trl" and name.count(".") > 1}
        private = {name for name in imports(self.OTHERS[module]) if is_private(name.split(".")[-1])}

        assert inside == set()
        assert private <= {"trl_spiral._trl"}

    @pytest.mark.parametrize("module", OTHERS)
    def test_no_other_module_reads_an_undeclared_private_attribute(self, module):
        tree = self.OTHERS[module]
        allowed = own_names(tree) | listed_seams() | self.HARMLESS
        touched = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_private(node.attr)}

        assert touched - allowed - {"_trl"} == set()
