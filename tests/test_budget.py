import threading

import pytest

from trl_spiral.engines.budget import Budget


class TestBudget:
    def test_without_limits_is_never_spent(self):
        budget = Budget()

        assert all(budget.reserve(10**6) for _ in range(100))
        assert not budget.spent

    def test_grants_just_as_many_requests(self):
        budget = Budget(max_requests=3)

        assert [budget.reserve(5) for _ in range(5)] == [True, True, True, False, False]
        assert (budget.spent, budget.requests) == (True, 3)

    def test_counts_what_was_used_and_not_what_was_reserved(self):
        budget = Budget(max_tokens=100)
        for _ in range(4):
            assert budget.reserve(60)
            budget.settle(60, 12)

        assert (budget.tokens, budget.spent) == (48, False)

    def test_is_spent_by_a_request_that_may_cost_more_than_is_left(self):
        budget = Budget(max_tokens=100)
        budget.reserve(60)
        budget.settle(60, 50)

        assert not budget.reserve(51)
        # Not even a smaller one: the end is one end.
        assert budget.spent and not budget.reserve(1)
        assert budget.tokens == 50

    def test_what_is_under_way_counts_until_it_is_settled(self):
        budget = Budget(max_tokens=100)
        budget.reserve(60)
        granted = []
        waiting = threading.Thread(target=lambda: granted.append(budget.reserve(60)))
        waiting.start()
        waiting.join(0.05)
        before = list(granted)
        budget.settle(60, 40)
        waiting.join()

        assert (before, granted) == ([], [True])

    def test_whoever_waits_is_told_of_the_end(self):
        budget = Budget(max_tokens=100)
        budget.reserve(60)
        granted = []
        waiting = [threading.Thread(target=lambda: granted.append(budget.reserve(60))) for _ in range(4)]
        for thread in waiting:
            thread.start()
        budget.settle(60, 60)
        for thread in waiting:
            thread.join()

        assert granted == [False] * 4
        assert budget.spent

    def test_many_threads_never_go_beyond_it(self):
        budget, most = Budget(max_tokens=1000), []

        def ask():
            while budget.reserve(30):
                most.append(budget.tokens)
                budget.settle(30, 30)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert budget.tokens == 990  # 33 requests of 30; a 34th would make 1020
        assert len(most) == budget.requests == 33

    def test_goes_on_from_a_state_that_counts_what_was_under_way(self):
        budget = Budget(max_requests=2, max_tokens=100)
        budget.reserve(60)
        resumed = Budget(max_requests=2, max_tokens=100)
        resumed.load_state_dict(budget.state_dict())

        assert (resumed.requests, resumed.tokens) == (1, 60)
        assert not resumed.reserve(60)
        assert str(resumed) == "1 of 2 requests and 60 of 100 tokens"

    def test_a_larger_one_goes_on_where_a_smaller_one_was_spent(self):
        budget = Budget(max_requests=1)
        budget.reserve(1)
        larger = Budget(max_requests=2)
        larger.load_state_dict(budget.state_dict())

        assert budget.spent and not larger.spent

    @pytest.mark.parametrize(("limit", "spent"), [(100, True), (90, True), (101, False), (None, False)])
    def test_one_that_could_not_hold_a_request_stays_spent_until_it_is_larger(self, limit, spent):
        budget = Budget(max_tokens=100)
        budget.reserve(60)
        budget.settle(60, 50)
        budget.reserve(51)
        resumed = Budget(max_tokens=limit)
        resumed.load_state_dict(budget.state_dict())

        assert budget.spent
        assert resumed.spent is spent
        assert resumed.reserve(1) is not spent

    def test_what_was_never_sent_costs_nothing(self):
        budget = Budget(max_requests=1, max_tokens=100)
        budget.reserve(60)
        budget.settle(60, 50, sent=False)

        assert (budget.requests, budget.tokens, budget.spent) == (0, 0, False)
        assert budget.reserve(100)

    @pytest.mark.parametrize("limits", [{"max_requests": 0}, {"max_tokens": -5}])
    def test_refuses_one_that_holds_nothing(self, limits):
        with pytest.raises(ValueError, match="must be at least 1"):
            Budget(**limits)
