from collections import Counter
from dataclasses import dataclass

import pytest

from trl_spiral import OpponentPool, Opponents, RandomPlayer
from trl_spiral.selfplay.results import Result
from trl_spiral.types import BASE, POLICY, Ending


@dataclass
class Policy:
    """The part of a policy player that matchmaking uses."""

    name: str = POLICY

    def playing_as(self, name):
        return Policy(name)

    def ask(self, observation):
        raise AssertionError("these tests play no game")

    answer = ask


class Limited:
    """An engine with a budget."""

    def __init__(self):
        self.spent = False
        self.used = 0

    def state_dict(self):
        return {"used": self.used}

    def load_state_dict(self, state):
        self.used = state["used"]


def pool_of(folder, steps, **changes):
    made = OpponentPool(folder, **changes)
    for step in steps:
        made.add(step, "weights", lambda target: (target / "model.safetensors").write_bytes(b"weights"))
    return made


def tables(opponents, episodes, seats=2):
    """Return the players of each episode, by name."""
    opponents.prepare()
    return [tuple(player.name for player in opponents(Policy(), seats, seed)) for seed in range(episodes)]


def result(players, returns, counter=0, ending=Ending.FINISHED, opponent="pool"):
    return Result(
        counter=counter,
        game="Toy",
        seed=0,
        returns=returns,
        ending=ending,
        offender=None,
        learners=tuple(name == POLICY for name in players),
        positions=((),) * len(players),
        order=(),
        tokens=0,
        logprob_sum=0.0,
        discarded_tokens=0,
        policy_turns=0,
        opening=0,
        players=players,
        opponent=opponent,
    )


class TestSeats:
    def test_by_default_the_policy_plays_itself(self):
        assert set(tables(Opponents(), 50)) == {(POLICY, POLICY)}

    def test_opponents_are_drawn_by_share_and_seats_uniformly(self, tmp_path):
        shares = {"self": 0.4, "pool": 0.3, "random": 0.2, BASE: 0.1}
        opponents = Opponents(shares, pool_of(tmp_path, [10, 20]), players={"random": RandomPlayer()})
        seen = Counter(tables(opponents, 20_000))

        # Four standard deviations of a share of 0.2 in 20,000 are 0.011, and less for smaller shares.
        expected = {
            (POLICY, POLICY): 0.4,
            **{(POLICY, name): 0.075 for name in ("step-10", "step-20")},
            **{(name, POLICY): 0.075 for name in ("step-10", "step-20")},
            (POLICY, "random"): 0.1,
            ("random", POLICY): 0.1,
            (POLICY, BASE): 0.05,
            (BASE, POLICY): 0.05,
        }
        assert seen.keys() == expected.keys()
        for table, share in expected.items():
            assert seen[table] / 20_000 == pytest.approx(share, abs=0.014)

    def test_the_policy_takes_one_of_three_seats(self):
        seen = Counter(tables(Opponents({"random": 1.0}, players={"random": RandomPlayer()}), 3_000, seats=3))

        assert all(table.count(POLICY) == 1 for table in seen)
        assert min(seen.values()) > 890  # 1,000 each, minus four standard deviations

    def test_the_same_seed_draws_the_same_players(self, tmp_path):
        opponents = Opponents({"self": 0.5, "pool": 0.5}, pool_of(tmp_path, [10, 20, 30]))

        assert tables(opponents, 200) == tables(opponents, 200)

    def test_the_policy_plays_itself_while_the_pool_is_empty(self, tmp_path):
        assert set(tables(Opponents({"pool": 1.0}, OpponentPool(tmp_path)), 20)) == {(POLICY, POLICY)}

    def test_the_scheme_selects_snapshots(self, tmp_path):
        made = pool_of(tmp_path, [10, 20, 30])

        assert set(tables(Opponents({"pool": 1.0}, made, "latest"), 50)) == {("step-30", POLICY), (POLICY, "step-30")}
        assert {name for table in tables(Opponents({"pool": 1.0}, made, "fifo-2"), 50) for name in table} == {
            "step-30",
            POLICY,
        }

    @pytest.mark.parametrize("name", ["guest", "https://host/v1#model"])
    def test_an_opponent_with_a_spent_budget_is_not_drawn(self, name):
        engine = Limited()
        shares, players = {"self": 0.5, "guest": 0.5}, {"guest": RandomPlayer(name)}
        opponents = Opponents(shares, players=players, engines={name: engine})
        before = set(tables(opponents, 50))
        engine.spent = True

        assert len(before) == 3
        assert set(tables(opponents, 50)) == {(POLICY, POLICY)}

    def test_refuses_a_policy_that_cannot_play_as_a_snapshot(self, tmp_path):
        opponents = Opponents({"pool": 1.0}, pool_of(tmp_path, [10]))
        opponents.prepare()

        with pytest.raises(TypeError, match="RandomPlayer cannot play with the weights of a snapshot"):
            opponents(RandomPlayer(), 2, 0)


class TestArguments:
    def test_refuses_a_share_without_a_player(self):
        with pytest.raises(ValueError, match=r"shares name 'guest', which is not one of the players \['random'\]"):
            Opponents({"guest": 1.0}, players={"random": RandomPlayer()})

    def test_refuses_snapshots_without_a_pool(self):
        with pytest.raises(ValueError, match=r"Pass `pool=OpponentPool\(folder\)`"):
            Opponents({"pool": 1.0})


class TestPrepare:
    def test_returns_the_weights_that_may_be_requested(self, tmp_path):
        made = pool_of(tmp_path, [10, 20])

        assert Opponents().prepare() == {}
        assert Opponents({"pool": 1.0}, made, "latest").prepare() == {"step-20": tmp_path / "step-20"}
        assert Opponents({"pool": 1.0, BASE: 1.0}, made).prepare() == {
            "step-10": tmp_path / "step-10",
            "step-20": tmp_path / "step-20",
            BASE: None,
        }

    def test_whole_weights_of_the_base_model_are_in_the_pool(self, tmp_path):
        made = OpponentPool(tmp_path)
        made.add(0, "weights", lambda folder: (folder / "model.safetensors").write_bytes(b"w"), name=BASE, pinned=True)

        assert Opponents({BASE: 1.0}, made).prepare() == {BASE: tmp_path / BASE}

    def test_prioritizes_by_results(self, tmp_path):
        made = pool_of(tmp_path, [10, 20])
        opponents = Opponents({"pool": 1.0}, made, "pfsp-hard")
        opponents.record([result((POLICY, "step-10"), (1.0, -1.0), number) for number in range(98)])
        seen = Counter(name for table in tables(opponents, 2_000) for name in table if name != POLICY)

        # (1 - 99/100)^2 to (1 - 1/2)^2: one in 2,500.
        assert seen["step-20"] > 1_990

    def test_probabilities_stay_until_the_next_call(self, tmp_path):
        made = pool_of(tmp_path, [10])
        opponents = Opponents({"pool": 1.0}, made)
        opponents.prepare()
        made.add(20, "weights", lambda folder: (folder / "model.safetensors").write_bytes(b"w"))
        before = {player.name for seed in range(50) for player in opponents(Policy(), 2, seed)}

        assert before == {POLICY, "step-10"}
        assert {name for table in tables(opponents, 50) for name in table} == {POLICY, "step-10", "step-20"}


class TestRecord:
    def test_updates_ratings_and_shares(self, tmp_path):
        opponents = Opponents({"self": 0.5, "pool": 0.5}, pool_of(tmp_path, [10]))
        opponents.record(
            [
                result((POLICY, "step-10"), (1.0, -1.0), 0),
                result(("step-10", POLICY), (0.0, 0.0), 1),
                result((POLICY, "step-10"), (0.0, 0.0), 2, Ending.PLAYER_LOST),
                result((POLICY, POLICY), (1.0, -1.0), 3, opponent="self"),
            ]
        )
        met = opponents.pool.ratings.win_rate(POLICY, "step-10")

        assert (met.games, met.rate) == (2, 0.75)
        assert (
            opponents.metrics().items()
            >= {
                "share/pool": 0.75,
                "share/self": 0.25,
                "size": 1.0,
                "bytes": 7.0,
                "games": 2.0,
            }.items()
        )

    def test_rates_scripted_players_without_a_pool(self):
        opponents = Opponents({"random": 1.0}, players={"random": RandomPlayer()})
        opponents.record([result((POLICY, "random"), (1.0, -1.0), opponent="self")])
        again = Opponents({"random": 1.0}, players={"random": RandomPlayer()})
        again.load_state_dict(opponents.state_dict())

        assert opponents.metrics()["share/random"] == 1.0
        assert opponents.metrics()["games/random"] == 1.0
        assert again.ratings.state_dict() == opponents.ratings.state_dict()

    def test_pure_self_play_has_no_metrics(self):
        opponents = Opponents()
        opponents.record([result((POLICY, POLICY), (1.0, -1.0), opponent="self")])

        assert opponents.metrics() == {}

    def test_all_snapshots_are_one_class(self, tmp_path):
        made = pool_of(tmp_path, [10])
        made.add(0, "weights", lambda folder: (folder / "model.safetensors").write_bytes(b"w"), name=BASE, pinned=True)
        opponents = Opponents({"pool": 1.0}, made)

        assert [opponents.kind(name) for name in ("step-10", BASE, "random")] == ["pool", BASE, "random"]


class TestState:
    def test_a_restored_object_equals_the_saved_one(self, tmp_path):
        def make():
            engine = Limited()
            return engine, Opponents(
                {"pool": 0.5, "guest": 0.5},
                OpponentPool(tmp_path / "pool"),
                players={"guest": RandomPlayer("guest")},
                engines={"guest": engine},
            )

        pool_of(tmp_path / "pool", [10])
        engine, opponents = make()
        engine.used = 7
        opponents.record([result((POLICY, "step-10"), (1.0, -1.0))])
        opponents.pool.save_to(tmp_path / "saved")
        other_engine, other = make()
        other.pool.restore(tmp_path / "saved")
        other.load_state_dict(opponents.state_dict())

        assert other.state_dict() == opponents.state_dict()
        assert other_engine.used == 7
        assert other.candidates() == opponents.candidates()
