"""Python source from models and datasets: blank and trivial programs, and the names that tests use."""

from __future__ import annotations

import ast
import builtins
import re


def appended_imports(imports: str) -> str:
    """
    Return the imports of tests as text to append to a program, so that both have them in one namespace.

    They come last because a `from __future__` must come first. Functions look names up when they are called.
    """
    return f"\n\n{imports}\n" if imports else ""


def entry_points(tests: str) -> tuple[str, ...]:
    """
    Return the names that tests use and do not define themselves: the program under test must define them.

    Args:
        tests (`str`):
            Trusted Python source, such as `"import math\\nassert math.isclose(area(2), 12.57)"`.

    Returns:
        `tuple[str, ...]`: The names, `("area",)` here, in the order of their first use.

    Raises:
        SyntaxError: If the tests are not Python.
    """
    used: dict[str, None] = {}
    bound = set(dir(builtins))
    for node in ast.walk(ast.parse(tests)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used[name] = None
            case ast.Name(id=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=alias):
                bound.add(alias or name.split(".")[0])
    return tuple(name for name in used if name not in bound)


def is_blank(program: str) -> bool:
    """Return whether a program has only empty lines and comments."""
    # `splitlines` would also break at a line separator inside a comment, where Python does not.
    return all(not line or line.startswith("#") for line in map(str.strip, re.split(r"[\n\r]", program)))


def computes_nothing(program: str) -> bool:
    """
    Return whether a program only prints constants: it has no loop, comprehension, arithmetic, comparison or slice, and
    calls only `print`.

    Parsing a hostile program can exhaust the stack. [`ExecutionReward`] therefore runs this function in the sandbox,
    from its source, so it must not depend on other code of this module.
    """
    import ast

    computing = (
        *(ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
        *(ast.BinOp, ast.AugAssign, ast.Compare, ast.BoolOp, ast.Slice),
    )
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, computing):
            return False
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id == "print"):
            return False
    return True
