"""All copies of the temperature that TRL makes, for sampling and for scoring samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.utils import is_peft_model


if TYPE_CHECKING:
    from trl import GRPOTrainer


def temperature_cells(trainer: GRPOTrainer) -> list[Any]:
    """
    Return the closure cells with the temperature of the models that a trainer scores with.

    TRL builds it into their forward pass. Call this before training, which may wrap that forward pass.

    Raises:
        RuntimeError: If it is not found. The loss would then use another temperature than sampling.
    """
    return [_temperature_cell(model) for model in (trainer.model, trainer.ref_model) if model is not None]


def _temperature_cell(model: Any) -> Any:
    while hasattr(model, "module"):  # a reference model is wrapped in multi-process runs
        model = model.module
    forward = (model.get_base_model() if is_peft_model(model) else model).forward
    while forward is not None:
        function = getattr(forward, "__func__", forward)
        names = function.__code__.co_freevars if hasattr(function, "__code__") else ()
        if "temperature" in names:
            return function.__closure__[names.index("temperature")]
        forward = getattr(function, "__wrapped__", None)
    raise RuntimeError(
        f"The temperature at which {type(model).__name__} scores replies was not found: TRL builds it into the model "
        "by `add_fused_lm_head`. Leave `temperature_ref_std` out, and report the version of TRL."
    )


def set_temperature(trainer: GRPOTrainer, temperature: float, cells: list[Any]) -> None:
    """Set all copies of the temperature: the one for sampling, and those for scoring."""
    trainer.temperature = temperature
    if trainer.use_vllm:
        trainer.vllm_generation.temperature = temperature
    else:
        trainer.generation_config.temperature = temperature
        trainer.generation_kwargs["temperature"] = temperature
    for cell in cells:
        cell.cell_contents = temperature
