"""
Self-contained HTML pages: the report of a run, and the comparison of models on tasks.

The report has curves, opponents, warnings and every recorded game, move by move. The comparison has mean scores and
every recorded reply, step by step.
"""

from trl_spiral.report.comparison import render_comparison
from trl_spiral.report.page import ReportWarning, render
from trl_spiral.report.run import Run, read_run


__all__ = ["Run", "ReportWarning", "read_run", "render", "render_comparison"]
