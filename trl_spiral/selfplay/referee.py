"""
The game loop of training, evaluation and games with a person.

A game is a generator (`referee`): it yields a request for one seat and receives that seat's turn, until it returns an
episode. `play` advances hundreds of them on one thread. Requests to a model go to an `Engine`. Each reply is passed to
its game at once, and the next request of that game is added while the others still decode.
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
    """An engine no longer has the weights that it was given, so its recent replies may come from others."""


class Engine(Protocol):
    """Answers requests to models. Batching and the serving of several policies are up to the engine."""

    def add(self, ticket: int, request: Request) -> None:
        """Accept a request. `ticket` identifies it in `step` and `abort`."""

    def step(self) -> Sequence[tuple[int, Reply]]:
        """Work until at least one request is answered, and return all that are. Called only with requests pending."""

    def abort(self, tickets: Sequence[int]) -> None:
        """Drop requests whose replies are not needed any more."""

    def metrics(self) -> dict[str, float]:
        """Return how the engine was used since the last call, by name without a prefix."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to the player of a seat."""

    player: Player
    observation: Observation


Playing = Generator[Ask, Turn, Episode]
"""An episode in progress."""


class _NoMore:
    """Marks the end of the episodes, as opposed to `None`, "not now"."""


_NO_MORE = _NoMore()


@dataclass(frozen=True, slots=True)
class Forfeit:
    """
    Returns of a game that ends by an illegal or truncated reply.

    The seat at fault never gets more than the worst return that the rules allow (`Traits.lowest`). Otherwise an
    illegal move would be the cheapest way out of a bad hand in games that are scored by chips. If `offender` is above
    `Traits.lowest`, the seat at fault gets that, and the others share its negative.

    Attributes:
        offender (`float`, defaults to `-1.0`):
            Return of the seat at fault.
        others (`float`, defaults to `1.0`):
            Shared equally by the other seats. SPIRAL's own training used -1.5 and 0.5.
    """

    offender: float = -1.0
    others: float = 1.0

    def returns(self, traits: Traits, offender: int) -> tuple[float, ...]:
        """Return one return per seat of a game with these traits."""
        cost, gain = self.offender, self.others
        if cost > traits.lowest:
            cost, gain = traits.lowest, -traits.lowest
        share = gain / (traits.seats - 1) if traits.seats > 1 else 0.0
        return tuple(cost if seat == offender else share for seat in range(traits.seats))


@dataclass(frozen=True, slots=True)
class Start:
    """
    Start of an episode.

    Attributes:
        game ([`~games.Game`]):
            The game.
        players (`Sequence[Player]`):
            One player per seat.
        seed (`int`):
            Seed of the match and its opening. Episodes with the same seed have the same deal.
        play_seed (`int`):
            Seed of all decisions.
        counter (`int`):
            Number of the episode in the run.
        opening (`int`):
            Number of uniformly random legal moves before the first decision of a player.
        forfeit ([`Forfeit`]):
            Returns after an illegal or truncated reply.
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
    Play one episode, as a generator: it yields a player with its observation, and receives the turn.

    It never blocks, so one thread can advance thousands of them.

    Raises:
        ValueError: If the number of players is not the number of seats.
    """
    seats = start.game.traits.seats
    if len(start.players) != seats:
        raise ValueError(f"{start.game.name} has {seats} seats, and {len(start.players)} players were passed.")
    match, moves = _open(start)
    opening = len(moves)
    turns: list[list[Turn]] = [[] for _ in range(seats)]
    order: list[int] = []
    ending, offender = None, None
    # With hidden information, the history would reveal what a seat must not see.
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
    """Return a match after its random opening. An opening that ends the game is drawn again, shorter if necessary."""
    rng = random.Random(derive_seed(start.seed, "opening"))
    for plies in range(start.opening, 0, -1):
        for _ in range(8):
            match = start.game.start(start.seed)
            moves: list[tuple[int, str]] = []
            while len(moves) < plies and (seat := match.to_move) is not None:
                legal = match.legal_actions()
                if legal is None:
                    raise ValueError(
                        f"{start.game.name} cannot list its legal moves, so it cannot start from a random opening. "
                        "Use `opening_moves=0`."
                    )
                moves.append((seat, match.apply(rng.choice(legal)) or ""))
            if match.to_move is not None:
                return match, moves
    return start.game.start(start.seed), []


def until_decided(starts: Callable[[int], Start], max_retries: int) -> Playing:
    """
    Play an episode, and repeat it while it is drawn.

    A forfeit is never a draw, whatever its returns. The last attempt is kept in any case.

    Args:
        starts (`Callable[[int], Start]`):
            Returns the start of attempt 0, 1, ….
        max_retries (`int`):
            Attempts after the first; `0` keeps draws.

    Returns:
        `Episode`: The last attempt, with the number of policy tokens of the others in `discarded_tokens`.
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
    Play episodes side by side, and yield each as it ends.

    Args:
        episodes (`Iterable[Playing | None]`):
            Generators from `referee` or `until_decided`, taken one at a time, whenever there is room. `None` means
            "not now": the iterator is called again when an episode has ended, so it can decide late if another game is
            needed.
        engine ([`Engine`], *optional*):
            Answers requests to models. Not needed if all players are scripted.
        in_flight (`int`, defaults to `256`):
            Most episodes in progress at the same time.

    Yields:
        `Episode`: In the order in which they end, which depends on the engine. Their counters give the order of their
        start.

    Raises:
        TypeError: If a player returns something other than a `Turn` or a `Request`.
        ValueError: If a player returns a request and there is no engine, or `in_flight` is below 1.
    """
    if in_flight < 1:
        raise ValueError(f"`in_flight` ({in_flight}) must be at least 1: no game could start.")
    table = _Table(engine)
    source = iter(episodes)
    try:
        while True:
            while len(table.waiting) < in_flight:
                playing = next(source, _NO_MORE)
                if playing is None and table.waiting:
                    break
                if isinstance(playing, _NoMore):
                    source = iter(())
                    break
                if playing is not None and (episode := table.advance(playing, None)) is not None:
                    yield episode
            if not table.waiting or engine is None:
                return
            for ticket, reply in engine.step():
                if (episode := table.answer(ticket, reply)) is not None:
                    yield episode
    finally:
        if table.waiting and engine is not None:
            engine.abort(list(table.waiting))


class _Table:
    """The games that wait for an engine."""

    def __init__(self, engine: Engine | None) -> None:
        self.engine = engine
        self.waiting: dict[int, tuple[Playing, Ask, Request]] = {}
        self._tickets = count()

    def advance(self, playing: Playing, turn: Turn | None) -> Episode | None:
        """Send turns to a game until it makes a request to the engine or ends."""
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
                game, kind = ask.observation.game, type(answer).__name__
                raise TypeError(
                    f"Player {ask.player.name!r} returned a {kind} in {game}. A player must return a `Turn` or a "
                    "`Request`; to resign, return `Turn(action=None)`."
                )
            if self.engine is None:
                raise ValueError(
                    f"Player {ask.player.name!r} needs an engine for its moves, and `play` was called without one."
                )
            ticket = next(self._tickets)
            self.engine.add(ticket, answer)
            self.waiting[ticket] = playing, ask, answer
            return None

    def answer(self, ticket: int, reply: Reply) -> Episode | None:
        """Pass a reply to its game, and advance it."""
        playing, ask, request = self.waiting.pop(ticket)
        turn = ask.player.answer(ask.observation, request, reply)
        if not isinstance(turn, Turn):
            raise TypeError(
                f"Player {ask.player.name!r} returned a {type(turn).__name__} for a reply in {ask.observation.game}. "
                "`answer` must return a `Turn`; for a reply without a move, return `Turn(action=None)`."
            )
        return self.advance(playing, turn)
