"""
The effect of matchmaking on learning: a small version of `benchmarks/bench_matchmaking.py`.

With the same steps, batches and rows, a policy that plays itself cycles, and one that plays its snapshots settles near
the equilibrium. The bounds lie between the means of the benchmark's 20 seeds. These tests use the first of those
seeds.
"""

import math

import pytest

from tests.helpers.table_policies import REGIMES, TableEngine, TableLearner, TablePlayer, strategy_of, train
from trl_spiral.evaluation.exact.exploitability import exploitability
from trl_spiral.games import get_game, kuhn
from trl_spiral.games import rock_paper_scissors as rps
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.selfplay.rows import Row
from trl_spiral.types import POLICY


ROCK_PAPER_SCISSORS, KUHN = REGIMES


def mean(regime, matchmaking, seeds, folder):
    """Return the mean exploitability over seeds, of the policy in training and of the mixture of its snapshots."""
    runs = [train(regime, matchmaking, seed, folder / f"{matchmaking}-{seed}") for seed in range(seeds)]
    return [math.fsum(numbers) / len(runs) for numbers in zip(*runs, strict=True)]


class TestMatchmaking:
    def test_snapshots_prevent_cycles_in_rock_paper_scissors(self, tmp_path):
        itself, _ = mean(ROCK_PAPER_SCISSORS, "mirror", 3, tmp_path)
        earlier, mixture = mean(ROCK_PAPER_SCISSORS, "pfsp-hard", 3, tmp_path)

        # Over 20 seeds: 0.847, 0.122 and 0.029.
        assert itself > 0.6
        assert earlier < 0.25
        assert mixture < 0.12

    @pytest.mark.parametrize("seeds", [2, pytest.param(5, marks=pytest.mark.slow)])
    def test_snapshots_bring_kuhn_poker_closer_to_its_equilibrium(self, seeds, tmp_path):
        pytest.importorskip("pyspiel")
        itself, _ = mean(KUHN, "mirror", seeds, tmp_path)
        earlier, _ = mean(KUHN, "pfsp-hard", seeds, tmp_path)

        # Over 20 seeds: 0.188 and 0.129, each with a standard deviation of about 0.02.
        assert itself > 0.155 > earlier

    def test_the_same_seed_gives_the_same_run(self, tmp_path):
        once, again = (train(ROCK_PAPER_SCISSORS, "pfsp-var", 5, tmp_path / name) for name in ("once", "again"))

        assert once == again


class TestTables:
    """The tabular policies that the tests above use."""

    def test_sample_from_the_requested_policy(self):
        game = get_game(rps.NAME)
        tables = {POLICY: [[1.0, 0.0, 0.0]] * 2, "step-4": [[0.0, 0.25, 0.75]] * 2}
        players = (TablePlayer(rps.NAME), TablePlayer(rps.NAME).playing_as("step-4"))

        episodes = list(
            play((referee(Start(game, players, n, play_seed=n)) for n in range(2000)), TableEngine(tables))
        )

        assert {episode.moves[0][1] for episode in episodes} == {"[rock]"}
        # The standard deviation is 19: sqrt(2000 * 1/4 * 3/4).
        assert abs(sum(episode.moves[1][1] == "[paper]" for episode in episodes) - 500) < 5 * 19
        assert all(episode.moves[1][1] != "[rock]" for episode in episodes)

    def test_start_uniform(self):
        learner = TableLearner(kuhn.NAME, learning_rate=1.0, entropy=0.0)

        assert learner.table() == [[0.5, 0.5]] * 12

    def test_follow_the_gradient_of_return_and_entropy(self):
        learner = TableLearner(rps.NAME, learning_rate=1.0, entropy=0.5, momentum=0.0)
        learner.logits[0] = [1.0, 0.0, -1.0]
        before = learner.table()[0]

        learner.learn([Row([0], [2], [1], [math.log(before[2])], [0.25], 0.25, rps.NAME, 0, 0, 0)])

        def objective(logits):
            odds = [math.exp(logit) / sum(map(math.exp, logits)) for logit in logits]
            return 0.25 * math.log(odds[2]) - 0.5 * sum(share * math.log(share) for share in odds)

        for move in range(3):
            up, down = [1.0, 0.0, -1.0], [1.0, 0.0, -1.0]
            up[move] += 1e-6
            down[move] -= 1e-6
            slope = (objective(up) - objective(down)) / 2e-6
            assert learner.logits[0][move] - [1.0, 0.0, -1.0][move] == pytest.approx(slope, abs=1e-8)

    def test_exploitability_uses_their_own_probabilities(self):
        rocks = strategy_of(rps.NAME, [[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])

        # Only the first seat can be exploited, by 1.
        assert exploitability(rps.NAME, rocks) == pytest.approx(0.5)
