"""Liar's dice against TextArena's, with the same dice, and what each seat may see of it."""

import random
from itertools import product

import pytest

from tests.helpers.deals import positions, told_apart
from trl_spiral.games import Dealt, get_game
from trl_spiral.games.liars_dice import CALL, FACES, LiarsDice, LiarsDiceMatch, roll
from trl_spiral.players import RandomPlayer
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.types import Ending


ONE, TWO, FIVE = get_game("LiarsDice-v1-1"), get_game("LiarsDice-v1-2"), get_game("LiarsDice-v1-5")
THREE_SEATS = get_game("LiarsDice-v1-2-3p")


def started(*dice, game=TWO):
    """A match in which the seats have rolled `dice`."""
    return LiarsDiceMatch(game, dice, seed=0)


class TestRules:
    @pytest.mark.parametrize("game", [TWO, FIVE, THREE_SEATS], ids=lambda game: game.name)
    def test_agree_with_textarenas_but_for_the_cap(self, game):
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
                # Mostly low bids, so that rounds have several.
                move = rng.choice(match.legal_actions()[:4] + match.legal_actions()[-1:])
                done, _ = env.step(move)
                match.apply(move)

            rewards, _ = env.close()
            assert done
            assert match.returns == tuple(rewards[seat] for seat in range(game.traits.seats))

    def test_take_a_die_from_whoever_is_wrong_and_have_the_next_seat_bid(self):
        # Two fives are there: the caller was wrong.
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

    def test_count_no_face_as_wild(self):
        match = started((6,), (6,), game=ONE)
        match.apply("[Bid: 1, 5]")
        match.apply("[Call]")

        assert match.returns == (-1.0, 1.0)

    def test_leave_only_a_call_after_the_highest_bid(self):
        match = started((1, 1), (2, 2))
        match.apply("[Bid: 4, 6]")

        assert match.legal_actions() == ("[Call]",)

    def test_are_told_with_the_bids_that_are_left(self):
        match = started((1, 1), (2, 2))
        asked = [match.observe(0).update.splitlines()[-1]]
        for move in ("[Bid: 2, 3]", "[Bid: 4, 6]"):
            match.apply(move)
            asked.append(match.observe(match.to_move).update.splitlines()[-1])

        assert asked == [
            "Your legal moves: '[Bid: q, f]' with q from 1 to 4 and f from 1 to 6",
            "Your legal moves: '[Bid: q, f]' with q from 2 to 4 and f from 3 to 6, but for '[Bid: 2, 3]', and '[Call]'",
            "Your legal moves: '[Call]'",
        ]

    def test_rank_three_seats_by_who_is_out_first(self):
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
    def test_read_moves_as_players_write_them(self, written, read):
        assert FIVE.canonical(written) == read

    @pytest.mark.parametrize("move", ["[Bid: 0, 3]", "[Bid: 5, 3]", "[Bid: 1, 0]", "[Bid: 1, 7]", "[Call]"])
    def test_refuse_bids_that_no_dice_allow_and_a_call_of_nothing(self, move):
        match = TWO.start(0)

        assert match.apply(move) is None
        assert match.ending is Ending.ILLEGAL_MOVE

    def test_are_for_one_to_five_dice_and_two_or_three_seats(self):
        for dice, seats in ((0, 2), (6, 2), (2, 4)):
            with pytest.raises(ValueError, match="must be 1 to 5 for each seat"):
                LiarsDice(dice, seats)


class TestDice:
    def test_fall_the_same_for_the_same_seed(self):
        assert [FIVE.start(seed).dice for seed in range(9)] == [FIVE.start(seed).dice for seed in range(9)]
        assert roll(1, 0, (5, 5)) != roll(1, 1, (5, 5))

    def test_show_every_face_as_often(self):
        faces = [face for seed in range(600) for faces in FIVE.start(seed).dice for face in faces]

        for face in range(1, FACES + 1):
            # A thousand each, and 29 a standard deviation: sqrt(6000 * 1/6 * 5/6).
            assert abs(faces.count(face) - 1000) < 5 * 29


class TestOneDie:
    def test_is_solved_by_2688_information_states(self):
        assert isinstance(ONE, Dealt)
        assert set(ONE.deals()) == {tuple(faces[0] for faces in ONE.start(seed).dice) for seed in range(500)}

        told = {
            ONE.information_state(match.observe(match.to_move))
            for mine in range(1, FACES + 1)
            # Each seat's own die is all that its states depend on.
            for _, match in positions(ONE.deal((mine, mine)))
            if match.to_move is not None
        }

        # Six dice, and 7 * 64 ways to have bid: either no one die, and any of 6 faces for two (64 ways); or one die up to face
        # m (2 ** (m - 1) ways), then two from face m up (2 ** (7 - m) ways), for each of 6 faces m.
        assert len(told) == 6 * 7 * 64
        assert {"3", "3 1-2", "3 1-2 1-5 2-6"} <= told

    def test_shows_no_seat_the_others_die(self):
        assert told_apart(ONE, knows=lambda dice, seat, moves: dice[seat]) == []


class TestSecrets:
    @pytest.mark.parametrize("game", [FIVE, THREE_SEATS], ids=lambda game: game.name)
    def test_no_seat_can_tell_the_others_dice_before_a_call(self, game):
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
