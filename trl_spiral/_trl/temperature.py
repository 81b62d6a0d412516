"""Every copy that TRL makes of its temperature, found and set: for sampling, and for scoring what was sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelerate.utils import is_peft_model


if TYPE_CHECKING:
    from trl import GRPOTrainer


def temperature_cells(trainer: GRPOTrainer) -> list[Any]:
    """
    Where the models that a trainer scores with keep their temperature: TRL builds it into their forward pass.

    To be called before training, which may wrap that forward pass into others.

    Raises:
        RuntimeError: If it is not found, since then the loss would go by another temperature than sampling.
    """
    return [_temperature_cell(model) for model in (trainer.model, trainer.ref_model) if model is not None]


def _temperature_cell(model: Any) -> Any:
    while hasattr(model, "module"):  # as several processes wrap a reference model
        model = model.module
    forward = (model.get_base_model() if is_peft_model(model) else model).forward
    while forward is not None:
        function = getattr(forward, "__func__", forward)
        names = function.__code__.co_freevars if hasattr(function, "__code__") else ()
        if "temperature" in names:
            return function.__closure__[names.index("temperature")]
        forward = getattr(function, "__wrapped__", None)
    raise RuntimeError(
        f"The temperature at which {type(model).__name__} scores replies was not found: TRL builds it into the model by "
        "`add_fused_lm_head`. Leave `temperature_ref_std` out, and report the version of TRL."
    )


def set_temperature(trainer: GRPOTrainer, temperature: float, cells: list[Any]) -> None:
    """Sets every copy of the temperature that TRL made: that it samples with, and those that it scores with."""
    trainer.temperature = temperature
    if trainer.use_vllm:
        trainer.vllm_generation.temperature = temperature
    else:
        trainer.generation_config.temperature = temperature
        trainer.generation_kwargs["temperature"] = temperature
    for cell in cells:
        cell.cell_contents = temperature
