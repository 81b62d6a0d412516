"""Players that play a Nash equilibrium of a game with hidden information."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec

from trl_spiral.games import kuhn, leduc
from trl_spiral.games import rock_paper_scissors as rps
from trl_spiral.players.scripted import ScriptedPlayer, drawn_move
from trl_spiral.types import Observation


LEDUC_ITERATIONS = 1000
"""Iterations of CFR+. NashConv is then 0.0005 chips; it is 0.0025 after 400, 0.027 after 100."""


class EquilibriumPlayer(ScriptedPlayer):
    """
    Player that samples its moves from a Nash equilibrium.

    In Kuhn poker of several rounds, whose score is the sum of the rounds, it plays each round separately.

    Args:
        game (`str`):
            `"Kuhn-v0"`, with or without a number of rounds, `"Leduc-v0"` (OpenSpiel solves it in about ten seconds,
            once per process, at the first move), or `"RockPaperScissors-v0"`.
        alpha (`float`, defaults to `1 / 3`):
            Parameter of Kuhn poker's equilibria; see `kuhn_equilibrium`.

    Raises:
        ValueError: If no equilibrium of the game is implemented.
        ImportError: If the game is Leduc poker and OpenSpiel is not installed.
    """

    def __init__(self, game: str, alpha: float = 1 / 3) -> None:
        read: Callable[[Observation], str]
        solve: Callable[[], Mapping[str, Mapping[str, float]]]
        if re.fullmatch(rf"{kuhn.NAME}(-[0-9]+)?", game):
            kuhn_table = kuhn_equilibrium(alpha)
            solve, read = lambda: kuhn_table, kuhn.KuhnPoker().information_state
        elif game == leduc.NAME:
            if find_spec("pyspiel") is None:
                raise ImportError(
                    "The equilibrium of Leduc poker is found by OpenSpiel, which is not installed. Install it with "
                    "`pip install trl-spiral[eval]`."
                )
            solve, read = leduc_equilibrium, leduc.LeducPoker().information_state
        elif game == rps.NAME:
            rps_table = dict.fromkeys(rps.INFORMATION_STATES, rps_equilibrium())
            solve, read = lambda: rps_table, rps.RockPaperScissors().information_state
        else:
            raise ValueError(
                f"There is no equilibrium player for {game}: only those of {kuhn.NAME}, {leduc.NAME} and {rps.NAME} "
                "exist. Use 'random' or, in a game of perfect information, 'mcts'."
            )

        super().__init__("equilibrium", lambda observation: drawn_move(solve()[read(observation)], observation))


def kuhn_equilibrium(alpha: float = 1 / 3) -> dict[str, Mapping[str, float]]:
    """
    An equilibrium of Kuhn poker ([Kuhn, 1950](https://doi.org/10.1515/9781400881727-010)).

    There is one for each `alpha` in [0, 1/3]. The first player gets -1/18 per game in all of them. It bets a jack with
    probability `alpha` and a king with `3 * alpha`. With a queen it checks, and then calls with `alpha + 1/3`. The
    second player has one strategy. With a king it bets and calls. With a queen it checks, and calls a third of the
    bets. With a jack it bets a third of the time, and never calls.

    Args:
        alpha (`float`, defaults to `1 / 3`):
            Probability that the first player bets a jack.

    Returns:
        `dict[str, Mapping[str, float]]`: Probability of each move at each of `games.kuhn.INFORMATION_STATES`.

    Raises:
        ValueError: If `alpha` is outside [0, 1/3].
    """
    if not 0.0 <= alpha <= 1 / 3:
        raise ValueError(f"`alpha` ({alpha}) must be in [0, 1/3]: other values give no equilibrium of Kuhn poker.")
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


@cache
def leduc_equilibrium(iterations: int = LEDUC_ITERATIONS) -> Mapping[str, Mapping[str, float]]:
    """
    Approximate equilibrium of Leduc poker, by OpenSpiel's CFR+ ([Tammelin, 2014](https://arxiv.org/abs/1407.5042)).

    Args:
        iterations (`int`, defaults to `LEDUC_ITERATIONS`):
            Iterations of CFR+, each about 10 ms.

    Returns:
        `Mapping[str, Mapping[str, float]]`: Probability of each move at each of the 936 information states.
    """
    import pyspiel

    solver = pyspiel.CFRPlusSolver(pyspiel.load_game("leduc_poker"))
    for _ in range(iterations):
        solver.evaluate_and_update_policy()
    table: dict[str, Mapping[str, float]] = {}
    for state, shares in solver.tabular_average_policy().policy_table().items():
        # OpenSpiel has one number for check and call. It means a call where a fold is legal.
        facing = any(action == leduc.ACTIONS["[fold]"] for action, _ in shares)
        names = ("[fold]", "[call]", "[raise]") if facing else ("", "[check]", "[raise]")
        table[state] = {names[action]: share for action, share in shares}
    return table


def rps_equilibrium() -> Mapping[str, float]:
    """The equilibrium of rock-paper-scissors: the uniform distribution."""
    return dict.fromkeys(rps.THROWS, 1 / 3)
