"""
Promises of the game loop:

1.  The same seeds give the same episode, independent of other games and of the order of replies.
2.  At most `in_flight` games are in progress, and a game that ends makes room at once.
3.  Pending requests are aborted whenever the loop ends early.
4.  A drawn game is played again, and the tokens of discarded attempts are counted.
5.  A forfeit has the returns of `Forfeit`; after a lost player or a failing environment, all returns are zero.
6.  A random opening is legal, ends no game, depends only on the match's seed, and contains no turn of a player.
7.  The iterator of games may return "not now", and is called again once an episode has ended.
8.  Errors in players are raised with the name of the player.
"""

import itertools
from collections import Counter
from dataclasses import fields, replace

import pytest

from tests.helpers.games import AskingPlayer, EchoEngine, LastStone, LastStoneMatch, ShortOrLong
from trl_spiral.games import Game, Traits, get_game
from trl_spiral.players import Player, RandomPlayer, ScriptedPlayer
from trl_spiral.selfplay.referee import Forfeit, Playing, Start, play, referee, until_decided
from trl_spiral.types import POLICY, Ending, Episode, Observation, Turn


GAMES: list[Game] = [
    get_game("TicTacToe-v0"),
    get_game("PigDice-v0-50"),
    get_game("ConnectFour-v0"),
    get_game("Nim-v0"),
    LastStone(),
    ShortOrLong(),
]
ANSWERS = ["all", "reverse", "oldest", "newest"]

# First seat 0, 8, 7, 2, 3 and second 4, 1, 6, 5: neither has three in a row.
DRAWN_TICTACTOE = (0, 4, 8, 1, 7, 6, 2, 5, 3)
# The first seat takes the left column while the second looks on.
WON_TICTACTOE = (0, 1, 3, 4, 6)


def start(game: Game, player: Player, number: int, **options) -> Start:
    return Start(game, (player,) * game.traits.seats, seed=number, play_seed=1000 + number, counter=number, **options)


def games(player: Player, numbers: range, **options) -> list[Playing]:
    """One game per number, in turn from the games above."""
    return [referee(start(GAMES[number % len(GAMES)], player, number, **options)) for number in numbers]


def by_counter(episodes) -> list[Episode]:
    return sorted(episodes, key=lambda episode: episode.counter)


def follows(cells: tuple[int, ...]) -> AskingPlayer:
    """Plays both seats of tic-tac-toe through an engine, from a list of cells."""

    def choose(observation: Observation) -> int:
        assert observation.legal_actions is not None
        taken = 9 - len(observation.legal_actions)
        return observation.legal_actions.index(f"[{cells[taken]}]")

    return AskingPlayer(choose)


def gives_up(name: str = "quitter", **turn) -> ScriptedPlayer:
    player = ScriptedPlayer(name, lambda observation: None)
    player.ask = lambda observation: Turn(action=None, **turn)
    return player


class TestDeterminism:
    """Promise 1."""

    def test_equal_seeds_give_equal_episodes_alone_and_in_parallel(self):
        player = RandomPlayer()
        alone = [next(play([playing])) for playing in games(player, range(30))]

        together = by_counter(play(games(player, range(30))))

        assert together == alone

    @pytest.mark.parametrize("answers", ANSWERS)
    @pytest.mark.parametrize("in_flight", [1, 7, 100])
    def test_the_order_of_answers_and_the_number_in_flight_change_nothing(self, answers, in_flight):
        player = AskingPlayer()
        alone = [next(play([playing], EchoEngine())) for playing in games(player, range(12))]

        together = by_counter(play(games(player, range(12)), EchoEngine(answers), in_flight))

        assert together == alone

    def test_a_scripted_and_an_asking_player_share_a_table(self):
        game = get_game("TicTacToe-v0")
        table = (AskingPlayer(), RandomPlayer())

        (episode,) = play([referee(Start(game, table, seed=0, play_seed=0))], EchoEngine())

        assert episode.players == ("asking", "random")
        assert {turn.policy for turn in episode.trajectories[0].turns} == {POLICY}
        assert {turn.policy for turn in episode.trajectories[1].turns} == {None}

    def test_other_seeds_give_other_episodes(self):
        game = get_game("TicTacToe-v0")
        player = RandomPlayer()

        episodes = play(referee(Start(game, (player, player), seed=0, play_seed=number)) for number in range(20))

        # 255,168 games of tic-tac-toe exist; a repetition among 20 random ones is less likely than 1 in 10.
        assert len({episode.moves for episode in episodes}) >= 19

    def test_every_decision_has_its_own_seed(self):
        seeds = []

        def choose(observation: Observation) -> int:
            seeds.append(observation.seed)
            return 0

        list(play(games(AskingPlayer(choose), range(12)), EchoEngine()))

        assert len(set(seeds)) == len(seeds)


class TestReferee:
    def test_passes_a_seat_its_own_earlier_turns(self):
        seen = []

        def choose(observation: Observation) -> str:
            seen.append((observation.seat, [turn.action for turn in observation.turns]))
            return "[1]"

        list(play([referee(start(LastStone(), ScriptedPlayer("one", choose), number=0))]))

        # Seven stones, one a turn: the first seat moves three times and takes the last.
        assert seen == [(seat, ["[1]"] * earlier) for earlier in range(3) for seat in range(3)][:7]

    @pytest.mark.parametrize(
        ("game", "is_duel"),
        [(get_game("TicTacToe-v0"), True), (get_game("CodeGame-v0"), False), (LastStone(), False)],
    )
    def test_marks_zero_sum_games_for_two(self, game, is_duel):
        seen = []
        player = ScriptedPlayer("leaver", lambda observation: seen.append(observation.is_duel))
        list(play([referee(start(game, player, number=0))]))

        assert seen == [is_duel]

    def test_adds_seed_and_turns_to_the_observation(self):
        # Every field is unlike its default, so one that is forgotten on the way shows.
        message = {"role": "user", "content": "Go."}
        shown = Observation("LastStone", 0, (message,), "Go!", ("[1]",), seed=-1, asks_program=True, is_duel=False)
        assert all(
            getattr(shown, field.name) != field.default
            for field in fields(Observation)
            if field.name not in ("turns", "history")
        )

        class Quiet(LastStoneMatch):
            def observe(self, seat):
                return replace(shown, seat=seat)

        class QuietLastStone(LastStone):
            def start(self, seed):
                return Quiet(self, stones=2)

        seen = []
        player = ScriptedPlayer("one", lambda observation: seen.append(observation) or "[1]")
        list(play([referee(start(QuietLastStone(), player, number=0))]))

        assert [replace(observation, seed=-1, history=()) for observation in seen] == [shown, replace(shown, seat=1)]
        assert [observation.history for observation in seen] == [(), ((0, "[1]"),)]
        assert -1 not in {observation.seed for observation in seen}

    @pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
    def test_an_episode_can_be_replayed(self, game):
        for episode in play(referee(start(game, RandomPlayer(), number, opening=1)) for number in range(5)):
            match = game.start(episode.seed)
            for seat, move in episode.moves:
                assert match.to_move == seat
                assert match.apply(move) == move

            assert (match.ending, match.returns) == (episode.ending, episode.returns)
            assert episode.order == tuple(seat for seat, _ in episode.moves[episode.opening :])
            assert [len(seat.turns) for seat in episode.trajectories] == [
                episode.order.count(seat) for seat in range(game.traits.seats)
            ]

    def test_three_seats_take_turns_and_share_the_loss(self):
        episodes = list(play(referee(start(LastStone(), RandomPlayer(), number)) for number in range(20)))

        assert all(sorted(episode.returns) == [-0.5, -0.5, 1.0] for episode in episodes)
        assert all(episode.order == tuple(turn % 3 for turn in range(len(episode.order))) for episode in episodes)
        assert len({episode.returns for episode in episodes}) == 3

    def test_the_seed_alone_makes_a_game_short_or_long(self):
        episodes = by_counter(play(referee(start(ShortOrLong(), RandomPlayer(), number)) for number in range(10)))

        assert [len(episode.order) for episode in episodes] == [1, 9] * 5

    def test_refuses_a_wrong_number_of_players(self):
        table = (RandomPlayer(), RandomPlayer())

        with pytest.raises(ValueError, match="LastStone has 3 seats, and 2 players were passed"):
            list(play([referee(Start(LastStone(), table, seed=0, play_seed=0))]))


class TestInFlight:
    """Promises 2 and 3."""

    @pytest.mark.parametrize("answers", ANSWERS)
    def test_limits_the_number_of_games_in_progress(self, answers):
        engine = EchoEngine(answers)
        started, ended = [], 0

        def source():
            for number, playing in enumerate(games(AskingPlayer(), range(40))):
                started.append(number)
                assert len(started) - ended <= 5
                yield playing

        for _ in play(source(), engine, in_flight=5):
            ended += 1

        assert (ended, engine.most_waiting) == (40, 5)

    def test_a_game_that_ends_makes_room_for_another(self):
        # Eight games of one turn and one of nine. With room for two, the long one keeps its place and the short ones
        # pass through the other; were the loop to wait for pairs, the long one would end before the third began.
        seeds = [1, 0, 0, 0, 0, 0, 0, 0, 0]
        player = AskingPlayer()
        source = (
            referee(Start(ShortOrLong(), (player, player), seed, play_seed=0, counter=number))
            for number, seed in enumerate(seeds)
        )

        ended = [episode.counter for episode in play(source, EchoEngine(), in_flight=2)]

        assert sorted(ended) == list(range(9))
        assert ended[:7] == [1, 2, 3, 4, 5, 6, 7]

    def test_games_start_when_there_is_room(self):
        started = itertools.count()

        def source():
            for playing in games(AskingPlayer(), range(40)):
                next(started)
                yield playing

        next(play(source(), EchoEngine(), in_flight=3))

        assert next(started) <= 4

    def test_pending_requests_are_aborted_when_the_consumer_stops(self):
        engine = EchoEngine("oldest")
        episodes = play(games(AskingPlayer(), range(40)), engine, in_flight=8)
        next(episodes)
        waiting = set(engine.waiting)

        episodes.close()

        assert len(waiting) == 7
        assert set(engine.aborted) == waiting
        assert not engine.waiting

    def test_pending_requests_are_aborted_when_a_player_raises(self):
        engine = EchoEngine()
        calls = itertools.count()

        def choose(observation: Observation) -> int:
            if next(calls) == 20:
                raise ZeroDivisionError("a bug in a player")
            return 0

        with pytest.raises(ZeroDivisionError, match="a bug in a player"):
            list(play(games(AskingPlayer(choose), range(40)), engine, in_flight=8))

        assert engine.aborted
        assert not engine.waiting

    def test_nothing_is_aborted_when_all_games_have_ended(self):
        engine = EchoEngine()

        list(play(games(AskingPlayer(), range(6)), engine))

        assert (engine.aborted, engine.waiting) == ([], {})

    @pytest.mark.parametrize("in_flight", [0, -1])
    def test_refuses_zero_games_in_flight(self, in_flight):
        with pytest.raises(ValueError, match=f"`in_flight` \\({in_flight}\\) must be at least 1"):
            list(play(games(RandomPlayer(), range(1)), in_flight=in_flight))


class TestUntilDecided:
    """Promise 4."""

    @staticmethod
    def attempts(*scripts: tuple[int, ...], max_retries: int, **options) -> Episode:
        """Plays tic-tac-toe by one script per attempt."""
        playing = until_decided(
            lambda attempt: Start(
                get_game("TicTacToe-v0"), (follows(scripts[attempt]),) * 2, seed=attempt, play_seed=0, **options
            ),
            max_retries,
        )
        (episode,) = play([playing], EchoEngine())
        return episode

    def test_keeps_a_draw_without_retries(self):
        episode = self.attempts(DRAWN_TICTACTOE, max_retries=0)

        assert (episode.is_draw, episode.discarded_tokens, len(episode.order)) == (True, 0, 9)

    def test_plays_a_draw_again_and_counts_its_tokens(self):
        episode = self.attempts(DRAWN_TICTACTOE, DRAWN_TICTACTOE, WON_TICTACTOE, max_retries=5)

        # One token a turn, and two drawn games of nine turns.
        assert (episode.returns, episode.discarded_tokens, episode.seed) == ((1.0, -1.0), 18, 2)

    def test_keeps_the_last_attempt_even_if_drawn(self):
        episode = self.attempts(DRAWN_TICTACTOE, DRAWN_TICTACTOE, max_retries=1)

        assert (episode.is_draw, episode.discarded_tokens, episode.seed) == (True, 9, 1)

    def test_does_not_count_tokens_of_other_players(self):
        table = (follows(DRAWN_TICTACTOE), AskingPlayer(follows(DRAWN_TICTACTOE).choose, policy="step-100"))
        playing = until_decided(lambda attempt: Start(get_game("TicTacToe-v0"), table, attempt, 0), max_retries=1)

        (episode,) = play([playing], EchoEngine())

        # The first seat takes five of the nine turns.
        assert episode.discarded_tokens == 5

    def test_does_not_repeat_a_forfeit(self):
        table = (gives_up(), RandomPlayer())
        seen = []

        def starts(attempt: int) -> Start:
            seen.append(attempt)
            free = replace(get_game("TicTacToe-v0"), traits=Traits(lowest=0.0))
            return Start(free, table, attempt, 0, forfeit=Forfeit(0.0, 0.0))

        (episode,) = play([until_decided(starts, max_retries=3)])

        assert (seen, episode.ending) == ([0], Ending.ILLEGAL_MOVE)

    def test_does_not_repeat_a_broken_game(self):
        table = (gives_up(lost=True), RandomPlayer())
        seen = []

        def starts(attempt: int) -> Start:
            seen.append(attempt)
            return Start(get_game("TicTacToe-v0"), table, attempt, 0)

        (episode,) = play([until_decided(starts, max_retries=3)])

        assert (seen, episode.ending) == ([0], Ending.PLAYER_LOST)


class TestForfeit:
    """Promise 5."""

    @pytest.mark.parametrize("offender", [0, 1])
    @pytest.mark.parametrize(
        ("forfeit", "cost", "gain"),
        [(Forfeit(), -1.0, 1.0), (Forfeit(-1.5, 0.5), -1.5, 0.5)],  # the second as SPIRAL itself trained
    )
    @pytest.mark.parametrize(("reply", "ending"), [({}, Ending.ILLEGAL_MOVE), ({"truncated": True}, Ending.TRUNCATED)])
    def test_costs_the_offender_and_pays_the_other(self, offender, forfeit, cost, gain, reply, ending):
        table = [RandomPlayer(), RandomPlayer()]
        table[offender] = gives_up(**reply)

        (episode,) = play([referee(Start(get_game("TicTacToe-v0"), table, 0, 0, forfeit=forfeit))])

        assert (episode.ending, episode.offender) == (ending, offender)
        assert episode.returns[offender] == cost
        assert episode.returns[1 - offender] == gain
        assert episode.trajectories[offender].turns[-1].action is None

    def test_is_the_same_for_an_illegal_move_and_no_move(self):
        cheat = ScriptedPlayer("cheat", lambda observation: "[9]")

        (episode,) = play([referee(start(get_game("TicTacToe-v0"), cheat, number=0))])

        assert (episode.ending, episode.offender, episode.returns) == (Ending.ILLEGAL_MOVE, 0, (-1.0, 1.0))
        assert episode.moves == ()
        assert [len(seat.turns) for seat in episode.trajectories] == [1, 0]

    def test_is_shared_by_all_others_at_a_table_of_three(self):
        table = (RandomPlayer(), gives_up(), RandomPlayer())

        (episode,) = play([referee(Start(LastStone(), table, 0, 0))])

        assert (episode.offender, episode.returns) == (1, (0.5, -1.0, 0.5))

    def test_of_a_single_seat_has_one_return(self):
        assert Forfeit().returns(Traits(seats=1), offender=0) == (-1.0,)

    @pytest.mark.parametrize(
        ("game", "forfeit", "returns"),
        [
            ("Leduc-v0", Forfeit(), (-13.0, 13.0)),
            ("Leduc-v0", Forfeit(-14.0, 0.0), (-14.0, 0.0)),
            ("Kuhn-v0", Forfeit(-1.5, 0.5), (-2.0, 2.0)),
            ("Kuhn-v0-3p", Forfeit(), (-2.0, 1.0, 1.0)),
            ("Kuhn-v0-5", Forfeit(), (-10.0, 10.0)),
            ("KuhnPoker-v1", Forfeit(), (-1.0, 1.0)),
            ("TicTacToe-v0", Forfeit(-1.5, 0.5), (-1.5, 0.5)),
        ],
    )
    def test_is_never_better_than_the_worst_of_the_rules(self, game, forfeit, returns):
        assert forfeit.returns(get_game(game).traits, offender=0) == returns

    def test_a_lost_player_leaves_all_returns_zero(self):
        table = (RandomPlayer(), gives_up(lost=True, truncated=True), RandomPlayer())

        (episode,) = play([referee(Start(LastStone(), table, 0, 0))])

        assert (episode.ending, episode.offender, episode.returns) == (Ending.PLAYER_LOST, 1, (0.0, 0.0, 0.0))

    def test_a_turn_limit_leaves_all_returns_zero(self):
        capped = replace(get_game("PigDice-v0-50"), max_turns=4)

        (episode,) = play([referee(start(capped, RandomPlayer(), number=0))])

        assert (episode.ending, episode.offender, episode.returns) == (Ending.TURN_LIMIT, None, (0.0, 0.0))
        assert len(episode.order) == 4


class TestOpening:
    """Promise 6."""

    @pytest.mark.parametrize("game", GAMES[:5], ids=lambda game: game.name)
    def test_is_legal_and_ends_no_game(self, game):
        for episode in play(referee(start(game, RandomPlayer(), number, opening=5)) for number in range(20)):
            match = game.start(episode.seed)
            for _, move in episode.moves[: episode.opening]:
                assert move in match.legal_actions()
                match.apply(move)

            assert match.to_move is not None
            assert episode.opening <= 5
            assert len(episode.order) == len(episode.moves) - episode.opening > 0

    def test_has_the_requested_length_if_the_game_allows(self):
        # Nobody can have won tic-tac-toe before the fifth move.
        episodes = play(referee(start(GAMES[0], RandomPlayer(), number, opening=4)) for number in range(20))

        assert {episode.opening for episode in episodes} == {4}

    def test_is_shorter_if_every_game_would_end(self):
        # An even seed makes a game of one turn, which leaves no room for an opening at all.
        (episode,) = play([referee(start(ShortOrLong(), RandomPlayer(), number=0, opening=3))])

        assert (episode.opening, len(episode.order)) == (0, 1)

    def test_depends_only_on_the_seed_of_the_match(self):
        game, player = get_game("TicTacToe-v0"), RandomPlayer()

        episodes = list(
            play(referee(Start(game, (player, player), seed=7, play_seed=n, opening=3)) for n in range(10))
        )

        assert len({episode.moves[:3] for episode in episodes}) == 1
        assert len({episode.moves for episode in episodes}) > 1

    def test_differs_between_seeds(self):
        episodes = play(referee(start(GAMES[0], RandomPlayer(), number, opening=3)) for number in range(30))

        # 9 * 8 * 7 = 504 openings of three moves.
        assert len({episode.moves[:3] for episode in episodes}) > 20

    def test_is_uniform_over_legal_moves(self):
        episodes = play(referee(start(GAMES[0], RandomPlayer(), number, opening=1)) for number in range(1800))

        counts = Counter(episode.moves[0] for episode in episodes)

        # 200 expected of each of nine cells, with a standard deviation of sqrt(1800 * 1/9 * 8/9) = 13.3.
        assert len(counts) == 9
        assert all(abs(count - 200) < 5 * 13.4 for count in counts.values())

    def test_needs_a_game_that_lists_its_moves(self):
        free_text = replace(get_game("Nim-v0"), legal=None)

        with pytest.raises(ValueError, match="Nim-v0 cannot list its legal moves.*`opening_moves=0`"):
            list(play([referee(start(free_text, RandomPlayer(), number=0, opening=1))]))


class TestPlay:
    """Promises 7 and 8."""

    def test_calls_the_iterator_again_after_not_now(self):
        waiting_room = games(AskingPlayer(), range(10))
        log = []

        def source():
            # One at a time: the next is needed only once the last has ended.
            for number, playing in enumerate(waiting_room):
                while len(ended) < number:
                    log.append("not now")
                    yield None
                yield playing

        ended = []
        for episode in play(source(), EchoEngine(), in_flight=4):
            ended.append(episode.counter)

        assert ended == list(range(10))
        assert log

    def test_calls_the_iterator_again_at_once_without_games(self):
        playing = games(RandomPlayer(), range(2))

        episodes = list(play([None, playing[0], None, None, playing[1]]))

        assert [episode.counter for episode in episodes] == [0, 1]

    def test_plays_an_empty_iterator(self):
        assert list(play([])) == []
        assert list(play([], EchoEngine())) == []

    @pytest.mark.parametrize("answer", ["[4]", None, 4])
    def test_names_a_player_that_returns_something_else(self, answer):
        class Stranger(RandomPlayer):
            def ask(self, observation):
                return answer

        with pytest.raises(TypeError, match=f"'stranger' returned a {type(answer).__name__} in TicTacToe-v0"):
            list(play([referee(start(GAMES[0], Stranger("stranger"), number=0))]))

    @pytest.mark.parametrize("answer", ["[4]", None, 4])
    def test_names_a_player_that_returns_something_else_for_a_reply(self, answer):
        class Stranger(AskingPlayer):
            def answer(self, observation, request, reply):
                return answer

        with pytest.raises(
            TypeError, match=f"'stranger' returned a {type(answer).__name__} for a reply in TicTacToe-v0"
        ):
            list(play([referee(start(GAMES[0], Stranger(name="stranger"), number=0))], EchoEngine()))

    def test_refuses_a_request_without_an_engine(self):
        with pytest.raises(
            ValueError, match="'asking' needs an engine for its moves, and `play` was called without one"
        ):
            list(play(games(AskingPlayer(), range(1))))
