"""What answers requests. Torch starts here."""

from __future__ import annotations

from trl_spiral.engines.transformers import TransformersEngine


__all__ = ["TransformersEngine"]
