"""SimpleNegotiation-v2: swaps, illegal moves, the outcome, and the scripted players of the game."""

import re
from dataclasses import replace

import pytest

from trl_spiral.evaluation.matches import play_matches
from trl_spiral.games import get_game
from trl_spiral.games.negotiation import BASE_VALUES, NegotiationMatch, Offer, read_negotiation, read_offer
from trl_spiral.players.negotiation import GreedyNegotiator, RandomNegotiator
from trl_spiral.types import Ending


GAME = get_game("SimpleNegotiation-v2")
TEN = dict.fromkeys(BASE_VALUES, 10)


def started(held=(TEN, TEN), values=(BASE_VALUES, BASE_VALUES)):
    return NegotiationMatch(GAME, held, values)


def after(match, *moves):
    for move in moves:
        assert match.apply(move) == move
    return match


class TestSwaps:
    def test_exchange_the_offered_and_requested_amounts(self):
        match = after(started(), "[Offer: 1 Wood, 2 Gold -> 3 Brick]", "[Accept]")

        assert match.held == (TEN | {"Wood": 9, "Gold": 8, "Brick": 13}, TEN | {"Wood": 11, "Gold": 12, "Brick": 7})
        assert match.messages(0)[-1] == "You hold 10 Wheat, 9 Wood, 10 Sheep, 13 Brick, 8 Gold."

    @pytest.mark.parametrize("answer", ["[Deny]", "[Offer: 1 Gold -> 1 Wheat]"])
    def test_expire_if_they_are_not_accepted_at_once(self, answer):
        match = after(started(), "[Offer: 1 Wood -> 1 Gold]", answer, "[Deny]")

        assert match.apply("[Accept]") is None
        assert (match.ending, match.offender, match.held) == (Ending.ILLEGAL_MOVE, 1, (TEN, TEN))

    def test_are_not_accepted_by_the_offering_seat(self):
        match = after(started(), "[Offer: 1 Wood -> 1 Gold]", "[Deny]")

        assert match.apply("[Accept]") is None

    @pytest.mark.parametrize(
        ("moves", "refused"),
        [
            ((), "[Accept]"),  # there is nothing to accept
            ((), "[Offer: 11 Wood -> 1 Gold]"),  # more than the seat holds
            ((), "[Offer: 1 Wood, 10 Wood -> 1 Gold]"),
            (("[Offer: 1 Wood -> 11 Gold]",), "[Accept]"),  # more than the other seat holds
            (("[Offer: 10 Wood -> 1 Gold]", "[Accept]", "[Deny]", "[Deny]"), "[Offer: 1 Wood -> 1 Gold]"),  # no more
        ],
    )
    def test_require_the_holdings_of_both_sides(self, moves, refused):
        match = after(started(), *moves)
        seat = match.to_move

        assert match.apply(refused) is None
        assert (match.ending, match.offender) == (Ending.ILLEGAL_MOVE, seat)

    def test_check_both_sides_again_at_acceptance(self):
        match = after(started(), "[Offer: 1 Wood -> 1 Gold]")
        # No rule takes the resource away in between, but a swap must not depend on that.
        match.held = (TEN | {"Wood": 0}, TEN)

        assert match.apply("[Accept]") is None


class TestMoves:
    @pytest.mark.parametrize(
        ("written", "read"),
        [
            ("[Offer: 1 Wood, 2 Gold -> 3 Brick]", "[Offer: 1 Wood, 2 Gold -> 3 Brick]"),
            ("offer 2 GOLD,1 wood->3 brick", "[Offer: 1 Wood, 2 Gold -> 3 Brick]"),
            ("[Offer: 1 Wood, 1 Wood -> 3 Brick]", "[Offer: 2 Wood -> 3 Brick]"),
            ("ACCEPT", "[Accept]"),
            ("[ deny ]", "[Deny]"),
            ("[Offer: 1 Ore -> 1 Gold]", None),
            ("[Offer: 0 Wood -> 1 Gold]", None),
            ("[Offer: 1000 Wood -> 1 Gold]", None),
            ("[Offer: 999 Wood, 1 Wood -> 1 Gold]", None),
            ("[Offer: -> 1 Gold]", None),
            ("[Offer: 1 Wood -> 1 Gold -> 1 Brick]", None),
            ("[Offer: 1 Wood for 1 Gold]", None),
            ("Let us swap! [Accept]", None),
            ("I would rather not", None),
        ],
    )
    def test_are_parsed_in_different_notations(self, written, read):
        assert GAME.canonical(written) == read

    def test_may_not_be_free_text(self):
        match = started()

        assert match.apply("Hello, what have you got?") is None
        assert match.ending is Ending.ILLEGAL_MOVE


class TestOutcome:
    @pytest.mark.parametrize(
        ("offer", "returns"),
        [
            # By the mean values, 4 Wheat are worth 20, 8 Wheat 40, and 1 Gold 40.
            ("[Offer: 4 Wheat -> 1 Gold]", (1.0, -1.0)),
            ("[Offer: 1 Gold -> 4 Wheat]", (-1.0, 1.0)),
            ("[Offer: 8 Wheat -> 1 Gold]", (0.0, 0.0)),
        ],
    )
    def test_goes_to_the_seat_with_more_gain_after_ten_turns(self, offer, returns):
        match = after(started(), offer, "[Accept]", *["[Deny]"] * 7)
        assert match.ending is None

        match.apply("[Deny]")

        assert (match.ending, match.returns) == (Ending.FINISHED, returns)

    def test_counts_the_own_values_of_each_seat(self):
        # The first seat gains 2 * 12 - 10 = 14, the second 10 - 2 * 4 = 2.
        values = BASE_VALUES | {"Wheat": 12}, BASE_VALUES | {"Wheat": 4}
        match = after(started(values=values), "[Offer: 1 Wood -> 2 Wheat]", "[Accept]", *["[Deny]"] * 8)

        assert match.detail == "Player 0 gained 14, Player 1 2."


class TestStart:
    def test_draws_amounts_and_values_within_the_bounds_of_textarena(self):
        held, values = set(), {name: set() for name in BASE_VALUES}
        for seed in range(200):
            match = GAME.start(seed)
            for seat in (0, 1):
                state = read_negotiation(match.observe(seat))
                assert state.held == match.held[seat]
                held |= set(state.held.values())
                for name, value in state.values.items():
                    values[name].add(value)

        # Within a fifth of the mean, and within 5 to 40: TextArena 0.7.4, SimpleNegotiation/env.py.
        bounds = {"Wheat": (5, 6), "Wood": (8, 12), "Sheep": (12, 18), "Brick": (20, 30), "Gold": (32, 40)}
        assert held == set(range(5, 26))
        assert {name: (min(drawn), max(drawn)) for name, drawn in values.items()} == bounds

    def test_hides_holdings_and_values_of_the_other_seat(self):
        rich, odd = dict.fromkeys(BASE_VALUES, 25), dict.fromkeys(BASE_VALUES, 7)
        moves = ("[Offer: 1 Wood -> 1 Gold]", "[Accept]", "[Deny]", "[Offer: 5 Wheat -> 1 Brick]")

        views = [
            after(started((TEN, held), (BASE_VALUES, values)), *moves).observe(0)
            for held, values in ((TEN, BASE_VALUES), (rich, odd))
        ]

        assert views[0] == views[1]


class TestPlayers:
    def test_play_legally_and_greedy_beats_random(self):
        won = 0.0
        for seat in (0, 1):
            episodes = play_matches(GAME, GreedyNegotiator(), RandomNegotiator(), seat, games=60)
            assert {episode.ending for episode in episodes} == {Ending.FINISHED}
            won += sum(episode.returns[seat] for episode in episodes)

        # 0.74 per game in 800 games, with a standard deviation of 0.53.
        assert won / 120 > 0.74 - 5 * 0.53 / 120**0.5

    def test_random_makes_all_kinds_of_moves(self):
        episodes = play_matches(GAME, RandomNegotiator(), RandomNegotiator(), seat=0, games=30)

        kinds = {move.split(":")[0] for episode in episodes for _, move in episode.moves}

        assert kinds == {"[Offer", "[Accept]", "[Deny]"}

    def test_greedy_never_loses_value(self):
        for episode in play_matches(GAME, GreedyNegotiator(), GreedyNegotiator(), seat=0, games=60):
            match = GAME.start(episode.seed)
            for _, move in episode.moves:
                match.apply(move)

            gains = re.fullmatch(r"Player 0 gained (-?\d+), Player 1 (-?\d+)\.", match.detail).groups()
            assert min(map(int, gains)) >= 0

    def test_greedy_accepts_only_gains(self):
        for offer, answer in (("[Offer: 9 Wheat -> 1 Gold]", "[Accept]"), ("[Offer: 8 Wheat -> 1 Gold]", "[Deny]")):
            observation = replace(after(started(), offer).observe(1), seed=1)

            # With mean values for both seats, no offer of its own gains value.
            assert GreedyNegotiator().ask(observation).action == answer

    def test_greedy_refuses_other_games(self):
        with pytest.raises(ValueError, match="no greedy player for Kuhn-v0: it plays only SimpleNegotiation-v2"):
            GreedyNegotiator("Kuhn-v0")


class TestReadNegotiation:
    def test_distinguishes_open_from_expired_offers(self):
        match = after(started(), "[Offer: 1 Wood -> 1 Gold]")
        assert read_negotiation(match.observe(1)).offer == Offer({"Wood": 1}, {"Gold": 1})

        after(match, "[Deny]")

        assert read_negotiation(match.observe(0)).offer is None
        assert read_offer("[Deny]") is None
