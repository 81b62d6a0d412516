"""Fakes for rewards: a sandbox with scripted results, and TRL's logging functions."""


def fenced(program):
    return f"Here it is:\n```python\n{program}\n```\n"


class FakeSandbox:
    """Returns scripted results, and records its calls."""

    def __init__(self, outcomes=(), verdicts=()):
        self.outcomes, self.verdicts, self.asked = list(outcomes), list(verdicts), []

    def run(self, jobs):
        self.asked.append(list(jobs))
        return [self.outcomes.pop(0) for _ in jobs]

    def judge(self, trials):
        self.asked.append(list(trials))
        return [self.verdicts.pop(0) for _ in trials]


class Log:
    """Records the calls of TRL's `log_metric` and `log_extra`."""

    def __init__(self):
        self.metrics, self.columns = {}, {}

    def __call__(self, reward, completions, **columns):
        return reward(
            completions=completions,
            prompts=[""] * len(completions),
            log_metric=self.metrics.__setitem__,
            log_extra=self.columns.__setitem__,
            **columns,
        )
