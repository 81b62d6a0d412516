"""`trl-spiral play MODEL --game G`: a person against a model at the terminal."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import TextIO

from trl_spiral.cli.options import CONTESTANT, add_contestant_arguments, check_is_one, open_contestants, read_games
from trl_spiral.players import HumanPlayer, Player
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.text.printable import echo, one_line
from trl_spiral.types import Ending, Episode, Observation, Reply, Request, Turn, has_won


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("model", help=f"whom to play: {CONTESTANT}; it fills every other seat")
    parser.add_argument("--game", required=True, help="what is played")
    parser.add_argument("--seat", type=int, default=0, help="where you sit, from 0 (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="of the deal and of the model's decisions (default: 0)")
    add_contestant_arguments(parser, temperature=0.25)


def run(args: argparse.Namespace) -> None:
    """Plays one game, and tells how it ended. Ctrl-D or Ctrl-C leaves it."""
    check_is_one("MODEL", args.model)
    (game,) = read_games([args.game])
    seats = game.traits.seats
    if not 0 <= args.seat < seats:
        raise ValueError(f"`--seat` ({args.seat}) must be in 0 to {seats - 1}: {game.name} has {seats} seats.")
    with closing(open_contestants(args, [args.model], [game])) as met:
        (model,) = met.players.values()
        # Elsewhere its thoughts would tell its cards, or its move would be known before one's own at the same time.
        aloud = Aloud(model, at_once=game.traits.perfect_information)
        players = [HumanPlayer() if seat == args.seat else aloud for seat in range(seats)]
        seed = derive_seed(args.seed, "play")
        try:
            (episode,) = play([referee(Start(game, players, seed, seed))], met.engine(), in_flight=1)
        except KeyboardInterrupt:
            echo("\nYou left.")
            return
    aloud.tell_rest()
    echo(f"\n{ending_in_words(episode, args.seat)}")


class Aloud:
    """
    A player whose moves and thinking are shown as it plays, or where those must stay hidden, after the game.

    Args:
        player ([`~players.Player`]):
            Who plays.
        at_once (`bool`):
            Whether to show them as it plays. Otherwise only observations tell its moves, those that they may tell.
        screen (`TextIO`, *optional*):
            The terminal by default.
    """

    def __init__(self, player: Player, at_once: bool, screen: TextIO | None = None) -> None:
        self.name = player.name
        self._player = player
        self._at_once = at_once
        self._screen = screen or sys.stdout
        self._kept: list[str] = []

    def ask(self, observation: Observation) -> Turn | Request:
        """As the player asks."""
        asked = self._player.ask(observation)
        if isinstance(asked, Turn):
            self._tell(observation, asked)
        return asked

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        """As the player answers."""
        turn = self._player.answer(observation, request, reply)
        self._tell(observation, turn)
        return turn

    def tell_rest(self) -> None:
        """Shows what was kept back."""
        for text in self._kept:
            echo(text, self._screen, end="")
        self._kept = []

    def _tell(self, observation: Observation, turn: Turn) -> None:
        who = f"\n{one_line(self.name)} (seat {observation.seat})"
        text = turn.text.strip()
        move = one_line(turn.action or "nothing that is a move")
        if text not in (turn.action, f"\\boxed{{{turn.action}}}"):
            self._kept.append(f"{who} thought, to play {move}:\n{text}\n")
        self._kept.append(f"{who} plays {move}.\n")
        if self._at_once:
            self.tell_rest()


def ending_in_words(episode: Episode, seat: int) -> str:
    """Return one sentence on how a game ended for the player in `seat`."""
    if episode.ending is Ending.PLAYER_LOST:
        return "You left: no result." if episode.offender == seat else "The model is gone: no result."
    if episode.ending is Ending.ENVIRONMENT_ERROR:
        return f"The game broke: {one_line(episode.detail)}"
    mine = episode.returns[seat]
    result = "A draw" if episode.is_draw else "You win" if has_won(episode.returns, seat) else "You lose"
    why = {
        Ending.ILLEGAL_MOVE: f", by an illegal move of seat {episode.offender}",
        Ending.TRUNCATED: f", since seat {episode.offender} wrote too long",
        Ending.TURN_LIMIT: ", by the limit on turns",
    }.get(episode.ending, "")
    return f"{result}{why}: {mine:+g}. {one_line(episode.detail)}".strip()
