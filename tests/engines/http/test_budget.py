import asyncio

import pytest

from trl_spiral.engines.http.budget import Budget


def reserve(budget, *tokens, sent=True):
    """Reserve tokens one after the other, and return which were granted. By default each request is sent at once."""

    async def grants():
        granted = []
        for number in tokens:
            granted.append(await budget.reserve(number))
            if granted[-1] and sent:
                budget.sent()
        return granted

    return asyncio.run(grants())


class TestBudget:
    def test_without_limits_is_never_spent(self):
        budget = Budget()

        assert all(reserve(budget, *[10**6] * 100))
        assert not budget.spent

    def test_grants_exactly_max_requests(self):
        budget = Budget(max_requests=3)

        assert reserve(budget, *[5] * 5) == [True, True, True, False, False]
        assert (budget.spent, budget.requests) == (True, 3)

    def test_counts_used_tokens_not_reserved_ones(self):
        budget = Budget(max_tokens=100)
        for _ in range(4):
            assert reserve(budget, 60) == [True]
            budget.settle(60, 12)

        assert (budget.tokens, budget.spent) == (48, False)

    def test_is_spent_by_a_request_that_may_cost_more_than_the_rest(self):
        budget = Budget(max_tokens=100)
        reserve(budget, 60)
        budget.settle(60, 50)

        assert reserve(budget, 51) == [False]
        # A smaller request is refused as well.
        assert budget.spent and reserve(budget, 1) == [False]
        assert budget.tokens == 50

    def test_a_reservation_counts_until_it_is_settled(self):
        budget = Budget(max_tokens=100)

        async def ask():
            await budget.reserve(60)
            waiting = asyncio.create_task(budget.reserve(60))
            await asyncio.sleep(0)
            before = waiting.done()
            budget.settle(60, 40, sent=False)
            return before, await waiting

        assert asyncio.run(ask()) == (False, True)

    def test_others_wait_for_an_unsent_request_but_not_for_a_sent_one(self):
        budget = Budget(max_requests=1)

        async def ask():
            await budget.reserve(60)
            spent = budget.spent
            waiting = [asyncio.create_task(budget.reserve(60)) for _ in range(4)]
            await asyncio.sleep(0)
            before = [task.done() for task in waiting]
            budget.sent()
            return spent, before, await asyncio.gather(*waiting)

        assert asyncio.run(ask()) == (False, [False] * 4, [False] * 4)

    def test_all_waiting_requests_are_refused_at_the_end(self):
        budget = Budget(max_tokens=100)

        async def ask():
            await budget.reserve(60)
            budget.sent()
            waiting = [asyncio.create_task(budget.reserve(60)) for _ in range(4)]
            await asyncio.sleep(0)
            budget.settle(60, 60)
            return await asyncio.gather(*waiting)

        assert asyncio.run(ask()) == [False] * 4
        assert budget.spent

    def test_many_tasks_never_exceed_it(self):
        budget, most = Budget(max_tokens=1000), []

        async def ask():
            while await budget.reserve(30):
                await asyncio.sleep(0)
                budget.sent()
                await asyncio.sleep(0)
                most.append(budget.tokens + budget._reserved)
                budget.settle(30, 30)

        async def ask_all():
            await asyncio.gather(*(ask() for _ in range(8)))

        asyncio.run(ask_all())

        assert budget.tokens == 990  # 33 requests of 30; a 34th would make 1020
        assert len(most) == budget.requests == 33
        assert max(most) == 990

    def test_a_saved_state_includes_reservations(self):
        budget = Budget(max_requests=2, max_tokens=100)
        reserve(budget, 60, sent=False)
        resumed = Budget(max_requests=2, max_tokens=100)
        resumed.load_state_dict(budget.state_dict())

        assert (resumed.requests, resumed.tokens) == (1, 60)
        assert reserve(resumed, 60) == [False]
        assert str(resumed) == "1 of 2 requests and 60 of 100 tokens"

    def test_a_spent_budget_can_be_resumed_with_a_higher_limit(self):
        budget = Budget(max_requests=1)
        reserve(budget, 1)
        larger = Budget(max_requests=2)
        larger.load_state_dict(budget.state_dict())

        assert budget.spent and not larger.spent

    @pytest.mark.parametrize(("limit", "spent"), [(100, True), (90, True), (101, False), (None, False)])
    def test_a_limit_too_small_for_a_request_stays_spent_until_it_is_raised(self, limit, spent):
        budget = Budget(max_tokens=100)
        reserve(budget, 60)
        budget.settle(60, 50)
        reserve(budget, 51)
        resumed = Budget(max_tokens=limit)
        resumed.load_state_dict(budget.state_dict())

        assert budget.spent
        assert resumed.spent is spent
        assert reserve(resumed, 1) == [not spent]

    def test_an_unsent_request_costs_nothing(self):
        budget = Budget(max_requests=1, max_tokens=100)
        reserve(budget, 60, sent=False)
        budget.settle(60, 50, sent=False)

        assert (budget.requests, budget.tokens, budget.spent) == (0, 0, False)
        assert reserve(budget, 100) == [True]

    @pytest.mark.parametrize("limits", [{"max_requests": 0}, {"max_tokens": -5}])
    def test_refuses_a_limit_below_1(self, limits):
        with pytest.raises(ValueError, match="must be at least 1"):
            Budget(**limits)
