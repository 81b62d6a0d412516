"""The progress line of a log entry."""

from trl_spiral.callbacks.progress import progress_line


class TestProgressLine:
    def test_contains_self_play_metrics(self):
        assert (
            progress_line(20, {"loss": 0.5, "selfplay/draw_rate": 0.25, "grad_norm": 3.0})
            == "step   20  loss 0.500  draws 25%"
        )

    def test_names_each_graded_or_evaluated_game(self):
        logs = {
            "exploitability/Kuhn-v0/exploitability": 0.0541,
            "exploitability/Kuhn-v0/nash_conv": 0.1082,
            "eval/Nim-v0-random/all/reward": -0.125,
            "eval/Nim-v0-random/all/reward_low": -0.2,
            "eval/Nim-v0-random/pid-0/reward": 0.1,
        }

        assert progress_line(50, logs) == "step   50  Kuhn-v0 exploitability 0.054  Nim-v0-random reward -0.12"

    def test_is_none_without_such_metrics(self):
        assert progress_line(1, {"grad_norm": 3.0}) is None
