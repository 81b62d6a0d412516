"""
Players with theory behind them, through the one game loop:

1.  A perfect tic-tac-toe player loses to nobody, and two of them draw; a perfect Nim player wins whatever can be won.
2.  An equilibrium player plays its equilibrium's odds, in every round and every seat, and nobody wins from it.
3.  A tree search finds wins and stops losses from the moves alone, and beats random players.
4.  All of them take the same move for the same seed, and are refused for games that they know nothing of.
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
    """What the seat to move is asked after `moves`, as the referee would ask it."""
    history = []
    for move in moves:
        history.append((match.to_move, move))
        match.apply(move)
    seen = match.observe(match.to_move)
    return Observation(seen.game, seen.seat, seen.messages, seen.update, seen.legal_actions, seed, (), tuple(history))


class TestHistory:
    def test_holds_every_move_so_far_where_nothing_is_hidden(self):
        seen = []

        class Spy(RandomPlayer):
            def ask(self, observation):
                seen.append(observation)
                return super().ask(observation)

        (episode,) = play([referee(Start(TICTACTOE, (Spy(), Spy()), seed=3, play_seed=3, opening=2))])

        # The first decision comes after a random opening of two moves, and knows of it.
        assert [observation.history for observation in seen] == [
            episode.moves[:known] for known in range(2, len(episode.moves))
        ]


class TestMinimaxPlayer:
    @pytest.mark.parametrize("seat", [0, 1])
    def test_never_loses_whatever_the_other_does(self, seat):
        # Every game that the other seat can force, to its end, against two ways to choose among perfect moves.
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

    def test_wins_nim_from_either_seat_once_the_other_errs(self):
        # Piles of 3, 4 and 5 have an exclusive or of 2: whoever starts wins by taking 2 of the first.
        first = play_matches(NIM, MinimaxPlayer("Nim-v0"), RandomPlayer(), seat=0, games=50)
        second = play_matches(NIM, MinimaxPlayer("Nim-v0"), RandomPlayer(), seat=1, games=50)

        assert {episode.moves[0] for episode in first} == {(0, "[0 2]")}
        assert tally(first, 0)["win"] == 1.0
        # A random player starts with the one right move in a twelfth of its games, and must then go on like that.
        assert tally(second, 1)["win"] > 0.9

    def test_is_refused_for_games_that_are_not_solved(self):
        with pytest.raises(ValueError, match="no minimax player for ConnectFour-v0: only TicTacToe-v0 and Nim-v0"):
            MinimaxPlayer("ConnectFour-v0")


class TestEquilibriumPlayer:
    @pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
    def test_cannot_be_exploited_as_it_really_plays(self, alpha):
        pytest.importorskip("pyspiel")
        player, taken = EquilibriumPlayer("Kuhn-v0", alpha), {state: Counter() for state in INFORMATION_STATES}

        class Spy(ScriptedPlayer):
            """Counts what the player does, wherever a random opponent takes it."""

            def ask(self, observation):
                turn = player.ask(observation)
                taken[KuhnPoker().information_state(observation)][turn.action] += 1
                return turn

        spy = Spy("spy", None)
        for seat in (0, 1):
            play_matches(KUHN, spy, RandomPlayer(), seat, games=8000)
        seen = {
            # A king that is always bet is never asked again, whoever it meets.
            state: {move: count / moves.total() for move, count in moves.items()} if moves else table
            for (state, moves), table in zip(taken.items(), kuhn_equilibrium(alpha).values(), strict=True)
        }

        # What is left is the noise of counting so many decisions, at most 0.017 in 200 simulations of it. A jack that the
        # second seat bets 60 % of the time instead of a third costs 0.044.
        assert exploitability("Kuhn-v0", seen.__getitem__) < 0.02

    def test_holds_its_value_against_players_that_never_fold_or_always_do(self):
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

    def test_plays_each_round_by_its_own_cards(self):
        five = get_game("Kuhn-v0-5")
        player = EquilibriumPlayer("Kuhn-v0-5", alpha=0.0)
        seen = []

        class Spy(ScriptedPlayer):
            def ask(self, observation):
                turn = player.ask(observation)
                seen.append((KuhnPoker().information_state(observation), turn.action))
                return turn

        play_matches(five, Spy("spy", None), RandomPlayer(), seat=0, games=200)

        # With `alpha` 0, these have no two ways.
        settled = {"0": "[check]", "1": "[check]", "2": "[check]", "2p": "[bet]", "1p": "[check]", "2b": "[call]"}
        assert settled.keys() <= {state for state, _ in seen}
        assert all(settled.get(state, action) == action for state, action in seen)

    def test_throws_everything_a_third_of_the_time(self):
        game, player = get_game("RockPaperScissors-v0"), EquilibriumPlayer("RockPaperScissors-v0")

        throws = Counter(e.moves[0][1] for e in play_matches(game, player, RandomPlayer(), seat=0, games=3000))

        for throw in THROWS:
            # 26 is a standard deviation: sqrt(3000 * 1/3 * 2/3).
            assert abs(throws[throw] - 1000) < 5 * 26

    def test_comes_close_to_leducs_equilibrium_in_few_iterations(self):
        pyspiel = pytest.importorskip("pyspiel")
        table = leduc_equilibrium(iterations=50)
        policy = pyspiel.TabularPolicy(
            {state: [(ACTIONS[move], share) for move, share in moves.items()] for state, moves in table.items()}
        )

        assert len(table) == 936
        # Uniform play has 4.7472, this 0.068, and the thousand iterations of the player 0.0005.
        assert pyspiel.nash_conv(pyspiel.load_game("leduc_poker"), policy) < 0.1

    def test_plays_legally_in_leduc_by_a_solution_found_once(self, monkeypatch):
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

        # 0.7 chips a game in 3,000 games, with a standard deviation of 4.2: 280 are expected, give or take 84.
        assert won > 0

    def test_of_leduc_is_refused_at_once_without_openspiel(self, monkeypatch):
        monkeypatch.setattr(equilibrium, "find_spec", lambda name: None)

        with pytest.raises(ImportError, match=r"Leduc poker is found by OpenSpiel.*pip install trl-spiral\[eval\]"):
            EquilibriumPlayer("Leduc-v0")

    @pytest.mark.parametrize("name", ["Kuhn-v0-3p", "LiarsDice-v1-1"])
    def test_is_refused_where_there_are_three_seats_or_no_solution(self, name):
        with pytest.raises(ValueError, match=f"no equilibrium player for {name}: only those of Kuhn-v0, Leduc-v0 and"):
            EquilibriumPlayer(name)

    def test_is_refused_where_none_is_known(self):
        with pytest.raises(ValueError, match=r"`alpha` \(0.5\) must be in \[0, 1/3\]"):
            EquilibriumPlayer("Kuhn-v0", alpha=0.5)
        with pytest.raises(ValueError, match="no equilibrium player for PigDice-v0-50"):
            EquilibriumPlayer("PigDice-v0-50")


class TestMCTSPlayer:
    @pytest.mark.parametrize("seat", [0, 1])
    def test_beats_a_random_player(self, seat):
        episodes = play_matches(TICTACTOE, MCTSPlayer(TICTACTOE), RandomPlayer(), seat, games=20)

        # A perfect player wins 96.8 % as first and 77.8 % as second (test_tictactoe.py), a player who also sets traps
        # more; a random one wins 58.5 % and 28.8 %.
        assert tally(episodes, seat)["win"] >= 0.9
        assert tally(episodes, seat)["loss"] == 0.0

    @pytest.mark.parametrize(
        ("moves", "only"),
        [
            # The first seat, which plays O, has 0 and 1 and wins by 2.
            (("[0]", "[3]", "[1]", "[4]"), "[2]"),
            # The second seat has to stop the first's 0, 1, 2.
            (("[0]", "[4]", "[1]"), "[2]"),
        ],
    )
    def test_takes_a_win_and_stops_a_loss(self, moves, only):
        observation = asked(TICTACTOE.start(0), moves)
        assert read_board(observation)[2] == "." and len(empty_cells(read_board(observation))) > 1

        assert MCTSPlayer(TICTACTOE).ask(observation).action == only

    def test_wins_for_whoever_moves_among_three(self):
        # Seven stones, of which the second seat finds two left: it takes both, or leaves the win to the third.
        observation = asked(LastStone().start(0), ("[2]", "[1]", "[1]", "[1]"))
        assert observation.seat == 1

        assert MCTSPlayer(LastStone(), 100).ask(observation).action == "[2]"

    def test_leaves_the_match_at_the_table_alone_and_repeats_itself(self):
        observation = asked(TICTACTOE.start(0), ("[4]",), seed=11)
        player = MCTSPlayer(TICTACTOE, 50)

        answers = {player.ask(observation).action for _ in range(3)}

        assert len(answers) == 1

    def test_is_refused_where_something_is_hidden_or_left_to_chance(self):
        for name in ("Kuhn-v0", "PigDice-v0-50", "RockPaperScissors-v0"):
            with pytest.raises(ValueError, match=f"no 'mcts' player for {name}: .* without chance or secrets"):
                MCTSPlayer(get_game(name))
        with pytest.raises(ValueError, match=r"`simulations` \(0\) must be at least 1"):
            MCTSPlayer(TICTACTOE, 0)


class TestScriptedPlayer:
    @pytest.mark.parametrize(
        ("name", "game", "called"),
        [
            ("random", "PigDice-v0-50", "random"),
            ("minimax", "TicTacToe-v0", "minimax"),
            ("equilibrium", "Kuhn-v0-5", "equilibrium"),
            ("mcts", "ConnectFour-v0", "mcts-200"),
            ("mcts-50", "TicTacToe-v0", "mcts-50"),
            ("hold-20", "PigDice-v0-50", "hold-20"),
            ("hold-25", "PigDice-v0-50", "hold-25"),
            ("random", "LiarsDice-v1-5", "random"),
            ("odds", "LiarsDice-v1-2-3p", "odds"),
            ("random", "KuhnPoker-v1", "random"),
            ("random", "SimpleNegotiation-v2", "random"),
            ("greedy", "SimpleNegotiation-v2", "greedy"),
        ],
    )
    def test_is_made_by_its_name_for_a_game(self, name, game, called):
        player = scripted_player(name, get_game(game))

        assert player.name == called
        match = get_game(game).start(0)
        assert match.apply(player.ask(asked(match)).action) is not None

    @pytest.mark.parametrize(
        "name", ["minmax", "mcts-", "mcts-x", "mcts--5", "random-3", "hold", "hold-", "hold-x", ""]
    )
    def test_is_refused_where_no_such_name_is_known(self, name):
        with pytest.raises(ValueError, match=f"no scripted player called '{name}'. Choose 'random', 'minimax'"):
            scripted_player(name, TICTACTOE)

    def test_is_refused_where_the_name_means_nothing_in_the_game(self):
        with pytest.raises(ValueError, match="no minimax player for Kuhn-v0"):
            scripted_player("minimax", KUHN)
        with pytest.raises(ValueError, match="no 'mcts' player for Kuhn-v0"):
            scripted_player("mcts", KUHN)
