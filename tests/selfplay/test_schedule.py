"""Seeds, seats and games of each episode."""

import pytest

from tests.helpers.games import AskingPlayer, EchoEngine, LastStone, ShortOrLong
from trl_spiral.players import RandomPlayer
from trl_spiral.selfplay.referee import play
from trl_spiral.selfplay.schedule import Schedule, played_games
from trl_spiral.selfplay.settings import SelfPlaySettings
from trl_spiral.types import POLICY


def itself(policy, seats, seed):
    return (policy,) * seats


def schedule(games=None, settings=None, **changes):
    given = dict(player=AskingPlayer(name=POLICY), matchmaker=itself, seed=7)
    return Schedule(games or [LastStone(), ShortOrLong()], settings or SelfPlaySettings(), **{**given, **changes})


def episodes(made, numbers=range(8)):
    found = play((made.episode(number) for number in numbers), EchoEngine())
    return sorted(found, key=lambda episode: episode.counter)


class TestSchedule:
    def test_makes_equal_episodes_for_equal_numbers(self):
        assert episodes(schedule()) == episodes(schedule())
        assert episodes(schedule(), [5]) == episodes(schedule())[5:6]

    def test_depends_on_seed_and_purpose(self):
        seeds = [
            {episode.seed for episode in episodes(made)}
            for made in (schedule(), schedule(seed=8), schedule(purpose="eval"))
        ]

        assert len(set.union(*seeds)) == 3 * 8

    def test_interleaves_the_counters_of_ranks(self):
        counters = [
            [episode.counter for episode in episodes(schedule(rank=rank, world_size=3), range(2))] for rank in range(3)
        ]

        assert counters == [[0, 3], [1, 4], [2, 5]]

    def test_lets_a_group_share_start_and_seats(self):
        def seat(policy, seats, seed):
            return [policy if place == seed % seats else RandomPlayer() for place in range(seats)]

        settings = SelfPlaySettings(games_per_start=4, opening_moves=2)
        made = episodes(schedule([LastStone()], settings, matchmaker=seat), range(12))
        groups = [made[first : first + 4] for first in range(0, 12, 4)]

        for group in groups:
            assert len({(one.seed, one.players, one.opening) for one in group}) == 1
        assert len({group[0].seed for group in groups}) == 3

    def test_plays_games_by_their_shares(self):
        assert {episode.game for episode in episodes(schedule(shares=[0.0, 1.0]))} == {"ShortOrLong"}


class TestPriming:
    def test_divides_the_games_among_ranks(self):
        settings = SelfPlaySettings(priming_games=7)
        counters = [
            [
                episode.counter
                for episode in play(schedule(settings=settings, rank=rank, world_size=2).priming_episodes())
            ]
            for rank in range(2)
        ]

        assert counters == [[0, 2, 4, 6], [1, 3, 5]]

    def test_plays_only_games_with_a_share(self):
        made = schedule(settings=SelfPlaySettings(priming_games=4), shares=[1.0, 0.0])

        assert {episode.game for episode in play(made.priming_episodes())} == {"LastStone"}
        assert played_games(made.games, made.shares) == [made.games[0]]


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"sample_unit": "game"}, "`sample_unit` .'game'. must be 'turn' or 'trajectory'"),
            ({"prompt_style": "qwen"}, "`prompt_style` .'qwen'. must be 'chat' or one of"),
            ({"opening_moves": -1}, r"`opening_moves` \(-1\) must be at least 0"),
            ({"games_per_start": 0}, r"`games_per_start` \(0\) must be at least 1"),
            ({"max_draw_retries": -1}, r"`max_draw_retries` \(-1\) must be at least 0"),
            ({"priming_games": -1}, r"`priming_games` \(-1\) must be at least 0"),
            ({"games_in_flight": 0}, r"`games_in_flight` \(0\) must be at least 1, or unset"),
        ],
    )
    def test_are_checked(self, changes, message):
        with pytest.raises(ValueError, match=message):
            SelfPlaySettings(**changes)

    def test_name_the_one_that_needs_legal_moves(self):
        assert SelfPlaySettings().needs_legal_moves is None
        assert SelfPlaySettings(opening_moves=1, priming_games=1).needs_legal_moves == "opening_moves"
