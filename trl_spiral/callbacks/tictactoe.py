"""Grades at tic-tac-toe while the policy learns."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import Trainer, TrainerCallback

from trl_spiral import _trl
from trl_spiral.callbacks.log import log_beside
from trl_spiral.callbacks.policy import check_can_play, evaluation_player, grading_temperatures, renderer_of
from trl_spiral.engines.local.scoring import reply_logprobs
from trl_spiral.evaluation.exact.tictactoe import BEST_RESPONSE, RIVALS, grade_tictactoe
from trl_spiral.evaluation.matches import SHARES, play_matches, tally
from trl_spiral.games import get_game
from trl_spiral.players import MinimaxPlayer, RandomPlayer
from trl_spiral.types import FORFEITS


_PREFIX = "tictactoe"
_NEGLIGIBLE = -18.0  # nats: 1.5e-8 a reply, so less than 1e-6 over all replies at a board


class TicTacToeCallback(TrainerCallback):
    """
    Grades the policy at tic-tac-toe before training, every so often, and after: the table and the curve of a run.

    A policy whose replies are moves and nothing else is graded exactly, over every reachable board. One that reasons
    first is graded by playing. Nothing here is used for training or for choosing a checkpoint, and nothing in the
    trainer moves. Each board is asked for by itself in exact grades, and otherwise as in the trainer's evaluation.

    Args:
        trainer ([`~transformers.Trainer`]):
            Whose policy is graded.
        temperatures (`Sequence[float]`, *optional*):
            Temperatures to grade at; the table shows the first. Default: the trainer's in evaluation and, where it
            differs, in training.
        every (`int`, *optional*):
            Steps between grades; only before and after training by default.
        games (`int`, *optional*):
            Games per rival and seat. `None` grades exactly.
        seed (`int`, defaults to `0`):
            Seed of the games.
        prompt_style (`str`, *optional*):
            See [`~text.prompts.PromptRenderer`]; by default that of the trainer's self-play, or `"chat"`.

    Raises:
        ValueError: When training begins, if the trainer's model cannot be graded.
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
        self.trainer = trainer
        self.temperatures = temperatures
        self.every = every
        self.games = games
        self.seed = seed
        self.prompt_style = prompt_style

    @property
    def curve(self) -> list[dict[str, float]]:
        """One entry per grade. Taken from the trainer's log, so that a resumed run knows how it began."""
        return [entry for entry in self.trainer.state.log_history if f"{_PREFIX}/random/non_loss" in entry]

    def on_train_begin(self, args, state, control, **kwargs):
        check_can_play(self.trainer, self.prompt_style, alone=self.games is None)
        self.temperatures = grading_temperatures(self.trainer, self.temperatures, exact=self.games is None)
        if not self.curve:
            self._grade(state)

    def on_step_end(self, args, state, control, **kwargs):
        if self.every and state.global_step % self.every == 0 and state.global_step < state.max_steps:
            self._grade(state)

    def on_train_end(self, args, state, control, **kwargs):
        self._grade(state)

    def table(self) -> str:
        """Markdown: the policy before and after, against each rival, as first and as second seat; exact ones against a best response too."""
        how = "exact, over every reachable board" if self.games is None else f"{self.games} games each"
        # To an exact grade, a reply is a legal move or it is not.
        fields = ("win", "draw", "loss", "illegal") if self.games is None else SHARES
        lines = [
            f"Tic-tac-toe at temperature {self.temperatures[0]:g} ({how}):",
            "",
            f"| model | against | seat | {' | '.join(name.replace('truncated', 'cut off') for name in fields)} |",
            f"|---|---|---|{'---:|' * len(fields)}",
        ]
        for when, numbers in (("before", self.curve[0]), ("after", self.curve[-1])):
            for rival in (*RIVALS, BEST_RESPONSE) if self.games is None else RIVALS:
                for seat in (0, 1):
                    name = f"{_PREFIX}/{rival}/seat{seat}"
                    shares = [numbers[f"{name}/{field}"] for field in fields]
                    cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
                    lines.append(f"| {when} | {rival.replace('_', ' ')} | {('first', 'second')[seat]} | {cells} |")
        return "\n".join(lines)

    def _grade(self, state) -> None:
        if self.games is not None:
            # On every rank, since an engine is opened by all; the first alone plays.
            reports = [self._play(temperature) for temperature in self.temperatures]
        elif state.is_world_process_zero:
            reports = self._exact()
        if not state.is_world_process_zero:
            return
        numbers: dict[str, float] = {}
        for prefix, report in zip(("", "train_temperature/"), reports, strict=False):
            numbers |= {f"{prefix}{name}": value for name, value in report.items()}
        log_beside(self.trainer, {f"{_PREFIX}/{name}": value for name, value in numbers.items()})

    def _exact(self) -> list[dict[str, float]]:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)

        def score(prompts, replies):
            return reply_logprobs(model, prompts, replies, self.temperatures, floor=_NEGLIGIBLE).T.tolist()

        return [report.metrics() for report in grade_tictactoe(renderer_of(self.trainer, self.prompt_style), score)]

    def _play(self, temperature: float) -> dict[str, float]:
        game = get_game("TicTacToe-v0")
        numbers: dict[str, float] = {}
        with _trl.open_engine(self.trainer) as engine:
            if not _trl.is_first_to_play(self.trainer):
                return numbers
            player = evaluation_player(self.trainer, temperature, self.prompt_style)
            for name, rival in (("random", RandomPlayer()), ("minimax", MinimaxPlayer(game.name))):
                seats = []
                for seat in (0, 1):
                    shares = tally(play_matches(game, player, rival, seat, self.games, engine, self.seed), seat)
                    numbers |= {f"{name}/seat{seat}/{field}": share for field, share in shares.items()}
                    seats.append(shares)
                numbers[f"{name}/non_loss"] = sum(shares["win"] + shares["draw"] for shares in seats) / 2
                numbers |= {f"{name}/{by}": sum(shares[by] for shares in seats) / 2 for by in FORFEITS}
        return numbers
