"""
Minimax, equilibrium and MCTS players, tested through the game loop:

1.  A minimax player of tic-tac-toe never loses, and two of them draw. In Nim it wins every position that can be won.
2.  An equilibrium player plays the probabilities of its equilibrium, in every round and seat, and cannot be exploited.
3.  MCTS finds wins and blocks losses from the history, and beats random players.
4.  Each of them takes the same move for the same seed, and refuses games that it does not play.
"""

import math
from collections import Counter

import pytest

from tests.helpers.games import LastStone
from trl_spiral.evaluation.exact.exploitability import exploitability
from trl_spiral.evaluation.matches import play_matches, tally
from trl_spiral.games import Match, get_game
from trl_spiral.games.kuhn import INFORMATION_STATES, KuhnPoker
from trl_spiral.games.leduc import ACTIONS
from trl_spiral.games.rock_paper_scissors import THROWS
from trl_spiral.games.tictactoe import empty_cells, read_board
from trl_spiral.players import RandomPlayer, ScriptedPlayer, equilibrium
from trl_spiral.players.equilibrium import EquilibriumPlayer, kuhn_equilibrium, leduc_equilibrium
from trl_spiral.players.mcts import MCTSPlayer
from trl_spiral.players.minimax import MinimaxPlayer
from trl_spiral.players.names import scripted_player
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.types import Ending, Observation


TICTACTOE, NIM, KUHN = get_game("TicTacToe-v0"), get_game("Nim-v0"), get_game("Kuhn-v0")


def asked(match: Match, moves=(), seed=0) -> Observation:
    """Return the observation that the referee passes to the seat to move after `moves`."""
    history = []
    for move in moves:
        history.append((match.to_move, move))
        match.apply(move)
    seen = match.observe(match.to_move)
    return Observation(seen.game, seen.seat, seen.messages, seen.update, seen.legal_actions, seed, (), tuple(history))


class TestHistory:
    def test_contains_every_move_in_games_of_perfect_information(self):
        seen = []

        class Spy(RandomPlayer):
            def ask(self, observation):
                seen.append(observation)
                return super().ask(observation)

        (episode,) = play([referee(Start(TICTACTOE, (Spy(), Spy()), seed=3, play_seed=3, opening=2))])

        # The first decision comes after a random opening of two moves, which the history contains.
        assert [observation.history for observation in seen] == [
            episode.moves[:known] for known in range(2, len(episode.moves))
        ]


class TestMinimaxPlayer:
    @pytest.mark.parametrize("seat", [0, 1])
    def test_never_loses_against_any_play(self, seat):
        # All games that the other seat can force, each with two seeds for the choice among perfect moves.
        for seed in (0, 1):
            player, lost, open_lines = MinimaxPlayer(), 0, [()]
            while open_lines:
                moves = open_lines.pop()
                match = TICTACTOE.start(0)
                for move in moves:
                    match.apply(move)
                if match.to_move is None:
                    lost += match.returns[seat] < 0
                elif match.to_move == seat:
                    open_lines.append((*moves, player.ask(asked(TICTACTOE.start(0), moves, seed)).action))
                else:
                    open_lines += [(*moves, move) for move in match.legal_actions()]

            assert lost == 0

    def test_draws_against_itself(self):
        episodes = play_matches(TICTACTOE, MinimaxPlayer(), MinimaxPlayer(), seat=0, games=50)

        assert all(episode.is_draw and episode.ending is Ending.FINISHED for episode in episodes)
        assert len({episode.moves for episode in episodes}) > 25

    def test_wins_nim_from_either_seat_after_a_mistake(self):
        # Piles of 3, 4 and 5 have an exclusive or of 2: the first player wins by taking 2 from the first pile.
        first = play_matches(NIM, MinimaxPlayer("Nim-v0"), RandomPlayer(), seat=0, games=50)
        second = play_matches(NIM, MinimaxPlayer("Nim-v0"), RandomPlayer(), seat=1, games=50)

        assert {episode.moves[0] for episode in first} == {(0, "[0 2]")}
        assert tally(first, 0)["win"] == 1.0
        # A random player starts with the one right move in a twelfth of its games, and must then find all others.
        assert tally(second, 1)["win"] > 0.9

    def test_refuses_games_that_are_not_solved(self):
        with pytest.raises(ValueError, match="no minimax player for ConnectFour-v0: only TicTacToe-v0 and Nim-v0"):
            MinimaxPlayer("ConnectFour-v0")


class TestEquilibriumPlayer:
    @pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
    def test_cannot_be_exploited(self, alpha):
        pytest.importorskip("pyspiel")
        player, taken = EquilibriumPlayer("Kuhn-v0", alpha), {state: Counter() for state in INFORMATION_STATES}

        class Spy(ScriptedPlayer):
            """Counts the moves of the player at each state that a random opponent leads to."""

            def ask(self, observation):
                turn = player.ask(observation)
                taken[KuhnPoker().information_state(observation)][turn.action] += 1
                return turn

        spy = Spy("spy", None)
        for seat in (0, 1):
            play_matches(KUHN, spy, RandomPlayer(), seat, games=8000)
        seen = {
            # A seat that always bets its king makes no second decision with it.
            state: {move: count / moves.total() for move, count in moves.items()} if moves else table
            for (state, moves), table in zip(taken.items(), kuhn_equilibrium(alpha).values(), strict=True)
        }

        # The rest is sampling noise, at most 0.017 in 200 simulations. If the second seat bet a jack 60 % of the time
        # instead of a third, exploitability would be 0.044.
        assert exploitability("Kuhn-v0", seen.__getitem__) < 0.02

    def test_keeps_the_value_of_the_game_against_players_that_always_or_never_fold(self):
        def stubborn(observation):
            return "[call]" if "[call]" in observation.legal_actions else "[bet]"

        def timid(observation):
            return "[fold]" if "[fold]" in observation.legal_actions else "[check]"

        for seat, value in ((0, -1 / 18), (1, 1 / 18)):
            for choose in (stubborn, timid):
                episodes = play_matches(
                    KUHN, EquilibriumPlayer("Kuhn-v0"), ScriptedPlayer("other", choose), seat, games=4000
                )
                mean = math.fsum(episode.returns[seat] for episode in episodes) / len(episodes)

                # A game pays at most 2, so the mean's standard deviation is below 2 / sqrt(4000) = 0.032.
                assert mean > value - 5 * 0.032

    def test_plays_each_round_separately(self):
        five = get_game("Kuhn-v0-5")
        player = EquilibriumPlayer("Kuhn-v0-5", alpha=0.0)
        seen = []

        class Spy(ScriptedPlayer):
            def ask(self, observation):
                turn = player.ask(observation)
                seen.append((KuhnPoker().information_state(observation), turn.action))
                return turn

        play_matches(five, Spy("spy", None), RandomPlayer(), seat=0, games=200)

        # With `alpha` 0, each of these states has one move.
        settled = {"0": "[check]", "1": "[check]", "2": "[check]", "2p": "[bet]", "1p": "[check]", "2b": "[call]"}
        assert settled.keys() <= {state for state, _ in seen}
        assert all(settled.get(state, action) == action for state, action in seen)

    def test_plays_each_throw_a_third_of_the_time(self):
        game, player = get_game("RockPaperScissors-v0"), EquilibriumPlayer("RockPaperScissors-v0")

        throws = Counter(e.moves[0][1] for e in play_matches(game, player, RandomPlayer(), seat=0, games=3000))

        for throw in THROWS:
            # 26 is a standard deviation: sqrt(3000 * 1/3 * 2/3).
            assert abs(throws[throw] - 1000) < 5 * 26

    def test_leduc_converges_in_few_iterations(self):
        pyspiel = pytest.importorskip("pyspiel")
        table = leduc_equilibrium(iterations=50)
        policy = pyspiel.TabularPolicy(
            {state: [(ACTIONS[move], share) for move, share in moves.items()] for state, moves in table.items()}
        )

        assert len(table) == 936
        # NashConv of uniform play is 4.7472, here 0.068, and 0.0005 after the 1,000 iterations of the player.
        assert pyspiel.nash_conv(pyspiel.load_game("leduc_poker"), policy) < 0.1

    def test_plays_legal_moves_in_leduc(self, monkeypatch):
        pytest.importorskip("pyspiel")
        solved = leduc_equilibrium(iterations=50)
        monkeypatch.setattr(equilibrium, "leduc_equilibrium", lambda: solved)
        leduc = get_game("Leduc-v0")

        player = scripted_player("equilibrium", leduc)

        won = 0.0
        for seat in (0, 1):
            episodes = play_matches(leduc, player, RandomPlayer(), seat, games=200)
            assert {episode.ending for episode in episodes} == {Ending.FINISHED}
            won += sum(episode.returns[seat] for episode in episodes)

        # It wins 0.7 chips per game over 3,000 games, with a standard deviation of 4.2: here 280 +- 84 are expected.
        assert won > 0

    def test_refuses_leduc_without_openspiel(self, monkeypatch):
        monkeypatch.setattr(equilibrium, "find_spec", lambda name: None)

        with pytest.raises(ImportError, match=r"Leduc poker is found by OpenSpiel.*pip install trl-spiral\[eval\]"):
            EquilibriumPlayer("Leduc-v0")

    @pytest.mark.parametrize("name", ["Kuhn-v0-3p", "LiarsDice-v1-1"])
    def test_refuses_games_with_three_seats_or_no_solution(self, name):
        with pytest.raises(ValueError, match=f"no equilibrium player for {name}: only those of Kuhn-v0, Leduc-v0 and"):
            EquilibriumPlayer(name)

    def test_refuses_parameters_outside_the_equilibria(self):
        with pytest.raises(ValueError, match=r"`alpha` \(0.5\) must be in \[0, 1/3\]"):
            EquilibriumPlayer("Kuhn-v0", alpha=0.5)
        with pytest.raises(ValueError, match="no equilibrium player for PigDice-v0-50"):
            EquilibriumPlayer("PigDice-v0-50")


class TestMCTSPlayer:
    @pytest.mark.parametrize("seat", [0, 1])
    def test_beats_a_random_player(self, seat):
        episodes = play_matches(TICTACTOE, MCTSPlayer(TICTACTOE), RandomPlayer(), seat, games=20)

        # A perfect player wins 96.8 % as first and 77.8 % as second (test_tictactoe.py), and one that also sets traps
        # wins more. A random player wins 58.5 % and 28.8 %.
        assert tally(episodes, seat)["win"] >= 0.9
        assert tally(episodes, seat)["loss"] == 0.0

    @pytest.mark.parametrize(
        ("moves", "only"),
        [
            # The first seat, which plays O, has 0 and 1 and wins by 2.
            (("[0]", "[3]", "[1]", "[4]"), "[2]"),
            # The second seat must block 0, 1, 2.
            (("[0]", "[4]", "[1]"), "[2]"),
        ],
    )
    def test_takes_a_win_and_blocks_a_loss(self, moves, only):
        observation = asked(TICTACTOE.start(0), moves)
        assert read_board(observation)[2] == "." and len(empty_cells(read_board(observation))) > 1

        assert MCTSPlayer(TICTACTOE).ask(observation).action == only

    def test_maximizes_the_return_of_the_seat_to_move_among_three(self):
        # The second seat finds two of seven stones: it takes both, or the third seat wins.
        observation = asked(LastStone().start(0), ("[2]", "[1]", "[1]", "[1]"))
        assert observation.seat == 1

        assert MCTSPlayer(LastStone(), 100).ask(observation).action == "[2]"

    def test_does_not_change_the_match_and_is_deterministic(self):
        observation = asked(TICTACTOE.start(0), ("[4]",), seed=11)
        player = MCTSPlayer(TICTACTOE, 50)

        answers = {player.ask(observation).action for _ in range(3)}

        assert len(answers) == 1

    def test_refuses_games_with_hidden_information_or_chance(self):
        for name in ("Kuhn-v0", "PigDice-v0-50", "RockPaperScissors-v0"):
            with pytest.raises(
                ValueError, match=f"no 'mcts' player for {name}: .* deterministic game of perfect information"
            ):
                MCTSPlayer(get_game(name))
        with pytest.raises(ValueError, match=r"`simulations` \(0\) must be at least 1"):
            MCTSPlayer(TICTACTOE, 0)
