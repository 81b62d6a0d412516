"""Matches against named opponents while the policy learns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from accelerate.utils import gather_object
from transformers import Trainer, TrainerCallback

from trl_spiral import _trl
from trl_spiral.callbacks.log import log_beside
from trl_spiral.callbacks.policy import check_can_play, evaluation_player, games_of
from trl_spiral.distributed import agree
from trl_spiral.engines.build import BuiltPlayers, build_players, read_names
from trl_spiral.engines.http.openai import BUDGETS
from trl_spiral.evaluation.matches import MatchReport, match_table, paired_starts, seat_result
from trl_spiral.games import Game
from trl_spiral.players import HumanPlayer, Player
from trl_spiral.selfplay.referee import Engine, Start, play, referee
from trl_spiral.types import POLICY, Episode


class MatchCallback(TrainerCallback):
    """
    Plays the policy against others before training, every so often, and after, in any trainer of TRL's.

    The policy plays the trainer's games and is asked as in the trainer's evaluation; see
    [`~callbacks.policy.evaluation_player`].

    Every deal is played from every seat, the same deals each time; each rank plays its share, and all hold the results.
    They are logged under SPIRAL's names, `eval/{game}-{opponent}/pid-{seat}/win` and so on, with 95 % intervals; see
    [`~evaluation.matches.MatchReport`]. Nothing here is used for training or for choosing a checkpoint, and nothing in the
    trainer moves.

    Args:
        trainer ([`~transformers.Trainer`]):
            Whose policy plays.
        games (`str`, [`~games.Game`] or a sequence of them, *optional*):
            Games to play. Default: the trainer's; required where the trainer plays none.
        rivals (`str`, [`~players.Player`] or a sequence of them, defaults to `"random"`):
            Opponents: players that need no engine, or names of players as
            [`~players.names`] lists them: scripted players, models, snapshots, endpoints.
        pairs (`int`, defaults to `100`):
            Deals of each game against each rival, each played from every seat.
        every (`int`, *optional*):
            Steps between evaluations; only before and after training by default.
        temperature (`float`, *optional*):
            Temperature of the policy, and of rivals that are models. Default: the trainer's, in evaluation.
        seed (`int`, defaults to `0`):
            Seed of the deals and of all decisions.
        prompt_style (`str`, *optional*):
            See [`~text.prompts.PromptRenderer`]; by default that of the trainer's self-play, or `"chat"`.
        endpoint_kwargs (`dict`, *optional*):
            Arguments of [`EndpointEngine`] for endpoints, such as `api_key_env` and `timeout`; by default the trainer's,
            without its budget.

    Attributes:
        reports (`list[MatchReport]`):
            The last evaluation's, one for each game and rival.
        episodes (`list[Episode]`):
            The games of the last evaluation that this rank played.

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
        rivals = rivals if isinstance(rivals, Sequence) and not isinstance(rivals, str) else [rivals]
        if pairs < 1 or (every is not None and every < 1) or not rivals:
            raise ValueError(
                f"Matches need `rivals` ({len(rivals)}), `pairs` ({pairs}) and `every` ({every}) of at least 1: nothing "
                "would be played. Use `every=None` for matches before and after training alone."
            )
        self.trainer = trainer
        self.games = games_of(trainer, games)
        self.pairs = pairs
        self.every = every
        self.temperature = temperature
        self.seed = seed
        self.prompt_style = prompt_style
        if endpoint_kwargs is None:
            theirs = getattr(trainer.args, "endpoint_kwargs", None) or {}
            endpoint_kwargs = {name: value for name, value in theirs.items() if name not in BUDGETS}
        self.endpoint_kwargs = endpoint_kwargs
        self.reports: list[MatchReport] = []
        self.episodes: list[Episode] = []
        self._met = self._invite(rivals)

    def _invite(self, rivals: Sequence[str | Player]) -> BuiltPlayers:
        policy = evaluation_player(self.trainer, self.temperature, self.prompt_style)
        names = read_names([rival for rival in rivals if isinstance(rival, str)])
        asked = [name.text for name in names if name.kind in ("endpoint", "model", "snapshot")]
        if asked and _trl.ranks_per_engine(self.trainer) > 1:
            raise ValueError(
                f"Ranks that share an engine (`vllm_tensor_parallel_size` above 1) would each ask {asked[0]} and be answered "
                "differently. Use 1, or scripted rivals."
            )
        met = build_players(
            names,
            self.games,
            policy.sampling,
            policy.renderer.style,
            device=self.trainer.accelerator.device,
            endpoint_kwargs=self.endpoint_kwargs,
        )
        met.players |= {rival.name: rival for rival in rivals if not isinstance(rival, str)}
        if POLICY in met.players or len(met.players) < len(rivals):
            raise ValueError(
                f"Each of the rivals ({', '.join(met.players)}) needs a name of its own, and none may be {POLICY!r}, which "
                "is the name of the model in training."
            )
        if any(isinstance(rival, HumanPlayer) for rival in met.players.values()):
            raise ValueError("A person does not play every evaluation of a run. Use `trl-spiral play`.")
        return met

    @property
    def curve(self) -> list[dict[str, float]]:
        """One entry per evaluation. Taken from the trainer's log, so that a resumed run knows how it began."""
        first = f"eval/{self.games[0].name}-{next(iter(self._met.players))}/all/games"
        return [entry for entry in self.trainer.state.log_history if first in entry]

    def on_train_begin(self, args, state, control, **kwargs):
        check_can_play(self.trainer, self.prompt_style)
        if not self.curve:
            self._evaluate()

    def on_step_end(self, args, state, control, **kwargs):
        if self.every and state.global_step % self.every == 0 and state.global_step < state.max_steps:
            self._evaluate()

    def on_train_end(self, args, state, control, **kwargs):
        self._evaluate()

    def table(self) -> str:
        """Markdown: the policy before and after, against each rival, in each seat and over all."""
        rows = []
        for game in self.games:
            for rival in self._met.players:
                for when, numbers in (("before", self.curve[0]), ("after", self.curve[-1])):
                    rows.append((when, MatchReport.from_metrics(game, POLICY, rival, numbers)))
        return match_table(rows)

    def _evaluate(self) -> None:
        policy = evaluation_player(self.trainer, self.temperature, self.prompt_style)
        # Each engine plays its share; ranks that share one all ask it the same.
        sharing = _trl.ranks_per_engine(self.trainer)
        accelerator = self.trainer.accelerator
        share = slice(accelerator.process_index // sharing, None, accelerator.num_processes // sharing)
        self.reports, self.episodes = [], []
        with _trl.open_engine(self.trainer) as engine:
            for game, rival in itertools.product(self.games, self._met.players.values()):
                starts = paired_starts(game, policy, rival, self.pairs, self.seed)[share]
                episodes = agree(
                    partial(self._play, starts, engine),
                    lambda: _trl.restore_weights(self.trainer, engine),
                )
                told = dict(gather_object([(episode.counter, seat_result(episode)) for episode in episodes]))
                self.reports.append(MatchReport.of(game, POLICY, rival.name, told.values(), self.seed))
                self.episodes += episodes
        # On every rank, so that all of them know what has been played already.
        log_beside(self.trainer, {name: x for report in self.reports for name, x in report.metrics().items()})

    def _play(self, starts: Sequence[Start], engine: Engine) -> list[Episode]:
        return list(play(map(referee, starts), self._met.engine(engine)))
