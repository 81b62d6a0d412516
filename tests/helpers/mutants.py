"""Programs with one mistake: an operator, a constant or a branch."""

import ast
import random
import warnings
from functools import partial


OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def mutant(program, seed):
    """Return a program with one mistake, or with empty returns if it has no operator, constant or branch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some programs of MBPP contain `\w` in strings that are not raw
        tree = ast.parse(program)
    changes = [change for node in ast.walk(tree) for change in _mistakes(node)]
    if not changes:
        changes = [partial(setattr, node, "value", None) for node in ast.walk(tree) if isinstance(node, ast.Return)]
    random.Random(seed).choice(changes)()
    return ast.unparse(tree)


def _mistakes(node):
    match node:
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp():
            yield partial(setattr, node, "op", OPERATORS[type(node.op)]())
        case ast.Compare():
            yield partial(setattr, node, "ops", [OPERATORS[type(node.ops[0])](), *node.ops[1:]])
        case ast.If() | ast.While() | ast.IfExp():
            yield partial(setattr, node, "test", ast.UnaryOp(ast.Not(), node.test))
        case ast.comprehension(ifs=[condition, *others]):
            yield partial(setattr, node, "ifs", [ast.UnaryOp(ast.Not(), condition), *others])
        case ast.Constant(value=bool(value)):
            yield partial(setattr, node, "value", not value)
        case ast.Constant(value=int(value) | float(value)):
            yield partial(setattr, node, "value", value + 1)
        case ast.Constant(value=str(value)):
            yield partial(setattr, node, "value", value + "a")
