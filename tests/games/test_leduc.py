"""Leduc poker compared with OpenSpiel's over the whole game tree, and tests for leaks of hidden cards."""

import copy

import pytest

from tests.helpers.deals import distinguishable_positions
from trl_spiral.games import Dealt, get_game
from trl_spiral.games.leduc import ACTIONS, CARDS, LeducPoker
from trl_spiral.types import Ending


LEDUC = get_game("Leduc-v0")


def dealt(mine, yours, public):
    """Return a match with the named cards."""
    return LEDUC.deal(tuple(CARDS.index(card) for card in (mine, yours, public)))


def after(match, moves):
    for move in moves.split():
        assert match.apply(f"[{move}]") == f"[{move}]"
    return match


class TestRules:
    def test_agree_with_openspiel_on_the_whole_tree(self):
        pyspiel = pytest.importorskip("pyspiel")
        game, states, ends = pyspiel.load_game("leduc_poker"), set(), 0

        def compare(match, state, public):
            nonlocal ends
            if state.is_chance_node():
                state.apply_action(public)
            if state.is_terminal():
                assert (match.ending, list(match.returns)) == (Ending.FINISHED, state.returns())
                ends += 1
                return
            seat, legal = match.to_move, match.legal_actions()
            information = LeducPoker().information_state(match.observe(seat))
            assert (seat, information) == (state.current_player(), state.information_state_string())
            assert sorted(ACTIONS[move] for move in legal) == state.legal_actions()
            states.add(information)
            for move in legal:
                twin, child = copy.deepcopy(match), state.clone()
                assert twin.apply(move) == move
                child.apply_action(ACTIONS[move])
                compare(twin, child, public)

        for deal in LEDUC.deals():
            state = game.new_initial_state()
            for card in deal[:2]:
                state.apply_action(card)
            compare(LEDUC.deal(deal), state, deal[2])

        # 936 is known from Southey et al. (2005). The first round continues after 5 lines of play and ends by a fold
        # after 4, so a deal has 4 + 5 * (5 + 4) lines.
        assert len(states) == 936
        assert ends == 120 * 49

    @pytest.mark.parametrize(
        ("cards", "winner"),
        [
            (("Jh", "Ks", "Js"), 0),  # a pair beats a king
            (("Ks", "Jh", "Js"), 1),
            (("Qh", "Js", "Kh"), 0),  # no pair: the higher rank
            (("Jh", "Js", "Kh"), None),  # equal ranks share
        ],
    )
    def test_pay_the_better_hand_the_chips_of_the_other(self, cards, winner):
        match = after(dealt(*cards), "raise raise call check raise raise call")

        # The largest loss: the ante, two raises of 2 and two of 4.
        assert match.returns == {0: (13.0, -13.0), 1: (-13.0, 13.0), None: (0.0, 0.0)}[winner]

    def test_allow_two_raises_per_round_and_folds_only_after_a_raise(self):
        match = dealt("Jh", "Qh", "Kh")
        legal = [match.legal_actions()]
        for move in ("[raise]", "[raise]", "[call]"):
            match.apply(move)
            legal.append(match.legal_actions())

        assert legal == [
            ("[check]", "[raise]"),
            ("[call]", "[fold]", "[raise]"),
            ("[call]", "[fold]"),
            ("[check]", "[raise]"),
        ]

    def test_parse_moves_in_different_notations(self):
        assert [LEDUC.canonical(text) for text in ("raise", " [ Fold ]", "[bet]", "[call] [fold]")] == [
            "[raise]",
            "[fold]",
            None,
            None,
        ]


class TestDeals:
    def test_are_120_and_all_occur(self):
        assert isinstance(LEDUC, Dealt)
        assert len(set(LEDUC.deals())) == 120
        # Each seat observes its card, and both the public card in the second round. The probability that 3,000 matches
        # miss one of the deals is at most 120 * (119 / 120) ** 3000, or 1.5e-9.
        shown = set()
        for seed in range(3000):
            match = after(LEDUC.start(seed), "check check")
            shown.add((match.messages(0)[1], match.messages(1)[1], match.messages(0)[-1]))

        assert len(shown) == 120


class TestHiddenInformation:
    def test_no_seat_observes_hidden_cards(self):
        def knows(deal, seat, moves):
            # The public card is open after the first round.
            first_has_ended = len(moves) > 1 and any(
                moves[turn] == "[call]" or moves[: turn + 1] == ("[check]", "[check]") for turn in range(len(moves))
            )
            return deal[seat], deal[2] if first_has_ended else None

        assert distinguishable_positions(LEDUC, knows) == []

    def test_the_test_detects_a_leak(self):
        # With `knows` leaving out the public card, its observation is a leak.
        assert distinguishable_positions(LEDUC, knows=lambda deal, seat, moves: deal[seat])


class TestObservation:
    def test_updates_a_conversation_with_new_messages_only(self):
        match = after(dealt("Jh", "Qs", "Ks"), "check raise call")

        observation = match.observe(0)

        assert observation.update == "Round 2. The public card is Ks.\nYour legal moves: '[check]', '[raise]'"
        assert "Your card is Jh." in observation.messages[0]["content"]
        assert LeducPoker().information_state(observation) == (
            "[Observer: 0][Private: 0][Round 2][Player: 0][Pot: 6][Money: 97 97][Public: 5][Round1: 1 2 1][Round2: ]"
        )
