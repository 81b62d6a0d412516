"""Programs in replies: which part of a reply is the program, and which of a program's functions some tests call."""

from __future__ import annotations

import ast
import builtins
import re


_OPENING = r"^[ \t]*```[ \t]*(?:python3?|py)\b"
_BLOCK = re.compile(rf"{_OPENING}[^\n]*\n(.*?)(?:(?={_OPENING})|^[ \t]*```(?!\w)|\Z)", re.DOTALL | re.MULTILINE | re.I)


def extract_program(reply: str) -> str:
    """
    The program in a reply: its last ```python block, else the whole text.

    The last one, since a reply thinks aloud first and answers in the end. Nothing in thinking counts, finished (up to the last
    `</think>`) or not (from a `<think>` that the rest begins with). A block that is never closed ends where the next one begins, or
    with the reply.

    Args:
        reply (`str`):
            The whole reply.

    Returns:
        `str`: Python source, or what stands in its place; blank if there is nothing.
    """
    text = reply.rsplit("</think>", 1)[-1]
    if text.lstrip().startswith("<think>"):
        return ""
    blocks = _BLOCK.findall(text)
    return blocks[-1] if blocks else text


def behind(imports: str) -> str:
    """
    What is put behind a program so that it has the imports of its tests, as it would where both share a namespace.

    Behind it, where a program's own `from __future__` is in nobody's way; functions look names up when they are called.
    """
    return f"\n\n{imports}\n" if imports else ""


def entry_points(tests: str) -> tuple[str, ...]:
    """
    Names that tests use and do not define themselves: what the program on trial has to provide.

    Args:
        tests (`str`):
            Python source that is trusted, such as `"import math\\nassert math.isclose(area(2), 12.57)"`.

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
    """Whether there is nothing in a program to run: no line that is neither empty nor a comment."""
    # Not `splitlines`, which also breaks where Python does not: a comment may hold a line separator.
    return all(not line or line.startswith("#") for line in map(str.strip, re.split(r"[\n\r]", program)))


def computes_nothing(program: str) -> bool:
    """
    Whether a program's output was written rather than computed: it has no loop, no comprehension, no arithmetic, comparison
    or slice, and calls nothing but `print`.

    Reading a hostile program can take all of the stack, so [`ExecutionReward`] has this function run in the sandbox: it stands on
    its own.
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
