"""Players of games with hidden information that nobody can beat in the long run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from trl_spiral.games import kuhn, rps
from trl_spiral.players.scripted import ScriptedPlayer
from trl_spiral.types import Observation


class EquilibriumPlayer(ScriptedPlayer):
    """
    A player that draws its moves from a Nash equilibrium.

    Over several rounds of Kuhn poker, whose score is the sum of the rounds, it plays each as if it were the only one.

    Args:
        game (`str`):
            `"Kuhn-v0"`, with or without a number of rounds, or `"RockPaperScissors-v0"`.
        alpha (`float`, defaults to `1 / 3`):
            Which of Kuhn poker's equilibria: see `kuhn_equilibrium`.

    Raises:
        ValueError: If no equilibrium of the game is known here.
    """

    def __init__(self, game: str, alpha: float = 1 / 3) -> None:
        read: Callable[[Observation], str]
        if game == kuhn.NAME or game.startswith(f"{kuhn.NAME}-"):
            table, read = kuhn_equilibrium(alpha), kuhn.information_state
        elif game == rps.NAME:
            table, read = dict.fromkeys(rps.INFORMATION_STATES, rps_equilibrium()), rps.information_state
        else:
            raise ValueError(
                f"There is no equilibrium player for {game}: only those of {kuhn.NAME} and {rps.NAME} are known here. Use "
                "'random' or, in a game of perfect information, 'mcts'."
            )

        def choose(observation: Observation) -> str:
            moves = table[read(observation)]
            return random.Random(observation.seed).choices(tuple(moves), tuple(moves.values()))[0]

        super().__init__("equilibrium", choose)


def kuhn_equilibrium(alpha: float = 1 / 3) -> dict[str, Mapping[str, float]]:
    """
    Kuhn poker's equilibria, one for each `alpha` in [0, 1/3]; all are worth -1/18 to whoever starts.

    Whoever starts bets a jack with probability `alpha` and a king with `3 * alpha`, and calls with a queen, having
    checked, with `alpha + 1/3`. The other player has one way only: bet or call with a king; with a queen check, and call
    a third of the bets; with a jack bet a third of the time, and never call. From
    [Kuhn, 1950](https://doi.org/10.1515/9781400881727-010).

    Args:
        alpha (`float`, defaults to `1 / 3`):
            How often a jack is bet first.

    Returns:
        `dict[str, Mapping[str, float]]`: Probability of each move at each of `games.kuhn.INFORMATION_STATES`.

    Raises:
        ValueError: If `alpha` is outside [0, 1/3].
    """
    if not 0.0 <= alpha <= 1 / 3:
        raise ValueError(f"`alpha` ({alpha}) must be in [0, 1/3]: only there is it an equilibrium of Kuhn poker.")
    puts_a_chip_in = {
        **{"0": alpha, "1": 0.0, "2": 3 * alpha},
        **{"0p": 1 / 3, "1p": 0.0, "2p": 1.0},
        **{"0b": 0.0, "1b": 1 / 3, "2b": 1.0},
        **{"0pb": 0.0, "1pb": alpha + 1 / 3, "2pb": 1.0},
    }
    return {
        state: {"[call]": share, "[fold]": 1.0 - share}
        if state.endswith("b")
        else {"[bet]": share, "[check]": 1.0 - share}
        for state, share in puts_a_chip_in.items()
    }


def rps_equilibrium() -> Mapping[str, float]:
    """Rock-paper-scissors' only equilibrium: every throw a third of the time."""
    return dict.fromkeys(rps.THROWS, 1 / 3)
