"""Game trees: size, values, best responses, and games without a tree."""

import math
import random

import pytest

from trl_spiral.evaluation.exact.tree import EMPTY, game_tree
from trl_spiral.games import Dealt, Match, Traits, get_game
from trl_spiral.players.equilibrium import kuhn_equilibrium
from trl_spiral.types import Ending, Observation


def uniform(tree):
    moves = {state.name: state.moves for state in tree.states}
    return tree.table(lambda name: dict.fromkeys(moves[name], 1 / len(moves[name])))


class RandomGame(Dealt):
    """
    A random game from a seed: three deals, up to three turns of two or three moves, and random returns.

    Seat 0 sees the deal, seat 1 does not; both see all moves.
    """

    name = "random game"

    def __init__(self, seed=0, complete=True, leak=False, seats=2, gain=0.0):
        self.seed, self.complete, self.leak, self.gain = seed, complete, leak, gain
        self.traits = Traits(seats=seats, stochastic=True, perfect_information=False)

    def start(self, seed):
        return self.deal(seed % 3)

    def deals(self):
        return (0, 1, 2)

    def deal(self, deal):
        return RandomGameMatch(self, deal)

    def canonical(self, action):
        return action

    def information_state(self, observation):
        shown = observation.messages[-1]["content"]
        return shown if self.complete else shown.split(":")[0]


class RandomGameMatch(Match):
    def __init__(self, game, deal):
        self.game, self.deal, self.line = game, deal, ()

    def drawn(self, *what):
        return random.Random(f"{self.game.seed} {what}").random()

    @property
    def to_move(self):
        return None if self.ending is not None else len(self.line) % 2

    def observe(self, seat):
        known = self.deal if seat == 0 or self.game.leak else "?"
        content = f"seat {seat}, deal {known if self.game.complete else '?'}: {' '.join(self.line)}"
        return Observation("random game", seat, ({"role": "user", "content": content},))

    def legal_actions(self):
        return tuple("abc"[: 2 + (self.drawn("moves", self.line) < 0.5)])

    def apply(self, action):
        self.line += (action,)
        if len(self.line) == 3 or self.drawn("ends", self.line) < 0.2:
            self.ending = Ending.FINISHED
        return action

    @property
    def returns(self):
        won = 10 * self.drawn("won", self.deal, self.line) - 5 if self.ending else 0.0
        return (won, self.game.gain - won)


class Longer(RandomGame):
    def deals(self):
        return tuple(range(10**6))


def pure(tree, table, seat, choose):
    """Return a table in which one seat always plays the chosen sequence of each state."""
    changed = list(table)
    for state in tree.states:
        if state.seat == seat:
            taken = choose(state)
            for sequence in state.sequences:
                changed[sequence] = float(sequence == taken)
    return changed


class TestGameTree:
    @pytest.mark.parametrize(
        ("game", "states", "decisions"),
        [
            # OpenSpiel's number of information states of each.
            ("Kuhn-v0", 12, 24),
            ("Leduc-v0", 936, 2184),
            # Neither seat sees anything.
            ("RockPaperScissors-v0", 2, 6),
        ],
    )
    def test_contains_every_information_state_and_move(self, game, states, decisions):
        tree = game_tree(game)

        assert len(tree.states) == states
        assert tree.size == decisions + len(EMPTY)

    def test_states_come_after_those_that_lead_to_them(self):
        for state in game_tree("Leduc-v0").states:
            assert state.parent < state.first

    def test_is_walked_once(self):
        assert game_tree("Kuhn-v0") is game_tree("Kuhn-v0")

    def test_has_the_known_value_of_an_equilibrium(self):
        tree = game_tree("Kuhn-v0")

        # Kuhn (1950): seat 0 loses one chip in 18 games.
        assert tree.value(tree.table(kuhn_equilibrium(0.2).__getitem__)) == pytest.approx(-1 / 18)

    def test_has_the_known_probabilities_of_states(self):
        tree = game_tree("Kuhn-v0")
        reach = dict(zip((state.name for state in tree.states), tree.reach(uniform(tree)), strict=True))

        # One card of three; then a check with 1/2; then a bet with 1/2.
        assert reach["0"] == pytest.approx(1 / 3)
        assert reach["1p"] == reach["1b"] == pytest.approx(1 / 6)
        assert reach["2pb"] == pytest.approx(1 / 12)

    @pytest.mark.parametrize("seed", range(3))
    def test_no_pure_strategy_is_better_than_the_best_response(self, seed):
        tree = game_tree(RandomGame(seed))
        rng = random.Random(seed)
        table = [1.0] * tree.size
        for state in tree.states:
            drawn = [rng.random() for _ in state.moves]
            for sequence, share in zip(state.sequences, drawn, strict=True):
                table[sequence] = share / math.fsum(drawn)

        for best, sign in zip(tree.best_responses(table), (1, -1), strict=True):
            others = [pure(tree, table, best.seat, lambda state: rng.choice(state.sequences)) for _ in range(300)]
            chosen = {s.name: s.first + s.moves.index(best.moves[s.name]) for s in tree.states if s.seat == best.seat}
            played = pure(tree, table, best.seat, lambda state, chosen=chosen: chosen[state.name])

            assert max(sign * tree.value(other) for other in others) <= best.value + 1e-12
            assert sign * tree.value(played) == pytest.approx(best.value)

    def test_strategy_and_table_are_inverse(self):
        tree = game_tree("Kuhn-v0")
        table = tree.table(kuhn_equilibrium(0.1).__getitem__)

        assert tree.table(tree.strategy(table)) == table


class TestRefusals:
    @pytest.mark.parametrize("game", ["TicTacToe-v0", "Kuhn-v0-5", "Kuhn-v0-3p"])
    def test_other_games_are_refused(self, game):
        with pytest.raises(
            ValueError, match=f"{game} cannot be graded by its exploitability: only zero-sum games of two"
        ):
            game_tree(game)

    def test_a_game_with_too_many_decisions_is_refused_after_its_first_deal(self):
        with pytest.raises(ValueError, match="random game is too large .* more than 1 decisions"):
            game_tree(Longer())

    def test_incomplete_information_states_are_refused(self):
        with pytest.raises(ValueError, match="share the information state .* `information_state` must contain all"):
            game_tree(RandomGame(complete=False))

    def test_a_visible_hidden_card_is_found(self, monkeypatch):
        leaking = RandomGame(leak=True)
        monkeypatch.setattr(leaking, "information_state", lambda o: without_deal(o) if o.seat == 1 else shown(o))

        with pytest.raises(
            ValueError, match="but look different to seat 1. Either the observation shows hidden information"
        ):
            game_tree(leaking)

    def test_returns_that_do_not_add_up_to_0_are_refused(self):
        with pytest.raises(ValueError, match=r"returns \(.*\). Legal moves must lead to returns that add up to 0"):
            game_tree(RandomGame(gain=1.0))

    def test_a_game_that_cannot_list_its_moves_is_refused(self, monkeypatch):
        monkeypatch.setattr(RandomGameMatch, "legal_actions", lambda self: None)

        with pytest.raises(ValueError, match="random game cannot list its legal moves"):
            game_tree(RandomGame())


def shown(observation):
    return observation.messages[-1]["content"]


def without_deal(observation):
    """Return the observation of seat 1 without the deal."""
    return shown(observation).replace("deal 0", "deal ?").replace("deal 1", "deal ?").replace("deal 2", "deal ?")


def test_a_game_can_be_passed_as_an_object():
    assert game_tree(get_game("Kuhn-v0")).states == game_tree("Kuhn-v0").states
