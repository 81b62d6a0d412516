"""Games by name. Importing this package registers them and loads nothing: TextArena comes with the first match."""

from __future__ import annotations

from functools import partial

from trl_spiral.games.base import Dealt, Game, Match, Traits, check_game, game_names, get_game, register_game


__all__ = ["Dealt", "Game", "Match", "Traits", "check_game", "game_names", "get_game", "register_game"]


def _register() -> None:
    def tictactoe() -> Game:
        from trl_spiral.games.tictactoe import make_game

        return make_game()

    def connect_four() -> Game:
        from trl_spiral.games.simple import connect_four as make

        return make()

    def nim() -> Game:
        from trl_spiral.games.simple import nim as make

        return make()

    def pig_dice() -> Game:
        from trl_spiral.games.simple import pig_dice as make

        return make()

    def kuhn(rounds: int) -> Game:
        from trl_spiral.games.kuhn import KuhnPoker

        return KuhnPoker(rounds)

    def rock_paper_scissors() -> Game:
        from trl_spiral.games.rps import RockPaperScissors

        return RockPaperScissors()

    register_game("TicTacToe-v0", tictactoe)
    register_game("ConnectFour-v0", connect_four)
    register_game("Nim-v0", nim)
    register_game("PigDice-v0-50", pig_dice)
    register_game("Kuhn-v0", partial(kuhn, 1))
    register_game("Kuhn-v0-5", partial(kuhn, 5))
    register_game("RockPaperScissors-v0", rock_paper_scissors)


_register()
