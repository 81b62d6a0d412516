"""Names that tests use, and blank and trivial programs."""

import pytest

from trl_spiral.text.python_source import appended_imports, computes_nothing, entry_points, is_blank


class TestAppendedImports:
    def test_follow_the_program(self):
        assert "x = 1" + appended_imports("import math") == "x = 1\n\nimport math\n"

    def test_are_empty_without_imports(self):
        assert appended_imports("") == ""


class TestEntryPoints:
    @pytest.mark.parametrize(
        ("tests", "names"),
        [
            ("assert double(2) == 4", ("double",)),
            ("import math\nassert math.isclose(area(2), 3.1)", ("area",)),
            (
                "from math import pi as p\ndef same(a, b):\n    return a == b\n"
                "assert same(f(p), [g(n) for n in 'ab'])",
                "fg",
            ),
            ("assert len([]) == 0", ()),
        ],
    )
    def test_are_the_names_that_tests_do_not_define(self, tests, names):
        assert sorted(entry_points(tests)) == list(names)


class TestComputesNothing:
    @pytest.mark.parametrize(
        "program",
        ["print(1)", "x = 'a'\nprint(x, -1)", "print(f'{1}')", "if True:\n    print([1, 2][0])", "import os"],
    )
    def test_is_true_of_printed_constants(self, program):
        assert computes_nothing(program)

    @pytest.mark.parametrize(
        "program",
        ["print(2 * 3)", "for n in [1]:\n    print(n)", "print(len('ab'))", "print('ab'[::-1])", "def f(): pass\nf()"],
    )
    def test_is_false_of_computed_output(self, program):
        assert not computes_nothing(program)


class TestIsBlank:
    @pytest.mark.parametrize(
        ("program", "blank"),
        [
            ("", True),
            (" \n# x\n", True),
            ("# x\r# y\r\n", True),
            ("# x\u2028print(1)", True),
            ("pass", False),
            ("'x'", False),
            ("# x\rpass", False),
        ],
    )
    def test_is_true_of_comments_only(self, program, blank):
        assert is_blank(program) is blank
