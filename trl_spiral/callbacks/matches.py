"""Matches against named opponents during training."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from accelerate.utils import gather_object
from transformers import Trainer

from trl_spiral import _trl
from trl_spiral.callbacks.grading import GradingCallback, check_at_least_one
from trl_spiral.callbacks.trainer_policy import endpoint_kwargs_of, engine_group, evaluation_player, games_of
from trl_spiral.distributed import agree
from trl_spiral.engines.build import BuiltPlayers, build_players, read_names
from trl_spiral.evaluation.matches import MatchReport, match_table, paired_starts, seat_result
from trl_spiral.games import Game
from trl_spiral.players import HumanPlayer, Player
from trl_spiral.selfplay.referee import Engine, Start, play, referee
from trl_spiral.types import POLICY, Episode


class MatchCallback(GradingCallback):
    """
    Plays matches of the policy against rivals before training, every `every` steps, and after.

    The policy plays the trainer's games, with the prompts and the sampling of the trainer's evaluation; see
    [`~callbacks.trainer_policy.evaluation_player`]. Every deal is played from every seat, the same deals each time.
    Each rank plays its share, and all ranks hold the results. They are logged under SPIRAL's names,
    `eval/{game}-{opponent}/pid-{seat}/win` and so on, with 95 % intervals; see [`~evaluation.matches.MatchReport`].
    See also [`GradingCallback`].

    Args:
        trainer, every, prompt_style:
            See [`GradingCallback`].
        games (`str`, [`~games.Game`] or a sequence of them, *optional*):
            Games to play. Default: the trainer's; required if the trainer plays none.
        rivals (`str`, [`~players.Player`] or a sequence of them, defaults to `"random"`):
            Opponents: players that need no engine, or names of players as in [`~players.names`]: scripted players,
            models, snapshots, endpoints.
        pairs (`int`, defaults to `100`):
            Deals of each game against each rival, each played from every seat.
        temperature (`float`, *optional*):
            Temperature of the policy, and of rivals that are models. Default: the trainer's, in evaluation.
        seed (`int`, defaults to `0`):
            Seed of the deals and of all decisions.
        endpoint_kwargs (`dict`, *optional*):
            Arguments of [`EndpointEngine`] for endpoints, such as `api_key_env` and `timeout`. Default: the trainer's,
            without its budget.

    Attributes:
        reports (`list[MatchReport]`):
            Reports of the latest evaluation, one for each game and rival.
        episodes (`list[Episode]`):
            Episodes of the latest evaluation that this rank played.

    Raises:
        ValueError: If a rival or a game is unknown, or nothing would be played. When training begins, if the trainer's
            model cannot play. A rival that is a model is loaded at once, on every rank.
        RuntimeError: If a game cannot be played on this machine.
    """

    def __init__(
        self,
        trainer: Trainer,
        games: str | Game | Sequence[str | Game] | None = None,
        rivals: str | Player | Sequence[str | Player] = "random",
        pairs: int = 100,
        every: int | None = None,
        temperature: float | None = None,
        seed: int = 0,
        prompt_style: str | None = None,
        endpoint_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(trainer, every, prompt_style)
        check_at_least_one(pairs=pairs)
        rivals = rivals if isinstance(rivals, Sequence) and not isinstance(rivals, str) else [rivals]
        if not rivals:
            raise ValueError("`rivals` is empty: nothing would be played. Name at least one, such as 'random'.")
        self.games = games_of(trainer, games)
        self.pairs = pairs
        self.temperature = temperature
        self.seed = seed
        self.endpoint_kwargs = endpoint_kwargs_of(trainer) if endpoint_kwargs is None else endpoint_kwargs
        self.reports: list[MatchReport] = []
        self.episodes: list[Episode] = []
        self._rivals = self._make_rivals(rivals)

    def _make_rivals(self, rivals: Sequence[str | Player]) -> BuiltPlayers:
        policy = evaluation_player(self.trainer, self.temperature, self.prompt_style)
        names = read_names([rival for rival in rivals if isinstance(rival, str)])
        models = [name.text for name in names if name.kind in ("endpoint", "model", "snapshot")]
        if models and _trl.ranks_per_engine(self.trainer) > 1:
            raise ValueError(
                f"Ranks that share an engine (`vllm_tensor_parallel_size` above 1) would each query {models[0]} and "
                "get different replies. Use 1, or scripted rivals."
            )
        made = build_players(
            names,
            self.games,
            policy.sampling,
            policy.renderer.style,
            device=self.trainer.accelerator.device,
            endpoint_kwargs=self.endpoint_kwargs,
        )
        made.players |= {rival.name: rival for rival in rivals if not isinstance(rival, str)}
        if POLICY in made.players or len(made.players) < len(rivals):
            raise ValueError(
                f"Each of the rivals ({', '.join(made.players)}) needs a name of its own, and none may be {POLICY!r}, "
                "which is the name of the model in training."
            )
        if any(isinstance(rival, HumanPlayer) for rival in made.players.values()):
            raise ValueError("A person cannot play every evaluation of a run. Use `trl-spiral play`.")
        return made

    @property
    def key_metrics(self) -> list[str]:
        return [f"eval/{self.games[0].name}-{next(iter(self._rivals.players))}/all/games"]

    def grade(self, step: int) -> dict[str, float]:
        policy = evaluation_player(self.trainer, self.temperature, self.prompt_style)
        group, groups = engine_group(self.trainer)
        self.reports, self.episodes = [], []
        with _trl.open_engine(self.trainer) as engine:
            for game, rival in itertools.product(self.games, self._rivals.players.values()):
                starts = paired_starts(game, policy, rival, self.pairs, self.seed)[group::groups]
                episodes = agree(
                    partial(self._play, starts, engine),
                    lambda: _trl.restore_weights(self.trainer, engine),
                )
                # By counter: ranks that share an engine play the same episodes.
                outcomes = dict(gather_object([(episode.counter, seat_result(episode)) for episode in episodes]))
                self.reports.append(MatchReport.of(game, POLICY, rival.name, outcomes.values(), self.seed))
                self.episodes += episodes
        return {name: value for report in self.reports for name, value in report.metrics().items()}

    def table(self) -> str:
        """Return a Markdown table of the policy before and after training, against each rival, by seat."""
        rows = []
        for game in self.games:
            for rival in self._rivals.players:
                for when, metrics in (("before", self.curve[0]), ("after", self.curve[-1])):
                    rows.append((when, MatchReport.from_metrics(game, POLICY, rival, metrics)))
        return match_table(rows)

    def _play(self, starts: Sequence[Start], engine: Engine) -> list[Episode]:
        return list(play(map(referee, starts), self._rivals.engine(engine)))
