"""
TextArena's games behind our own seam. This module is the only one that imports TextArena, and only when a match starts.

The adapter owns what the environments leave open (all seen in TextArena 0.7.4): it reads and canonicalises a move before
the environment sees it (a hostile reply hangs some of their parsers for minutes, and could forge lines in the
opponent's view); an illegal move ends the match at once; the outcome is taken once and kept (stepping a finished
environment flips its winner); a cap on turns ends games that never do; an exception becomes an ending; and the global
random generator is swapped around every call, so that matches that run side by side deal as if each ran alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from trl_spiral.games.base import Game, Match, Traits
from trl_spiral.types import Ending, Observation


_MAX_ACTION = 512


@dataclass(frozen=True)
class TextArenaGame(Game):
    r"""
    A game played by one of TextArena's environments.

    Attributes:
        name (`str`):
            TextArena's id, e.g. `"TicTacToe-v0"`.
        move (`str`):
            Regular expression for a move without its brackets. Its groups, or the whole match, fill `form`.
        form (`str`, defaults to `"[{}]"`):
            Canonical form of a move, as the environment reads it.
        legal (`Callable`, *optional*):
            Legal moves, in canonical form, from the environment; `None` where they cannot be listed.
        observation (`str`, defaults to `"full"`):
            `"full"` for the whole history, `"first_last"` for the rules and the latest message. As in SPIRAL, the
            latter only where the latest message holds the whole state.
        max_turns (`int`, defaults to `200`):
            Turns after which the match ends with `Ending.TURN_LIMIT`.
        cells (`str`, *optional*):
            Regular expression for parts of the board that a tokenizer should keep whole.
        traits ([`~games.Traits`]):
            What may be assumed of the game.
    """

    name: str
    move: str
    form: str = "[{}]"
    legal: Callable[[Any], tuple[str, ...]] | None = None
    observation: Literal["full", "first_last"] = "full"
    max_turns: int = 200
    cells: str = ""
    traits: Traits = field(default_factory=Traits)

    def start(self, seed: int) -> TextArenaMatch:
        return TextArenaMatch(self, seed)

    def canonical(self, action: str) -> str | None:
        if len(action) > _MAX_ACTION:
            return None
        move = action.strip()
        if move.startswith("[") and move.endswith("]"):
            move = move[1:-1].strip()
        # ASCII only: TextArena's `\d` and `int()` would also take other scripts' digits.
        match = re.fullmatch(self.move, move, re.ASCII | re.IGNORECASE)
        return None if match is None else self.form.format(*(match.groups() or (match.group(),)))

    @property
    def atoms(self) -> str:
        return "|".join(filter(None, (self.cells, super().atoms)))


class TextArenaMatch(Match):
    """One playing in a fresh raw environment."""

    def __init__(self, game: TextArenaGame, seed: int) -> None:
        import textarena

        self.game = game
        self._turns = 0
        self._returns = (0.0,) * game.traits.seats
        self._legal: tuple[str, ...] | None = None
        self._env = textarena.make(f"{game.name}-raw")
        # TextArena seeds Python's global generator in `reset`, whether the game is stochastic or not.
        outer = random.getstate()
        try:
            # The environments take seeds of any size; 32 bits keep numpy-based ones happy.
            self._env.reset(num_players=game.traits.seats, seed=seed % 2**32)
        finally:
            self._random_state = random.getstate() if game.traits.stochastic else None
            random.setstate(outer)
        self._state = self._env.state
        self._seat: int = self._state.current_player_id

    @property
    def to_move(self) -> int | None:
        return None if self.ending is not None else self._seat

    @property
    def returns(self) -> tuple[float, ...]:
        return self._returns

    def observe(self, seat: int) -> Observation:
        seen = self._state.observations[seat]
        if self.game.observation == "first_last":
            update = seen[-1][1]
            text = f"{seen[0][1]}\n{update}" if len(seen) > 1 else update
        else:
            own = [index for index, (sender, _, _) in enumerate(seen) if sender == seat]
            text = self._transcript(seen)
            update = self._transcript(seen[own[-1] + 1 :]) if own else text
        return Observation(
            game=self.game.name,
            seat=seat,
            messages=({"role": "user", "content": text},),
            update=update,
            legal_actions=self.legal_actions() if seat == self._seat else None,
        )

    def _transcript(self, seen: list[tuple[int, str, Any]]) -> str:
        names = self._state.role_mapping
        return "\n".join(f"[{'GAME' if sender < 0 else names[sender]}] {message}" for sender, message, _ in seen)

    def legal_actions(self) -> tuple[str, ...] | None:
        if self.game.legal is None:
            return None
        if self._legal is None:
            self._legal = () if self.ending is not None else self.game.legal(self._env)
        return self._legal

    def apply(self, action: str) -> str | None:
        if self.ending is not None:
            raise ValueError(f"This match of {self.game.name} has ended ({self.ending}). Start a new one.")
        move = self.game.canonical(action)
        legal = self.legal_actions()
        if move is None or (legal is not None and move not in legal):
            self._end(Ending.ILLEGAL_MOVE, offender=self._seat, detail="no readable move" if move is None else move)
            return None
        self._legal = None
        self._turns += 1
        try:
            done = self._step(move)
        except Exception as error:  # whatever an environment raises ends its own match and no other
            self._end(Ending.ENVIRONMENT_ERROR, detail=f"{type(error).__name__}: {error}")
            return move
        if self._refused(done):
            self._end(Ending.ILLEGAL_MOVE, offender=self._seat, detail=move)
            return None
        if done:
            rewards, info = self._env.close()
            self._returns = tuple(float(rewards[seat]) for seat in range(self.game.traits.seats))
            self._end(Ending.FINISHED, detail=str(info[0].get("reason", "")))
            return move
        self._seat = self._state.current_player_id
        if self._turns >= self.game.max_turns:
            self._end(Ending.TURN_LIMIT, detail=f"{self._turns} turns")
        elif self.legal_actions() == ():
            self._end(Ending.TURN_LIMIT, detail="no legal move left")
        return move

    def _step(self, move: str) -> bool:
        if self._random_state is None:
            done, _ = self._env.step(move)
            return bool(done)
        outer = random.getstate()
        random.setstate(self._random_state)
        try:
            done, _ = self._env.step(move)
            return bool(done)
        finally:
            self._random_state = random.getstate()
            random.setstate(outer)

    def _refused(self, done: bool) -> bool:
        """Whether the environment took the move for an illegal one (it would let the seat try once more)."""
        if done:
            return bool(self._state.game_info[self._seat].get("invalid_move"))
        return bool(self._state.error_count)

    def _end(self, ending: Ending, offender: int | None = None, detail: str = "") -> None:
        self.ending, self.offender, self.detail = ending, offender, detail
