"""A picture of win rates."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trl_spiral.opponents.ratings import Rating
from trl_spiral.opponents.transitivity import MIN_GAMES, Matrix, cycles, decompose
from trl_spiral.text.printable import one_line


if TYPE_CHECKING:
    from matplotlib.axes import Axes


# In inches. A cell contains two lines, of 7 and 5 points. A character of a name at 7 points takes `LETTER`.
CELL = 0.36
LETTER = 0.065
LADDER = 2.2
HEADER = 0.5
WIDTH = 4.2  # at least, so that a cycle of snapshots fits a line
AXIS = 0.5
LINE = 0.16

SMALLEST = 6
"""Minimum size of the table, in cells: fewer players get larger cells."""

LONGEST_NAME = 80
"""Maximum characters of a name: longer ones keep their beginning and end."""

MOST_CYCLES = 5
"""Maximum number of cycles listed below the table."""


def draw_win_rates(matrix: Matrix, path: str | os.PathLike[str], ratings: Mapping[str, Rating] | None = None) -> None:
    """
    Draw pairwise win rates as a PNG file.

    A cell contains the row's win rate against the column in percent and, below it, the number of games. Red is below
    one half, blue is above. Pairs that never met are hatched. With ratings, rows are sorted by rating, and a chart
    next to the table shows ratings with 95 % intervals. Without, rows keep the order of the matrix. The title contains
    the cyclic share, and cycles of three are listed below the table.

    The same input gives the same bytes with the same version and settings of matplotlib.

    Args:
        matrix ([`~opponents.transitivity.Matrix`]):
            Win rates of at least 2 players. It is readable up to about 30.
        path (`str` or `os.PathLike`):
            Output file.
        ratings (`Mapping[str, Rating]`, *optional*):
            Rating of each player in the matrix.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If there are fewer than two players.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Win rates are drawn by matplotlib, which is not installed: `pip install trl-spiral[plots]`."
        ) from error
    if len(matrix.names) < 2:
        raise ValueError(f"A table of win rates needs two players, and this one has {len(matrix.names)}. Add players.")
    if ratings is not None:
        matrix = _ordered(matrix, sorted(matrix.names, key=lambda name: -ratings[name].mu))
    ladder = [ratings[name] for name in matrix.names] if ratings is not None else []
    matrix = replace(matrix, names=tuple(map(_label, matrix.names)))

    side = CELL * max(SMALLEST, len(matrix.names))
    names = 0.15 + LETTER * max(map(len, matrix.names))
    width = max(WIDTH, names + side + (LADDER + 0.3 if ratings is not None else 0.15))
    words = _words(matrix, line=int((width - 0.2) / LETTER))
    bottom = (AXIS if ratings is not None else 0.15) + LINE * (len(words) + 1)
    height = HEADER + names + side + bottom

    # Not through pyplot, which stores every figure, and may look for a display.
    figure = Figure(figsize=(width, height), dpi=150)
    FigureCanvasAgg(figure)
    figure.text(0.1 / width, 1 - 0.1 / height, _title(matrix), va="top", fontsize=8, linespacing=1.4)
    _draw_table(figure.add_axes((names / width, bottom / height, side / width, side / height)), matrix)
    if ratings is not None:
        chart = ((names + side + 0.15) / width, bottom / height, LADDER / width, side / height)
        _draw_ladder(figure.add_axes(chart), ladder)
    figure.text(0.1 / width, 0.1 / height, "\n".join(words), va="bottom", fontsize=7, linespacing=1.4)
    # `Software` would write the version of matplotlib into the file.
    figure.savefig(os.fspath(path), format="png", metadata={"Software": None})


def _label(name: str) -> str:
    """Return a name for matplotlib: short, on one line, and without formulas."""
    shown = one_line(name)
    if len(shown) > LONGEST_NAME:
        shown = f"{shown[: LONGEST_NAME // 2 - 1]}…{shown[-LONGEST_NAME // 2 :]}"
    return shown.replace("$", "\\$")


def _ordered(matrix: Matrix, names: Sequence[str]) -> Matrix:
    """Return the matrix with rows and columns in another order."""
    places = [matrix.names.index(name) for name in names]
    return Matrix(
        names=tuple(names),
        rates=tuple(tuple(matrix.rates[i][j] for j in places) for i in places),
        counts=tuple(tuple(matrix.counts[i][j] for j in places) for i in places),
    )


def _title(matrix: Matrix) -> str:
    parts = decompose(matrix)
    if not parts.loops:
        share = f"unknown, no closed loop of pairs with {MIN_GAMES:.0f} games"
    elif math.isnan(parts.cyclic_share):
        share = "unknown, no differences beyond chance"
    else:
        share = f"{parts.cyclic_share:.0%} of the differences"
    return f"Row against column: win rate in %, draws count half (games)\nCyclic share: {share}"


def _words(matrix: Matrix, line: int) -> list[str]:
    """Format the cycles in lines of at most `line` characters."""
    found = cycles(matrix)
    lines = []
    for cycle in found[:MOST_CYCLES]:
        lines += textwrap.wrap(
            " beats ".join((*cycle, cycle[0])), line, subsequent_indent="  ", break_on_hyphens=False
        )
    if len(found) > MOST_CYCLES:
        lines.append(f"and {len(found) - MOST_CYCLES} more cycles of three")
    return lines


def _draw_table(axes: Axes, matrix: Matrix) -> None:
    from matplotlib.patches import Rectangle

    size = len(matrix.names)
    line = min(1.0, size / SMALLEST)  # keeps the distance of a cell's two lines
    # A color map of ColorBrewer that is safe for color blindness.
    axes.imshow(matrix.rates, cmap="RdBu", vmin=0.0, vmax=1.0, aspect="equal")
    for i in range(size):
        for j in range(size):
            rate, games = matrix.rates[i][j], matrix.counts[i][j]
            if i == j:
                axes.add_patch(Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="0.92", linewidth=0))
            elif math.isnan(rate):
                axes.add_patch(
                    Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor="white", edgecolor="0.75", hatch="////", linewidth=0)
                )
            else:
                color = "white" if abs(rate - 0.5) > 0.33 else "black"
                axes.text(j, i - 0.14 * line, f"{100 * rate:.0f}", ha="center", va="center", fontsize=7, color=color)
                axes.text(j, i + 0.24 * line, f"({games:.0f})", ha="center", va="center", fontsize=5, color=color)
    axes.set_xticks(range(size), matrix.names, rotation=90, fontsize=7)
    axes.set_yticks(range(size), matrix.names, fontsize=7)
    axes.set_xticks([place - 0.5 for place in range(1, size)], minor=True)
    axes.set_yticks([place - 0.5 for place in range(1, size)], minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_ladder(axes: Axes, ratings: Sequence[Rating]) -> None:
    """Draw ratings in one row per player, aligned with the table."""
    rows = range(len(ratings))
    axes.hlines(rows, [r.low for r in ratings], [r.high for r in ratings], color="0.55", linewidth=1.5)
    axes.plot([r.mu for r in ratings], rows, "o", color="black", markersize=3.5)
    axes.set_ylim(len(ratings) - 0.5, -0.5)
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="x", labelsize=6, length=2)
    axes.set_xlabel("rating in points, 95 % interval", fontsize=7)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    for name in ("left", "right", "top"):
        axes.spines[name].set_visible(False)
