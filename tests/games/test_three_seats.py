"""Three seats at every step from the game to the loss."""

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from tests.helpers.games import AskingPlayer, EchoEngine, LastStone
from tests.helpers.toy_games import CELLS, SumGame, SumMatch
from tests.helpers.training_runs import RecordingTrainer, config
from trl_spiral import SelfPlayRollout, SelfPlaySettings
from trl_spiral.games import Traits
from trl_spiral.opponents import OpponentPool, Opponents, Played
from trl_spiral.opponents.ratings import Ratings
from trl_spiral.players import RandomPlayer
from trl_spiral.selfplay.advantages import GroupMean, RoleBaseline
from trl_spiral.selfplay.metrics import measure
from trl_spiral.selfplay.position_values import PositionValues
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.selfplay.results import Result
from trl_spiral.selfplay.rows import make_rows
from trl_spiral.types import POLICY, Ending


@dataclass(frozen=True)
class ThreeSums(SumGame):
    """`SumGame` with three seats: one or three moves each, and the sum of the cells modulo 4 decides."""

    name: str = "ThreeSums-v0"
    short: int = 3
    long: int = 9
    traits: Traits = field(default_factory=lambda: Traits(seats=3, stochastic=True))

    def start(self, seed):
        return ThreeSumsMatch(self, self.length(seed))


class ThreeSumsMatch(SumMatch):
    @property
    def to_move(self):
        return None if self.ending is not None else len(self.moves) % 3

    @property
    def returns(self):
        if self.ending is not Ending.FINISHED:
            return (0.0,) * 3
        winner = sum(CELLS.index(move) for move in self.moves) % 4
        return (0.0,) * 3 if winner == 3 else tuple(1.0 if seat == winner else -0.5 for seat in range(3))


def played(game, count, players=None, engine=None):
    """Play `count` games, by default of the policy against itself."""
    seats = players or (AskingPlayer(name=POLICY),) * 3
    starts = (referee(Start(game, seats, seed, seed, counter=seed)) for seed in range(count))
    return sorted(play(starts, engine or EchoEngine()), key=lambda episode: episode.counter)


class TestResults:
    @pytest.mark.parametrize(
        ("returns", "drawn", "won"),
        [
            ((0.0, 0.0, 0.0), True, (0.0, 0.0, 0.0)),
            ((1.0, -0.5, -0.5), False, (1.0, 0.0, 0.0)),
            ((0.5, 0.5, -1.0), False, (1.0, 1.0, 0.0)),
            ((0.25, 1.0, -1.25), False, (0.0, 1.0, 0.0)),
        ],
    )
    def test_winners_and_draws(self, returns, drawn, won):
        (episode,) = played(LastStone(), 1)
        episode = replace(episode, returns=returns)
        numbers = measure([Result.of(episode)])

        assert episode.is_draw is drawn
        assert numbers["selfplay/draw_rate"] == float(drawn)
        assert tuple(numbers[f"selfplay/LastStone/seat{seat}/win"] for seat in range(3)) == won
        losses = tuple(numbers[f"selfplay/LastStone/seat{seat}/loss"] for seat in range(3))
        assert losses == tuple(float(not drawn and not share) for share in won)


class TestBaselines:
    def test_each_seat_has_its_own_baseline(self):
        results = [Result.of(episode) for episode in played(LastStone(), 60)]
        estimator = RoleBaseline()
        advantages = estimator.advantages(results)
        estimator.update(results)
        means = [sum(result.returns[seat] for result in results) / 60 for seat in range(3)]

        assert [estimator.baselines["LastStone", seat, "self"] for seat in range(3)] == pytest.approx(means)
        assert len(set(means)) == 3
        for result, seats in zip(results, advantages, strict=True):
            for seat in range(3):
                assert seats[seat] == pytest.approx([result.returns[seat] - means[seat]] * len(seats[seat]))

    def test_groups_are_centered_per_seat(self):
        results = [replace(Result.of(episode), seed=0) for episode in played(LastStone(), 12)]

        for seat in range(3):
            assert sum(seats[seat][0] for seats in GroupMean().advantages(results)) == pytest.approx(0.0)

    def test_position_values_are_kept_per_seat(self):
        results = [Result.of(episode) for episode in played(LastStone(), 30)]

        assert len(PositionValues(trace=1.0).advantages(results)) == 30
        with pytest.raises(ValueError, match="`rivals` contains LastStone, which has 3 seats"):
            PositionValues(rivals=["LastStone"]).advantages(results)


class TestRows:
    def test_each_turn_of_the_policy_is_one_row(self):
        players = (AskingPlayer(name=POLICY), RandomPlayer(), AskingPlayer(name=POLICY))
        for episode in played(LastStone(), 6, players):
            (advantages,) = RoleBaseline().advantages([Result.of(episode, opponent="random")])
            rows = make_rows(episode, advantages, "turn")

            assert [row.seat for row in rows] == [seat for seat in episode.order if seat != 1]
            assert {row.reward for row in rows if row.seat == 2} <= {episode.returns[2]}


class TestOpponents:
    def test_the_policy_has_each_seat_equally_often(self):
        guests = Opponents({"random": 1.0}, players={"random": RandomPlayer()})
        policy = AskingPlayer(name=POLICY)
        tables = [[player.name for player in guests(policy, 3, seed)] for seed in range(600)]

        assert {tuple(sorted(table)) for table in tables} == {(POLICY, "random", "random")}
        # Expected 200 of 600 per seat, with a standard deviation of 11.5.
        assert all(140 < seen < 260 for seen in Counter(table.index(POLICY) for table in tables).values())
        assert {guests.against(table) for table in tables} == {"random"}

    def test_each_pair_of_players_is_rated(self):
        ratings = Ratings()
        ratings.update([Played((POLICY, "step-1", "step-2"), (0.5, 0.5, -1.0), counter) for counter in range(20)])

        assert ratings.win_rate(POLICY, "step-1").rate == 0.5
        assert ratings.win_rate(POLICY, "step-2").rate == ratings.win_rate("step-1", "step-2").rate == 1.0
        assert ratings.rating(POLICY).mu == pytest.approx(ratings.rating("step-1").mu, abs=30)
        assert ratings.rating(POLICY).mu > ratings.rating("step-2").mu + 200


class TestTraining:
    """Training of a tiny model, whose moves of tic-tac-toe are legal here."""

    def check(self, trainer, classes):
        """Train, and compare the rows with the episodes."""
        before = trainer.model.model.embed_tokens.weight.detach().clone()
        trainer.train()
        baselines = trainer.rollout.estimator.baselines
        wanted = {("ThreeSums-v0", seat, opponent) for seat in range(3) for opponent in classes}

        assert set(baselines) == wanted
        assert not before.equal(trainer.model.model.embed_tokens.weight)
        for rows, episodes, metrics in trainer.batches:
            assert len(rows) == 16
            if not episodes:
                continue  # rows of the last batch have filled this one
            finished = [episode for episode in episodes if episode.ending is Ending.FINISHED]
            assert finished
            for episode in finished:
                assert sum(episode.returns) == 0.0
            by_counter = {episode.counter: episode for episode in episodes}
            for row in rows:
                if row.episode in by_counter:  # other rows come from the last batch
                    turns = by_counter[row.episode].trajectories[row.seat].turns
                    assert tuple(row.completion_ids) in [turn.completion_ids for turn in turns]
                    assert row.reward == by_counter[row.episode].returns[row.seat]
            shares = [metrics[f"selfplay/ThreeSums-v0/seat{seat}/win"] for seat in range(3)]
            forfeits = metrics["selfplay/illegal_rate"] + metrics["selfplay/truncated_rate"]
            # A finished game has one winner or is drawn. After a forfeit, the two other seats win.
            assert sum(shares) + metrics["selfplay/draw_rate"] == pytest.approx(1.0 + forfeits)
        assert {row.seat for rows, _, _ in trainer.batches for row in rows} == {0, 1, 2}

    def test_against_itself_and_random_players(self, model_dir, tmp_path):
        settings = config(tmp_path, opponents="self:0.5,random:0.5", max_steps=16)
        trainer = RecordingTrainer(model=model_dir, args=settings, games=[ThreeSums()])
        self.check(trainer, ["self", "random"])
        tables = {episode.players for _, episodes, _ in trainer.batches for episode in episodes}

        assert tables <= {(POLICY,) * 3} | {
            tuple(POLICY if seat == place else "random" for seat in range(3)) for place in range(3)
        }
        assert len(tables) == 4

    def test_against_snapshots(self, model_dir, tmp_path):
        settings = config(tmp_path, opponents="pool", pool_every=2, pool_kwargs={"rating_games": 2}, max_steps=12)
        trainer = RecordingTrainer(model=model_dir, args=settings, games=[ThreeSums()])
        # While the pool is empty, the policy plays itself.
        self.check(trainer, ["self", "pool"])
        tables = [set(episode.players) for _, episodes, _ in trainer.batches for episode in episodes]

        assert any(len(table) == 3 for table in tables), "two snapshots in one game"
        assert trainer.pool.ratings.win_rate(POLICY, "step-2").games > 0

    def test_whole_games_as_rows(self, model_dir, tmp_path):
        settings = config(tmp_path, sample_unit="trajectory", max_steps=4)
        trainer = RecordingTrainer(model=model_dir, args=settings, games=[ThreeSums()])
        trainer.train()

        assert {row.seat for rows, _, _ in trainer.batches for row in rows} == {0, 1, 2}

    def test_groups_share_their_seating(self, tmp_path):
        guests = Opponents({"random": 1.0}, OpponentPool(tmp_path), players={"random": RandomPlayer()})
        rollout = SelfPlayRollout(LastStone(), SelfPlaySettings(games_per_start=4), matchmaker=guests)
        schedule = rollout.schedule(AskingPlayer(name=POLICY), seed=0)
        episodes = rollout.collector.collect(400, schedule, EchoEngine()).episodes
        groups = [episodes[first : first + 4] for first in range(0, len(episodes), 4)]

        assert {len(group) for group in groups} == {4}
        assert all(len({(episode.seed, episode.players) for episode in group}) == 1 for group in groups)
        assert len({group[0].players for group in groups}) == 3
