"""Progress in one line."""

from __future__ import annotations

from transformers import ProgressCallback


class SelfPlayProgressCallback(ProgressCallback):
    """A progress bar with one short line per log, in place of transformers' bar, which prints every metric."""

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

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or self.training_bar is None or not logs:
            return
        shown = [f"{label} {form.format(float(logs[key]))}" for key, label, form in self.SHOWN if key in logs]
        if shown:
            self.training_bar.write(f"step {state.global_step:>4}  " + "  ".join(shown))
