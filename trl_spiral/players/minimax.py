"""Perfect players of solved games: tic-tac-toe and Nim."""

from __future__ import annotations

import random
from functools import reduce
from operator import xor

from trl_spiral.games.tictactoe import NAME as TICTACTOE
from trl_spiral.games.tictactoe import minimax_moves, read_board
from trl_spiral.players.scripted import ScriptedPlayer
from trl_spiral.types import Observation


NIM = "Nim-v0"


class MinimaxPlayer(ScriptedPlayer):
    """
    Player that chooses uniformly among the moves that keep the value of the game.

    Args:
        game (`str`, defaults to `"TicTacToe-v0"`):
            `"TicTacToe-v0"` or `"Nim-v0"`.

    Raises:
        ValueError: If the game is another one.
    """

    def __init__(self, game: str = TICTACTOE) -> None:
        solved = {TICTACTOE: _tictactoe, NIM: _nim}
        if game not in solved:
            raise ValueError(
                f"There is no minimax player for {game}: only {' and '.join(solved)} are solved. Use 'mcts' for other "
                "games of perfect information."
            )
        best = solved[game]
        super().__init__("minimax", lambda observation: random.Random(observation.seed).choice(best(observation)))


def _tictactoe(observation: Observation) -> tuple[str, ...]:
    return tuple(f"[{cell}]" for cell in minimax_moves(read_board(observation)))


def _nim(observation: Observation) -> tuple[str, ...]:
    """
    Return the moves after which the exclusive or of the piles is 0, or else all legal moves.

    See [Bouton, 1901](https://doi.org/10.2307/1967631).
    """
    legal = observation.legal_actions or ()
    takes = [tuple(map(int, move.strip("[]").split())) for move in legal]
    # A whole pile may be taken, so the largest legal take is its size.
    piles = {pile: max(take for other, take in takes if other == pile) for pile, _ in takes}
    balance = reduce(xor, piles.values(), 0)
    best = tuple(
        move for move, (pile, take) in zip(legal, takes, strict=True) if piles[pile] - take == piles[pile] ^ balance
    )
    return best or legal
