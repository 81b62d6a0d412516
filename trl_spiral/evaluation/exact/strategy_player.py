"""Strategies that sit down at the table: a best response to watch, an average of snapshots to play against."""

from __future__ import annotations

from trl_spiral.evaluation.exact.exploitability import best_responses
from trl_spiral.evaluation.exact.tree import Strategy
from trl_spiral.games.base import Dealt, get_game
from trl_spiral.players import ScriptedPlayer
from trl_spiral.players.scripted import drawn_move


class StrategyPlayer(ScriptedPlayer):
    """
    A player that draws each move from a strategy, in any seat.

    Args:
        game (`str` or [`~games.Dealt`]):
            The game that it plays, or its name.
        strategy (`Strategy`):
            Such as `average_strategy` of snapshots, or `read_policy_table(path).strategy`.
        name (`str`, defaults to `"strategy"`):
            For tables and transcripts.

    Raises:
        ValueError: If the game does not tell its information states.
    """

    def __init__(self, game: str | Dealt, strategy: Strategy, name: str = "strategy") -> None:
        rules = get_game(game) if isinstance(game, str) else game
        if not isinstance(rules, Dealt):
            raise ValueError(
                f"{rules.name} does not tell information states, so no strategy can be looked up. Use a game whose every "
                "deal can be played (`games.Dealt`)."
            )
        super().__init__(name, lambda seen: drawn_move(strategy(rules.information_state(seen)), seen))


def best_responder(game: str | Dealt, strategy: Strategy, name: str = "best-response") -> StrategyPlayer:
    """
    The perfect opponent of a strategy, in either seat: what its exploitability is measured by.

    Args:
        game (`str` or [`~games.Dealt`]):
            A zero-sum game of two seats whose every deal can be played, or its name.
        strategy (`Strategy`):
            Whom it knows by heart.
        name (`str`, defaults to `"best-response"`):
            For tables and transcripts.

    Raises:
        ValueError: If the game cannot be graded, or probabilities do not add up to 1.
    """
    moves = {state: move for best in best_responses(game, strategy) for state, move in best.moves.items()}
    return StrategyPlayer(game, lambda state: {moves[state]: 1.0}, name)
