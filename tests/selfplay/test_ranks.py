"""Ranks that fail, or lose their weights, as one rank sees them."""

import pytest

from trl_spiral.selfplay.ranks import MAX_RESTORES, Ranks
from trl_spiral.selfplay.referee import WeightsLost


class TwoRanks(Ranks):
    """Rank 0 of two, with what the other rank sends."""

    def __init__(self, *sent):
        self.sent = list(sent)
        self.received = []

    def gather(self, items):
        self.received.append(items)
        return [*items, *self.sent.pop(0)] if self.sent else items


def fail():
    raise KeyError("lost")


class Flaky:
    """Work that loses its weights a few times."""

    def __init__(self, times):
        self.times, self.calls, self.restored = times, 0, 0

    def work(self):
        self.calls += 1
        if self.calls <= self.times:
            raise WeightsLost("The server was started again.")
        return self.calls

    def restore(self):
        self.restored += 1


class TestAgree:
    def test_returns_the_result_even_if_it_is_none(self):
        assert Ranks().agree(lambda: 3) == 3
        assert Ranks().agree(lambda: None) is None

    def test_raises_its_own_error_after_it_is_sent(self):
        ranks = TwoRanks()
        with pytest.raises(KeyError, match="lost"):
            ranks.agree(fail)

        assert ranks.received == [[(True, "KeyError: 'lost'")]]

    def test_raises_with_another_rank(self):
        with pytest.raises(RuntimeError, match="Rank 1 has failed, and this rank stops with it: KeyError: 'lost'"):
            TwoRanks([(True, "KeyError: 'lost'")]).agree(lambda: 3)

    def test_repeats_work_that_lost_its_weights(self):
        flaky = Flaky(times=2)

        assert Ranks().agree(flaky.work, flaky.restore) == 3
        assert flaky.restored == 2

    def test_restores_with_another_rank_and_keeps_its_own_result(self):
        flaky = Flaky(times=0)

        assert TwoRanks([(True, "")], [(False, "")]).agree(flaky.work, flaky.restore) == 1
        assert (flaky.calls, flaky.restored) == (1, 1)

    def test_gives_up_after_a_few_times(self):
        flaky = Flaky(times=99)
        with pytest.raises(RuntimeError, match=f"lost its weights {MAX_RESTORES + 1} times in one batch"):
            Ranks().agree(flaky.work, flaky.restore)

    def test_does_not_repeat_without_a_way_to_restore(self):
        flaky = Flaky(times=1)
        with pytest.raises(WeightsLost):
            Ranks().agree(flaky.work)
