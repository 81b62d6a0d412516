"""GRPO, Dr. GRPO, GPG, REINFORCE and RLOO by name over TRL's trainer, with an adaptive temperature."""

from __future__ import annotations

from trl_spiral.algorithms.config import ALGORITHMS, AlgorithmConfig
from trl_spiral.algorithms.trainer import AlgorithmMixin, AlgorithmTrainer
from trl_spiral.training.base_trainer import AdvantageMixin


__all__ = ["ALGORITHMS", "AdvantageMixin", "AlgorithmConfig", "AlgorithmMixin", "AlgorithmTrainer"]
