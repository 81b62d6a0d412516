"""The strategy of a model at hand, in a game that is small enough to ask it everything."""

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
"""In nats: 1.5e-8 a reply, so less than 1e-6 over all replies at a decision."""


def language_model_strategy(
    model: PreTrainedModel, renderer: PromptRenderer, game: str | Dealt, temperatures: Sequence[float] = (1.0,)
) -> list[MoveProbabilities]:
    """
    What a model does at every information state of a game, exactly: by the probability of each legal move's tokens.

    For a model whose replies are moves and nothing else; one that reasons first is asked through an engine, by
    [`~evaluation.exact.strategies.sampled_moves`].

    Args:
        model ([`~transformers.PreTrainedModel`]):
            The model; left in evaluation mode or not as it was.
        renderer ([`~text.prompts.PromptRenderer`]):
            Its prompts.
        game (`str` or [`~games.Dealt`]):
            What is played: see [`~evaluation.exact.tree.game_tree`].
        temperatures (`Sequence[float]`, defaults to `(1.0,)`):
            Each above zero.

    Returns:
        `list[MoveProbabilities]`: One for each temperature. `.nash_conv` grades it, `.illegal` is what it spends on illegal
        replies, and `.strategy` is it without those.
    """

    def score(prompts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]) -> list[list[float]]:
        return reply_logprobs(model, prompts, replies, temperatures, floor=NEGLIGIBLE).T.tolist()

    return scored_moves(game, renderer, score)
