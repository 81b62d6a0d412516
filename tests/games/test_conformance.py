"""
Properties of every registered game. To test games of your own, set `TRL_SPIRAL_GAMES` to the modules that register
them.

1. Equal seeds and moves give equal matches, independent of concurrent matches.
2. Random legal play ends by the rules, or because a seat has no move. It never raises and never reaches a turn limit.
3. An ended match does not change.
4. Returns sum to zero in zero-sum games, are zero in unfinished matches, and are at least `Traits.lowest`.
5. Legal moves are accepted. Other moves end the match, and the seat that made them is the offender.
6. Legal moves depend only on what the seat has observed.
7. With perfect information, all seats observe the same.
8. A hostile reply does no harm, and shows other seats no more than a plain move.

The tests of each game check that hidden information stays hidden.
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

SEEDS = (1, 2)  # one random match of each game takes two seconds in all
MAX_TURNS = 5_000  # far above the limits of all games

# Only the seat to move observes the board, with its own moves.
BOARD_FOR_SEAT_TO_MOVE = {"Crusade-v0"}


class RandomMatch:
    """A random match, with all observations."""

    def __init__(self, name: str, seed: int) -> None:
        self.game = get_game(name)
        self.match = self.game.start(seed)
        self.rng = random.Random(derive_seed(name, seed))
        self.seen: list[tuple] = []
        self.legal_by_text: dict[tuple[int, int], tuple[str, ...] | None] = {}
        self.moves: list[str] = []
        self.rules = [self.text(seat) for seat in range(self.game.traits.seats)]
        self.same_for_all = True

    def text(self, seat: int) -> str:
        return "\n".join(message["content"] for message in self.match.observe(seat).messages)

    def news(self, seat: int) -> str:
        """Return what a seat has observed after its rules: the history or the latest state."""
        text, rules = self.text(seat), self.rules[seat]
        return text.removeprefix(rules) if text.startswith(rules) else self.match.observe(seat).update

    def step(self) -> bool:
        """Play one turn and return whether the match continues."""
        match = self.match
        if (seat := match.to_move) is None:
            return False
        legal, text, update = match.legal_actions(), hash(self.text(seat)), match.observe(seat).update
        if self.game.traits.perfect_information:
            self.same_for_all &= len({self.news(seat) for seat in range(self.game.traits.seats)}) == 1
        move = any_move(match, self.rng)
        self.legal_by_text[seat, text] = legal
        self.seen.append((seat, update, text, legal, move, match.apply(move)))
        self.moves.append(move)
        return len(self.moves) < MAX_TURNS

    def result(self) -> tuple:
        match = self.match
        return match.returns, match.ending, match.offender, match.detail


@cache
def alone(name: str, seed: int) -> RandomMatch:
    """Return a finished match, played alone."""
    random_match = RandomMatch(name, seed)
    while random_match.step():
        pass
    return random_match


@cache
def concurrent() -> dict[tuple[str, int], RandomMatch]:
    """Return a finished match of every game and seed, all played concurrently in turn."""
    matches = {(name, seed): RandomMatch(name, seed) for name in filter(is_playable, game_names()) for seed in SEEDS}
    active = list(matches.values())
    while active:
        active = [match for match in active if match.step()]
    return matches


def is_playable(name: str) -> bool:
    """Return whether the game can be played on this machine."""
    try:
        get_game(name).check()
    except RuntimeError:
        return False
    return True


@pytest.fixture(params=game_names())
def name(request) -> str:
    if not is_playable(request.param):
        pytest.skip(f"{request.param} cannot be played on this machine")
    return request.param


class TestEveryGame:
    def test_plays_concurrently_as_alone(self, name):
        assert len(concurrent()) >= 64

        for seed in SEEDS:
            together, solo = concurrent()[name, seed], alone(name, seed)
            assert together.seen == solo.seen
            assert together.result() == solo.result()

    def test_ends_under_random_legal_play(self, name):
        for seed in SEEDS:
            match = alone(name, seed).match
            stuck = match.ending is Ending.TURN_LIMIT and match.detail == "no legal move left"

            assert match.ending is Ending.FINISHED or stuck, match.detail
            assert match.offender is None
            assert all(accepted is not None for *_, accepted in alone(name, seed).seen)

    def test_does_not_change_after_its_end(self, name):
        for seed in SEEDS:
            match = alone(name, seed).match
            result = alone(name, seed).result()

            with pytest.raises(ValueError, match="has ended"):
                match.apply(alone(name, seed).moves[-1])

            assert match.to_move is None
            assert not match.legal_actions()
            assert alone(name, seed).result() == result

    def test_returns_follow_the_traits(self, name):
        traits = get_game(name).traits
        for seed in SEEDS:
            match = alone(name, seed).match

            assert len(match.returns) == traits.seats
            assert not traits.zero_sum or sum(match.returns) == 0
            assert min(match.returns) >= traits.lowest
            assert match.ending is Ending.FINISHED or not any(match.returns)

    def test_accepts_legal_moves_and_no_others(self, name):
        game, played, rng = get_game(name), alone(name, SEEDS[0]), random.Random(0)
        every = {move for *_, legal, _, _ in played.seen for move in legal or ()}
        for ply in sorted({0, 1, len(played.moves) // 2} & set(range(len(played.moves)))):
            moves = played.moves[:ply]
            match = replay(game, SEEDS[0], moves)
            seat, legal = match.to_move, match.legal_actions()
            good = legal or [match.sample(rng)]
            for move in rng.sample(list(good), min(3, len(good))):
                assert game.canonical(move) == move
                assert replay(game, SEEDS[0], moves).apply(move) == move
            # Moves that are legal elsewhere in the game but not here, and text that is never legal.
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

    def test_legal_moves_depend_on_the_observations(self, name):
        moves: dict[tuple[int, int], tuple[str, ...] | None] = {}
        for seed in SEEDS:
            for text, legal in alone(name, seed).legal_by_text.items():
                assert moves.setdefault(text, legal) == legal

    def test_shows_all_seats_the_same_with_perfect_information(self, name):
        if not get_game(name).traits.perfect_information or name in BOARD_FOR_SEAT_TO_MOVE:
            return
        assert all(alone(name, seed).same_for_all for seed in SEEDS)

    @pytest.mark.timeout(60)  # a reply takes well below a millisecond, unless a parser hangs
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
    def test_checks_every_move_that_other_seats_read(self, name, forged, monkeypatch):
        if not is_playable(name):
            pytest.skip(f"{name} cannot be played on this machine")
        game = get_game(name)
        written = (
            "```python\nprint(5)\n```\n\\boxed{5}"
            if name in PRINTED
            else f"\\boxed{{{game.start(0).legal_actions()[0]}}}"
        )
        monkeypatch.setattr(hostile, "is_one_move", lambda played: False)

        with pytest.raises(AssertionError) if forged else nullcontext():
            check_harmless(game, 0, [], written)
