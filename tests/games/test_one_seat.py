"""Puzzles, games of one seat, at every step from the game to the loss."""

from dataclasses import dataclass, field, replace

import pytest

from tests.helpers.games import AskingPlayer, EchoEngine
from tests.helpers.toy_games import CELLS, SumGame, SumMatch
from tests.helpers.training_runs import RecordingTrainer, config
from trl_spiral.cli.play import ending_sentence
from trl_spiral.evaluation.matches import play_matches
from trl_spiral.games import Traits, get_game
from trl_spiral.opponents import Opponents
from trl_spiral.players import RandomPlayer, ScriptedPlayer
from trl_spiral.selfplay.advantages import BatchMean, GroupMean, RoleBaseline
from trl_spiral.selfplay.metrics import measure
from trl_spiral.selfplay.position_values import PositionValues
from trl_spiral.selfplay.referee import Forfeit, Start, play, referee, until_decided
from trl_spiral.selfplay.results import Result
from trl_spiral.selfplay.rows import make_rows
from trl_spiral.tasks.hanoi import distance, follow, moves_from
from trl_spiral.types import POLICY, Ending


HANOI = get_game("TowerOfHanoi-v0")


@dataclass(frozen=True)
class LoneSum(SumGame):
    """`SumGame` with one seat: solved if the sum of the cells is a multiple of 3."""

    name: str = "LoneSum-v0"
    short: int = 2
    long: int = 5
    traits: Traits = field(default_factory=lambda: Traits(seats=1, zero_sum=False, stochastic=True, lowest=0.0))

    def start(self, seed):
        return LoneSumMatch(self, self.length(seed))


class LoneSumMatch(SumMatch):
    @property
    def to_move(self):
        return None if self.ending is not None else 0

    @property
    def returns(self):
        if self.ending is not Ending.FINISHED:
            return (0.0,)
        return (float(sum(CELLS.index(move) for move in self.moves) % 3 == 0),)


def solution():
    """Return the seven moves that solve three disks, in TextArena's notation."""
    state, goal, moves = (0, 0, 0), (2, 2, 2), []
    while state != goal:
        for move in moves_from(state):
            after = follow(state, [move]).states[-1]
            if distance(after, goal) < distance(state, goal):
                moves.append(f"[{'ABC'[move[1]]} {'ABC'[move[2]]}]")
                state = after
                break
    return moves


def following(moves):
    return ScriptedPlayer("follower", lambda observation: moves[len(observation.turns)])


def played(moves):
    (episode,) = play([referee(Start(HANOI, [following(moves)], seed=0, play_seed=0))])
    return episode


class TestTowerOfHanoi:
    def test_returns_one_if_solved(self):
        episode = played(solution())

        assert (episode.ending, episode.returns, len(episode.order)) == (Ending.FINISHED, (1.0,), 7)

    def test_returns_a_share_if_unsolved(self):
        # After six moves the two larger disks are in place. Then the smallest moves back and forth.
        episode = played([*solution()[:6], *["[A B]", "[B A]"] * 5])

        assert (episode.ending, episode.returns) == (Ending.FINISHED, (pytest.approx(2 / 3),))
        assert len(episode.order) == 15

    def test_returns_zero_for_moves_back_and_forth(self):
        assert played(["[A B]", "[B A]"] * 8).returns == (0.0,)

    @pytest.mark.parametrize("move", ["[B C]", "[A A]", "[A D]", "A to C", "[A C] [A B]", "[А С]", "[[A C]]" * 1000])
    def test_ends_at_an_illegal_move(self, move):
        episode = played(["[A C]", move])

        assert (episode.ending, episode.offender, episode.returns) == (Ending.ILLEGAL_MOVE, 0, (-1.0,))

    def test_shows_its_board(self):
        match = HANOI.start(0)
        match.apply("[a, c]")

        assert match.observe(0).update.startswith("Current Board: \nA: [3, 2]\nB: []\nC: [1]")
        assert "move the disks from tower A to tower C" in match.observe(0).messages[0]["content"]


class TestResults:
    @pytest.mark.parametrize(("returned", "won"), [(1.0, 1.0), (2 / 3, 0.0), (0.0, 0.0), (-1.0, 0.0)])
    def test_are_wins_or_losses_and_never_draws(self, returned, won):
        episode = replace(played(solution()), returns=(returned,))
        numbers = measure([Result.of(episode)])
        prefix = "selfplay/TowerOfHanoi-v0/seat0"

        assert not episode.is_draw
        assert numbers["selfplay/draw_rate"] == numbers[f"{prefix}/draw"] == 0.0
        assert (numbers[f"{prefix}/win"], numbers[f"{prefix}/loss"]) == (won, 1.0 - won)
        assert ending_sentence(episode, 0).startswith("You win" if won else "You lose")

    def test_are_not_retried_as_draws(self):
        start = Start(HANOI, [following(["[A B]", "[B A]"] * 8)], seed=0, play_seed=0)
        attempts = []
        (episode,) = play([until_decided(lambda attempt: attempts.append(attempt) or start, max_retries=5)])

        assert attempts == [0]
        assert episode.discarded_tokens == 0

    def test_a_forfeit_costs_the_only_seat(self):
        assert Forfeit(-1.5, 0.5).returns(HANOI.traits, 0) == (-1.5,)

    def test_a_series_has_the_returns_of_the_player(self):
        episodes = play_matches(HANOI, following(solution()), RandomPlayer(), 0, 3)

        assert {(episode.players, episode.returns) for episode in episodes} == {(("follower",), (1.0,))}


class TestAdvantages:
    def results(self, count=40):
        policy = AskingPlayer(name=POLICY)
        starts = (referee(Start(LoneSum(), [policy], seed, seed, counter=seed)) for seed in range(count))
        return [Result.of(episode) for episode in play(starts, EchoEngine())]

    @pytest.mark.parametrize("estimator", [RoleBaseline(), BatchMean(), PositionValues(), GroupMean()])
    def test_are_one_per_turn(self, estimator):
        results = self.results()

        for result, (advantages,) in zip(results, estimator.advantages(results), strict=True):
            assert len(advantages) == len(result.order)

    def test_have_a_baseline_for_the_only_role(self):
        results, estimator = self.results(), RoleBaseline()
        estimator.update(results)
        mean = sum(result.returns[0] for result in results) / len(results)

        assert dict(estimator.baselines) == {("LoneSum-v0", 0, "self"): pytest.approx(mean)}


class TestTraining:
    def test_seats_only_the_policy(self):
        guests = Opponents({"random": 1.0}, players={"random": RandomPlayer()})

        assert [player.name for player in guests(AskingPlayer(name=POLICY), 1, 0)] == [POLICY]

    def test_makes_one_row_per_turn(self):
        (episode,) = play([referee(Start(LoneSum(), [AskingPlayer(name=POLICY)], 1, 1))], EchoEngine())
        rows = make_rows(episode, ((0.5,) * 5,), "turn")

        assert [row.seat for row in rows] == [0] * 5

    @pytest.mark.parametrize("unit", ["turn", "trajectory"])
    def test_changes_the_policy(self, unit, model_dir, tmp_path):
        trainer = RecordingTrainer(
            model=model_dir, args=config(tmp_path, sample_unit=unit, max_steps=4), games=[LoneSum()]
        )
        before = trainer.model.model.embed_tokens.weight.detach().clone()
        trainer.train()

        assert not before.equal(trainer.model.model.embed_tokens.weight)
        for rows, episodes, metrics in trainer.batches:
            assert {row.seat for row in rows} == {0}
            assert {episode.players for episode in episodes} == {(POLICY,)}
            assert metrics["selfplay/draw_rate"] == 0.0
            solved = sum(episode.returns == (1.0,) for episode in episodes) / len(episodes)
            assert metrics["selfplay/LoneSum-v0/seat0/win"] == pytest.approx(solved)
