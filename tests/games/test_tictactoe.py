import math
from collections import Counter

import pytest

from trl_spiral.games import get_game
from trl_spiral.games.tictactoe import (
    EMPTY,
    NAME,
    MoveDistribution,
    board_observation,
    decision_boards,
    empty_cells,
    exact_outcome,
    minimax_moves,
    minimax_policy,
    minimax_value,
    place_mark,
    to_move,
    uniform_policy,
    winner,
)
from trl_spiral.players import RandomPlayer
from trl_spiral.selfplay.referee import Start, referee
from trl_spiral.selfplay.referee import play as play_episodes
from trl_spiral.types import Episode


def episodes(player, count: int) -> list[Episode]:
    game = get_game(NAME)
    return list(play_episodes(referee(Start(game, (player, player), seed, play_seed=seed)) for seed in range(count)))


class TestBoards:
    def test_are_4520_with_a_seat_to_move(self):
        # Of 5,478 reachable boards, 958 are final: 626 won by the first seat, 316 by the second, 16 drawn.
        boards = decision_boards()

        assert len(boards) == len(set(boards)) == 4520
        final = {place_mark(board, cell) for board in boards for cell in empty_cells(board)} - set(boards)
        assert Counter(map(winner, final)) == {0: 626, 1: 316, None: 16}

    def test_are_marked_by_the_seat_to_move(self):
        assert to_move(EMPTY) == 0
        assert place_mark(EMPTY, 4) == "....O...."
        assert place_mark("....O....", 0) == "X...O...."

    def test_offer_no_cell_after_a_win(self):
        assert empty_cells("OOOXX....") == ()
        assert empty_cells("OO.XX....") == (2, 5, 6, 7, 8)


class TestMinimax:
    def test_values_the_game_at_a_draw(self):
        assert minimax_value(EMPTY) == 0
        assert minimax_moves(EMPTY) == tuple(range(9))

    def test_takes_a_win_and_stops_a_loss(self):
        assert (minimax_value("OO.XX...."), minimax_moves("OO.XX....")) == (1, (2,))
        # The second seat moves, and the first threatens the top row.
        assert (minimax_value("OO..X...."), minimax_moves("OO..X....")) == (0, (2,))

    def test_answers_a_corner_with_the_center(self):
        assert minimax_moves("O........") == (4,)

    def test_never_loses(self):
        for seat in (0, 1):
            assert exact_outcome(minimax_policy, uniform_policy, seat).loss == pytest.approx(0, abs=1e-12)
            assert exact_outcome(minimax_policy, minimax_policy, seat).draw == pytest.approx(1)


class TestExactOutcome:
    @pytest.mark.parametrize(
        ("player", "seat", "expected"),
        [
            # Uniform random against uniform random: first wins .5849, second .2881, drawn .1270.
            (uniform_policy, 0, (0.5849, 0.1270, 0.2881)),
            (uniform_policy, 1, (0.2881, 0.1270, 0.5849)),
            # Uniform over minimax moves against uniform random.
            (minimax_policy, 0, (0.9678, 0.0322, 0.0)),
            (minimax_policy, 1, (0.7775, 0.2225, 0.0)),
        ],
    )
    def test_equals_the_known_numbers(self, player, seat, expected):
        outcome = exact_outcome(player, uniform_policy, seat)

        assert (outcome.win, outcome.draw, outcome.loss) == pytest.approx(expected, abs=5e-5)
        assert outcome.illegal == pytest.approx(0, abs=1e-12)
        assert outcome.non_loss == outcome.win + outcome.draw

    def test_counts_an_illegal_reply_as_a_loss(self):
        # A tenth of its first replies is illegal and loses at once. Otherwise, both continue at random.
        def clumsy(board: str) -> MoveDistribution:
            return dict.fromkeys(range(9), 0.1) if board == EMPTY else uniform_policy(board)

        outcome = exact_outcome(clumsy, uniform_policy, seat=0)

        assert outcome.illegal == pytest.approx(0.1)
        assert outcome.win == pytest.approx(0.9 * exact_outcome(uniform_policy, uniform_policy, 0).win)
        assert outcome.win + outcome.draw + outcome.loss == pytest.approx(1)

    def test_counts_an_illegal_reply_of_the_rival_as_a_win(self):
        outcome = exact_outcome(uniform_policy, lambda board: {}, seat=0)

        assert (outcome.win, outcome.illegal) == (pytest.approx(1), 0.0)

    def test_agrees_with_played_games(self):
        exact = exact_outcome(uniform_policy, uniform_policy, seat=0)
        games = 2000

        returns = Counter(episode.returns for episode in episodes(RandomPlayer(), games))

        for seen, probability in [((1.0, -1.0), exact.win), ((0.0, 0.0), exact.draw), ((-1.0, 1.0), exact.loss)]:
            deviation = math.sqrt(games * probability * (1 - probability))
            assert abs(returns[seen] - games * probability) < 5 * deviation


class TestBoardObservation:
    def test_equals_the_observation_of_any_match(self):
        shown = []

        class Spy(RandomPlayer):
            def ask(self, observation):
                shown.append(observation)
                return super().ask(observation)

        boards = []
        for episode in episodes(Spy(), 60):
            board = EMPTY
            for _, move in episode.moves:
                boards.append(board)
                board = place_mark(board, int(move[1]))
        # Scripted games are played one after another, so observations are in the order of the moves.
        assert len(shown) == len(boards) > 400

        for board, real in zip(boards, shown, strict=True):
            rebuilt = board_observation(board)
            assert (rebuilt.messages, rebuilt.update) == (real.messages, real.update)
            assert (rebuilt.seat, rebuilt.legal_actions) == (real.seat, real.legal_actions)

    def test_differs_between_boards(self):
        # A sample, since each board needs a match.
        boards = decision_boards()[::20]

        assert len({board_observation(board).messages[0]["content"] for board in boards}) == len(boards)

    def test_refuses_a_final_board(self):
        with pytest.raises(ValueError, match="No seat is to move at 'OOOXX....'"):
            board_observation("OOOXX....")
