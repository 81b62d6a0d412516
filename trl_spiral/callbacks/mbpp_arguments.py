"""Settings of [`~callbacks.MBPPCallback`] for scripts that read a YAML file and a command line."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from trl import TrlParser

from trl_spiral.evaluation.problems.code_settings import from_environment


@dataclass
class MBPPArguments:
    """
    Arguments of [`~callbacks.MBPPCallback`], to be parsed beside a trainer's. What is not given has the callback's default.

    ```python
    parser = MBPPParser((GRPOConfig, ModelConfig, MBPPArguments))
    args, model_args, mbpp_args = parser.parse_args_and_config()
    trainer.add_callback(MBPPCallback(trainer, **mbpp_args.given()))
    ```
    """

    mbpp_path: str | None = field(default=None, metadata={"help": "File of MBPP. By default it comes from the Hub."})
    mbpp_split: str | None = field(default=None, metadata={"help": "Split of MBPP."})
    mbpp_limit: int | None = field(default=None, metadata={"help": "How many problems are asked, from the first on."})
    mbpp_every: int | None = field(default=None, metadata={"help": "Steps between evaluations."})
    mbpp_samples: int | None = field(default=None, metadata={"help": "Programs for each problem."})
    mbpp_temperature: float | None = field(default=None, metadata={"help": "At which the policy answers."})
    mbpp_max_new_tokens: int | None = field(default=None, metadata={"help": "Longest reply."})

    def given(self) -> dict[str, Any]:
        """Those that are given, under the callback's names."""
        named = {one.name.removeprefix("mbpp_"): getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


class MBPPParser(TrlParser):
    """
    TRL's parser, with the environment's settings of MBPP between the YAML file and the command line.

    So an argument goes before the environment, the environment before the file, and the file before what was set with
    `set_defaults`, such as a platform's defaults.
    """

    def parse_args_into_dataclasses(self, *args: Any, **kwargs: Any) -> Any:
        # TRL calls this when it has read the file, and argparse looks at defaults last.
        self.set_defaults_with_config(**{f"mbpp_{name}": value for name, value in from_environment().items()})
        return super().parse_args_into_dataclasses(*args, **kwargs)
