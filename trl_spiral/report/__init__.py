"""
One self-contained HTML page: of a run, with its curves, opponents, warnings and every kept game, move by move; or of models at
tasks, with their mean scores and every kept reply, step by step.
"""

from trl_spiral.report.comparison import render_comparison
from trl_spiral.report.page import Warned, render
from trl_spiral.report.run import Run, read_run


__all__ = ["Run", "Warned", "read_run", "render", "render_comparison"]
