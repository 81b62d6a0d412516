"""Liar's dice compared with TextArena's for equal dice, and tests for leaks of hidden dice."""

import random
from itertools import product

import pytest

from tests.helpers.deals import distinguishable_positions, positions
from trl_spiral.games import Dealt, get_game
from trl_spiral.games.liars_dice import CALL, FACES, LiarsDice, LiarsDiceMatch, roll
from trl_spiral.players import RandomPlayer
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.types import Ending


ONE, TWO, FIVE = get_game("LiarsDice-v1-1"), get_game("LiarsDice-v1-2"), get_game("LiarsDice-v1-5")
THREE_SEATS = get_game("LiarsDice-v1-2-3p")


def started(*dice, game=TWO):
    """Return a match in which the seats have rolled `dice`."""
    return LiarsDiceMatch(game, dice, seed=0)


class TestRules:
    @pytest.mark.parametrize("game", [TWO, FIVE, THREE_SEATS], ids=lambda game: game.name)
    def test_agree_with_textarena_except_for_the_limit_of_bids(self, game):
        textarena = pytest.importorskip("textarena")
        for seed in range(8):
            match, rng = game.start(seed), random.Random(seed)
            env = textarena.make("LiarsDice-v0-raw", num_dice=game.dice)
            env.reset(num_players=game.traits.seats)
            while match.to_move is not None:
                state = env.state.game_state
                state["dice_rolls"] = {seat: list(faces) for seat, faces in enumerate(match.dice)}
                in_play = sum(map(len, match.dice))
                assert env.state.current_player_id == match.to_move
                assert list(state["remaining_dice"].values()) == [len(faces) for faces in match.dice]
                allowed = {
                    f"[Bid: {quantity}, {face}]"
                    for quantity, face in product(range(1, in_play + 1), range(1, FACES + 1))
                    if env._is_valid_bid(quantity, face, state["current_bid"])[0]
                }
                assert set(match.legal_actions()) - {CALL} == allowed
                # Mostly low bids, for rounds with several bids.
                move = rng.choice(match.legal_actions()[:4] + match.legal_actions()[-1:])
                done, _ = env.step(move)
                match.apply(move)

            rewards, _ = env.close()
            assert done
            assert match.returns == tuple(rewards[seat] for seat in range(game.traits.seats))

    def test_take_a_die_from_the_loser_and_let_the_next_seat_bid(self):
        # There are two fives, so the caller is wrong.
        match = started((5, 1), (5, 2))
        match.apply("[Bid: 2, 5]")
        match.apply("[Call]")

        assert [len(faces) for faces in match.dice] == [2, 1]
        assert match.to_move == 0
        assert "In all, 2 dice show a 5. Player 1 loses a die." in match.messages(0)

        match = started((5, 1), (5, 2))
        match.apply("[Bid: 3, 5]")
        match.apply("[Call]")

        assert [len(faces) for faces in match.dice] == [1, 2]

    def test_have_no_wild_face(self):
        match = started((6,), (6,), game=ONE)
        match.apply("[Bid: 1, 5]")
        match.apply("[Call]")

        assert match.returns == (-1.0, 1.0)

    def test_allow_only_a_call_after_the_highest_bid(self):
        match = started((1, 1), (2, 2))
        match.apply("[Bid: 4, 6]")

        assert match.legal_actions() == ("[Call]",)

    def test_show_the_range_of_legal_bids(self):
        match = started((1, 1), (2, 2))
        prompts = [match.observe(0).update.splitlines()[-1]]
        for move in ("[Bid: 2, 3]", "[Bid: 4, 6]"):
            match.apply(move)
            prompts.append(match.observe(match.to_move).update.splitlines()[-1])

        assert prompts == [
            "Your legal moves: '[Bid: q, f]' with q from 1 to 4 and f from 1 to 6",
            "Your legal moves: '[Bid: q, f]' with q from 2 to 4 and f from 3 to 6, but for '[Bid: 2, 3]', "
            "and '[Call]'",
            "Your legal moves: '[Call]'",
        ]

    def test_rank_three_seats_by_the_order_of_elimination(self):
        players = (RandomPlayer(),) * 3

        episodes = list(play(referee(Start(THREE_SEATS, players, seed, play_seed=seed)) for seed in range(30)))

        assert {episode.ending for episode in episodes} == {Ending.FINISHED}
        assert all(sorted(episode.returns) == [-1.0, 0.0, 1.0] for episode in episodes)
        assert len({episode.returns for episode in episodes}) > 3

    @pytest.mark.parametrize(
        ("written", "read"),
        [
            ("[Bid: 3, 4]", "[Bid: 3, 4]"),
            ("bid 3 4", "[Bid: 3, 4]"),
            ("[ BID:12,6 ]", "[Bid: 12, 6]"),
            ("call", "[Call]"),
            ("[Bid: -3, 4]", None),
            ("[Bid: 3, 44]", None),
            ("[Bid: 300, 4]", None),
            ("[Bid: 3]", None),
            ("[Call][Bid: 3, 4]", None),
        ],
    )
    def test_parse_moves_in_different_notations(self, written, read):
        assert FIVE.canonical(written) == read

    @pytest.mark.parametrize("move", ["[Bid: 0, 3]", "[Bid: 5, 3]", "[Bid: 1, 0]", "[Bid: 1, 7]", "[Call]"])
    def test_refuse_impossible_bids_and_a_call_without_a_bid(self, move):
        match = TWO.start(0)

        assert match.apply(move) is None
        assert match.ending is Ending.ILLEGAL_MOVE

    def test_refuse_other_numbers_of_dice_and_seats(self):
        for dice, seats in ((0, 2), (6, 2), (2, 4)):
            with pytest.raises(ValueError, match="must be 1 to 5 for each seat"):
                LiarsDice(dice, seats)


class TestDice:
    def test_are_equal_for_equal_seeds(self):
        assert [FIVE.start(seed).dice for seed in range(9)] == [FIVE.start(seed).dice for seed in range(9)]
        assert roll(1, 0, (5, 5)) != roll(1, 1, (5, 5))

    def test_show_faces_uniformly(self):
        faces = [face for seed in range(600) for faces in FIVE.start(seed).dice for face in faces]

        for face in range(1, FACES + 1):
            # Expected 1,000, with a standard deviation of sqrt(6000 * 1/6 * 5/6) = 29.
            assert abs(faces.count(face) - 1000) < 5 * 29


class TestOneDie:
    def test_has_2688_information_states(self):
        assert isinstance(ONE, Dealt)
        assert set(ONE.deals()) == {tuple(faces[0] for faces in ONE.start(seed).dice) for seed in range(500)}

        states = {
            ONE.information_state(match.observe(match.to_move))
            for mine in range(1, FACES + 1)
            # States depend on the own die only.
            for _, match in positions(ONE.deal((mine, mine)))
            if match.to_move is not None
        }

        # Six faces of the own die times 7 * 64 sequences of bids. Either no bid on one die, and any subset of 6 faces
        # for two dice (64 sequences). Or bids on one die up to face m (2 ** (m - 1)), then on two dice from face m up
        # (2 ** (7 - m)), for each of 6 faces m.
        assert len(states) == 6 * 7 * 64
        assert {"3", "3 1-2", "3 1-2 1-5 2-6"} <= states

    def test_shows_no_seat_the_die_of_the_other(self):
        assert distinguishable_positions(ONE, knows=lambda dice, seat, moves: dice[seat]) == []


class TestHiddenInformation:
    @pytest.mark.parametrize("game", [FIVE, THREE_SEATS], ids=lambda game: game.name)
    def test_no_seat_observes_the_dice_of_others_before_a_call(self, game):
        seats = range(game.traits.seats)
        for seed, seat in product(range(5), seats):
            mine = game.start(seed).dice[seat]
            views = set()
            for other in range(4):
                rolled = roll(other, 9, (game.dice,) * len(seats))
                match = LiarsDiceMatch(game, tuple(mine if s == seat else rolled[s] for s in seats), seed)
                rng, seen = random.Random(seed), []
                for _ in range(4):
                    seen.append(match.observe(seat))
                    match.apply(rng.choice([move for move in match.legal_actions() if move != CALL][:5]))
                views.add(repr(seen))

            assert len(views) == 1
