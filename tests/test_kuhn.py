"""True Kuhn poker against OpenSpiel's, over every deal and every way to play it, and what each seat may see of it."""

from itertools import count, permutations, product

import pytest

from trl_spiral.games import get_game
from trl_spiral.games.kuhn import INFORMATION_STATES, LETTERS, information_state
from trl_spiral.players import RandomPlayer, ScriptedPlayer
from trl_spiral.rollout import Forfeit, Start, play, referee
from trl_spiral.types import Ending


ONE, FIVE = get_game("Kuhn-v0"), get_game("Kuhn-v0-5")
DEALS = tuple(permutations(range(3), 2))


def dealt(cards, game=ONE):
    """A fresh match in which the seats hold `cards`."""
    return next(match for seed in count() if (match := game.start(seed)).cards == cards)


def lines(moves=()):
    """Every way to play to the end, as lists of moves."""
    replayed = dealt((0, 1))
    for move in moves:
        replayed.apply(move)
    if replayed.to_move is None:
        return [list(moves)]
    return [line for move in replayed.legal_actions() for line in lines((*moves, move))]


class TestRules:
    def test_allow_five_lines_of_play(self):
        played = sorted("".join(LETTERS[move] for move in line) for line in lines())

        assert played == ["bb", "bp", "pbb", "pbp", "pp"]

    @pytest.mark.parametrize("cards", DEALS)
    def test_pay_what_openspiel_pays(self, cards):
        pyspiel = pytest.importorskip("pyspiel")
        for line in lines():
            match, state = dealt(cards), pyspiel.load_game("kuhn_poker").new_initial_state()
            for card in cards:
                state.apply_action(card)
            for move in line:
                # Who moves and what is known agree at every step, too.
                assert match.to_move == state.current_player()
                assert information_state(match.observe(match.to_move)) == state.information_state_string()
                match.apply(move)
                state.apply_action("pb".index(LETTERS[move]))

            assert state.is_terminal()
            assert (match.ending, list(match.returns)) == (Ending.FINISHED, state.returns())

    def test_are_worth_an_eighth_of_a_chip_to_the_first_of_two_random_players(self):
        # Half the lines of play end in a showdown, which is even. The others: a bet is folded to a quarter of the time
        # and wins 1, and a check is bet against and folds an eighth of the time and loses 1.
        value = 0.0
        for cards, line in product(DEALS, lines()):
            match = dealt(cards)
            for move in line:
                match.apply(move)
            value += match.returns[0] * 0.5 ** len(line) / len(DEALS)

        assert value == pytest.approx(1 / 8)

    def test_reach_every_information_state_and_no_other(self):
        seen = set()
        for cards, line in product(DEALS, lines()):
            match = dealt(cards)
            for move in line:
                seen.add(information_state(match.observe(match.to_move)))
                match.apply(move)

        assert seen == set(INFORMATION_STATES)

    def test_let_an_illegal_move_end_the_match_for_the_referee_to_price(self):
        caller = ScriptedPlayer("caller", lambda observation: "[call]")

        (episode,) = play([referee(Start(ONE, (caller, caller), 0, play_seed=0, forfeit=Forfeit(-1.5, 0.5)))])

        assert (episode.ending, episode.offender, episode.returns) == (Ending.ILLEGAL_MOVE, 0, (-1.5, 0.5))
        assert episode.detail == "[call]"

    def test_read_moves_as_players_write_them(self):
        assert [ONE.canonical(text) for text in ("[bet]", " Bet", "[ FOLD ]", "raise", "[bet] [call]", "")] == [
            "[bet]",
            "[bet]",
            "[fold]",
            None,
            None,
            None,
        ]


class TestDeals:
    def test_are_the_same_for_the_same_seed(self):
        assert [FIVE.start(seed).cards for seed in range(20)] == [ONE.start(seed).cards for seed in range(20)]

    def test_are_all_as_likely(self):
        dealt_cards = [ONE.start(seed).cards for seed in range(6000)]

        for cards in DEALS:
            # A thousand each, and 29 a standard deviation: sqrt(6000 * 1/6 * 5/6).
            assert abs(dealt_cards.count(cards) - 1000) < 5 * 29


class TestSecrets:
    def test_no_seat_can_tell_the_cards_that_the_other_may_hold_apart(self):
        for mine in range(3):
            for seat in (0, 1):
                others = [card for card in range(3) if card != mine]
                for line in lines():
                    told = []
                    for other in others:
                        match = dealt((mine, other) if seat == 0 else (other, mine))
                        seen = [match.observe(seat)]
                        for move in line[:-1]:
                            match.apply(move)
                            seen.append(match.observe(seat))
                        told.append(seen)

                    assert told[0] == told[1]

    @pytest.mark.parametrize("game", [ONE, FIVE], ids=lambda game: game.name)
    def test_the_referee_tells_nobody_of_moves_beside_the_observation(self, game):
        histories = set()

        class Nosy(RandomPlayer):
            def ask(self, observation):
                histories.add(observation.history)
                return super().ask(observation)

        list(play(referee(Start(game, (Nosy(), Nosy()), seed, play_seed=seed)) for seed in range(20)))

        assert histories == {()}

    def test_a_finished_round_shows_no_cards(self):
        match = dealt((0, 2), FIVE)
        for move in ("[bet]", "[call]"):
            match.apply(move)

        told = match.observe(0).messages[0]["content"]

        assert "Player 1 wins 2 chips." in told
        assert told.count("Your card is") == 2
        assert "card is K" not in told.split("Round 2")[0]


class TestRounds:
    def test_start_with_either_seat_in_turn_and_score_chips(self):
        match, starters, chips = FIVE.start(7), [], [0.0, 0.0]
        for _ in range(5):
            starters.append(match.to_move)
            higher = 0 if match.cards[0] > match.cards[1] else 1
            match.apply("[bet]")
            match.apply("[call]")
            chips[higher] += 2
            chips[1 - higher] -= 2

        assert starters == [0, 1, 0, 1, 0]
        assert (match.ending, match.returns) == (Ending.FINISHED, tuple(chips))

    def test_are_read_one_at_a_time(self):
        match = FIVE.start(7)
        match.apply("[bet]")
        match.apply("[fold]")
        match.apply("[check]")

        seat = match.to_move

        assert (seat, information_state(match.observe(seat))) == (0, f"{match.cards[0]}p")

    def test_tell_a_conversation_only_what_is_new(self):
        match = dealt((0, 2))
        whole = match.observe(0)
        match.apply("[check]")
        match.apply("[bet]")

        assert whole.update == whole.messages[0]["content"]
        assert match.observe(0).update == "Player 1: [bet]\nYour legal moves: '[call]', '[fold]'"
