"""
Adapter of TextArena's games. Only this module imports TextArena, when a match starts.

The adapter corrects defects of the environments of TextArena 0.7.4:

- Moves are parsed and written in canonical form before the environment receives them. Hostile replies hang some of its
  parsers for minutes, and could forge lines in the observation of another seat.
- An illegal move ends the match at once.
- The outcome is read once: a further step of a finished environment flips its winner.
- A turn limit ends games that do not end, and a seat without legal moves ends its match.
- An exception becomes an ending.
- Each match has its own random generator, so that concurrent matches do not depend on each other.
- Printed output is discarded.
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
from trl_spiral.text.replies import MAX_MOVE
from trl_spiral.types import Ending, Observation


# The functions of `random` are methods of one shared generator. TextArena calls them through the module, so a match
# replaces them by the methods of its own generator during a call. That takes 1 µs. Swapping the state of the shared
# generator would take 20 µs, and 25 kB per active match.
_SHARED = {name: getattr(random, name) for name in random.__all__ if hasattr(getattr(random, name), "__self__")}


def _functions(generator: random.Random) -> Mapping[str, Any]:
    return {name: getattr(generator, name) for name in _SHARED}


class _Nowhere(io.TextIOBase):
    """Discards what environments print. NewRecruit prints a line for every move."""

    def write(self, text: str) -> int:
        return len(text)


_NOWHERE = _Nowhere()

# Shared by games without chance events, which TextArena seeds too.
_IDLE = _functions(random.Random(0))


@dataclass(frozen=True)
class TextArenaGame(Game):
    r"""
    A game played by one of TextArena's environments.

    Attributes:
        name (`str`):
            TextArena's id, e.g. `"TicTacToe-v0"`.
        move (`str`):
            Regular expression for a move without its brackets. Case is ignored.
        form (`str` or `Callable`, defaults to `"[{}]"`):
            Canonical form of a move, as the environment parses it: a format string for the groups of `move`, or for
            the whole match, in lower case. Or a function of the match that returns the form, or `None` if it is no
            move.
        legal (`Callable`, *optional*):
            Returns the legal moves of an environment in canonical form. Without it, or if it returns `None` (in talk
            phases), moves cannot be listed and the environment decides.
        sample (`Callable`, *optional*):
            Returns one legal move, from an environment and a generator, if moves cannot be listed.
        stuck (`Callable`, *optional*):
            Returns the payoffs of an environment in which the seat to move has no legal move. By default, such a match
            ends with `Ending.TURN_LIMIT`.
        observation (`str`, defaults to `"full"`):
            `"full"` for the whole history, `"first_last"` for the rules and the latest message. The latter, as in
            SPIRAL, only in games whose latest message contains the whole state.
        latest (`int`, defaults to `1`):
            Number of latest messages for `"first_last"`: two in the few games that split the state.
        max_turns (`int`, defaults to `200`):
            Turns after which the match ends with `Ending.TURN_LIMIT`.
        cells (`str`, *optional*):
            Regular expression for parts of the board that a tokenizer should not split.
        traits ([`~games.Traits`]):
            Properties of the game.
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
        if len(action) > MAX_MOVE:
            return None
        move = action.strip()
        if move.startswith("[") and move.endswith("]"):
            move = move[1:-1].strip()
        # ASCII only: TextArena's `\d` and `int()` would also accept digits of other scripts.
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
    """One match in a new raw environment."""

    def __init__(self, game: TextArenaGame, seed: int) -> None:
        import textarena

        self.game = game
        self._turns = 0
        self._returns = (0.0,) * game.traits.seats
        self._legal: tuple[str, ...] | None = None
        self._chance = _functions(random.Random(0)) if game.traits.stochastic else _IDLE
        self._env = textarena.make(f"{game.name}-raw")
        # Environments that use numpy accept 32 bits only.
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
        Move the environment's messages to `_lines`, without those that no observation will show.

        The environment would accumulate a dozen tuples per turn. With a thousand active matches, the garbage collector
        would need more time for them than the games.
        """
        names = self._state.role_mapping
        for seat, messages in self._state.observations.items():
            lines = self._lines[seat]
            if self.game.observation == "first_last":
                lines += [message for _, message, _ in messages]
                del lines[1 : max(1, len(lines) - self.game.latest)]
            else:
                for sender, message, _ in messages:
                    lines.append(f"[{'GAME' if sender < 0 else names[sender]}] {message}")
                    if sender == seat:
                        self._since[seat] = len(lines)
            messages.clear()

    def legal_actions(self) -> tuple[str, ...] | None:
        if self.game.legal is None:
            return None
        if self._legal is None:
            self._legal = () if self.ending is not None else self.game.legal(self._env)
        return self._legal

    def sample(self, rng: random.Random) -> str:
        """
        Return a random legal move, uniform if moves can be listed.

        Raises:
            ValueError: If the game neither lists its legal moves nor has a `sample`.
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
            if not refused:  # no seat observes an illegal move, although the environment sends it to all
                self._read()
            returns, reason = self._outcome() if done else (self._returns, "")
        except Exception as error:  # an error of an environment must not end other matches
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
        """Call the environment with the match's own generator and without output."""
        functions, stdout = vars(random), sys.stdout
        functions.update(self._chance)
        sys.stdout = _NOWHERE
        try:
            return call(*args)
        finally:
            functions.update(_SHARED)
            sys.stdout = stdout

    def _refused(self, done: bool) -> bool:
        """Return whether the environment refused the move; it would let the seat retry."""
        if done and self._state.game_info[self._seat].get("invalid_move"):
            return True
        # An auction ends with the last bid even if it is illegal. Its state is still marked then.
        return bool(self._state.error_count or self._state.made_invalid_move)

    def _outcome(self) -> tuple[tuple[float, ...], str]:
        """Return the payoffs of a finished game and the environment's reason for them."""
        rewards, info = self._run(self._env.close)
        return tuple(float(rewards[seat]) for seat in range(self.game.traits.seats)), str(info[0].get("reason", ""))

    def _end(self, ending: Ending, offender: int | None = None, detail: str = "") -> None:
        self.ending, self.offender, self.detail = ending, offender, detail
        self._legal = None


def register_engines() -> None:
    """
    Register the package's own games in TextArena under their names, for example for `textarena.make("Leduc-v0")`.

    Like TextArena's games, each has a `-raw` variant. Returns are those of the package, in poker in chips. Repeated
    calls have no effect.
    """
    import textarena
    from textarena.envs.registration import ENV_REGISTRY, register_with_versions

    from trl_spiral.games.textarena.exports import OWN_ENGINES, environment_class

    environment = environment_class(textarena)
    text = [textarena.wrappers.LLMObservationWrapper, textarena.wrappers.ActionFormattingWrapper]
    for name in OWN_ENGINES:
        if name not in ENV_REGISTRY:
            register_with_versions(name, environment, wrappers={"default": text, "-train": text}, game=name)
