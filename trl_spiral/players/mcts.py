"""Monte Carlo tree search, for deterministic games of perfect information."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from trl_spiral.games import Game, Match
from trl_spiral.players.scripted import ScriptedPlayer
from trl_spiral.types import Observation


@dataclass(slots=True)
class _Node:
    """A position: sums of returns by seat, number of visits, and the positions after the moves tried so far."""

    values: list[float]
    visits: int = 0
    children: dict[str, _Node] = field(default_factory=dict)


class MCTSPlayer(ScriptedPlayer):
    """
    Player that searches with UCT ([Kocsis and Szepesvári, 2006](https://doi.org/10.1007/11871842_29)).

    UCB1 chooses moves inside the tree, and uniformly random games evaluate its leaves. Each search replays the match
    from the history in the observation, so the player stores no state of the match.

    Args:
        game ([`~games.Game`]):
            Deterministic, of perfect information, with legal moves that can be listed.
        simulations (`int`, defaults to `200`):
            Simulated games per move.
        exploration (`float`, defaults to `sqrt(2)`):
            Weight of UCB1's bonus for rarely tried moves, for returns between -1 and 1.

    Raises:
        ValueError: If the game cannot be searched, or `simulations` is below 1.
    """

    def __init__(self, game: Game, simulations: int = 200, exploration: float = math.sqrt(2)) -> None:
        if simulations < 1:
            raise ValueError(f"`simulations` ({simulations}) must be at least 1: without one, all moves are equal.")
        if game.traits.stochastic or not game.traits.perfect_information or game.start(0).legal_actions() is None:
            raise ValueError(
                f"There is no 'mcts' player for {game.name}: the search needs a deterministic game of perfect "
                "information that lists its legal moves. Use 'random' or 'equilibrium'."
            )
        super().__init__(f"mcts-{simulations}", self._search)
        self.game = game
        self.simulations = simulations
        self.exploration = exploration

    def _search(self, observation: Observation) -> str:
        rng = random.Random(observation.seed)
        root = self._node()
        for _ in range(self.simulations):
            # The game is deterministic, so any seed starts the same match.
            match = self.game.start(0)
            for _, move in observation.history:
                match.apply(move)
            self._simulate(root, match, rng)
        # The most visited move has the most certain value. Ties go to the move tried first, which was random.
        return max(root.children, key=lambda move: root.children[move].visits)

    def _simulate(self, root: _Node, match: Match, rng: random.Random) -> None:
        """Run one simulation: descend the tree, add one node, play randomly to the end, and update the path."""
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
        """Return the move that UCB1 chooses for the seat to move."""
        log = math.log(node.visits)

        def bound(move: str) -> float:
            child = node.children[move]
            return child.values[seat] / child.visits + self.exploration * math.sqrt(log / child.visits)

        return max(node.children, key=bound)

    def _node(self) -> _Node:
        return _Node([0.0] * self.game.traits.seats)
