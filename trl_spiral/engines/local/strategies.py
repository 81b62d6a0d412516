"""The exact strategy of a local model in a small game."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trl_spiral.engines.local.scoring import reply_logprobs
from trl_spiral.evaluation.exact.strategies import MoveProbabilities, scored_moves
from trl_spiral.games import Dealt
from trl_spiral.text.prompts import PromptRenderer


if TYPE_CHECKING:
    from transformers import PreTrainedModel

NEGLIGIBLE = -18.0
"""In nats: a probability of 1.5e-8 per reply, so less than 1e-6 over all replies at a decision."""


def language_model_strategy(
    model: PreTrainedModel, renderer: PromptRenderer, game: str | Dealt, temperatures: Sequence[float] = (1.0,)
) -> list[MoveProbabilities]:
    """
    Compute the probability of each legal move at every information state of a game, from the move's tokens.

    For a model whose replies are bare moves. For a model that reasons first, sample replies through an engine with
    [`~evaluation.exact.strategies.sampled_moves`].

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model. Its training mode is restored.
        renderer ([`~text.prompts.PromptRenderer`]):
            Its prompts.
        game (`str` or [`~games.Dealt`]):
            The game: see [`~evaluation.exact.tree.game_tree`].
        temperatures (`Sequence[float]`, defaults to `(1.0,)`):
            Each above zero.

    Returns:
        `list[MoveProbabilities]`: One for each temperature, with its `.nash_conv`, its probability of `.illegal`
        replies, and its `.strategy` without them.
    """

    def score(prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]) -> list[list[float]]:
        return reply_logprobs(model, prompts, replies, temperatures, floor=NEGLIGIBLE).T.tolist()

    return scored_moves(game, renderer, score)
