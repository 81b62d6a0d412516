"""One self-contained HTML page of a run: curves, opponents, warnings, and every kept game, move by move."""

from trl_spiral.report.page import Warned, render
from trl_spiral.report.run import Run, read_run


__all__ = ["Run", "Warned", "read_run", "render"]
