"""Grades at tic-tac-toe during training."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import Trainer

from trl_spiral import _trl
from trl_spiral.callbacks.grading import GradingCallback
from trl_spiral.callbacks.trainer_policy import evaluation_player, grading_temperatures, renderer_of
from trl_spiral.engines.local.scoring import reply_logprobs
from trl_spiral.evaluation.exact.tictactoe import BEST_RESPONSE, RIVALS, grade_tictactoe
from trl_spiral.evaluation.matches import SHARES, play_matches, tally
from trl_spiral.games import get_game
from trl_spiral.players import MinimaxPlayer, RandomPlayer
from trl_spiral.types import FORFEITS


_PREFIX = "tictactoe"
_NEGLIGIBLE = -18.0  # nats: 1.5e-8 a reply, so less than 1e-6 over all replies at a board


class TicTacToeCallback(GradingCallback):
    """
    Grades the policy at tic-tac-toe before training, every `every` steps, and after.

    If replies are moves and nothing else, the policy is graded exactly, over every reachable board. A policy that
    thinks first is graded by playing `games` games. In exact grades each board has a prompt of its own; otherwise
    prompts and sampling are those of the trainer's evaluation. See [`GradingCallback`].

    Args:
        trainer, every, prompt_style:
            See [`GradingCallback`].
        temperatures (`Sequence[float]`, *optional*):
            Temperatures to grade at; the table shows the first. Default: the trainer's in evaluation and, if it
            differs, in training.
        games (`int`, *optional*):
            Games per rival and seat. `None` grades exactly.
        seed (`int`, defaults to `0`):
            Seed of the games.

    Raises:
        ValueError: If `every` is below 1. When training begins, if the trainer's model cannot be graded.
    """

    def __init__(
        self,
        trainer: Trainer,
        temperatures: Sequence[float] | None = None,
        every: int | None = None,
        games: int | None = None,
        seed: int = 0,
        prompt_style: str | None = None,
    ) -> None:
        super().__init__(trainer, every, prompt_style)
        self.temperatures = temperatures
        self.games = games
        self.seed = seed

    @property
    def key_metrics(self) -> list[str]:
        return [f"{_PREFIX}/random/non_loss"]

    @property
    def is_exact(self) -> bool:
        return self.games is None

    def prepare(self) -> None:
        super().prepare()
        self.temperatures = grading_temperatures(self.trainer, self.temperatures, self.is_exact)

    def grade(self, step: int) -> dict[str, float]:
        if not self.is_exact:
            # On every rank, since all of them open the engine; only the first one plays.
            reports = [self._play(temperature) for temperature in self.temperatures]
        elif self.trainer.is_world_process_zero():
            reports = self._score()
        if not self.trainer.is_world_process_zero():
            return {}
        metrics: dict[str, float] = {}
        for prefix, report in zip(("", "train_temperature/"), reports, strict=False):
            metrics |= {f"{_PREFIX}/{prefix}{name}": value for name, value in report.items()}
        return metrics

    def table(self) -> str:
        """
        Return a Markdown table of the policy before and after training, against each rival, in each seat.

        Exact grades include a best response among the rivals.
        """
        how = "exact, over every reachable board" if self.is_exact else f"{self.games} games each"
        # An exact grade has no token limit: a reply is a legal move or it is not.
        fields = ("win", "draw", "loss", "illegal") if self.is_exact else SHARES
        lines = [
            f"Tic-tac-toe at temperature {self.temperatures[0]:g} ({how}):",
            "",
            f"| model | against | seat | {' | '.join(fields)} |",
            f"|---|---|---|{'---:|' * len(fields)}",
        ]
        for when, metrics in (("before", self.curve[0]), ("after", self.curve[-1])):
            for rival in (*RIVALS, BEST_RESPONSE) if self.is_exact else RIVALS:
                for seat in (0, 1):
                    name = f"{_PREFIX}/{rival}/seat{seat}"
                    cells = " | ".join(f"{100 * metrics[f'{name}/{field}']:.1f} %" for field in fields)
                    lines.append(f"| {when} | {rival.replace('_', ' ')} | {('first', 'second')[seat]} | {cells} |")
        return "\n".join(lines)

    def _score(self) -> list[dict[str, float]]:
        """Grade from the probability of each reply, at each temperature."""
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)

        def score(prompts, replies):
            return reply_logprobs(model, prompts, replies, self.temperatures, floor=_NEGLIGIBLE).T.tolist()

        return [report.metrics() for report in grade_tictactoe(renderer_of(self.trainer, self.prompt_style), score)]

    def _play(self, temperature: float) -> dict[str, float]:
        """Grade by games against a random and a perfect player."""
        game = get_game("TicTacToe-v0")
        metrics: dict[str, float] = {}
        with _trl.open_engine(self.trainer) as engine:
            if not _trl.is_first_to_play(self.trainer):
                return metrics
            player = evaluation_player(self.trainer, temperature, self.prompt_style)
            for name, rival in (("random", RandomPlayer()), ("minimax", MinimaxPlayer(game.name))):
                seats = []
                for seat in (0, 1):
                    shares = tally(play_matches(game, player, rival, seat, self.games, engine, self.seed), seat)
                    metrics |= {f"{name}/seat{seat}/{field}": share for field, share in shares.items()}
                    seats.append(shares)
                metrics[f"{name}/non_loss"] = sum(shares["win"] + shares["draw"] for shares in seats) / 2
                metrics |= {f"{name}/{by}": sum(shares[by] for shares in seats) / 2 for by in FORFEITS}
        return metrics
