"""
Strategies of language models: their move probabilities at every information state of a small game.

If replies are moves and nothing else, the probability of a move is the probability of its tokens, exactly. If the
model reasons first, replies are sampled and counted. Prompts are rendered from the observations of the game, as in
play.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from trl_spiral.evaluation.exact.tree import GameTree, InformationState, Strategy, game_tree
from trl_spiral.games.base import Dealt, Game, get_game
from trl_spiral.intervals import LEVEL, RESAMPLES, Estimate
from trl_spiral.players import Player
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.referee import Ask, Engine, Playing, play
from trl_spiral.text.printable import get_logger
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import Ending, Episode, Trajectory


logger = get_logger(__name__)

Scorer = Callable[[Sequence[Sequence[int]], Sequence[Sequence[int]]], Sequence[Sequence[float]]]
"""Returns the log-probabilities (nats) of whole replies to their prompts: one list for each temperature."""

LITTLE = 0.01
"""Share of legal replies below which a strategy does not represent the model."""

RESAMPLED_SEQUENCES = 200_000
"""Budget of an interval: number of sequences over all resamples, unless `FEWEST_RESAMPLES` needs more."""

FEWEST_RESAMPLES = 100
"""Resamples in the largest trees: enough for two of them beyond each end of a 95% interval."""


@dataclass(frozen=True, slots=True)
class MoveProbabilities:
    """
    Move probabilities of a policy at every information state of a game.

    Attributes:
        tree ([`~evaluation.exact.tree.GameTree`]):
            The game.
        mass (`tuple[float, ...]`):
            Probability of each legal move, by the index of its sequence; 1 for the empty sequences. The rest to 1 at a
            state is the probability of an illegal reply.
        samples (`int`, *optional*):
            Replies sampled at each state; `None` if probabilities are exact.
    """

    tree: GameTree
    mass: tuple[float, ...]
    samples: int | None = None
    table: tuple[float, ...] = field(init=False)
    """
    `mass` normalized over the legal moves of each state (uniform if all are 0): the strategy of a player that replies
    until its move is legal.
    """

    def __post_init__(self) -> None:
        table = list(self.mass)
        for state in self.tree.states:
            legal = math.fsum(self.mass[sequence] for sequence in state.sequences)
            for sequence in state.sequences:
                table[sequence] = self.mass[sequence] / legal if legal > 0.0 else 1 / len(state.moves)
        object.__setattr__(self, "table", tuple(table))

    @property
    def strategy(self) -> Strategy:
        """The strategy: normalized move probabilities by the name of an information state."""
        return self.tree.strategy(self.table)

    def illegal_at(self, state: InformationState) -> float:
        """Return the probability of an illegal reply at an information state."""
        return max(0.0, 1.0 - math.fsum(self.mass[sequence] for sequence in state.sequences))

    @property
    def illegal(self) -> float:
        """
        Share of illegal replies when the policy plays itself.

        States are weighted by the probability that the game reaches them, with illegal replies sampled again.
        """
        reach = self.tree.reach(self.table)
        lost = math.fsum(reached * self.illegal_at(s) for reached, s in zip(reach, self.tree.states, strict=True))
        return lost / math.fsum(reach)

    @property
    def nash_conv(self) -> float:
        """NashConv of the strategy: see [`~evaluation.exact.exploitability.nash_conv`]."""
        return sum(best.value for best in self.tree.best_responses(self.table))

    def interval(self, seed: int = 0) -> Estimate:
        """
        Return NashConv with a 95% bootstrap interval, which is a point if probabilities are exact.

        The replies of each state are resampled. A best response to few replies also exploits their noise, so NashConv
        is overestimated, and twice in a resample. The interval is the basic one, whose ends are mirrored at the
        estimate ([Davison & Hinkley, 1997](https://doi.org/10.1017/CBO9780511802843), section 5.2), and so lies lower.
        In Kuhn poker with 32 to 128 replies for each state, it contained the true value in 87% (equilibrium) to 96%
        (uniform play) of 200 trials; a percentile interval never contained that of an equilibrium.

        The cost is one best response for each of up to 1000 resamples, fewer in large trees: 0.3 s in Kuhn poker, 2 s
        in Leduc poker, 6 s in liar's dice with one die each, at 100 replies for each state.
        """
        value = self.nash_conv
        if self.samples is None:
            return Estimate(value, value, value)
        rng = random.Random(seed)
        resamples = min(RESAMPLES, max(FEWEST_RESAMPLES, RESAMPLED_SEQUENCES // self.tree.size))
        drawn = sorted(self._resampled(rng).nash_conv for _ in range(resamples))
        tail = round((1 - LEVEL) / 2 * (resamples - 1))
        return Estimate(value, max(0.0, 2 * value - drawn[-1 - tail]), max(0.0, 2 * value - drawn[tail]))

    def _resampled(self, rng: random.Random) -> MoveProbabilities:
        assert self.samples is not None, "exact probabilities are not resampled"
        mass = [1.0] * len(self.mass)
        for state in self.tree.states:
            odds = [self.mass[sequence] for sequence in state.sequences]
            counts = Counter(rng.choices(range(len(odds) + 1), [*odds, self.illegal_at(state)], k=self.samples))
            for place, sequence in enumerate(state.sequences):
                mass[sequence] = counts[place] / self.samples
        return MoveProbabilities(self.tree, tuple(mass), self.samples)


def scored_moves(game: str | Dealt, renderer: PromptRenderer, score: Scorer) -> list[MoveProbabilities]:
    r"""
    Return the strategies of a policy whose replies are moves and nothing else.

    The probability of a move is the sum over its four forms `\boxed{[call]}`, `\boxed{call}`, `[call]` and `call`, if
    the game accepts them, each with the end-of-turn token. Any other reply counts as illegal.

    Args:
        game (`str` or [`~games.Dealt`]):
            The game: see [`~evaluation.exact.tree.game_tree`].
        renderer ([`~text.prompts.PromptRenderer`]):
            Renders the prompts of the policy.
        score (`Scorer`):
            Returns log-probabilities of replies at each temperature.

    Returns:
        `list[MoveProbabilities]`: One for each temperature, exact up to rounding.

    Raises:
        ValueError: If the game has no tree, or if its prompts open a thought, so that no reply is a move alone.
    """
    tree, rules = game_tree(game), _rules(game)
    ways = {
        move: replies_that_are(rules, renderer, move)
        for move in sorted({move for s in tree.states for move in s.moves})
    }
    rows = [
        (state, sequence, reply)
        for state in tree.states
        for move, sequence in zip(state.moves, state.sequences, strict=True)
        for reply in ways[move]
    ]
    scores = score([renderer.prompt(state.observation) for state, _, _ in rows], [reply for _, _, reply in rows])
    found = []
    for logprobs in scores:
        mass = [0.0] * tree.size
        mass[:2] = 1.0, 1.0
        for (_, sequence, _), logprob in zip(rows, logprobs, strict=True):
            mass[sequence] += math.exp(logprob)
        found.append(_warned(MoveProbabilities(tree, tuple(mass))))
    return found


def sampled_moves(
    game: str | Dealt, player: Player, engine: Engine | None, samples: int, seed: int = 0
) -> MoveProbabilities:
    """
    Estimate the strategy of any player, such as a model that reasons first, from several replies at each state.

    Args:
        game (`str` or [`~games.Dealt`]):
            The game: see [`~evaluation.exact.tree.game_tree`].
        player ([`~players.Player`]):
            The player. It sees each state alone, without its earlier replies in the game.
        engine ([`~selfplay.referee.Engine`], *optional*):
            Generates the replies of a policy.
        samples (`int`):
            Replies at each state.
        seed (`int`, defaults to `0`):
            Seed of all replies.

    Returns:
        [`MoveProbabilities`]: Shares of the replies. A reply without a legal move, or a truncated one, is illegal.

    Raises:
        ValueError: If the game has no tree, or `samples` is not positive.
        RuntimeError: If a reply is lost.
    """
    if samples < 1:
        raise ValueError(f"`samples` ({samples}) must be at least 1 reply for each information state.")
    tree, rules = game_tree(game), _rules(game)
    counts = [0] * tree.size
    questions = (
        _question(rules, player, state, number * samples + draw, derive_seed(seed, "state", number, draw))
        for number, state in enumerate(tree.states)
        for draw in range(samples)
    )
    for episode in play(questions, engine):
        state = tree.states[episode.counter // samples]
        (turn,) = episode.trajectories[state.seat].turns
        if turn.lost:
            raise RuntimeError(f"A reply of {player.name} at {state.name!r} in {tree.game} was lost. Ask again.")
        move = None if turn.action is None else rules.canonical(turn.action)
        if move in state.moves:
            counts[state.first + state.moves.index(move)] += 1
    mass = (1.0, 1.0, *(count / samples for count in counts[2:]))
    return _warned(MoveProbabilities(tree, mass, samples))


def replies_that_are(rules: Game, renderer: PromptRenderer, move: str) -> list[tuple[int, ...]]:
    """
    Return the token ids of all replies that consist of a move in canonical form, sorted.

    Raises:
        ValueError: If there are none, since the prompt opens a thought.
    """
    bare = move.removeprefix("[").removesuffix("]")
    texts = {f"\\boxed{{{form}}}" for form in (move, bare)} | {move, bare}
    read = {text: renderer.move(text) for text in texts}
    ways = {renderer.reply(text) for text, found in read.items() if found and rules.canonical(found) == move}
    if not ways:
        raise ValueError(
            f"The prompt opens a thought, so that no reply is the move {move} alone. Sample replies instead: "
            "`samples=100`."
        )
    return sorted(ways)


def _rules(game: str | Dealt) -> Game:
    return get_game(game) if isinstance(game, str) else game


def _question(rules: Game, player: Player, state: InformationState, counter: int, seed: int) -> Playing:
    """Ask a player for a move at an information state, as an episode of one turn."""
    turn = yield Ask(player, replace(state.observation, seed=seed))
    trajectories = tuple(Trajectory(seat, (turn,) if seat == state.seat else ()) for seat in (0, 1))
    return Episode(rules.name, seed, (player.name,) * 2, trajectories, (0.0, 0.0), Ending.FINISHED, counter=counter)


def _warned(found: MoveProbabilities) -> MoveProbabilities:
    """Return `found`. Log a warning if almost all replies are illegal."""
    if found.illegal > 1.0 - LITTLE:
        logger.warning(
            "Of the policy's replies in %s, %.2f %% are illegal: its exploitability is that of the few others. Grade "
            "a model that reasons first by sampled replies (`samples=100`); any other must first learn the moves.",
            found.tree.game,
            100 * found.illegal,
        )
    return found
