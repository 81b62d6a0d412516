"""
`SelfPlayRollout`: the multi-turn self-play environment callback for TRL's `rollout_func`.

It plays games until it has as many rows as the trainer asked for, and hands them over. `SpiralTrainer` is built on it, and
a plain `GRPOTrainer` can use it too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object
from datasets import Dataset

from trl_spiral import _trl
from trl_spiral.distributed import check_lock_step, together
from trl_spiral.engines.router import Router
from trl_spiral.games import Game, get_game
from trl_spiral.opponents import Matchmaker, Opponents
from trl_spiral.players import PolicyPlayer, random_move
from trl_spiral.seeding import derive_seed
from trl_spiral.selfplay.advantages import AdvantageEstimator, RoleBaseline
from trl_spiral.selfplay.curriculum import Curriculum, game_shares, named_shares
from trl_spiral.selfplay.metrics import measure
from trl_spiral.selfplay.referee import Engine, Forfeit, Playing, Start, play, referee, until_decided
from trl_spiral.selfplay.results import Result, learning_seats, summarize
from trl_spiral.selfplay.rows import Row, SampleUnit, make_rows
from trl_spiral.selfplay.state import RolloutState
from trl_spiral.text.printable import get_logger
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import POLICY, SELF, Episode, Observation, Reply, Request, Turn


if TYPE_CHECKING:
    from trl import GRPOTrainer


logger = get_logger(__name__)

_MARGIN = 1.03


class SelfPlayRollout:
    """
    Plays episodes of one policy against itself, or whomever the matchmaker seats, and returns them as training rows.

    Pass it as `rollout_func` of a [`~trl.GRPOTrainer`], together with its `reward_func` and its `dataset`:

    ```python
    rollout = SelfPlayRollout("TicTacToe-v0")
    trainer = GRPOTrainer(
        model="Qwen/Qwen3-0.6B",
        rollout_func=rollout,
        reward_funcs=rollout.reward_func,
        train_dataset=rollout.dataset(1024),
        args=GRPOConfig(
            per_device_train_batch_size=64, num_generations=64, scale_rewards="none", loss_type="dr_grpo"
        ),
    )
    ```

    There it insists that `num_generations` equals the generation batch and that `scale_rewards` is `"none"`: TRL
    subtracts each group's mean, and with smaller groups neighbouring turns of one game, which share a return, would
    cancel to zero. Rows that do not fit in a batch are dropped there, since a plain trainer takes every row for fresh.
    [`SpiralTrainer`] has neither restriction.

    Args:
        games (`str`, [`~games.Game`] or a sequence of them):
            What is played.
        estimator ([`~selfplay.advantages.AdvantageEstimator`], *optional*):
            Turns returns into advantages; role-conditioned baselines by default.
        matchmaker ([`~opponents.Matchmaker`], *optional*):
            Fills the seats: [`~opponents.Opponents`], or a function of your own. By default the policy plays itself.
        sample_unit (`str`, defaults to `"turn"`):
            What one row holds: `"turn"` or `"trajectory"`.
        prompt_style (`str`, defaults to `"chat"`):
            See [`~text.prompts.PromptRenderer`].
        opening_moves (`int`, defaults to `0`):
            Up to this many random legal moves start each game.
        games_per_start (`int`, defaults to `1`):
            Episodes that share one deal, one opening and one drawing of seats.
        max_draw_retries (`int`, defaults to `0`):
            How often a drawn game is played again.
        forfeit ([`~selfplay.referee.Forfeit`], *optional*):
            What an illegal or truncated reply costs.
        priming_games (`int`, defaults to `0`):
            Games between random players that the estimator sees before the first batch.
        winner_learns_from_forfeit (`bool`, defaults to `True`):
            Whether the other seats are trained on a game that ended so.
        filter_zero_advantages (`bool`, defaults to `False`):
            Whether rows of zero advantage are left out and more games are played in their place.
        keep_surplus (`bool`, defaults to `True`):
            Whether rows that do not fit wait for the next batch.
        baseline_per_opponent (`bool`, defaults to `True`):
            Whether what the estimator knows is kept apart for each class of opponent: the policy itself, its earlier selves,
            and each other player.
        games_in_flight (`int`, *optional*):
            Most games under way at once; by default as many as there are rows to fill, up to 512.
        constrain_moves (`bool`, defaults to `False`):
            Whether the engine must constrain replies to end in a legal move.
        engines (`Mapping[str, Engine]`, *optional*):
            Who answers players of other policies that a matchmaker of your own seats, by policy name: endpoints, for
            example. They stay open; close them when the run is over.
        seed (`int`, *optional*):
            Seed of all games; the trainer's by default.
        game_weights (`Sequence[float]`, *optional*):
            How often each game is played, up to a common factor; each as often as another by default.
        curriculum ([`~selfplay.curriculum.Curriculum`], *optional*):
            Says before each batch how often each game is played in it. Evaluation goes by `game_weights`.

    Raises:
        ValueError: If `game_weights` do not fit the games, or one that is played does not list its legal moves where they
            are needed: to constrain replies, for openings, or for priming.
    """

    # Waves of games before a batch is given up on: with `filter_zero_advantages`, a wave may bring nothing.
    _MAX_WAVES = 20

    def __init__(
        self,
        games: str | Game | Sequence[str | Game],
        estimator: AdvantageEstimator | None = None,
        matchmaker: Matchmaker | None = None,
        sample_unit: SampleUnit = "turn",
        prompt_style: str = "chat",
        opening_moves: int = 0,
        games_per_start: int = 1,
        max_draw_retries: int = 0,
        forfeit: Forfeit | None = None,
        priming_games: int = 0,
        winner_learns_from_forfeit: bool = True,
        filter_zero_advantages: bool = False,
        keep_surplus: bool = True,
        baseline_per_opponent: bool = True,
        games_in_flight: int | None = None,
        constrain_moves: bool = False,
        engines: Mapping[str, Engine] | None = None,
        seed: int | None = None,
        game_weights: Sequence[float] | None = None,
        curriculum: Curriculum | None = None,
    ) -> None:
        listed = [games] if isinstance(games, str | Game) else list(games)
        self.games = [get_game(game) if isinstance(game, str) else game for game in listed]
        self.estimator: AdvantageEstimator = estimator or RoleBaseline()
        self.matchmaker: Matchmaker = matchmaker or Opponents()
        self.sample_unit = sample_unit
        self.prompt_style = prompt_style
        self.opening_moves = opening_moves
        self.games_per_start = games_per_start
        self.max_draw_retries = max_draw_retries
        self.forfeit = forfeit or Forfeit()
        self.priming_games = priming_games
        self.winner_learns_from_forfeit = winner_learns_from_forfeit
        self.filter_zero_advantages = filter_zero_advantages
        self.keep_surplus = keep_surplus
        self.baseline_per_opponent = baseline_per_opponent
        self.games_in_flight = games_in_flight
        self.constrain_moves = constrain_moves
        self.engines = dict(engines or {})
        self.seed = seed
        self.curriculum = curriculum
        self._names = [game.name for game in self.games]
        self._shares = None if game_weights is None else game_shares(self._names, game_weights)
        # A curriculum may come to any game.
        shares = self._shares if self._shares and curriculum is None else [1.0] * len(self.games)
        self.played = [game for game, share in zip(self.games, shares, strict=True) if share > 0.0]
        for game in self.played:
            game.check()
        listing = {"constrain_moves": constrain_moves, "opening_moves": opening_moves, "priming_games": priming_games}
        if needing := [name for name, value in listing.items() if value]:
            for game in self.played:
                check_lists_moves(game, needing[0])

        self.state = RolloutState()
        self.batch: list[Row] = []
        self.episodes: list[Episode] = []
        self.metrics: dict[str, float] = {}
        self.advantages_are_replaced = False
        self._evaluated = 0
        self._renderer: PromptRenderer | None = None

    # ---- what TRL calls ----
    def __call__(self, prompts: Sequence[Any], trainer: GRPOTrainer) -> dict[str, Any]:
        """
        Rows for one generation batch of one rank.

        Args:
            prompts (`Sequence`):
                Placeholders; only their number counts.
            trainer ([`~trl.GRPOTrainer`]):
                Whose model plays.

        Returns:
            `dict`: `prompt_ids`, `completion_ids`, `logprobs`, `env_mask`, and per row `selfplay_return`,
            `selfplay_advantage`.

        Raises:
            ValueError: If a plain trainer's groups would cancel the advantages.
            RuntimeError: If games bring no rows to train on.
        """
        evaluation = not trainer.model.training
        if not self.advantages_are_replaced and not evaluation:
            self._check_groups(trainer)
        # Ranks that share an engine ask it the same, since each of them runs a part of it, and divide the rows.
        sharing = _trl.ranks_per_engine(trainer)
        group, place = divmod(trainer.accelerator.process_index, sharing)
        snapshots = self.opponents.prepare() if self.opponents else {}
        engines = {**self.engines, **(self.opponents.engines if self.opponents else {})}
        with _trl.open_engine(trainer, snapshots) as engine:
            rows = self.collect(
                len(prompts) * sharing,
                self.player(trainer, evaluation),
                Router(engines, engine) if engines else engine,
                seed=trainer.args.seed if self.seed is None else self.seed,
                rank=group,
                world_size=trainer.accelerator.num_processes // sharing,
                evaluation=evaluation,
                sharing=sharing,
                restore=lambda: _trl.restore_weights(trainer, engine),
                step=trainer.state.global_step,
            )
        self._check_versions(trainer.state.global_step)
        self.batch = batch = rows[place * len(prompts) : (place + 1) * len(prompts)]
        return {
            "prompt_ids": [row.prompt_ids for row in batch],
            "completion_ids": [row.completion_ids for row in batch],
            "logprobs": [row.logprobs for row in batch],
            "env_mask": [row.mask for row in batch],
            "selfplay_return": [row.reward for row in batch],
            "selfplay_advantage": [row.advantage for row in batch],
        }

    def reward_func(
        self, selfplay_return: list[float], selfplay_advantage: list[float], log_metric: Any, **kwargs: Any
    ) -> list[float]:
        """
        Reward function that goes with the roll-out, and logs its metrics.

        Gives each row its return where the trainer replaces advantages, and its advantage in a plain trainer, which
        takes the batch mean off and uses the rest.
        """
        del kwargs
        for name, value in self.metrics.items():
            log_metric(name, value)
        return selfplay_return if self.advantages_are_replaced else selfplay_advantage

    def dataset(self, rows: int) -> Dataset:
        """A data set of `rows` placeholders: TRL needs one, and games are made as they are played."""
        content = ", ".join(game.name for game in self.games)
        return Dataset.from_dict({"prompt": [[{"role": "user", "content": content}]] * rows})

    def start_evaluation(self) -> None:
        """Evaluation plays the same games every time: begin again with the first."""
        self._evaluated = 0

    @property
    def opponents(self) -> Opponents | None:
        """Whom the policy meets, unless a matchmaker of the user's own decides."""
        return self.matchmaker if isinstance(self.matchmaker, Opponents) else None

    # ---- playing ----
    def collect(
        self,
        needed: int,
        player: PolicyPlayer,
        engine: Engine,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        evaluation: bool = False,
        sharing: int = 1,
        restore: Callable[[], None] | None = None,
        step: int = 0,
    ) -> list[Row]:
        """
        Plays until every rank has the rows it needs.

        Games are started one by one until they are expected to fill the batch, every started game is played to its
        end, and rows are taken in the order in which games were started: a game is never preferred for being short.

        Args:
            needed (`int`):
                Rows this rank needs.
            player ([`~players.PolicyPlayer`]):
                The policy.
            engine ([`~selfplay.referee.Engine`]):
                Answers it.
            seed (`int`):
                Seed of the run.
            rank, world_size (`int`):
                Which rank this is, of how many; ranks that share an engine count as one.
            evaluation (`bool`, defaults to `False`):
                Whether to leave baselines, counters and kept rows alone.
            sharing (`int`, defaults to `1`):
                How many ranks share each engine. All of them play the same games and get the same rows.
            restore (`Callable[[], None]`, *optional*):
                Gives an engine that has lost its weights the right ones again. Every rank calls it at the same time.
            step (`int`, defaults to `0`):
                Optimizer steps taken, for the curriculum.

        Returns:
            `list[Row]`: Exactly `needed` rows.

        Raises:
            RuntimeError: If games bring no rows to train on, another rank has failed, or ranks that share an engine have
                played different games, or the curriculum told them differently.
            ValueError: If the curriculum names a game that is not played, or gives no weights.
        """
        state = RolloutState(recent_rows=self.state.recent_rows, recent_episodes=self.state.recent_episodes)
        if not evaluation:
            state = self.state
        if self.priming_games and not evaluation and state.episodes == 0:
            self._prime(player, seed, rank, world_size)
        shares = self._shares if evaluation else self._shares_at(step)
        state.recent_rows, state.recent_episodes = state.recent_rows / 2, state.recent_episodes / 2
        queue = list(state.kept)
        carried = len(queue)
        spare: list[Row] = []
        results: list[Result] = []
        self.episodes = []
        for _ in range(self._MAX_WAVES):
            numbers = self.state.episodes, self._evaluated

            def begin_again(numbers: tuple[int, int] = numbers) -> None:
                self.state.episodes, self._evaluated = numbers

            wave = together(
                partial(
                    self._play_wave, needed - len(queue), player, engine, seed, rank, world_size, evaluation, shares
                ),
                begin_again,
                restore,
            )
            if sharing > 1:
                check_lock_step(wave, rank)
            seats = [learning_seats(episode, self.winner_learns_from_forfeit) for episode in wave]
            # Sorted by counter, so that every rank's estimator is told the same in the same order; ranks that share an
            # engine all tell the same.
            classes = [self._opponent_of(episode) for episode in wave]
            gathered = {result.counter: result for result in gather_object(list(map(summarize, wave, seats, classes)))}
            told = [gathered[counter] for counter in sorted(gathered)]
            scored = self.estimator(told, update=False)
            advantages = {result.counter: numbers for result, numbers in zip(told, scored, strict=True)}
            for episode in wave:
                rows = make_rows(episode, advantages[episode.counter], self.sample_unit)
                state.recent_rows += len(rows)
                state.recent_episodes += 1
                for row in rows:
                    (spare if self.filter_zero_advantages and row.advantage == 0.0 else queue).append(row)
            results += told
            self.episodes += wave
            # All ranks look at the neediest one, so that none waits for a wave that another does not play.
            if max(gather_object([needed - len(queue)])) <= 0:
                break
        else:
            queue, spare = self._fill_up(queue, spare, needed, results)
        batch, rest = queue[:needed], queue[needed:]
        keeps = self.keep_surplus and not evaluation
        if not evaluation:
            # Once per batch, however many waves it took.
            results.sort(key=lambda result: result.counter)
            self.estimator(results)
            state.kept = rest if keeps else []
            state.estimator = self.estimator.state_dict()
            state.measured = measure(results)
            state.curriculum = _state_of(self.curriculum)
            if self.opponents:
                self.opponents.record(results)
        self.batch = batch
        baselines = {f"selfplay/{name}": value for name, value in self.estimator.metrics().items()}
        self.metrics = measure(results) | baselines | self._account(queue, carried, rest, keeps, len(spare))
        self.metrics |= {f"selfplay/engine/{name}": value for name, value in engine.metrics().items()}
        if self.opponents:
            self.metrics |= {f"pool/{name}": value for name, value in self.opponents.metrics().items()}
        if shares is not None:
            self.metrics |= {f"selfplay/{name}/share": x for name, x in zip(self._names, shares, strict=True)}
        return batch

    def restore(self, state: RolloutState) -> None:
        """Goes on from what a checkpoint holds."""
        self.state = state
        self.estimator.load_state_dict(state.estimator)
        if state.curriculum is not None:
            load = getattr(self.curriculum, "load_state_dict", None)
            if load is None:
                raise ValueError(
                    "The checkpoint holds the state of a curriculum, and this run's remembers nothing. Resume with the same "
                    "`curriculum`."
                )
            load(state.curriculum)

    def _shares_at(self, step: int) -> list[float] | None:
        """What share of the games of this batch is of each; `None` for equal ones. Asks the curriculum once, on every rank."""
        if self.curriculum is None:
            return self._shares
        shares: list[float] = []
        failure: Exception | None = None
        try:
            shares = named_shares(self._names, self.curriculum(step, dict(self.state.measured)))
        except Exception as error:
            failure = error
        told = gather_object([(shares, "" if failure is None else f"{type(failure).__name__}: {failure}")])
        if failure is not None:
            raise failure
        for rank, (_, reason) in enumerate(told):
            if reason:
                raise RuntimeError(f"The curriculum has failed on rank {rank}, and this rank stops with it: {reason}")
        if any(others != shares for others, _ in told):
            raise RuntimeError(
                f"The curriculum told this rank {dict(zip(self._names, shares, strict=True))} at step {step}, and another "
                "rank otherwise. Let it depend on nothing but its arguments and its own state."
            )
        return shares

    def _opponent_of(self, episode: Episode) -> str:
        """Class of the policy's opponents in an episode: a baseline is kept for each."""
        if not self.baseline_per_opponent:
            return SELF
        if self.opponents:
            return self.opponents.against(episode.players)
        return "+".join(sorted(set(episode.players) - {POLICY})) or SELF

    def _play_wave(
        self,
        missing: int,
        player: PolicyPlayer,
        engine: Engine,
        seed: int,
        rank: int,
        world_size: int,
        evaluation: bool,
        shares: Sequence[float] | None,
    ) -> list[Episode]:
        """Games expected to bring the missing rows, in the order in which they were started."""
        ended: list[Episode] = []
        rows = 0

        def games() -> Iterator[Playing | None]:
            # How many games fill the batch is guessed from earlier batches, never from which games of this one end
            # first: those are the short ones. A few more than needed are started, since their rows are not lost and a
            # second round of a handful of games would leave the engine nearly idle.
            known = self.state.recent_episodes
            history = self.state.recent_rows / known if known else None
            started, target = 0, missing * _MARGIN / (history or 8)
            while True:
                if started < target or started % self.games_per_start:
                    number = self._evaluated if evaluation else self.state.episodes
                    yield self._start(number, player, seed, rank, world_size, evaluation, shares)
                    started += 1
                    if evaluation:
                        self._evaluated += 1
                    else:
                        self.state.episodes += 1
                elif started > len(ended):
                    yield None
                elif rows < missing and started < missing:
                    # Never more games than rows: where games bring none, another wave or an error must decide.
                    target = min(missing, started + 1 + (missing - rows) * _MARGIN / max(1.0, rows / started))
                else:
                    return

        in_flight = self.games_in_flight or min(max(missing, self.games_per_start), _trl.MOST_IN_FLIGHT)
        for episode in play(games(), engine, in_flight):
            ended.append(episode)
            for seat in learning_seats(episode, self.winner_learns_from_forfeit):
                rows += len(episode.trajectories[seat].turns) if self.sample_unit == "turn" else 1
        return sorted(ended, key=lambda episode: episode.counter)

    def _prime(self, player: PolicyPlayer, seed: int, rank: int, world_size: int) -> None:
        """Shows the estimator games between uniformly random players."""
        guest = _RandomAtPrompts(player)
        games = (
            referee(
                Start(
                    game=(game := self.played[counter % len(self.played)]),
                    players=(guest,) * game.traits.seats,
                    seed=derive_seed(seed, "prime", counter),
                    play_seed=derive_seed(seed, "prime", "play", counter),
                    counter=counter,
                    forfeit=self.forfeit,
                )
            )
            for counter in range(rank, self.priming_games, world_size)
        )
        results = gather_object([summarize(episode) for episode in play(games)])
        self.estimator(sorted(results, key=lambda result: result.counter))

    def _start(
        self,
        number: int,
        player: PolicyPlayer,
        seed: int,
        rank: int,
        world_size: int,
        evaluation: bool,
        shares: Sequence[float] | None,
    ) -> Playing:
        """This rank's game of that number. Ranks count in turns, so counters are unique over all of them."""
        purpose = "eval" if evaluation else "train"
        counter = number * world_size + rank
        group = (number // self.games_per_start) * world_size + rank
        chance = random.Random(derive_seed(seed, purpose, "start", group))
        game = chance.choice(self.games) if shares is None else chance.choices(self.games, shares)[0]
        opening = chance.randint(0, self.opening_moves)
        players = self.matchmaker(player, game.traits.seats, derive_seed(seed, purpose, "seats", group))

        def start(attempt: int) -> Start:
            return Start(
                game=game,
                players=players,
                seed=derive_seed(seed, purpose, "match", group, attempt),
                play_seed=derive_seed(seed, purpose, "play", counter, attempt),
                counter=counter,
                opening=opening,
                forfeit=self.forfeit,
            )

        return until_decided(start, self.max_draw_retries)

    def _fill_up(
        self, queue: list[Row], spare: list[Row], needed: int, results: list[Result]
    ) -> tuple[list[Row], list[Row]]:
        """What to do when many waves have not filled the batch; the same on every rank. What to train on, and the rest."""
        if min(gather_object([len(queue) + len(spare) - needed])) < 0:
            endings = dict(Counter(str(result.ending) for result in results))
            detail = next((episode.detail for episode in self.episodes if episode.ending.is_broken), "")
            raise RuntimeError(
                f"{len(results)} games brought too few rows to train on; they ended so: {endings}. {detail}".rstrip()
            )
        logger.warning(
            "Hardly any turn has an advantage any more: the batch is filled up with turns of zero advantage. If this "
            "goes on, the policy has settled; more `opening_moves` or other opponents would give it something to learn."
        )
        short = max(0, needed - len(queue))
        return queue + spare[:short], spare[short:]

    # ---- what is logged ----
    def _account(
        self, queue: Sequence[Row], carried: int, rest: Sequence[Row], keeps: bool, filtered: int
    ) -> dict[str, float]:
        """What became of everything that the policy wrote on this rank; TRL averages over ranks."""
        sampled = sum(episode.policy_tokens + episode.discarded_tokens for episode in self.episodes)
        unused = sampled - sum(row.policy_tokens for row in queue[carried:])
        if not keeps:
            unused += sum(row.policy_tokens for row in rest)
        return {
            "selfplay/carried_rows": float(carried),
            "selfplay/kept_rows": float(len(rest) if keeps else 0),
            "selfplay/unused_rows": float(0 if keeps else len(rest)),
            "selfplay/filtered_turns": float(filtered),
            # Filtered turns, drawn attempts, turns of seats that do not learn, broken games, and rows dropped.
            "selfplay/unused_tokens": float(unused),
            "selfplay/unused_share": unused / sampled if sampled else 0.0,
        }

    # ---- wiring ----
    def _check_versions(self, version: int) -> None:
        """Raises `RuntimeError` if another version of the weights than the trainer's present one has played."""
        for episode in self.episodes:
            for trajectory in episode.trajectories:
                for turn in trajectory.turns:
                    if turn.policy == POLICY and turn.version != version:
                        raise RuntimeError(
                            f"A turn of {episode.game} was written by version {turn.version} of the weights, and the "
                            f"trainer is at {version}. Weights must be synced before every roll-out."
                        )

    def player(self, trainer: GRPOTrainer, evaluation: bool = False) -> PolicyPlayer:
        """The trainer's policy as a player."""
        conversation = self.sample_unit == "trajectory"
        tokenizer = trainer._tokenizer
        if self._renderer is None or self._renderer.tokenizer is not tokenizer:
            self._renderer = PromptRenderer(
                tokenizer,
                self.prompt_style,
                _trl.appending_chat_template(tokenizer) if conversation else None,
                trainer.args.chat_template_kwargs,
            )
        return PolicyPlayer(
            self._renderer,
            _trl.sampling_of(trainer, evaluation),
            conversation=conversation,
            constrain_moves=self.constrain_moves,
        )

    def _check_groups(self, trainer: GRPOTrainer) -> None:
        args = trainer.args
        if args.num_generations != args.generation_batch_size or args.scale_rewards != "none":
            raise ValueError(
                f"`num_generations` ({args.num_generations}) must equal the generation batch "
                f"({args.generation_batch_size}), and `scale_rewards` ({args.scale_rewards!r}) must be 'none': in smaller "
                "groups the turns of one game cancel each other. Or use `SpiralTrainer`, which has no groups."
            )
        self.keep_surplus = False


def check_lists_moves(game: Game, option: str) -> None:
    """
    Raises:
        ValueError: If a game does not list its legal moves, which `option` needs.
    """
    match = game.start(0)
    if match.to_move is not None and match.observe(match.to_move).legal_actions is None:
        raise ValueError(
            f"`{option}` needs games that list their legal moves, and {game.name} does not. Leave it off."
        )


def _state_of(curriculum: Curriculum | None) -> dict[str, Any] | None:
    """What a curriculum remembers, if it remembers anything."""
    told = getattr(curriculum, "state_dict", None)
    return None if told is None else dict(told())


class _RandomAtPrompts:
    """A random player that reads what the policy would read, so that its positions are the policy's."""

    name = "random"

    def __init__(self, policy: PolicyPlayer) -> None:
        self._policy = policy

    def ask(self, observation: Observation) -> Turn | Request:
        request = self._policy.ask(observation)
        return Turn(action=random_move(observation), prompt_ids=request.prompt_ids, policy=POLICY)

    def answer(self, observation: Observation, request: Request, reply: Reply) -> Turn:
        raise AssertionError("a random player asks for no reply")
