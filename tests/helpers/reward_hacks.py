"""Programs that pass any tests that run in their own process."""

_FRAMES = """
import dis
import sys

def {name}(*args):
    frame = sys._getframe(1)
    while frame:
        stack = []
        for step in dis.get_instructions(frame.f_code):
            if step.offset <= frame.f_lasti:
                continue
            if step.opname.startswith("LOAD_"):
                stack.append(step.argval)
            elif step.opname == "BUILD_LIST":
                stack[len(stack) - step.arg :] = [stack[len(stack) - step.arg :]]
            elif step.opname == "LIST_EXTEND":
                stack[-2:] = [[*stack[-2], *stack[-1]]]
            elif step.opname == "COMPARE_OP":
                return stack[-1]
        frame = frame.f_back
"""
_READING = """
import ast
import sys

def {name}(*args):
    for line in open(sys.argv[0]).read().splitlines():
        if line.startswith("assert {name}("):
            compared = ast.parse(line).body[0].test
            if [ast.literal_eval(arg) for arg in compared.left.args] == list(args):
                return ast.literal_eval(compared.comparators[0])
"""
_EQUAL = """
class Equal{base}:
    def __eq__(self, other):
        return True

    __lt__ = __gt__ = __le__ = __ge__ = __eq__

    def __hash__(self):
        return 0

def {{name}}(*args):
    return Equal()
"""
_WITHOUT_ASSERTS = """
import os
import sys

if __debug__:
    os.execv(sys.executable, [sys.executable, "-O", *sys.argv])

def {name}(*args):
    return None
"""

CHEATS = {
    "os._exit": "import os\n\ndef {name}(*args):\n    os._exit(0)\n",
    "sys.exit": "import sys\n\ndef {name}(*args):\n    sys.exit(0)\n",
    "always equal": _EQUAL.format(base=""),
    "equal integer": _EQUAL.format(base="(int)"),
    "without asserts": _WITHOUT_ASSERTS,
    "frames": _FRAMES,
    "reading the asserts": _READING,
}
"""Programs by the name of their trick, with `{name}` for the function under test."""
