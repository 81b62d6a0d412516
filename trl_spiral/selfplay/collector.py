"""Plays games until a batch of training rows is full. Torch-free."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from trl_spiral.selfplay.advantages import AdvantageEstimator
from trl_spiral.selfplay.batch import Batch, Filling, Pace, account
from trl_spiral.selfplay.curriculum import Curriculum, named_shares
from trl_spiral.selfplay.matchmaking import ResultTracker
from trl_spiral.selfplay.metrics import measure
from trl_spiral.selfplay.ranks import Ranks
from trl_spiral.selfplay.referee import Engine, Playing, play
from trl_spiral.selfplay.results import Result, learning_seats
from trl_spiral.selfplay.rows import Row, make_rows
from trl_spiral.selfplay.schedule import Schedule
from trl_spiral.selfplay.settings import MOST_IN_FLIGHT, SelfPlaySettings
from trl_spiral.text.printable import get_logger
from trl_spiral.types import POLICY, SELF, Episode


logger = get_logger(__name__)

_MARGIN = 1.03
_MAX_WAVES = 20


class Collector:
    """
    Plays games until every rank has a full batch of rows.

    Games are started one by one until they are expected to fill the batch, and every started game is played to its
    end. Rows are taken in the order in which games were started, so short games are not preferred.

    Args:
        settings ([`SelfPlaySettings`]):
            Settings of self-play.
        estimator ([`~selfplay.advantages.AdvantageEstimator`]):
            Computes advantages.
        tracker ([`~selfplay.matchmaking.ResultTracker`], *optional*):
            Receives the results of training, and sorts opponents into classes. Default: each set of names is a class.
        curriculum ([`~selfplay.curriculum.Curriculum`], *optional*):
            Chooses the shares of the games before each training batch.
        ranks ([`~selfplay.ranks.Ranks`], *optional*):
            The ranks of the run. Default: one.

    Attributes:
        episodes (`int`):
            Number of episodes that this rank has started in training.
        kept (`list[Row]`):
            Rows for the next batch.
        measured (`dict[str, float]`):
            Metrics of the previous training batch over all ranks, for the curriculum.
    """

    def __init__(
        self,
        settings: SelfPlaySettings,
        estimator: AdvantageEstimator,
        tracker: ResultTracker | None = None,
        curriculum: Curriculum | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.settings = settings
        self.estimator = estimator
        self.tracker = tracker
        self.curriculum = curriculum
        self.ranks = ranks or Ranks()
        self.keep_surplus = settings.row_advantages
        self.episodes = 0
        self.kept: list[Row] = []
        self.measured: dict[str, float] = {}
        self._pace = Pace()

    def collect(
        self,
        needed: int,
        schedule: Schedule,
        engine: Engine,
        step: int = 0,
        restore: Callable[[], None] | None = None,
    ) -> Batch:
        """
        Play a training batch, and update the estimator, the tracker and the kept rows.

        Args:
            needed (`int`):
                Number of rows that this rank needs.
            schedule ([`Schedule`]):
                Makes the episodes.
            engine ([`~selfplay.referee.Engine`]):
                Answers the players.
            step (`int`, defaults to `0`):
                Optimizer steps taken, for the curriculum.
            restore (`Callable[[], None]`, *optional*):
                Gives an engine that has lost its weights the right ones again; see [`~selfplay.ranks.Ranks.agree`].

        Returns:
            [`Batch`]: Exactly `needed` rows.

        Raises:
            RuntimeError: If games bring too few rows, another rank has failed, ranks that share an engine have played
                different games, or the curriculum returned different weights on another rank.
            ValueError: If the curriculum names a game that is not played, or returns invalid weights.
        """
        if self.settings.priming_games and self.episodes == 0:
            primed = self.ranks.gather([Result.of(episode) for episode in play(schedule.priming_episodes())])
            self.estimator.update(sorted(primed, key=lambda result: result.counter))
        if self.curriculum is not None:
            schedule = replace(schedule, shares=self._curriculum_shares(self.curriculum, schedule, step))
        self._pace.start_batch()
        filling = Filling(needed, self._pace, self.episodes, queue=list(self.kept))
        self._fill(filling, schedule, engine, restore)
        # Once per batch, after all of its waves.
        filling.results.sort(key=lambda result: result.counter)
        self.estimator.update(filling.results)
        self.episodes = filling.number
        self.kept = filling.surplus if self.keep_surplus else []
        self.measured = measure(filling.results)
        if self.tracker is not None:
            self.tracker.record(filling.results)
        return self._batch(filling, schedule, engine, len(self.kept))

    def evaluate(
        self,
        needed: int,
        schedule: Schedule,
        engine: Engine,
        first: int = 0,
        restore: Callable[[], None] | None = None,
    ) -> Batch:
        """
        Play a batch of evaluation, which changes no state.

        Args:
            needed, schedule, engine, restore:
                As for `collect`.
            first (`int`, defaults to `0`):
                Number of the first episode.

        Returns:
            [`Batch`]: Exactly `needed` rows.
        """
        filling = Filling(needed, replace(self._pace, fixed=True), first, queue=[])
        self._fill(filling, schedule, engine, restore)
        return self._batch(filling, schedule, engine, 0)

    # ---- playing ----
    def _fill(self, filling: Filling, schedule: Schedule, engine: Engine, restore: Callable[[], None] | None) -> None:
        """Play waves of games until every rank has its rows."""
        for _ in range(_MAX_WAVES):
            wave = self.ranks.agree(partial(self._play_wave, filling, schedule, engine), restore)
            filling.number += len(wave)
            if schedule.sharing > 1:
                _check_equal_games(self.ranks, wave, schedule.rank)
            self._add_rows(filling, wave)
            # All ranks look at the largest number, so that none waits for a wave that another does not play.
            if max(self.ranks.gather([filling.missing])) <= 0:
                return
        self._fill_with_zeros(filling)

    def _play_wave(self, filling: Filling, schedule: Schedule, engine: Engine) -> list[Episode]:
        """Play the games that are expected to bring the missing rows. Return them in the order of their start."""
        missing, group = filling.missing, self.settings.games_per_start
        ended: list[Episode] = []
        rows = 0

        def games() -> Iterator[Playing | None]:
            # The number of games is estimated from earlier batches. The games of this one that end first are its short
            # ones. A few more than needed are started: their rows are not lost, and a second wave of a handful of
            # games would leave the engine nearly idle.
            started, target = 0, missing * _MARGIN / filling.pace.rows_per_episode
            while True:
                if started < target or started % group:
                    yield schedule.episode(filling.number + started)
                    started += 1
                elif started > len(ended):
                    yield None
                elif rows < missing and started < missing:
                    # Never more games than rows: if games bring none, another wave or an error must decide.
                    target = min(missing, started + 1 + (missing - rows) * _MARGIN / max(1.0, rows / started))
                else:
                    return

        in_flight = self.settings.games_in_flight or min(max(missing, group), MOST_IN_FLIGHT)
        for episode in play(games(), engine, in_flight):
            ended.append(episode)
            for seat in self._learning_seats(episode):
                rows += len(episode.trajectories[seat].turns) if self.settings.sample_unit == "turn" else 1
        return sorted(ended, key=lambda episode: episode.counter)

    def _add_rows(self, filling: Filling, wave: Sequence[Episode]) -> None:
        """Compute the advantages of a wave, and add its rows to the batch."""
        mine = [Result.of(episode, self._learning_seats(episode), self._opponent_of(episode)) for episode in wave]
        # Each once, since ranks that share an engine send the same, and in the same order on all ranks.
        gathered = {result.counter: result for result in self.ranks.gather(mine)}
        results = [gathered[counter] for counter in sorted(gathered)]
        scored = self.estimator.advantages(results)
        advantages = {result.counter: numbers for result, numbers in zip(results, scored, strict=True)}
        for episode in wave:
            rows = make_rows(episode, advantages[episode.counter], self.settings.sample_unit)
            filling.pace.add(len(rows))
            for row in rows:
                filtered = self.settings.filter_zero_advantages and row.advantage == 0.0
                (filling.spare if filtered else filling.queue).append(row)
        filling.results += results
        filling.episodes += wave

    def _fill_with_zeros(self, filling: Filling) -> None:
        """Add filtered rows to a batch that many waves have not filled. Called on every rank."""
        if min(self.ranks.gather([len(filling.spare) - filling.missing])) < 0:
            endings = dict(Counter(str(result.ending) for result in filling.results))
            detail = next((episode.detail for episode in filling.episodes if episode.ending.is_broken), "")
            raise RuntimeError(
                f"{len(filling.results)} games brought too few rows to train on. Their endings: {endings}. "
                f"{detail}".rstrip()
            )
        logger.warning(
            "Hardly any turn has an advantage, so the batch is filled up with turns of zero advantage. If this goes "
            "on, the policy has settled: use more `opening_moves` or other opponents."
        )
        short = max(0, filling.missing)
        filling.queue += filling.spare[:short]
        filling.spare = filling.spare[short:]

    def _learning_seats(self, episode: Episode) -> tuple[int, ...]:
        return learning_seats(episode, self.settings.winner_learns_from_forfeit)

    def _opponent_of(self, episode: Episode) -> str:
        """Return the class of the policy's opponents, for baselines."""
        if not self.settings.baseline_per_opponent:
            return SELF
        if self.tracker is not None:
            return self.tracker.against(episode.players)
        return "+".join(sorted(set(episode.players) - {POLICY})) or SELF

    def _curriculum_shares(self, curriculum: Curriculum, schedule: Schedule, step: int) -> list[float]:
        names = [game.name for game in schedule.games]
        shares = self.ranks.agree(lambda: named_shares(names, curriculum(step, dict(self.measured))))
        if any(others != shares for others in self.ranks.gather([shares])):
            raise RuntimeError(
                f"The curriculum returned {dict(zip(names, shares, strict=True))} on this rank at step {step}, and "
                "other weights on another rank. Let it depend on nothing but its arguments and its own state."
            )
        return shares

    # ---- metrics ----
    def _batch(self, filling: Filling, schedule: Schedule, engine: Engine, kept: int) -> Batch:
        metrics = measure(filling.results)
        metrics |= {f"selfplay/{name}": value for name, value in self.estimator.metrics().items()}
        metrics |= account(filling, kept)
        metrics |= {f"selfplay/engine/{name}": value for name, value in engine.metrics().items()}
        if self.tracker is not None:
            metrics |= {f"pool/{name}": value for name, value in self.tracker.metrics().items()}
        if schedule.shares is not None:
            shares = zip(schedule.games, schedule.shares, strict=True)
            metrics |= {f"selfplay/{game.name}/share": share for game, share in shares}
        return Batch(filling.queue[: filling.needed], filling.episodes, metrics)

    # ---- state ----
    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as plain values: all but the tracker's."""
        return {
            "episodes": self.episodes,
            "kept": [row.to_dict() for row in self.kept],
            "pace": [self._pace.rows, self._pace.episodes],
            "measured": self.measured,
            "estimator": self.estimator.state_dict(),
            "curriculum": _state_of(self.curriculum),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """
        Restore the state that `state_dict` returned.

        Raises:
            ValueError: If it contains the state of a curriculum, and this run's curriculum has none.
        """
        self.episodes = state["episodes"]
        self.kept = [Row(**row) for row in state["kept"]]
        self._pace = Pace(*state["pace"])
        self.measured = dict(state["measured"])
        self.estimator.load_state_dict(state["estimator"])
        if state["curriculum"] is not None:
            load = getattr(self.curriculum, "load_state_dict", None)
            if load is None:
                raise ValueError(
                    "The checkpoint contains the state of a curriculum, and this run's curriculum has no state. "
                    "Resume with the same `curriculum`."
                )
            load(state["curriculum"])


def _state_of(curriculum: Curriculum | None) -> dict[str, Any] | None:
    """Return the state of a curriculum, if it has any."""
    state_dict = getattr(curriculum, "state_dict", None)
    return None if state_dict is None else dict(state_dict())


def _check_equal_games(ranks: Ranks, wave: Sequence[Episode], group: int) -> None:
    """Raise `RuntimeError`, on every rank, if the ranks of one group have not played equal games."""
    played = repr([(episode.counter, episode.moves, episode.trajectories) for episode in wave])
    checksums: dict[int, set[str]] = {}
    for other, checksum in ranks.gather([(group, hashlib.blake2b(played.encode(), digest_size=8).hexdigest())]):
        checksums.setdefault(other, set()).add(checksum)
    for other, seen in checksums.items():
        if len(seen) > 1:
            raise RuntimeError(
                f"The ranks of group {other} share one engine and have played different games (checksums "
                f"{', '.join(sorted(seen))}): they have sent it different requests. Report this, with the settings."
            )
