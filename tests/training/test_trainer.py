"""
Training data of `SpiralTrainer`, in runs of a tiny model.

Promises that are checked here: the loss uses exactly the sampled tokens of the policy; advantages are ours, row by
row; a batch has the requested number of rows; short games are not preferred; evaluation changes nothing; metrics can
be recomputed from the episodes.
"""

import logging
import math
from collections import Counter, defaultdict

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.helpers.toy_games import SumGame
from tests.helpers.training_runs import RecordingTrainer, config, games, history, lora, plain_trainer, transcript
from trl_spiral import RandomPlayer, SelfPlayRollout, SelfPlaySettings, Turn
from trl_spiral.selfplay.advantages import ReturnsOnly
from trl_spiral.text.prompts import PromptRenderer
from trl_spiral.types import POLICY, Ending


MIXED = ("TicTacToe-v0", "Sum-v0")
# Long real games: some forty turns each.
LONG = ("PigDice-v0-50", "TicTacToe-v0")


def direct_logprobs(model, prompt, completion, temperature):
    """Log-probabilities of a completion by one plain forward pass, without padding or TRL."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return (logits / temperature).log_softmax(-1)[range(len(completion)), list(completion)]


def rounded(numbers):
    """Round to four decimals in float32."""
    return tuple(round(number, 4) for number in torch.tensor(numbers, dtype=torch.float32).tolist())


class ProbingTrainer(RecordingTrainer):
    """Checks every new generation batch in the form that the loss uses: shuffled, split and padded."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.turns = {}
        self.scored = []
        self.rows_in_loss = []
        self.old = []

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            rows = self.rollout.batch.rows
            old = output.get("old_per_token_logps")
            self.old.append((self.state.global_step, rows, old, output))
        return output

    def _prepare_inputs(self, generation_batch):
        cycle = self.args.steps_per_generation * self.num_iterations
        fresh = self.model.training and self._step % cycle == 0
        inputs = super()._prepare_inputs(generation_batch)
        if fresh:
            self.probe()
        return inputs

    def probe(self):
        for episode in self.rollout.batch.episodes:
            for seat in episode.trajectories:
                mine = [turn for turn in seat.turns if turn.policy == POLICY]
                groups = [[turn] for turn in mine] if self.args.sample_unit == "turn" else [mine] if mine else []
                for turns in groups:
                    self.turns[turns[-1].prompt_ids + turns[-1].completion_ids] = turns
        for batch in self._buffered_inputs:
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
            attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
            width = batch["completion_ids"].size(1)
            with torch.no_grad():
                logps, _, _ = self._get_per_token_logps_and_entropies(self.model, ids, attention, width)
            mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
            for index in range(len(ids)):
                real = tuple(ids[index][attention[index].bool()].tolist())
                turns = self.turns[real]
                direct = torch.cat(
                    [
                        direct_logprobs(self.model, turn.prompt_ids, turn.completion_ids, self.args.temperature)
                        for turn in turns
                    ]
                )
                sampled = torch.tensor([logprob for turn in turns for logprob in turn.logprobs])
                is_fresh = turns[-1].version == self.state.global_step
                self.scored.append((logps[index][mask[index]], direct, sampled, is_fresh, len(turns)))
                advantages = batch["advantages"][index]
                if advantages.dim():
                    kept = advantages[mask[index]]
                    assert advantages[~mask[index]].abs().sum() == 0
                    self.rows_in_loss.append((real, rounded(kept.tolist())))
                else:
                    self.rows_in_loss.append((real, rounded([advantages.item()] * int(mask[index].sum()))))


def train(model_dir, folder, names=MIXED, trainer_class=ProbingTrainer, trainer_arguments=None, **changes):
    trainer = trainer_class(
        model=model_dir, args=config(folder, **changes), games=games(names), **(trainer_arguments or {})
    )
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def turn_run(model_dir, tmp_path_factory):
    """Four batches of 64 turns, from long and short games, at a temperature that is not 1."""
    return train(
        model_dir,
        tmp_path_factory.mktemp("turn"),
        names=(*LONG, "Sum-v0"),
        per_device_train_batch_size=32,
        max_steps=16,
        temperature=0.9,
        advantage_kwargs={"discount": 0.9},
        max_draw_retries=1,
        games_in_flight=4,  # a first guess at many games of unknown length would fill all four batches
        log_completions=True,
        advantage_estimator="none",
    )


@pytest.fixture(scope="module")
def trajectory_run(model_dir, tmp_path_factory):
    return train(
        model_dir,
        tmp_path_factory.mktemp("trajectory"),
        sample_unit="trajectory",
        max_steps=16,
        temperature=0.9,
        advantage_kwargs={"discount": 0.9, "decay": 0.5},
    )


@pytest.fixture(params=["turn", "trajectory"])
def run(request):
    return request.getfixturevalue(f"{request.param}_run")


class TestWhatTheLossScores:
    def test_equals_one_forward_pass_per_turn(self, run):
        assert len(run.scored) == 4 * run.args.generation_batch_size
        for in_loss, direct, _, _, _ in run.scored:
            torch.testing.assert_close(in_loss, direct, atol=2e-5, rtol=0)

    def test_equals_the_sampled_logprobs_for_rows_of_this_step(self, run):
        fresh = [(in_loss, sampled) for in_loss, _, sampled, is_fresh, _ in run.scored if is_fresh]

        assert len(fresh) > run.args.generation_batch_size
        for in_loss, sampled in fresh:
            torch.testing.assert_close(in_loss, sampled, atol=2e-5, rtol=0)

    def test_covers_trajectories_of_several_turns_and_long_games(self, turn_run, trajectory_run):
        assert max(turns for *_, turns in trajectory_run.scored) >= 4
        assert {turns for *_, turns in turn_run.scored} == {1}
        assert max(len(episode.order) for _, episodes, _ in turn_run.batches for episode in episodes) >= 20

    def test_keeps_our_advantages_through_shuffling_and_splitting(self, run):
        expected = Counter()
        for rows, _, _ in run.batches:
            for row in rows:
                numbers = rounded([a for a, mine in zip(row.advantages, row.mask, strict=True) if mine])
                expected[(*row.prompt_ids, *row.completion_ids), numbers] += 1

        assert Counter(run.rows_in_loss) == expected
        # Shuffled, or the order above would prove nothing.
        tokens = [(*row.prompt_ids, *row.completion_ids) for rows, _, _ in run.batches for row in rows]
        assert tokens != [real for real, _ in run.rows_in_loss]

    def test_uses_advantages_as_computed_by_hand(self, turn_run, trajectory_run):
        # No baseline: the return, 0.9 times as much for every turn that the seat took later.
        for episode, seat, turn, advantages in advantages_of(turn_run):
            later = len(episode.trajectories[seat].turns) - 1 - turn
            assert advantages == pytest.approx(episode.returns[seat] * 0.9**later)
        # Baselines start at the first batch's mean and then keep one half at each batch.
        baselines = {}
        for index, (_, episodes, _) in enumerate(trajectory_run.batches):
            means = defaultdict(list)
            for episode in episodes:
                for seat in (0, 1):
                    if episode.trajectories[seat].turns:
                        means[episode.game, seat].append(episode.returns[seat])
            before = {role: sum(values) / len(values) for role, values in means.items()} | baselines
            for episode, seat, turn, advantage in advantages_of(trajectory_run, index):
                later = len(episode.trajectories[seat].turns) - 1 - turn
                expected = (episode.returns[seat] - before[episode.game, seat]) * 0.9**later
                assert advantage == pytest.approx(expected, abs=1e-6)
            baselines |= {r: 0.5 * before[r] + 0.5 * sum(values) / len(values) for r, values in means.items()}
        expected = {(*role, "self"): value for role, value in baselines.items()}
        assert trajectory_run.rollout.estimator.baselines == pytest.approx(expected)


def advantages_of(trainer, batch=None):
    """Yield (episode, seat, turn, advantage) of every trained turn, without rows of earlier batches."""
    batches = trainer.batches if batch is None else [trainer.batches[batch]]
    played = {episode.counter: episode for _, episodes, _ in batches for episode in episodes}
    taken = Counter()  # rows of a game come in playing order, and no two turns need differ
    for rows, _, _ in batches:
        for row in rows:
            if row.episode not in played:
                continue
            turns = played[row.episode].trajectories[row.seat].turns
            written = [a for a, mine in zip(row.advantages, row.mask, strict=True) if mine]
            while written:
                index = taken[row.episode, row.seat]
                taken[row.episode, row.seat] += 1
                length = len(turns[index].completion_ids)
                part, written = written[:length], written[length:]
                assert len(set(part)) == 1
                yield played[row.episode], row.seat, index, part[0]


class TestBatches:
    def test_have_exactly_the_requested_rows(self, run):
        assert [len(rows) for rows, _, _ in run.batches] == [run.args.generation_batch_size] * 4

    def test_move_every_parameter(self, run, model_dir):
        before = type(run.model).from_pretrained(model_dir)

        moved = {
            name: not torch.equal(value, run.model.get_parameter(name)) for name, value in before.named_parameters()
        }
        assert all(moved.values()), moved

    def test_take_the_rows_of_all_games_in_the_order_of_their_counters(self, run):
        # Nothing is dropped, nothing comes twice, and no game waits for being long: this is what "unbiased" means.
        trained = [(row.episode, row.seat) for rows, _, _ in run.batches for row in rows]
        trained += [(row.episode, row.seat) for row in run.rollout.collector.kept]
        played = []
        episodes = [episode for _, episodes, _ in run.batches for episode in episodes]
        for episode in episodes:
            if run.args.sample_unit == "turn":
                played += [(episode.counter, seat) for seat in episode.order]
            else:
                played += [(episode.counter, seat.seat) for seat in episode.trajectories if seat.turns]

        assert [episode.counter for episode in episodes] == list(range(len(episodes)))
        assert trained == played

    def test_keep_the_logprobs_of_the_weights_that_sampled_a_row(self, run):
        waited = 0
        for step, rows, old, output in run.old:
            for index, row in enumerate(rows):
                mask = torch.tensor(row.mask, dtype=torch.bool)
                sampled = torch.tensor(row.logprobs)[mask]
                torch.testing.assert_close(old[index, : len(mask)][mask], sampled, atol=2e-5, rtol=0)
                waited += row.version != step
            assert (output["advantages"].size(0),) == (len(rows),)
        # The weights have moved since, so the current ones would give other numbers.
        stale = [(in_loss - sampled).abs().max() for in_loss, _, sampled, is_fresh, _ in run.scored if not is_fresh]

        # A few rows that waited are, word for word, also among the newest turns.
        assert waited >= len(stale) > 0
        assert max(stale) > 1e-3


class TestMetrics:
    def test_can_be_recomputed_from_the_episodes(self, run):
        logged = [entry for entry in history(run) if "selfplay/games" in entry]

        assert [entry["step"] for entry in logged] == [1, 5, 9, 13]
        carried = 0
        for entry, (rows, episodes, _) in zip(logged, run.batches, strict=True):
            assert entry["selfplay/games"] == len(episodes)
            assert entry["selfplay/carried_rows"] == carried
            made = sum(
                len(seat.turns) if run.args.sample_unit == "turn" else bool(seat.turns)
                for episode in episodes
                for seat in episode.trajectories
            )
            carried += made - len(rows)
            assert entry["selfplay/kept_rows"] == carried
            assert entry["selfplay/unused_rows"] == 0
            assert entry["selfplay/unused_tokens"] == sum(episode.discarded_tokens for episode in episodes)
            assert entry["reward"] == pytest.approx(sum(row.reward for row in rows) / len(rows), abs=1e-6)
            assert entry["completions/mean_length"] == pytest.approx(sum(sum(r.mask) for r in rows) / len(rows))
            if not episodes:
                continue
            turns = [turn for episode in episodes for seat in episode.trajectories for turn in seat.turns]
            logprobs = [logprob for turn in turns for logprob in turn.logprobs]
            games_played = len(episodes)
            expected = {
                "turns_per_game": len(turns) / games_played,
                "reply_length": len(logprobs) / len(turns),
                "entropy": -math.fsum(logprobs) / len(logprobs),
                "discarded_tokens": sum(episode.discarded_tokens for episode in episodes),
                "illegal_rate": sum(e.ending is Ending.ILLEGAL_MOVE for e in episodes) / games_played,
                "truncated_rate": sum(e.ending is Ending.TRUNCATED for e in episodes) / games_played,
                "broken_rate": 0.0,
                "draw_rate": sum(e.returns == (0.0, 0.0) for e in episodes) / games_played,
            }
            for name, value in expected.items():
                assert entry[f"selfplay/{name}"] == pytest.approx(value, rel=1e-5), name
            for game in {episode.game for episode in episodes}:
                mine = [episode for episode in episodes if episode.game == game]
                for seat in (0, 1):
                    for name, holds in (
                        ("win", lambda e, seat=seat: e.returns[seat] > 0),
                        ("draw", lambda e, seat=seat: e.returns[seat] == 0),
                        ("loss", lambda e, seat=seat: e.returns[seat] < 0),
                        ("illegal", lambda e, seat=seat: e.ending is Ending.ILLEGAL_MOVE and e.offender == seat),
                    ):
                        value = sum(map(holds, mine)) / len(mine)
                        assert entry[f"selfplay/{game}/seat{seat}/{name}"] == pytest.approx(value, abs=1e-6)

    def test_the_first_loss_is_the_formula(self, turn_run):
        # Before the first step the ratio is 1, so Dr. GRPO's loss is -sum of advantages over tokens / (rows * max
        # length). Half of the 64 rows are in the first step.
        first = turn_run.rows_in_loss[:32]
        expected = -sum(sum(advantages) for _, advantages in first) / (32 * turn_run.args.max_completion_length)

        assert abs(expected) > 1e-3
        assert history(turn_run)[0]["loss"] == pytest.approx(expected, abs=1e-5)

    def test_the_completions_table_shows_real_prompts_and_our_advantages(self, turn_run):
        for step, (rows, _, _) in zip((1, 5, 9, 13), turn_run.batches, strict=True):
            table = pd.read_parquet(f"{turn_run.args.output_dir}/completions/completions_{step:05d}.parquet")
            decode = turn_run.processing_class.decode

            assert [messages[0]["content"] for messages in table["prompt"]] == [decode(r.prompt_ids) for r in rows]
            said = [decode(row.completion_ids, skip_special_tokens=True) for row in rows]
            assert [messages[0]["content"] for messages in table["completion"]] == said
            assert table["advantage"].tolist() == pytest.approx([row.advantage for row in rows])
            assert table["selfplay_return"].tolist() == pytest.approx([row.reward for row in rows])


class Rival(RandomPlayer):
    """A random player whose turns have tokens, like those of another model."""

    TOKENS = (5, 6, 7)

    def ask(self, observation):
        move = super().ask(observation).action
        return Turn(move, move, prompt_ids=(8,), completion_ids=self.TOKENS, logprobs=(-1.0,) * 3, policy="rival")


class TestOpponents:
    @pytest.mark.parametrize("unit", ["turn", "trajectory"])
    def test_are_never_trained_on(self, unit, model_dir, tmp_path):
        def versus(policy, seats, seed):
            return (policy, Rival()) if seed % 2 else (Rival(), policy)

        trainer = train(model_dir, tmp_path, max_steps=4, sample_unit=unit, trainer_arguments={"matchmaker": versus})

        policy_tokens = Counter()
        seats = set()
        for _, episodes, _ in trainer.batches:
            for episode in episodes:
                for seat in episode.trajectories:
                    for turn in seat.turns:
                        if turn.policy == POLICY:
                            policy_tokens[turn.completion_ids] += 1
                            seats.add(seat.seat)
        written = Counter()
        for row in [*trainer.batches[0][0], *trainer.rollout.collector.kept]:
            tokens, start = [], None
            for token, mine in [*zip(row.completion_ids, row.mask, strict=True), (None, 0)]:
                if mine:
                    tokens.append(token)
                elif tokens:
                    written[tuple(tokens)] += 1
                    tokens = []
            assert start is None
        assert seats == {0, 1}
        assert written == policy_tokens
        assert Rival.TOKENS not in written

    def test_that_never_let_the_policy_play_are_reported(self, model_dir, tmp_path):
        def without_us(policy, seats, seed):
            return (RandomPlayer(),) * seats

        with pytest.raises(RuntimeError, match="games brought too few rows to train on. Their endings: {'finished':"):
            train(model_dir, tmp_path, names=["Sum-v0"], trainer_arguments={"matchmaker": without_us})


class TestEvaluation:
    def test_changes_nothing_in_training(self, model_dir, tmp_path):
        def run(name, **changes):
            # Dropout draws from torch's generator, so a draw more or less in between would show.
            dropout = {"attention_dropout": 0.1}
            return train(
                model_dir, tmp_path / name, trainer_class=RecordingTrainer, model_init_kwargs=dropout, **changes
            )

        without = run("without")
        evaluated = run("with", eval_strategy="steps", eval_steps=3, eval_on_start=True)

        entries = history(evaluated)
        assert [entry["step"] for entry in entries if "eval_loss" in entry] == [0, 3, 6, 8]  # and at the end
        assert [entry for entry in entries if "eval_loss" not in entry] == history(without)
        assert evaluated.transcripts == without.transcripts
        assert evaluated.rollout.collector.state_dict() == without.rollout.collector.state_dict()

    def test_plays_the_same_games_every_time(self, model_dir, tmp_path):
        trainer = RecordingTrainer(model_dir, config(tmp_path), games=games(MIXED))
        play, played = trainer.rollout.collector.evaluate, []

        def spy(*args, **kwargs):
            batch = play(*args, **kwargs)
            played.extend(map(transcript, batch.episodes))
            return batch

        trainer.rollout.collector.evaluate = spy

        def evaluate():
            played.clear()
            metrics = trainer.evaluate()
            return list(played), metrics["eval_reward"]

        first, again = evaluate(), evaluate()
        assert first == again
        assert len(first[0]) > 1
        assert trainer.rollout.collector.episodes == 0


class TestOptions:
    def test_zero_advantages_are_filtered(self, model_dir, tmp_path):
        trainer = train(
            model_dir,
            tmp_path,
            names=["Sum-v0"],
            advantage_estimator="none",
            filter_zero_advantages=True,
            max_steps=20,
            trainer_class=RecordingTrainer,
        )

        for rows, episodes, metrics in trainer.batches:
            assert len(rows) == 16
            assert all(row.advantage != 0.0 for row in rows)
            drawn = sum(len(episode.order) for episode in episodes if episode.is_draw)
            assert metrics["selfplay/filtered_turns"] == drawn
        assert any(metrics["selfplay/filtered_turns"] for _, _, metrics in trainer.batches)

    def test_a_policy_without_any_advantage_is_trained_on_zeros_with_a_warning(self, model_dir, tmp_path, caplog):
        class Nothing(ReturnsOnly):
            def advantages(self, results):
                return [tuple(tuple(0.0 for _ in turns) for turns in seats) for seats in super().advantages(results)]

        trainer = RecordingTrainer(
            model_dir,
            config(tmp_path, max_steps=1, filter_zero_advantages=True),
            games=games(["Sum-v0"]),
            estimator=Nothing(),
        )
        with caplog.at_level(logging.WARNING, logger="trl_spiral"):
            trainer.train()

        assert "the batch is filled up with turns of zero advantage" in caplog.text
        assert [row.advantage for row in trainer.rollout.batch.rows] == [0.0] * 16

    def test_draws_are_played_again(self, model_dir, tmp_path):
        without = train(model_dir, tmp_path / "0", names=["Sum-v0"], trainer_class=RecordingTrainer)
        again = train(model_dir, tmp_path / "9", names=["Sum-v0"], trainer_class=RecordingTrainer, max_draw_retries=9)

        drawn = [episode for _, episodes, _ in without.batches for episode in episodes if episode.is_draw]
        assert drawn and all(episode.discarded_tokens == 0 for episode in drawn)
        episodes = [episode for _, episodes, _ in again.batches for episode in episodes]
        assert not any(episode.is_draw for episode in episodes)  # 3**-10 of them would be
        assert any(episode.discarded_tokens for episode in episodes)

    def test_forfeits_have_the_returns_of_the_option(self, model_dir, tmp_path):
        trainer = train(
            model_dir,
            tmp_path,
            names=["TicTacToe-v0"],
            trainer_class=RecordingTrainer,
            forfeit=[-1.5, 0.5],
            winner_learns_from_forfeit=False,
        )

        forfeits = {e.counter: e for _, es, _ in trainer.batches for e in es if e.ending is Ending.ILLEGAL_MOVE}
        assert len(forfeits) > 5
        for episode in forfeits.values():
            assert episode.returns == ((-1.5, 0.5) if episode.offender == 0 else (0.5, -1.5))
        rows = [row for rows, _, _ in trainer.batches for row in rows if row.episode in forfeits]
        assert rows
        assert all(row.seat == forfeits[row.episode].offender for row in rows)

    def test_truncated_replies_forfeit(self, model_dir, tmp_path):
        # A legal reply has four or five tokens.
        trainer = train(model_dir, tmp_path, trainer_class=RecordingTrainer, max_completion_length=3, max_steps=1)

        _, episodes, metrics = trainer.batches[0]
        assert {(e.ending, e.returns, len(e.order)) for e in episodes} == {(Ending.TRUNCATED, (-1.0, 1.0), 1)}
        assert metrics["selfplay/truncated_rate"] == 1.0

    def test_surplus_is_dropped_and_counted_if_it_is_not_kept(self, model_dir, tmp_path):
        trainer = train(
            model_dir,
            tmp_path,
            names=["Sum-v0"],
            trainer_class=RecordingTrainer,
            trainer_arguments={"keep_surplus": False},
        )

        for rows, episodes, metrics in trainer.batches:
            made = sum(len(episode.order) for episode in episodes)
            tokens = sum(episode.policy_tokens for episode in episodes)
            assert metrics["selfplay/unused_rows"] == made - len(rows)
            assert metrics["selfplay/unused_tokens"] == tokens - sum(map(len, (r.completion_ids for r in rows)))
            assert metrics["selfplay/carried_rows"] == metrics["selfplay/kept_rows"] == 0

    @pytest.mark.parametrize("estimator", ["batch", "group", "position"])
    def test_every_estimator_trains(self, estimator, model_dir, tmp_path):
        size = 4 if estimator == "group" else 1
        trainer = train(
            model_dir,
            tmp_path,
            trainer_class=RecordingTrainer,
            advantage_estimator=estimator,
            advantage_kwargs={"games_per_start": size} if estimator == "group" else None,
            opening_moves=2,
        )

        groups = defaultdict(set)
        for _, episodes, _ in trainer.batches:
            for episode in episodes:
                groups[episode.counter // size].add((episode.game, episode.seed, episode.moves[: episode.opening]))
        assert all(len(starts) == 1 for starts in groups.values())
        assert any(opening for starts in groups.values() for _, _, opening in starts)
        assert any(row.advantage for rows, _, _ in trainer.batches for row in rows)


class TestLosses:
    @pytest.mark.parametrize(
        ("changes", "clips"),
        [
            # SPIRAL's: sums over tokens, clipped over two passes.
            (dict(loss_type="dr_grpo", learning_rate=0.03), True),
            # PPO's clip over several passes, a mean over each reply.
            (dict(loss_type="grpo", num_iterations=3, epsilon=0.1, learning_rate=0.03), True),
            # Plain importance sampling: every row is used once, at the weights that wrote it.
            (
                dict(num_iterations=1, steps_per_generation=1, max_steps=4, trainer_arguments={"keep_surplus": False}),
                False,
            ),
        ],
        ids=["dr_grpo", "clipped", "plain"],
    )
    def test_train(self, changes, clips, model_dir, tmp_path):
        trainer = train(model_dir, tmp_path, per_device_train_batch_size=16, advantage_estimator="none", **changes)

        logged = [entry for entry in history(trainer) if "loss" in entry]
        assert all(math.isfinite(entry["loss"]) and entry["grad_norm"] > 0 for entry in logged)
        assert any(entry["clip_ratio/region_mean"] > 0 for entry in logged) == clips

    def test_plain_importance_sampling_corrects_rows_that_waited(self, model_dir, tmp_path):
        # TRL leaves old log-probabilities out where it takes the ratio for one, which is wrong for rows that waited.
        trainer = train(
            model_dir,
            tmp_path,
            names=["Sum-v0"],
            num_iterations=1,
            steps_per_generation=1,
            max_steps=4,
            learning_rate=0.01,
        )

        corrected = [old is not None for _, _, old, _ in trainer.old]
        waited = [any(row.version != step for row in rows) for step, rows, _, _ in trainer.old]
        assert corrected == waited
        assert not waited[0] and any(waited)


class TestNoBiasTowardsShortGames:
    def test_long_games_have_their_share_of_the_rows(self, tokenizer):
        """Over many batches, with an engine that always answers at once and legally."""

        class AlwaysFour:
            def __init__(self):
                self.waiting = []
                self.renderer = PromptRenderer(tokenizer)

            def add(self, ticket, request):
                self.waiting.append(ticket)

            def step(self):
                from trl_spiral.types import Reply

                reply = self.renderer.reply("\\boxed{[4]}")
                answered, self.waiting = self.waiting, []
                return [(ticket, Reply(reply, (-0.1,) * len(reply))) for ticket in answered]

            def metrics(self):
                return {}

            def abort(self, tickets):
                pass

        from trl_spiral import PolicyPlayer, Sampling

        engine = AlwaysFour()
        player = PolicyPlayer(engine.renderer, Sampling())
        rollout = SelfPlayRollout(SumGame(short=2, long=20), SelfPlaySettings(row_advantages=True))
        schedule = rollout.schedule(player, seed=0)
        lengths = {}
        rows = []
        for _ in range(100):
            batch = rollout.collector.collect(64, schedule, engine)
            lengths |= {episode.counter: len(episode.order) for episode in batch.episodes}
            rows += [row.episode for row in batch.rows]

        share = sum(lengths[episode] == 20 for episode in rows) / len(rows)
        # Half the games are long, so 10 of 11 rows are theirs. With n games, the share's standard error is
        # that of a ratio: sqrt(p (1 - p) / n) * 20 * 2 / 11**2, about .007 at n = 580.
        assert len(set(rows)) > 500
        assert share == pytest.approx(10 / 11, abs=0.02)


class TestPlainTrainer:
    @staticmethod
    def make(model_dir, folder, **changes):
        return plain_trainer(model_dir, folder, MIXED, **changes)

    def test_takes_our_rows_and_our_advantages(self, model_dir, tmp_path):
        trainer, rollout = self.make(model_dir, tmp_path)
        trainer.train()

        entries = [entry for entry in history(trainer) if "loss" in entry]
        assert all("selfplay/turns_per_game" in entry and entry["grad_norm"] > 0 for entry in entries)
        used = torch.cat([batch["advantages"] for batch in trainer._buffered_inputs])
        ours = torch.tensor([row.advantage for row in rollout.batch.rows])
        torch.testing.assert_close(used.sort().values, (ours - ours.mean()).sort().values)
        assert not rollout.collector.kept

    @pytest.mark.parametrize("changes", [dict(num_generations=2), dict(scale_rewards="group")])
    def test_is_refused_where_groups_would_cancel_the_advantages(self, changes, model_dir, tmp_path):
        trainer, _ = self.make(model_dir, tmp_path, **changes)

        with pytest.raises(ValueError, match="must equal the generation batch .* Or use `SpiralTrainer`"):
            trainer.train()


class TestModelCard:
    def test_credits_spiral_and_shows_results(self, model_dir, tmp_path):
        trainer = RecordingTrainer(model_dir, config(tmp_path), games=games(["TicTacToe-v0"]))
        trainer.results_table = "| rival | score |\n| --- | --- |\n| minimax | 0.5 |"
        trainer.create_model_card(model_name="tiny")

        card = (tmp_path / "README.md").read_text(encoding="utf-8")
        header = card.split("---")[1]
        for tag in ("trl", "spiral", "self-play", "grpo"):
            assert f"- {tag}\n" in header
        assert "trained with SPIRAL" in card
        assert "https://huggingface.co/papers/2506.24119" in card
        assert "@article{liu2025spiral" in card
        assert "Cite SPIRAL" in card
        assert trainer.results_table in card
        assert "TicTacToe-v0" in card.split("## Self-play")[1]


class TestLoRA:
    def test_trains_the_adapter_alone_and_samples_from_it(self, model_dir, tmp_path):
        peft = pytest.importorskip("peft")
        adapter = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
        trainer = ProbingTrainer(
            model_dir,
            config(tmp_path, learning_rate=0.02, advantage_estimator="none"),
            games=games(MIXED),
            peft_config=adapter,
            keep_surplus=False,
        )
        before = {name: value.clone() for name, value in trainer.model.named_parameters()}
        trainer.train()

        for name, value in trainer.model.named_parameters():
            assert torch.equal(value, before[name]) != ("lora_" in name), name
        # The second batch was sampled from base and adapter together, not from the base alone.
        (_, _, _, _), (step, rows, _, _) = trainer.old
        assert step == 4
        gaps = []
        for in_loss, direct, sampled, is_fresh, _ in trainer.scored:
            assert is_fresh
            torch.testing.assert_close(in_loss, sampled, atol=2e-5, rtol=0)
            torch.testing.assert_close(in_loss, direct, atol=2e-5, rtol=0)
        for row in rows:
            with trainer.model.disable_adapter():
                base = direct_logprobs(trainer.model, row.prompt_ids, row.completion_ids, 1.0)
            gaps.append((base - torch.tensor(row.logprobs)).abs().max())
        assert max(gaps) > 1e-2

    def test_saves_adapters_that_give_the_trainers_logprobs_when_merged(self, model_dir, tmp_path):
        peft = pytest.importorskip("peft")
        trainer = RecordingTrainer(
            model_dir,
            config(tmp_path / "run", learning_rate=0.02, advantage_estimator="none"),
            games=games(MIXED),
            peft_config=lora(r=8),
        )
        trainer.train()
        trainer.save_model(tmp_path / "adapter")

        saved = {path.name for path in (tmp_path / "adapter").iterdir()}
        assert {"adapter_config.json", "adapter_model.safetensors"} <= saved
        assert "model.safetensors" not in saved
        base = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        merged = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload().eval()
        trainer.model.eval()
        plain = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
        moved = 0.0
        for row in trainer.rollout.batch.rows:
            ours, theirs, untrained = (
                direct_logprobs(model, row.prompt_ids, row.completion_ids, 1.0)
                for model in (trainer.model, merged, plain)
            )
            torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)
            moved = max(moved, (untrained - ours).abs().max().item())
        assert moved > 1e-2
