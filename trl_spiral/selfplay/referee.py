"""
The game loop, the only one there is: training, evaluation and a person's game all go through it.

A game is a generator (`referee`): it yields a question for one seat and is sent that seat's turn, until it returns an
episode. `play` advances hundreds of them on one thread. What they ask of a model goes to an `Engine`; whatever is
finished goes back into its game at once, and that game's next question is added while the others still decode.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from trl_spiral.games.base import Game, Match, Traits
from trl_spiral.players.base import Player
from trl_spiral.seeding import derive_seed
from trl_spiral.types import Ending, Episode, Observation, Reply, Request, Trajectory, Turn


class WeightsLost(RuntimeError):
    """An engine no longer holds the weights that it was given, and what it answered lately may be another's."""


class Engine(Protocol):
    """What answers requests. How it batches them, and how it serves several policies, is its own affair."""

    def add(self, ticket: int, request: Request) -> None:
        """Takes a request. `ticket` is the caller's name for it."""

    def step(self) -> Sequence[tuple[int, Reply]]:
        """Works until at least one request is answered, and returns all that are. Called only while some wait."""

    def abort(self, tickets: Sequence[int]) -> None:
        """Forgets requests that nobody waits for any more."""

    def metrics(self) -> dict[str, float]:
        """How well the engine was used since it was last asked, by name, without a prefix."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to whoever fills a seat."""

    player: Player
    observation: Observation


Playing = Generator[Ask, Turn, Episode]
"""One episode under way."""


class _NoMore:
    """Tells the end of the episodes from "not now"."""


_NO_MORE = _NoMore()


@dataclass(frozen=True, slots=True)
class Forfeit:
    """
    What an illegal or truncated reply costs: never less than the worst that the game's rules can give (`Traits.lowest`).

    Otherwise, where games are scored by chips, to break the rules would be the cheapest way out of a bad hand. Where
    `offender` is above that, the seat at fault gets the worst, and the others share as much.

    Attributes:
        offender (`float`, defaults to `-1.0`):
            Return of the seat at fault.
        others (`float`, defaults to `1.0`):
            Shared equally by the other seats. SPIRAL's own training used -1.5 and 0.5.
    """

    offender: float = -1.0
    others: float = 1.0

    def returns(self, traits: Traits, offender: int) -> tuple[float, ...]:
        """One return per seat of a game of such traits."""
        cost, gain = self.offender, self.others
        if cost > traits.lowest:
            cost, gain = traits.lowest, -traits.lowest
        share = gain / (traits.seats - 1) if traits.seats > 1 else 0.0
        return tuple(cost if seat == offender else share for seat in range(traits.seats))


@dataclass(frozen=True, slots=True)
class Start:
    """
    How an episode starts.

    Attributes:
        game ([`~games.Game`]):
            Its rules.
        players (`Sequence[Player]`):
            One per seat.
        seed (`int`):
            Seed of the match and its opening. Episodes that share it are dealt the same cards.
        play_seed (`int`):
            Seed of all decisions.
        counter (`int`):
            Number of the episode in the run.
        opening (`int`):
            How many uniformly random legal moves are played before anybody is asked.
        forfeit ([`Forfeit`]):
            What an illegal or truncated reply costs.
    """

    game: Game
    players: Sequence[Player]
    seed: int
    play_seed: int
    counter: int = 0
    opening: int = 0
    forfeit: Forfeit = Forfeit()


def referee(start: Start) -> Playing:
    """
    One playing of a game, as a generator: yields who is asked and what they see, is sent the turn they took.

    It never waits, so a thousand of them cost a thousand small objects and nothing else.
    """
    seats = start.game.traits.seats
    if len(start.players) != seats:
        raise ValueError(f"{start.game.name} has {seats} seats, and {len(start.players)} players were given.")
    match, moves = _open(start)
    opening = len(moves)
    turns: list[list[Turn]] = [[] for _ in range(seats)]
    order: list[int] = []
    ending, offender = None, None
    # Who sees the whole state may know how it came about; anywhere else, the moves would tell what a seat must not see.
    open_to_all = start.game.traits.perfect_information
    is_duel = start.game.traits.seats == 2 and start.game.traits.zero_sum
    while (seat := match.to_move) is not None:
        observation = replace(
            match.observe(seat),
            seed=derive_seed(start.play_seed, len(order)),
            turns=tuple(turns[seat]),
            history=tuple(moves) if open_to_all else (),
            is_duel=is_duel,
        )
        turn = yield Ask(start.players[seat], observation)
        turns[seat].append(turn)
        order.append(seat)
        if turn.action is None:
            ending = Ending.PLAYER_LOST if turn.lost else Ending.TRUNCATED if turn.truncated else Ending.ILLEGAL_MOVE
            offender = seat
            break
        if (move := match.apply(turn.action)) is not None:
            moves.append((seat, move))
    if ending is None:
        ending, offender = match.ending, match.offender
    assert ending is not None, "a match without a seat to move has ended"
    if ending.is_forfeit and offender is not None:
        returns = match.forfeited(offender, start.forfeit.returns(start.game.traits, offender))
    else:
        returns = match.returns if ending is Ending.FINISHED else (0.0,) * seats
    return Episode(
        game=start.game.name,
        seed=start.seed,
        players=tuple(player.name for player in start.players),
        trajectories=tuple(Trajectory(seat, tuple(taken)) for seat, taken in enumerate(turns)),
        returns=returns,
        ending=ending,
        offender=offender,
        counter=start.counter,
        moves=tuple(moves),
        opening=opening,
        order=tuple(order),
        detail=match.detail,
    )


def _open(start: Start) -> tuple[Match, list[tuple[int, str]]]:
    """A match after its random opening. An opening that ends the game is drawn again, a move shorter if need be."""
    rng = random.Random(derive_seed(start.seed, "opening"))
    for plies in range(start.opening, 0, -1):
        for _ in range(8):
            match = start.game.start(start.seed)
            moves: list[tuple[int, str]] = []
            while len(moves) < plies and (seat := match.to_move) is not None:
                legal = match.legal_actions()
                if legal is None:
                    raise ValueError(
                        f"{start.game.name} cannot list its legal moves, so it cannot start from a random opening. Use "
                        "`opening_moves=0`."
                    )
                moves.append((seat, match.apply(rng.choice(legal)) or ""))
            if match.to_move is not None:
                return match, moves
    return start.game.start(start.seed), []


def until_decided(starts: Callable[[int], Start], max_retries: int) -> Playing:
    """
    An episode that is played again while it is drawn.

    A draw is judged on the game's own returns: a forfeit is none, whatever it costs. The last attempt is kept whatever
    it is.

    Args:
        starts (`Callable[[int], Start]`):
            How attempt 0, 1, … starts.
        max_retries (`int`):
            Attempts after the first; `0` keeps draws.

    Returns:
        `Episode`: With the policy tokens of discarded attempts in `discarded_tokens`.
    """
    discarded = 0
    for attempt in range(max_retries + 1):
        episode = yield from referee(starts(attempt))
        drawn = episode.is_draw and not (episode.ending.is_forfeit or episode.ending.is_broken)
        if attempt == max_retries or not drawn:
            break
        discarded += episode.policy_tokens
    return replace(episode, discarded_tokens=discarded) if discarded else episode


def play(episodes: Iterable[Playing | None], engine: Engine | None = None, in_flight: int = 256) -> Iterator[Episode]:
    """
    Plays episodes side by side and yields each as it ends.

    Args:
        episodes (`Iterable[Playing | None]`):
            Generators from `referee` or `until_decided`, taken one at a time, whenever there is room. `None` means "not
            now, ask again when something has ended", so that an iterator may decide late whether another game is
            needed.
        engine ([`Engine`], *optional*):
            Answers what players ask; not needed where all of them are scripted.
        in_flight (`int`, defaults to `256`):
            Most episodes under way at once.

    Yields:
        `Episode`: In the order in which they end, which depends on the engine; their counters tell the order in which
        they started.

    Raises:
        TypeError: If a player answers with something other than a `Turn` or a `Request`.
        ValueError: If a player asks an engine and there is none, or `in_flight` leaves no room for any game.
    """
    if in_flight < 1:
        raise ValueError(f"`in_flight` ({in_flight}) must be at least 1: no game could start.")
    tickets = count()
    waiting: dict[int, tuple[Playing, Ask, Request]] = {}

    def advance(playing: Playing, turn: Turn | None) -> Episode | None:
        """Sends turns into a game until it asks an engine or ends."""
        while True:
            try:
                ask = next(playing) if turn is None else playing.send(turn)
            except StopIteration as end:
                episode: Episode = end.value
                return episode
            answer = ask.player.ask(ask.observation)
            if isinstance(answer, Turn):
                turn = answer
                continue
            if not isinstance(answer, Request):
                raise TypeError(
                    f"Player {ask.player.name!r} answered {ask.observation.game} with a {type(answer).__name__}. A "
                    "player must return a `Turn` or a `Request`; one that gives up returns `Turn(action=None)`."
                )
            if engine is None:
                raise ValueError(
                    f"Player {ask.player.name!r} asks an engine for its moves, and `play` was given none."
                )
            ticket = next(tickets)
            engine.add(ticket, answer)
            waiting[ticket] = playing, ask, answer
            return None

    source = iter(episodes)
    try:
        while True:
            while len(waiting) < in_flight:
                playing = next(source, _NO_MORE)
                if playing is None and waiting:
                    break
                if isinstance(playing, _NoMore):
                    source = iter(())
                    break
                if playing is not None and (episode := advance(playing, None)) is not None:
                    yield episode
            if not waiting or engine is None:
                return
            for ticket, reply in engine.step():
                playing, ask, request = waiting.pop(ticket)
                turn = ask.player.answer(ask.observation, request, reply)
                if not isinstance(turn, Turn):
                    raise TypeError(
                        f"Player {ask.player.name!r} made a {type(turn).__name__} of a reply in {ask.observation.game}. "
                        "`answer` must return a `Turn`; a reply without a move is `Turn(action=None)`."
                    )
                if (episode := advance(playing, turn)) is not None:
                    yield episode
    finally:
        if waiting and engine is not None:
            engine.abort(list(waiting))
