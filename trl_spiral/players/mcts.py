"""A player that looks ahead: Monte Carlo tree search, for any deterministic game of perfect information."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from trl_spiral.games import Game, Match
from trl_spiral.players.scripted import ScriptedPlayer
from trl_spiral.types import Observation


@dataclass(slots=True)
class _Node:
    """A position: how often it was visited, what its visits were worth to each seat, and the moves tried from it."""

    values: list[float]
    visits: int = 0
    children: dict[str, _Node] = field(default_factory=dict)


class MCTSPlayer(ScriptedPlayer):
    """
    UCT: the bandit rule UCB1 chooses inside the tree, and uniformly random play judges its leaves.

    From [Kocsis and Szepesvári, 2006](https://doi.org/10.1007/11871842_29). Every position is rebuilt from the game's
    start and the moves so far, so the player holds nothing of the match at the table.

    Args:
        game ([`~games.Game`]):
            Deterministic, of perfect information, with legal moves that can be listed.
        simulations (`int`, defaults to `200`):
            Games played out in thought before each move.
        exploration (`float`, defaults to `sqrt(2)`):
            Weight of UCB1's bonus for moves seldom tried, for returns between -1 and 1.

    Raises:
        ValueError: If the game cannot be searched, or `simulations` is below 1.
    """

    def __init__(self, game: Game, simulations: int = 200, exploration: float = math.sqrt(2)) -> None:
        if simulations < 1:
            raise ValueError(f"`simulations` ({simulations}) must be at least 1: nothing would tell the moves apart.")
        if game.traits.stochastic or not game.traits.perfect_information or game.start(0).legal_actions() is None:
            raise ValueError(
                f"There is no 'mcts' player for {game.name}: the search needs a game without chance or secrets that lists "
                "its legal moves. Use 'random' or 'equilibrium'."
            )
        super().__init__(f"mcts-{simulations}", self._search)
        self.game = game
        self.simulations = simulations
        self.exploration = exploration

    def _search(self, observation: Observation) -> str:
        rng = random.Random(observation.seed)
        root = self._node()
        for _ in range(self.simulations):
            # Nothing is left to chance, so any seed starts the same match.
            match = self.game.start(0)
            for _, move in observation.history:
                match.apply(move)
            self._simulate(root, match, rng)
        # The most visited move, since its value is the best known; among equals the first tried, which was random.
        return max(root.children, key=lambda move: root.children[move].visits)

    def _simulate(self, root: _Node, match: Match, rng: random.Random) -> None:
        """One descent: choose inside the tree, add one node, play out at random, and tell every node on the way."""
        path, node, grown = [root], root, False
        while (seat := match.to_move) is not None:
            legal = match.legal_actions() or ()
            if grown:
                match.apply(rng.choice(legal))
                continue
            untried = [move for move in legal if move not in node.children]
            if untried:
                move = rng.choice(untried)
                node.children[move] = self._node()
                grown = True
            else:
                move = self._most_promising(node, seat)
            match.apply(move)
            node = node.children[move]
            path.append(node)
        for node in path:
            node.visits += 1
            for seat, gain in enumerate(match.returns):
                node.values[seat] += gain

    def _most_promising(self, node: _Node, seat: int) -> str:
        """UCB1, from the side of the seat to move."""
        log = math.log(node.visits)

        def bound(move: str) -> float:
            child = node.children[move]
            return child.values[seat] / child.visits + self.exploration * math.sqrt(log / child.visits)

        return max(node.children, key=bound)

    def _node(self) -> _Node:
        return _Node([0.0] * self.game.traits.seats)
