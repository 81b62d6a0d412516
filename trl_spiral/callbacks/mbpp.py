"""Grades at programming during training."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from transformers import Trainer
from trl import TrlParser

from trl_spiral import _trl
from trl_spiral.callbacks.grading import GradingCallback, check_at_least_one, check_not_negative
from trl_spiral.callbacks.problem_sets import load_code_problems
from trl_spiral.callbacks.trainer_policy import evaluation_player, share_of
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
from trl_spiral.evaluation.problems.code_settings import from_environment
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
"""Defaults of the settings that an environment variable can set."""


class MBPPCallback(GradingCallback):
    """
    Grades the policy at MBPP ([Austin et al. 2021](https://huggingface.co/papers/2108.07732)) before training, every
    `every` steps, and after.

    The ranks share the problems, which are always the same in the same order. Each program runs in a sandbox, against
    all tests of its problem. Logged as `mbpp_eval/pass_rate` (see `name`) with its 95 % interval (`pass_rate_low`,
    `pass_rate_high`), `mbpp_eval/problems_passed`, `total_problems`, `eval_time` in seconds, and the other numbers of
    [`~evaluation.problems.code.code_metrics`]. The numbers and every reply are written to `mbpp_eval/step{step}.json`
    in the output folder. See also [`GradingCallback`].

    Settings that are not given are read from the environment (`MBPP_DATASET_PATH`, `MBPP_EVAL_NUM_QUESTIONS`; see
    [`~evaluation.problems.code_settings.ENVIRONMENT`]), before the defaults below. [`MBPPParser`] adds YAML files.

    Args:
        trainer, every, prompt_style:
            See [`GradingCallback`].
        path (`str` or `Path`, *optional*):
            File of the set. By default, MBPP comes from the Hub.
        limit (`int`, *optional*):
            Number of problems, from the first one. Default: all.
        split (`str`, defaults to `"test"`):
            One of [`~evaluation.problems.code_sets.MBPP_SPLITS`]. HumanEval has none.
        samples (`int`, defaults to `1`):
            Programs for each problem.
        temperature (`float`, defaults to `0.0`):
            Temperature of the replies. The default is greedy, as in published scores; several samples need a
            temperature above 0. All other sampling options are the trainer's, in evaluation.
        max_new_tokens (`int`, *optional*):
            Token limit of a reply. Default: the trainer's in evaluation (`max_completion_length`), or 256 in a trainer
            that generates nothing, such as `SFTTrainer`.
        ks (`Sequence[int]`, *optional*):
            Values of k for which `mbpp_eval/pass@{k}` is logged. Default: those of 1, 5, 10, 25, 50 and 100 below
            `samples`, and `samples`.
        seed (`int`, defaults to `0`):
            Seed of the replies.
        problem_set (`str`, defaults to `"mbpp"`):
            Or `"humaneval"`, which needs a `path`.
        sandbox ([`~sandbox.Sandbox`], *optional*):
            Sandbox that runs the programs; it is not closed. Default: a [`~sandbox.LocalSandbox`] with
            [`~evaluation.problems.code.EVALUATION_LIMITS`] for each evaluation.
        name (`str`, *optional*):
            Prefix of the metrics and name of the folder. Default: `"mbpp_eval"` or `"humaneval_eval"`. It must be
            unique among the callbacks of a trainer.

    Raises:
        ValueError: If the problems cannot be loaded or a number is out of range. When training begins, if the
            trainer's model cannot be graded or another callback has the same name.
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
        values = (path, every, limit, split, samples, temperature, max_new_tokens)
        names = ("path", "every", "limit", "split", "samples", "temperature", "max_new_tokens")
        given = {key: value for key, value in zip(names, values, strict=True) if value is not None}
        settings = DEFAULTS | from_environment(problem_set) | given
        super().__init__(trainer, settings["every"], prompt_style)
        check_at_least_one(max_new_tokens=settings["max_new_tokens"])
        check_not_negative(settings["temperature"])
        check_samples(settings["samples"], settings["temperature"])
        self.samples = settings["samples"]
        self.temperature = settings["temperature"]
        self.max_new_tokens = settings["max_new_tokens"]
        self.seed = seed
        self.name = name or f"{problem_set}_eval"
        self.ks = choose_ks(self.samples, ks)
        self.problems = load_code_problems(problem_set, settings["path"], settings["split"], settings["limit"])
        self._sandbox = sandbox
        with self._opened() as opened:
            check_sandbox(opened)

    @property
    def key_metrics(self) -> list[str]:
        return [f"{self.name}/pass_rate"]

    def prepare(self) -> None:
        names = [each.name for each in self.trainer.callback_handler.callbacks if isinstance(each, MBPPCallback)]
        if names.count(self.name) > 1:
            raise ValueError(
                f"Two `MBPPCallback`s have the same `name` ({self.name}), so their metrics and files would overwrite "
                "each other. Give one of them another `name`."
            )
        super().prepare()

    def grade(self, step: int) -> dict[str, float]:
        begun = time.monotonic()
        with ExitStack() as opened:
            # If one rank fails at any of these, all ranks raise.
            sandbox = agree(lambda: opened.enter_context(self._opened()))
            engine = agree(lambda: opened.enter_context(_trl.open_engine(self.trainer)))
            mine = agree(
                lambda: self._attempts(engine, sandbox),
                lambda: _trl.restore_weights(self.trainer, engine),
            )
        attempts = sorted(gather_object(mine), key=lambda attempt: (attempt.number, attempt.sample))
        metrics = code_metrics(attempts, self.ks) | {"eval_time": time.monotonic() - begun}
        if self.trainer.is_world_process_zero():
            self._write(step, metrics, attempts)
        return {f"{self.name}/{name}": value for name, value in metrics.items()}

    def _attempts(self, engine, sandbox: Sandbox) -> list[CodeAttempt]:
        """Answer and judge this rank's share of the problems. Ranks that share an engine send the same requests."""
        share, keeps = share_of(self.trainer, self.problems)
        player = evaluation_player(self.trainer, self.temperature, self.prompt_style, self.max_new_tokens)
        attempts = write_programs(share, player, engine, self.samples, self.seed)
        return judge_programs(share, attempts, sandbox) if keeps else []

    def _opened(self):
        """Return the sandbox as a context manager."""
        return LocalSandbox(EVALUATION_LIMITS) if self._sandbox is None else nullcontext(self._sandbox)

    def _write(self, step: int, metrics: dict[str, float], attempts: Sequence[CodeAttempt]) -> None:
        file = Path(self.trainer.args.output_dir) / self.name / f"step{step}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "step": step,
            "temperature": self.temperature,
            "samples": self.samples,
            "seed": self.seed,
            "summary": metrics,
            "problems": records(self.problems, attempts),
        }
        file.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        logger.info("Wrote %d programs to %s.", len(attempts), file)


# ---- settings from a YAML file and a command line ----
@dataclass
class MBPPArguments:
    """
    Arguments of [`MBPPCallback`], to parse together with those of a trainer.

    ```python
    parser = MBPPParser((GRPOConfig, ModelConfig, MBPPArguments))
    args, model_args, mbpp_args = parser.parse_args_and_config()
    trainer.add_callback(MBPPCallback(trainer, **mbpp_args.given()))
    ```
    """

    mbpp_path: str | None = field(default=None, metadata={"help": "File of MBPP. By default it comes from the Hub."})
    mbpp_split: str | None = field(default=None, metadata={"help": "Split of MBPP."})
    mbpp_limit: int | None = field(default=None, metadata={"help": "Number of problems, from the first one."})
    mbpp_every: int | None = field(default=None, metadata={"help": "Steps between evaluations."})
    mbpp_samples: int | None = field(default=None, metadata={"help": "Programs for each problem."})
    mbpp_temperature: float | None = field(default=None, metadata={"help": "Temperature of the replies."})
    mbpp_max_new_tokens: int | None = field(default=None, metadata={"help": "Token limit of a reply."})

    def given(self) -> dict[str, Any]:
        """Return the arguments that are set, by the callback's names."""
        named = {one.name.removeprefix("mbpp_"): getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


class MBPPParser(TrlParser):
    """
    TRL's parser, with MBPP's environment variables between the YAML file and the command line.

    Precedence: arguments, then the environment, then the YAML file, then values from `set_defaults`.
    """

    def parse_args_into_dataclasses(self, *args: Any, **kwargs: Any) -> Any:
        # TRL calls this once it has read the file, and argparse uses defaults last.
        self.set_defaults_with_config(**{f"mbpp_{name}": value for name, value in from_environment().items()})
        return super().parse_args_into_dataclasses(*args, **kwargs)
