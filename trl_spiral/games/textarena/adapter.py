"""
TextArena's games behind our own seam. This module is the only one that imports TextArena, and only when a match starts.

The adapter owns what the environments leave open (all seen in TextArena 0.7.4): it reads and canonicalises a move before
the environment sees it (a hostile reply hangs some of their parsers for minutes, and could forge lines in the
opponent's view); an illegal move ends the match at once; the outcome is taken once and kept (stepping a finished
environment flips its winner); a cap on turns ends games that never do, and a seat without a move a game that is stuck;
an exception becomes an ending; and while an environment runs, the functions of `random` draw from its match's own
generator, so that matches that run side by side deal as if each ran alone, and what it prints goes nowhere.
"""

from __future__ import annotations

import io
import random
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trl_spiral.games.base import Game, Match, Traits
from trl_spiral.types import Ending, Observation


_MAX_ACTION = 512

# The functions of `random` are methods of one generator that all of Python shares. TextArena calls them by way of the
# module, so for the time of a call a match can put its own generator's there. That costs a microsecond; to swap the
# state of the shared generator costs twenty, and 25 kB for every match under way.
_SHARED = {name: getattr(random, name) for name in random.__all__ if hasattr(getattr(random, name), "__self__")}


def _functions(generator: random.Random) -> Mapping[str, Any]:
    return {name: getattr(generator, name) for name in _SHARED}


class _Nowhere(io.TextIOBase):
    """Takes what environments print: NewRecruit writes a line for every move."""

    def write(self, text: str) -> int:
        return len(text)


_NOWHERE = _Nowhere()

# Takes the seeds of games in which nothing is left to chance: TextArena seeds them all the same.
_IDLE = _functions(random.Random(0))


@dataclass(frozen=True)
class TextArenaGame(Game):
    r"""
    A game played by one of TextArena's environments.

    Attributes:
        name (`str`):
            TextArena's id, e.g. `"TicTacToe-v0"`.
        move (`str`):
            Regular expression for a move without its brackets, in either case.
        form (`str` or `Callable`, defaults to `"[{}]"`):
            Canonical form of a move, as the environment reads it: filled with the groups of `move`, or the whole match,
            in lower case. A function makes it from the match itself, or answers `None` to what is no move after all.
        legal (`Callable`, *optional*):
            Legal moves, in canonical form, from the environment. Without it, and where it answers `None` (while the
            seats talk), they cannot be listed and the environment is the judge.
        sample (`Callable`, *optional*):
            One acceptable move from the environment and a generator, where moves cannot be listed.
        stuck (`Callable`, *optional*):
            Payoffs, from the environment, of a game in which the seat to move has no legal move. Without it, such a
            match ends with `Ending.TURN_LIMIT`.
        observation (`str`, defaults to `"full"`):
            `"full"` for the whole history, `"first_last"` for the rules and the latest message. As in SPIRAL, the
            latter only where the latest message holds the whole state.
        latest (`int`, defaults to `1`):
            How many messages that is, in the few games that spread the state over two.
        max_turns (`int`, defaults to `200`):
            Turns after which the match ends with `Ending.TURN_LIMIT`.
        cells (`str`, *optional*):
            Regular expression for parts of the board that a tokenizer should keep whole.
        traits ([`~games.Traits`]):
            What may be assumed of the game.
    """

    name: str
    move: str
    form: str | Callable[[re.Match[str]], str | None] = "[{}]"
    legal: Callable[[Any], tuple[str, ...] | None] | None = None
    sample: Callable[[Any, random.Random], str] | None = None
    stuck: Callable[[Any], tuple[float, ...]] | None = None
    observation: Literal["full", "first_last"] = "full"
    latest: int = 1
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
        if match is None:
            return None
        if not isinstance(self.form, str):
            return self.form(match)
        return self.form.format(*(part.lower() for part in match.groups() or (match.group(),)))

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
        self._chance = _functions(random.Random(0)) if game.traits.stochastic else _IDLE
        self._env = textarena.make(f"{game.name}-raw")
        # The environments take seeds of any size; 32 bits keep numpy-based ones happy.
        self._run(self._env.reset, game.traits.seats, seed % 2**32)
        self._state = self._env.state
        self._lines: list[list[str]] = [[] for _ in range(game.traits.seats)]
        self._since = [0] * game.traits.seats
        self._read()
        self._seat: int = self._state.current_player_id

    @property
    def to_move(self) -> int | None:
        return None if self.ending is not None else self._seat

    @property
    def returns(self) -> tuple[float, ...]:
        return self._returns

    def observe(self, seat: int) -> Observation:
        lines = self._lines[seat]
        text = "\n".join(lines)
        if self.game.observation == "first_last":
            update = "\n".join(lines[1:][-self.game.latest :] or lines)
        else:
            update = "\n".join(lines[self._since[seat] :])
        return Observation(
            game=self.game.name,
            seat=seat,
            messages=({"role": "user", "content": text},),
            update=update,
            legal_actions=self.legal_actions() if seat == self._seat else None,
        )

    def _read(self) -> None:
        """
        Takes what the environment has told each seat, as text and no more than will be shown.

        Left where they are, its messages would be a dozen tuples a turn, and with a thousand matches under way the
        garbage collector would spend more time on them than the games take.
        """
        names = self._state.role_mapping
        for seat, told in self._state.observations.items():
            lines = self._lines[seat]
            if self.game.observation == "first_last":
                lines += [message for _, message, _ in told]
                del lines[1 : max(1, len(lines) - self.game.latest)]
            else:
                for sender, message, _ in told:
                    lines.append(f"[{'GAME' if sender < 0 else names[sender]}] {message}")
                    if sender == seat:
                        self._since[seat] = len(lines)
            told.clear()

    def legal_actions(self) -> tuple[str, ...] | None:
        if self.game.legal is None:
            return None
        if self._legal is None:
            self._legal = () if self.ending is not None else self.game.legal(self._env)
        return self._legal

    def sample(self, rng: random.Random) -> str:
        """
        A move that the seat to move may make, legal moves being equally likely where they can be listed.

        Raises:
            ValueError: If the game lists no moves and knows no example either.
        """
        if (legal := self.legal_actions()) is not None:
            return rng.choice(legal)
        if self.game.sample is None:
            raise ValueError(f"{self.game.name} can neither list its legal moves nor sample one. Give it a `sample`.")
        return self.game.sample(self._env, rng)

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
            done, _ = self._run(self._env.step, move)
            refused = self._refused(done)
            if not refused:  # what was no move is shown to nobody, though the environment has told all seats of it
                self._read()
            returns, reason = self._outcome() if done else (self._returns, "")
        except Exception as error:  # whatever an environment raises ends its own match and no other
            self._end(Ending.ENVIRONMENT_ERROR, detail=f"{type(error).__name__}: {error}")
            return move
        if refused:
            self._end(Ending.ILLEGAL_MOVE, offender=self._seat, detail=move)
            return None
        if done:
            self._returns = returns
            self._end(Ending.FINISHED, detail=reason)
            return move
        self._seat = self._state.current_player_id
        if self._turns >= self.game.max_turns:
            self._end(Ending.TURN_LIMIT, detail=f"{self._turns} turns")
        elif self.legal_actions() == ():
            if self.game.stuck is not None:
                self._returns = self.game.stuck(self._env)
            self._end(Ending.FINISHED if self.game.stuck else Ending.TURN_LIMIT, detail="no legal move left")
        return move

    def _run(self, call: Callable[..., Any], *args: Any) -> Any:
        """Calls the environment, which draws from the match's own generator meanwhile and prints to nowhere."""
        functions, stdout = vars(random), sys.stdout
        functions.update(self._chance)
        sys.stdout = _NOWHERE
        try:
            return call(*args)
        finally:
            functions.update(_SHARED)
            sys.stdout = stdout

    def _refused(self, done: bool) -> bool:
        """Whether the environment took the move for an illegal one (it would let the seat try once more)."""
        if done and self._state.game_info[self._seat].get("invalid_move"):
            return True
        # An auction ends with the last bid even if that one is illegal, and its state then still says so.
        return bool(self._state.error_count or self._state.made_invalid_move)

    def _outcome(self) -> tuple[tuple[float, ...], str]:
        """Payoffs of a finished game, and the environment's reason for them."""
        rewards, info = self._run(self._env.close)
        return tuple(float(rewards[seat]) for seat in range(self.game.traits.seats)), str(info[0].get("reason", ""))

    def _end(self, ending: Ending, offender: int | None = None, detail: str = "") -> None:
        self.ending, self.offender, self.detail = ending, offender, detail
        self._legal = None


def register_engines() -> None:
    """
    Makes our own engines known to TextArena, by the names that they have here: `textarena.make("Leduc-v0")` then plays it.

    As TextArena does for its own, there is a version for `-raw` messages beside each. Returns are given as our rules give
    them, in poker in chips. Calling it again changes nothing.
    """
    import textarena
    from textarena.envs.registration import ENV_REGISTRY, register_with_versions

    from trl_spiral.games.textarena.exports import OWN_ENGINES, environment_class

    environment = environment_class(textarena)
    text = [textarena.wrappers.LLMObservationWrapper, textarena.wrappers.ActionFormattingWrapper]
    for name in OWN_ENGINES:
        if name not in ENV_REGISTRY:
            register_with_versions(name, environment, wrappers={"default": text, "-train": text}, game=name)
