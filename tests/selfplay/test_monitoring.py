"""Detection of collapse in logs of real runs, one healthy and two collapsed, and in logs made for one metric."""

import json
import logging

import pytest

from tests.helpers.toy_games import SumGame
from tests.helpers.training_runs import config
from trl_spiral import SpiralTrainer
from trl_spiral.callbacks import CollapseCallback
from trl_spiral.selfplay.monitoring import CollapseMonitor, CollapseWarning, warnings_in


NAMES = ("games", "draw_rate", "illegal_rate", "truncated_rate", "entropy")
NAMES += tuple(f"TicTacToe-v0/seat{seat}/win" for seat in (0, 1))

# `recipes/spiral_ttt.py`, 320 steps, one entry in 20 steps.
HEALTHY = [
    (844.6, 0.124, 0.059, 0.082, 0.712, 0.542, 0.334),
    (797.4, 0.147, 0.061, 0.012, 0.629, 0.514, 0.339),
    (784.6, 0.157, 0.067, 0.009, 0.632, 0.524, 0.319),
    (808.4, 0.175, 0.052, 0.016, 0.587, 0.504, 0.321),
    (799.0, 0.204, 0.027, 0.011, 0.493, 0.485, 0.311),
    (805.2, 0.203, 0.022, 0.006, 0.434, 0.475, 0.322),
    (793.1, 0.223, 0.013, 0.006, 0.340, 0.469, 0.308),
    (767.0, 0.276, 0.010, 0.003, 0.261, 0.436, 0.288),
    (762.8, 0.264, 0.009, 0.003, 0.212, 0.430, 0.306),
    (766.7, 0.273, 0.007, 0.004, 0.156, 0.446, 0.281),
    (755.8, 0.306, 0.005, 0.003, 0.130, 0.434, 0.260),
    (717.4, 0.382, 0.006, 0.003, 0.117, 0.356, 0.262),
    (718.2, 0.396, 0.006, 0.004, 0.111, 0.345, 0.259),
]
# The same player without openings, at a learning rate of 3e-3: an entry for each batch of 512 turns, from the 14th on,
# as both seats come to agree that the first wins.
AGREED = [
    (80.0, 0.212, 0.062, 0.025, 0.391, 0.650, 0.138),
    (80.0, 0.188, 0.075, 0.037, 0.387, 0.600, 0.212),
    (78.0, 0.218, 0.013, 0.026, 0.289, 0.615, 0.167),
    (73.0, 0.288, 0.096, 0.014, 0.292, 0.548, 0.164),
    (73.0, 0.329, 0.055, 0.000, 0.225, 0.575, 0.096),
    (72.0, 0.458, 0.097, 0.014, 0.213, 0.431, 0.111),
    (65.0, 0.385, 0.108, 0.000, 0.177, 0.569, 0.046),
    (70.0, 0.143, 0.100, 0.000, 0.162, 0.800, 0.057),
    (76.0, 0.039, 0.079, 0.000, 0.106, 0.934, 0.026),
    (76.0, 0.000, 0.066, 0.000, 0.074, 1.000, 0.000),
    (78.0, 0.000, 0.026, 0.013, 0.053, 0.987, 0.013),
    (74.0, 0.014, 0.014, 0.027, 0.066, 0.946, 0.041),
]
# At 1e-2, with every batch used twice: an entry for each of the first batches.
FORGOT = [
    (70.0, 0.186, 0.043, 0.000, 0.806, 0.529, 0.286),
    (145.0, 0.000, 0.945, 0.000, 0.677, 0.538, 0.462),
    (107.0, 0.000, 0.766, 0.121, 0.690, 0.589, 0.411),
]


def log_of(rows):
    return [
        {"step": step, **{f"selfplay/{name}": value for name, value in zip(NAMES, row, strict=True)}}
        for step, row in enumerate(rows, 1)
    ]


def log_with(metric, values, **others):
    """A log in which one metric moves."""
    return [{"step": step, f"selfplay/{metric}": value, **others} for step, value in enumerate(values, 1)]


class TestRealRuns:
    def test_a_healthy_one_gives_no_warning(self):
        assert warnings_in(log_of(HEALTHY)) == []

    def test_seats_that_settle_on_one_winner(self):
        warnings = warnings_in(log_of(AGREED))

        assert [(warning.step, warning.metric) for warning in warnings] == [
            (10, "selfplay/TicTacToe-v0/skew"),
            (10, "selfplay/draw_rate"),
        ]
        for warning in warnings:
            assert "`opening_moves`" in warning.sentence
            assert ". " not in warning.sentence, "one sentence"

    def test_a_policy_that_forgets_the_rules(self):
        (warning,) = warnings_in(log_of(FORGOT))

        assert warning == CollapseWarning(
            2,
            "selfplay/illegal_rate",
            "49% of the games end by an illegal move, after 4% at best: the policy forgets the rules, so lower "
            "`learning_rate`, or hold it closer to where it started by `beta`.",
        )


class TestRules:
    @pytest.mark.parametrize(
        ("metric", "values", "remedy"),
        [
            ("illegal_rate", [0.6, 0.3, 0.1, 0.1, 0.1, 0.4, 0.5], "`learning_rate`"),
            ("truncated_rate", [0.0, 0.0, 0.3, 0.4], "`max_completion_length`"),
            ("entropy", [1.0, 0.5, 0.1, 0.01, 0.01, 0.01], "`entropy_coef`"),
            ("reply_length", [300, 280, 90, 60, 50], "`beta`"),
            ("draw_rate", [0.2, 0.3, 0.3, 0.3, 0.0, 0.0, 0.0], "`opening_moves`"),
        ],
    )
    def test_each_has_its_remedy(self, metric, values, remedy):
        (warning,) = warnings_in(log_with(metric, values, **{"selfplay/games": 500}))

        assert warning.metric == f"selfplay/{metric}"
        assert remedy in warning.sentence

    def test_a_run_that_starts_badly_is_not_collapsing(self):
        assert warnings_in(log_with("illegal_rate", [0.9] * 5 + [0.6] * 5 + [0.4] * 5)) == []

    def test_a_game_that_favors_one_seat_by_its_rules_gives_no_warning(self):
        entry = {"selfplay/Nim-v0/seat0/win": 0.95, "selfplay/Nim-v0/seat1/win": 0.05, "selfplay/games": 500}

        assert warnings_in([{"step": step, **entry} for step in range(20)]) == []

    def test_a_seat_without_the_policy_may_lose_every_game(self):
        log = [
            {
                "selfplay/games": 500,
                "selfplay/Toy/seat0/win": share,
                "selfplay/Toy/seat1/win": 1.0 - share,
                "selfplay/Toy/seat0/policy": 1.0,
                "selfplay/Toy/seat1/policy": played,
            }
            for played in (0.0, 1.0)
            for share in [0.5] * 5 + [0.95] * 5
        ]

        assert warnings_in([{"step": step, **entry} for step, entry in enumerate(log[:10])]) == []
        assert len(warnings_in([{"step": step, **entry} for step, entry in enumerate(log[10:])])) == 1

    def test_among_three_seats_the_best_is_compared_with_the_worst(self):
        shares = [(0.4, 0.3, 0.3)] * 3 + [(0.85, 0.15, 0.0)] * 3
        log = [
            {"selfplay/games": 500, **{f"selfplay/Three/seat{seat}/win": share for seat, share in enumerate(row)}}
            for row in shares
        ]

        (warning,) = warnings_in(log)
        assert warning.metric == "selfplay/Three/skew"
        assert warning.sentence.startswith(
            "One seat's share of wins at Three is 85% above another's, after 10% at best"
        )

    def test_few_games_give_no_warning(self):
        values = [0.25, 0.25, 0.25, 0.0, 0.0, 0.0]

        assert warnings_in(log_with("draw_rate", values, **{"selfplay/games": 4})) == []
        assert len(warnings_in(log_with("draw_rate", values, **{"selfplay/games": 400}))) == 1

    def test_draws_are_a_share_of_finished_games(self):
        entries = log_with("draw_rate", [0.3] * 3 + [0.06] * 3, **{"selfplay/games": 500})
        for entry in entries[3:]:
            entry["selfplay/illegal_rate"] = 0.8

        assert [warning.metric for warning in warnings_in(entries)] == []

    def test_each_game_of_a_mixture_is_judged_alone(self):
        # Fewer games of the one that is often drawn, which goes on as it did.
        log = [
            {
                "selfplay/games": 1000,
                "selfplay/draw_rate": rate,
                **{f"selfplay/{game}/seat{seat}/win": 0.3 for game in ("A", "B") for seat in (0, 1)},
                "selfplay/A/seat0/draw": 0.4,
                "selfplay/B/seat0/draw": 0.0,
            }
            for rate in [0.2] * 5 + [0.02] * 5
        ]

        assert warnings_in(log) == []

    def test_a_single_outlier_gives_no_warning(self):
        assert warnings_in(log_with("entropy", [1.0] * 5 + [0.001] + [1.0] * 5)) == []

    def test_ignores_values_that_are_not_numbers(self):
        assert warnings_in(log_with("entropy", [1.0, float("nan"), float("inf"), None, 1.0])) == []


class TestMixtures:
    @staticmethod
    def entry(games, **others):
        """An entry with numbers of games, whose seats win equally often."""
        wins = {f"selfplay/{name}/seat{seat}/win": 0.4 for name in games for seat in (0, 1)}
        played = {f"selfplay/{name}/games": float(number) for name, number in games.items()}
        return {"selfplay/games": float(sum(games.values()))} | wins | played | others

    def curriculum(self, metric, of_a, of_b, steps=20):
        """A log from game A alone to game B alone, with a constant value for each game."""
        return [
            self.entry(
                {name: number for name, number in {"A": 400 - 20 * step, "B": 20 * step}.items() if number},
                **{f"selfplay/{metric}": of_a + (of_b - of_a) * step / steps},
            )
            for step in range(steps + 1)
        ] + [self.entry({"B": 400}, **{f"selfplay/{metric}": of_b})] * 5

    @pytest.mark.parametrize(("others", "warnings"), [(396, 0), (0, 1)])
    def test_games_count_by_their_number(self, others, warnings):
        number = 400 - others
        even = self.entry({"A": others, "B": number} if others else {"B": number})
        decided = even | {"selfplay/B/seat0/win": 1.0, "selfplay/B/seat1/win": 0.0}

        # Four games of 400 in each of three entries: all twelve may have gone to one seat by chance.
        assert len(warnings_in([even] * 3 + [decided] * 3)) == warnings

    @pytest.mark.parametrize(
        ("metric", "of_a", "of_b"),
        [
            ("reply_length", 150, 10),
            ("entropy", 1.0, 0.02),
            ("illegal_rate", 0.0, 0.5),
            ("truncated_rate", 0.0, 0.5),
            ("draw_rate", 0.5, 0.0),
        ],
    )
    def test_a_change_of_games_gives_no_warning(self, metric, of_a, of_b):
        assert warnings_in(self.curriculum(metric, of_a, of_b)) == []
        # In one game, the same would be.
        alone = [self.entry({"A": 400}, **{f"selfplay/{metric}": value}) for value in [of_a] * 5 + [of_b] * 5]
        assert [warning.metric for warning in warnings_in(alone)] == [f"selfplay/{metric}"]

    def test_a_new_mixture_has_its_own_reference(self):
        log = self.curriculum("reply_length", 150, 30) + [self.entry({"B": 400}, **{"selfplay/reply_length": 5})] * 3

        (warning,) = warnings_in(log)
        assert warning.metric == "selfplay/reply_length"

    def test_forfeits_of_one_game_do_not_affect_draws_of_another(self):
        draws = {"selfplay/A/seat0/draw": 0.0, "selfplay/B/seat0/draw": 0.2}
        bad = {"selfplay/A/seat0/illegal": 0.5, "selfplay/A/seat1/illegal": 0.4}
        log = [self.entry({"A": 360, "B": 40}, **draws, **bad, **{"selfplay/illegal_rate": 0.81})] * 3
        log += [self.entry({"A": 40, "B": 360}, **draws, **bad, **{"selfplay/illegal_rate": 0.09})] * 3

        assert warnings_in(log) == []


class TestOncePerProblem:
    BAD, GOOD, BETWEEN = [0.5] * 4, [0.02] * 4, [0.12] * 4

    def steps(self, values):
        return [warning.step for warning in warnings_in(log_with("illegal_rate", values, **{"selfplay/games": 500}))]

    def test_is_not_repeated_while_it_lasts(self):
        assert self.steps(self.GOOD + self.BAD * 5) == [6]

    def test_is_not_over_before_it_is_half_as_bad(self):
        # 0.12 is 0.1 above the lowest, which is less than a warning takes and more than half of that.
        assert self.steps(self.GOOD + self.BAD + self.BETWEEN + self.BAD) == [6]

    def test_may_come_again(self):
        assert self.steps(self.GOOD + self.BAD + self.GOOD + self.BAD) == [6, 14]


class TestMonitor:
    def test_gives_the_same_warnings_entry_by_entry(self):
        monitor = CollapseMonitor()
        new = [monitor.observe(entry["step"], entry) for entry in log_of(AGREED)]

        assert sum(new, []) == monitor.warnings == warnings_in(log_of(AGREED))


class TestCallback:
    @pytest.fixture
    def trainer(self, model_dir, tmp_path):
        return SpiralTrainer(model=model_dir, args=config(tmp_path, max_steps=4), games=[SumGame()])

    def test_warns_and_logs_the_number_of_warnings(self, trainer, caplog):
        collapsing = log_of(AGREED)
        trainer.state.log_history = collapsing[:9]
        (callback,) = (one for one in trainer.callback_handler.callbacks if isinstance(one, CollapseCallback))
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)
        trainer.state.global_step = 10
        with caplog.at_level(logging.WARNING, "trl_spiral"):
            callback.on_log(trainer.args, trainer.state, trainer.control, logs=collapsing[9])

        assert [record.message for record in caplog.records] == [
            f"Step 10: {warning.sentence}" for warning in warnings_in(collapsing)
        ]
        assert trainer.state.log_history[-1] == {"collapse/warnings": 2.0, "step": 10, "epoch": 0}

    def test_a_resumed_run_repeats_nothing(self, trainer, caplog):
        collapsing = json.loads(json.dumps(log_of(AGREED)))  # as a checkpoint holds it
        trainer.state.log_history = collapsing[:10]
        (callback,) = (one for one in trainer.callback_handler.callbacks if isinstance(one, CollapseCallback))
        callback.on_train_begin(trainer.args, trainer.state, trainer.control)
        with caplog.at_level(logging.WARNING, "trl_spiral"):
            for entry in collapsing[10:]:
                callback.on_log(trainer.args, trainer.state, trainer.control, logs=entry)

        assert caplog.records == []
        assert len(callback.monitor.warnings) == 2

    def test_reads_what_a_trainer_logs(self, trainer):
        trainer.train()
        (callback,) = (one for one in trainer.callback_handler.callbacks if isinstance(one, CollapseCallback))

        watched = set(callback.monitor._watches)
        assert watched >= {
            "selfplay/illegal_rate",
            "selfplay/entropy",
            "selfplay/reply_length",
            "selfplay/Sum-v0/skew",
        }
