"""Games by name. Importing this package registers them. TextArena is imported when its first match starts."""

from __future__ import annotations

from functools import partial

from trl_spiral.games.base import Dealt, Game, Match, Traits, check_game, game_names, get_game, register_game
from trl_spiral.games.textarena import register_textarena_games


__all__ = ["Dealt", "Game", "Match", "Traits", "check_game", "game_names", "get_game", "register_game"]


def _register() -> None:
    def tictactoe() -> Game:
        from trl_spiral.games.tictactoe import make_game

        return make_game()

    def kuhn(seats: int) -> Game:
        from trl_spiral.games.kuhn import KuhnPoker

        return KuhnPoker(seats)

    def kuhn_rounds(rounds: int) -> Game:
        from trl_spiral.games.kuhn import KuhnRounds

        return KuhnRounds(rounds)

    def leduc() -> Game:
        from trl_spiral.games.leduc import LeducPoker

        return LeducPoker()

    def liars_dice(dice: int, seats: int = 2) -> Game:
        from trl_spiral.games.liars_dice import LiarsDice, OneDieLiarsDice

        return OneDieLiarsDice() if (dice, seats) == (1, 2) else LiarsDice(dice, seats)

    def paper_kuhn() -> Game:
        from trl_spiral.games.kuhn_v1 import PaperKuhnPoker

        return PaperKuhnPoker()

    def negotiation() -> Game:
        from trl_spiral.games.negotiation import SimpleNegotiation

        return SimpleNegotiation()

    def rock_paper_scissors() -> Game:
        from trl_spiral.games.rock_paper_scissors import RockPaperScissors

        return RockPaperScissors()

    def code_game(name: str, is_frozen: bool) -> Game:
        from trl_spiral.games.code_game import CodeGame

        return CodeGame(name, is_frozen)

    register_game("TicTacToe-v0", tictactoe)
    register_textarena_games()
    register_game("Kuhn-v0", partial(kuhn, 2))
    register_game("Kuhn-v0-3p", partial(kuhn, 3))
    register_game("Kuhn-v0-5", partial(kuhn_rounds, 5))
    register_game("Leduc-v0", leduc)
    for dice in range(1, 6):
        register_game(f"LiarsDice-v1-{dice}", partial(liars_dice, dice))
    register_game("LiarsDice-v1-2-3p", partial(liars_dice, 2, seats=3))
    register_game("KuhnPoker-v1", paper_kuhn)
    register_game("SimpleNegotiation-v2", negotiation)
    register_game("RockPaperScissors-v0", rock_paper_scissors)
    register_game("CodeGame-v0", partial(code_game, "CodeGame-v0", is_frozen=False))
    register_game("CodeGame-v0-frozen", partial(code_game, "CodeGame-v0-frozen", is_frozen=True))


_register()
