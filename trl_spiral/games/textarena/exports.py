"""The package's own games as TextArena environments. See `adapter.register_engines`."""

from __future__ import annotations

import copy
import random
import re
from typing import Any

from trl_spiral.games.base import get_game
from trl_spiral.games.dialogue import DialogueMatch


OWN_ENGINES = (
    *("Kuhn-v0", "Kuhn-v0-3p", "Kuhn-v0-5", "KuhnPoker-v1", "Leduc-v0"),
    *(f"LiarsDice-v1-{dice}" for dice in range(1, 6)),
    *("LiarsDice-v1-2-3p", "SimpleNegotiation-v2"),
)
"""Names of the package's own games, which TextArena does not have or has with other rules."""

_MAX_REPLY = 65_536


def environment_class(textarena: Any) -> type:
    """
    Return the class of environments for the package's own games.

    Args:
        textarena (`ModuleType`):
            TextArena, which only the adapter imports.
    """
    return type("EngineEnv", (_EngineEnv, textarena.Env), {"textarena": textarena})


class _EngineEnv:
    """
    A game of the package. As in all of TextArena, a seat gets a warning at its first illegal move and loses at its
    second.

    Args:
        game (`str`):
            Name of a game with matches of type [`DialogueMatch`].
    """

    textarena: Any

    def __init__(self, game: str) -> None:
        self.game = get_game(game)

    def reset(self, num_players: int, seed: int | None = None) -> None:
        if num_players != (seats := self.game.traits.seats):
            raise ValueError(f"{self.game.name} has {seats} seats, and `num_players` is {num_players}.")
        match = self.game.start(random.randrange(2**32) if seed is None else seed)
        assert isinstance(match, DialogueMatch)
        self.match = match
        # Without the seed, since the state would seed Python's shared generator with it.
        self.state = self.textarena.MinimalMultiPlayerState(num_players=seats)
        self.state.reset(game_state={})
        self.state.manually_set_current_player_id(match.to_move)
        self._sent = [0] * seats
        self._send()

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        if self.state.done:
            return True, {}
        # As in TextArena, the first text in brackets is the move.
        found = re.search(r"\[[^\[\]]*\]", action[:_MAX_REPLY])
        # Play on a copy: an illegal move ends a match, and here the seat may retry.
        match = copy.deepcopy(self.match)
        if match.apply(found[0] if found else action) is None:
            self._refuse()
            done, info = self.state.step()
            return bool(done), info
        self.match = match
        if match.ending is not None:
            self.state.set_game_outcome(dict(enumerate(match.returns)), reason=match.detail)
        done, info = self.state.step()
        if match.to_move is not None:
            self.state.manually_set_current_player_id(match.to_move, force=True)
        self._send()
        return bool(done), info

    def _refuse(self) -> None:
        seat, others = self.state.current_player_id, self.game.traits.seats - 1
        legal = self.match.legal_actions()
        reason = "It is no move that you may make now." if legal is None else f"Choose one of {' '.join(legal)}."
        if self.state.set_invalid_move(reason):
            rewards = {other: -1.0 if other == seat else 1.0 / others for other in range(others + 1)}
            self.state.set_game_outcome(rewards, reason=f"Player {seat} made an invalid move.")

    def _send(self) -> None:
        kinds = self.textarena.ObservationType
        for seat, sent in enumerate(self._sent):
            messages = self.match.messages(seat)
            for number, message in enumerate(messages[sent:], start=sent):
                kind = kinds.GAME_MESSAGE if number else kinds.PROMPT
                self.state.add_observation(message, kind, to_id=seat)
            self._sent[seat] = len(messages)
        if (seat_to_move := self.match.to_move) is not None and (legal := self.match.legal_actions()) is not None:
            self.state.add_observation(self.match.legal_moves_message(legal), kinds.GAME_BOARD, to_id=seat_to_move)
