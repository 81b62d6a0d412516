"""
What every registered game promises, held to its traits. Games of your own too: `TRL_SPIRAL_GAMES` names the modules that
register them.

1. The same seed and moves make the same match, whatever is played beside it.
2. Random legal play ends by the rules, or because a seat has no move; nothing raises, and no cap on turns is needed.
3. Once ended, a match stays as it is.
4. Returns add up to zero where the game says so, are zero for all where nobody has won, and never below the lowest.
5. Legal moves are accepted, and others end the match by the fault of the seat that made them.
6. A seat can tell its legal moves from what it has been told.
7. With perfect information, every seat is told the same.
8. A hostile reply is survived, and shows another seat nothing that an honest one would not.

That deals stay hidden is tested beside the engines.
"""

import os
import random
from contextlib import nullcontext
from functools import cache
from importlib import import_module

import pytest

from tests.helpers import hostile_replies as hostile
from tests.helpers.hostile_replies import PRINTED, any_move, check_harmless, hostile_reply, opening, replay
from trl_spiral.games import game_names, get_game
from trl_spiral.seeding import derive_seed
from trl_spiral.types import Ending


for module in os.environ.get("TRL_SPIRAL_GAMES", "").split():
    import_module(module)

SEEDS = (1, 2)  # a random match of each of the 120 games takes two seconds in all
ENDLESS = 5_000  # turns: far beyond any game's own cap

# The board is told to the seat to move alone, with its own moves below.
TOLD_IN_TURN = {"Crusade-v0"}


class Playing:
    """A random match under way, and all that could be seen of it."""

    def __init__(self, name: str, seed: int) -> None:
        self.game = get_game(name)
        self.match = self.game.start(seed)
        self.rng = random.Random(derive_seed(name, seed))
        self.seen: list[tuple] = []
        self.told: dict[tuple[int, int], tuple[str, ...] | None] = {}
        self.moves: list[str] = []
        self.rules = [self.text(seat) for seat in range(self.game.traits.seats)]
        self.same_for_all = True

    def text(self, seat: int) -> str:
        return "\n".join(message["content"] for message in self.match.observe(seat).messages)

    def news(self, seat: int) -> str:
        """What a seat has been told since the rules, which address each seat: all of it, or the latest state."""
        text, rules = self.text(seat), self.rules[seat]
        return text.removeprefix(rules) if text.startswith(rules) else self.match.observe(seat).update

    def step(self) -> bool:
        """One turn. Returns whether the match goes on."""
        match = self.match
        if (seat := match.to_move) is None:
            return False
        legal, text, update = match.legal_actions(), hash(self.text(seat)), match.observe(seat).update
        if self.game.traits.perfect_information:
            self.same_for_all &= len({self.news(seat) for seat in range(self.game.traits.seats)}) == 1
        move = any_move(match, self.rng)
        self.told[seat, text] = legal
        self.seen.append((seat, update, text, legal, move, match.apply(move)))
        self.moves.append(move)
        return len(self.moves) < ENDLESS

    def result(self) -> tuple:
        match = self.match
        return match.returns, match.ending, match.offender, match.detail


@cache
def alone(name: str, seed: int) -> Playing:
    playing = Playing(name, seed)
    while playing.step():
        pass
    return playing


@cache
def side_by_side() -> dict[tuple[str, int], Playing]:
    """A match of every game and seed, all of them at once, turn about."""
    playings = {(name, seed): Playing(name, seed) for name in filter(is_playable, game_names()) for seed in SEEDS}
    going = list(playings.values())
    while going:
        going = [playing for playing in going if playing.step()]
    return playings


def is_playable(name: str) -> bool:
    """Whether this machine has what the game needs."""
    try:
        get_game(name).check()
    except RuntimeError:
        return False
    return True


@pytest.fixture(params=game_names())
def name(request) -> str:
    if not is_playable(request.param):
        pytest.skip(f"this machine lacks what {request.param} needs")
    return request.param


class TestEveryGame:
    def test_plays_beside_all_others_as_it_does_alone(self, name):
        assert len(side_by_side()) >= 64

        for seed in SEEDS:
            together, solo = side_by_side()[name, seed], alone(name, seed)
            assert together.seen == solo.seen
            assert together.result() == solo.result()

    def test_ends_under_random_legal_play(self, name):
        for seed in SEEDS:
            match = alone(name, seed).match
            stuck = match.ending is Ending.TURN_LIMIT and match.detail == "no legal move left"

            assert match.ending is Ending.FINISHED or stuck, match.detail
            assert match.offender is None
            assert all(accepted is not None for *_, accepted in alone(name, seed).seen)

    def test_stays_as_it_ended(self, name):
        for seed in SEEDS:
            match = alone(name, seed).match
            result = alone(name, seed).result()

            with pytest.raises(ValueError, match="has ended"):
                match.apply(alone(name, seed).moves[-1])

            assert match.to_move is None
            assert not match.legal_actions()
            assert alone(name, seed).result() == result

    def test_returns_what_its_traits_say(self, name):
        traits = get_game(name).traits
        for seed in SEEDS:
            match = alone(name, seed).match

            assert len(match.returns) == traits.seats
            assert not traits.zero_sum or sum(match.returns) == 0
            assert min(match.returns) >= traits.lowest
            assert match.ending is Ending.FINISHED or not any(match.returns)

    def test_accepts_legal_moves_and_no_others(self, name):
        game, playing, rng = get_game(name), alone(name, SEEDS[0]), random.Random(0)
        every = {move for *_, legal, _, _ in playing.seen for move in legal or ()}
        for ply in sorted({0, 1, len(playing.moves) // 2} & set(range(len(playing.moves)))):
            moves = playing.moves[:ply]
            match = replay(game, SEEDS[0], moves)
            seat, legal = match.to_move, match.legal_actions()
            good = legal or [match.sample(rng)]
            for move in rng.sample(list(good), min(3, len(good))):
                assert game.canonical(move) == move
                assert replay(game, SEEDS[0], moves).apply(move) == move
            # What is legal elsewhere in the game and not here, and what never is.
            bad = sorted(every - set(good)) if legal else []
            for move in (
                *rng.sample(bad, min(3, len(bad))),
                *([] if game.traits.free_text else ["[no move]"]),
                "",
                *([] if name in PRINTED else ["[]"]),
            ):
                match = replay(game, SEEDS[0], moves)

                assert match.apply(move) is None
                assert (match.ending, match.offender, match.to_move) == (Ending.ILLEGAL_MOVE, seat, None)
                assert match.returns == (0.0,) * game.traits.seats

    def test_tells_a_seat_what_it_needs_to_know_its_moves(self, name):
        moves: dict[tuple[int, int], tuple[str, ...] | None] = {}
        for seed in SEEDS:
            for told, legal in alone(name, seed).told.items():
                assert moves.setdefault(told, legal) == legal

    def test_tells_all_seats_the_same_where_nothing_is_hidden(self, name):
        if not get_game(name).traits.perfect_information or name in TOLD_IN_TURN:
            return
        assert all(alone(name, seed).same_for_all for seed in SEEDS)

    @pytest.mark.timeout(60)  # a guard against hanging; a reply takes well below a millisecond
    def test_survives_hostile_replies(self, name):
        game, rng = get_game(name), random.Random(derive_seed("hostile", name))
        for seed in range(2):
            moves = opening(game, seed, plies=2 * seed)
            for _ in range(25):
                check_harmless(game, seed, moves, hostile_reply(replay(game, seed, moves), rng))


class TestCheckHarmless:
    @pytest.mark.parametrize(
        ("name", "forged"), [("TicTacToe-v0", True), ("RockPaperScissors-v0", True), ("CodeGame-v0", False)]
    )
    def test_looks_at_every_move_that_others_will_read(self, name, forged, monkeypatch):
        if not is_playable(name):
            pytest.skip(f"this machine lacks what {name} needs")
        game = get_game(name)
        written = (
            "```python\nprint(5)\n```\n\\boxed{5}"
            if name in PRINTED
            else f"\\boxed{{{game.start(0).legal_actions()[0]}}}"
        )
        monkeypatch.setattr(hostile, "is_one_move", lambda played: False)

        with pytest.raises(AssertionError) if forged else nullcontext():
            check_harmless(game, 0, [], written)
