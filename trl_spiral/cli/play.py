"""`trl-spiral play MODEL --game G`: a person against a model in the terminal."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import TextIO

from trl_spiral.cli.command import Command
from trl_spiral.cli.options import (
    CONTESTANT,
    add_contestant_arguments,
    check_names_one,
    open_contestants,
    playable_games,
)
from trl_spiral.players import HumanPlayer, Player
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.text.printable import echo, one_line
from trl_spiral.types import Ending, Episode, Observation, Reply, Request, Turn, has_won


class PlayCommand(Command):
    """Plays one game, and prints the result. Ctrl-D or Ctrl-C leaves the game."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model", help=f"your opponent in every other seat: {CONTESTANT}")
        parser.add_argument("--game", required=True, help="game to play")
        parser.add_argument("--seat", type=int, default=0, help="your seat, from 0 (default: %(default)s)")
        parser.add_argument(
            "--seed", type=int, default=0, help="seed of the deal and of the model's decisions (default: %(default)s)"
        )
        add_contestant_arguments(parser, temperature=0.25)

    def run(self, args: argparse.Namespace) -> None:
        check_names_one("MODEL", args.model)
        (game,) = playable_games([args.game])
        seats = game.traits.seats
        if not 0 <= args.seat < seats:
            raise ValueError(f"`--seat` ({args.seat}) must be in 0 to {seats - 1}: {game.name} has {seats} seats.")
        with closing(open_contestants(args, [args.model], [game])) as contestants:
            (model,) = contestants.players.values()
            # In other games, its thinking would reveal its cards or its simultaneous move.
            shown = ShownPlayer(model, at_once=game.traits.perfect_information)
            players = [HumanPlayer() if seat == args.seat else shown for seat in range(seats)]
            seed = derive_seed(args.seed, "play")
            try:
                (episode,) = play([referee(Start(game, players, seed, seed))], contestants.engine(), in_flight=1)
            except KeyboardInterrupt:
                echo("\nYou left.")
                return
        shown.show_hidden()
        echo(f"\n{ending_sentence(episode, args.seat)}")


class ShownPlayer:
    """
    A player whose moves and thinking are printed as it plays, or after the game.

    Args:
        player ([`~players.Player`]):
            Player to show.
        at_once (`bool`):
            Whether to print moves and thinking as it plays. Otherwise they are printed by `show_hidden`, and the
            game's observations alone show its moves.
        screen (`TextIO`, *optional*):
            Default: the terminal.
    """

    def __init__(self, player: Player, at_once: bool, screen: TextIO | None = None) -> None:
        self.name = player.name
        self._player = player
        self._at_once = at_once
        self._screen = screen or sys.stdout
        self._hidden: list[str] = []

    def ask(self, observation: Observation) -> Turn | Request:
        """Ask the player, and print a move that needs no reply of an engine."""
        asked = self._player.ask(observation)
        if isinstance(asked, Turn):
            self._show(observation, asked)
        return asked

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        """Return the move that the player reads in a reply, and print it."""
        turn = self._player.answer(observation, request, reply)
        self._show(observation, turn)
        return turn

    def show_hidden(self) -> None:
        """Print everything that was hidden during the game."""
        for text in self._hidden:
            echo(text, self._screen, end="")
        self._hidden = []

    def _show(self, observation: Observation, turn: Turn) -> None:
        who = f"\n{one_line(self.name)} (seat {observation.seat})"
        text = turn.text.strip()
        move = one_line(turn.action or "nothing that is a move")
        if text not in (turn.action, f"\\boxed{{{turn.action}}}"):
            self._hidden.append(f"{who} thought, to play {move}:\n{text}\n")
        self._hidden.append(f"{who} plays {move}.\n")
        if self._at_once:
            self.show_hidden()


def ending_sentence(episode: Episode, seat: int) -> str:
    """Return one sentence on the result of a game for the player in `seat`."""
    if episode.ending is Ending.PLAYER_LOST:
        return "You left: no result." if episode.offender == seat else "The model does not answer: no result."
    if episode.ending is Ending.ENVIRONMENT_ERROR:
        return f"The game failed: {one_line(episode.detail)}"
    mine = episode.returns[seat]
    result = "A draw" if episode.is_draw else "You win" if has_won(episode.returns, seat) else "You lose"
    why = {
        Ending.ILLEGAL_MOVE: f", by an illegal move of seat {episode.offender}",
        Ending.TRUNCATED: f", since the reply of seat {episode.offender} was truncated",
        Ending.TURN_LIMIT: ", by the turn limit",
    }.get(episode.ending, "")
    return f"{result}{why}: {mine:+g}. {one_line(episode.detail)}".strip()
