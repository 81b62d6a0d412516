"""Training progress in one line per log entry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from transformers import ProgressCallback

from trl_spiral.text.printable import one_line


SHOWN = (
    ("loss", "loss", "{:.3f}"),
    ("selfplay/draw_rate", "draws", "{:.0%}"),
    ("selfplay/illegal_rate", "illegal", "{:.1%}"),
    ("selfplay/truncated_rate", "truncated", "{:.1%}"),
    ("selfplay/entropy", "entropy", "{:.2f}"),
    ("pool/rating/policy", "rating", "{:.0f}"),
    ("tictactoe/random/non_loss", "unbeaten by random", "{:.1%}"),
    ("tictactoe/minimax/non_loss", "unbeaten by minimax", "{:.1%}"),
)

_GRADE = re.compile(r"exploitability/(?P<game>[^/]+)/exploitability")
_MATCH = re.compile(r"eval/(?P<match>[^/]+)/all/reward")


def progress_line(step: int, logs: Mapping[str, Any]) -> str | None:
    """Return the self-play metrics of a log entry as one short line; `None` if it has none of them."""
    shown = [f"{label} {form.format(float(logs[key]))}" for key, label, form in SHOWN if key in logs]
    for key, value in logs.items():
        if graded := _GRADE.fullmatch(key):
            shown.append(f"{graded['game']} exploitability {float(value):.3f}")
        elif played := _MATCH.fullmatch(key):
            shown.append(f"{played['match']} reward {float(value):+.2f}")
    return one_line(f"step {step:>4}  " + "  ".join(shown)) if shown else None


class SelfPlayProgressCallback(ProgressCallback):
    """A progress bar with one short line per log entry. It replaces transformers' bar, which prints every metric."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or self.training_bar is None or not logs:
            return
        if (line := progress_line(state.global_step, logs)) is not None:
            self.training_bar.write(line)
