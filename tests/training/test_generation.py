"""Options of generation, their checks and metrics. Without vLLM."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.helpers.completions_server import CompletionsServer
from tests.helpers.games import LastStone
from tests.helpers.precision import logprob_rounding
from tests.helpers.training_runs import RecordingTrainer, config, games, plain_trainer
from trl_spiral import EndpointEngine, EndpointPlayer, SelfPlayRollout, SelfPlaySettings, SpiralTrainer, _trl
from trl_spiral.games import Traits
from trl_spiral.training.preflight import colocate_kwargs
from trl_spiral.types import Ending, Sampling


def train(model_dir, folder, trainer_class=RecordingTrainer, keep_surplus=True, **changes):
    trainer = trainer_class(
        model_dir, config(folder, **changes), games=games(["TicTacToe-v0", "Sum-v0"]), keep_surplus=keep_surplus
    )
    trainer.train()
    return trainer


def all_turns(episodes):
    return [turn for episode in episodes for seat in episode.trajectories for turn in seat.turns]


class TestGeneration:
    def test_logs_the_difference_of_log_probabilities(self, model_dir, tmp_path):
        trainer = train(model_dir, tmp_path)
        largest = [
            entry["selfplay/logprob_difference/max"]
            for entry in trainer.state.log_history
            if "selfplay/logprob_difference/max" in entry
        ]

        assert len(largest) == 2  # batches
        assert max(largest) < logprob_rounding(trainer.model)

    def test_logs_the_use_of_the_engine(self, model_dir, tmp_path):
        trainer = train(model_dir, tmp_path)
        sampled = sum(
            len(turn.completion_ids)
            for _, episodes, _ in trainer.batches
            for episode in episodes
            for seat in episode.trajectories
            for turn in seat.turns
        )
        metrics = [metrics for _, _, metrics in trainer.batches]

        assert sum(each["selfplay/engine/new_tokens"] for each in metrics) == sampled
        for each in metrics:
            assert 0 < each["selfplay/engine/occupancy"] <= 1
            assert 0 <= each["selfplay/engine/padding_share"] < 1

    def test_stops_at_stop_strings(self, model_dir, tmp_path):
        for name in ("stop", "stop_strings"):
            trainer = train(
                model_dir,
                tmp_path / name,
                max_steps=1,
                generation_kwargs={name: ["boxed{"]},
            )
            replies = [
                turn.text for episode in trainer.rollout.batch.episodes for turn in episode.trajectories[0].turns
            ]

            assert replies
            assert all(text.endswith("boxed{") for text in replies if "boxed{" in text)
            assert any("boxed{" in text for text in replies)

    def test_uses_eval_sampling_in_evaluation(self, model_dir, tmp_path):
        trainer = train(model_dir, tmp_path, max_steps=1, eval_sampling={"max_new_tokens": 1})
        assert max(len(turn.completion_ids) for turn in all_turns(trainer.rollout.batch.episodes)) > 1
        ended = []
        play = trainer.rollout.collector.evaluate
        trainer.rollout.collector.evaluate = lambda *args, **kwargs: (
            batch := play(*args, **kwargs),
            ended.extend(batch.episodes),
        )[0]
        trainer.evaluate()

        assert {len(turn.completion_ids) for turn in all_turns(ended)} == {1}
        assert {episode.ending for episode in ended} == {Ending.TRUNCATED}

    def test_by_other_weights_ends_the_run(self, model_dir, tmp_path, monkeypatch):
        opened = _trl.open_engine

        @contextmanager
        def outdated(*arguments):
            with opened(*arguments) as engine:
                engine._version = 99
                yield engine

        monkeypatch.setattr(_trl, "open_engine", outdated)
        with pytest.raises(RuntimeError, match="was written by version 99 of the weights, and the trainer is at 0"):
            train(model_dir, tmp_path)

    def test_of_an_opponent_by_an_endpoint_is_not_trained_on(self, model_dir, tmp_path):
        def versus(policy, seats, seed):
            guest = EndpointPlayer("guest")
            return (policy, guest) if seed % 2 else (guest, policy)

        with CompletionsServer() as server, EndpointEngine(server.url, "any", api_key_env=None) as guest:
            trainer = RecordingTrainer(
                model_dir,
                config(tmp_path, max_steps=4),
                games=games(["TicTacToe-v0"]),
                matchmaker=versus,
                engines={"guest": guest},
            )
            trainer.train()

        (rows, episodes, metrics) = trainer.batches[0]
        said = [turn for turn in all_turns(episodes) if turn.policy is None]
        assert len(said) == len(server.seen) == metrics["selfplay/engine/guest/requests"] > 0
        assert {turn.action for turn in said} == {"[4]"}
        assert len(rows) + len(trainer.rollout.collector.kept) == len(all_turns(episodes)) - len(said)


class TestSamplingOf:
    def asked(self, evaluation=False, **changes):
        """Return the sampling settings of a trainer with these arguments."""
        args = config("unused", **changes)
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length")
        trainer = SimpleNamespace(args=args, **{name: getattr(args, name) for name in names})
        return _trl.trainer_sampling(trainer, evaluation)

    def test_uses_every_option_of_trl(self):
        options = dict(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, repetition_penalty=1.2)

        assert self.asked(**options) == Sampling(**options, max_new_tokens=8)

    @pytest.mark.parametrize("limit", ["max_tokens", "max_new_tokens"])
    @pytest.mark.parametrize("stop", ["stop", "stop_strings"])
    def test_uses_generation_kwargs_by_either_name(self, limit, stop):
        asked = self.asked(temperature=0.7, generation_kwargs={limit: 3, stop: "}", "top_p": 0.2, "ignore": 1})

        assert asked == Sampling(temperature=0.7, top_p=0.2, max_new_tokens=3, stop=("}",))

    def test_is_greedy_without_sampling(self):
        assert self.asked(generation_kwargs={"do_sample": False}).temperature == 0.0

    def test_uses_eval_sampling(self):
        options = dict(top_p=0.9, eval_sampling='{"temperature": 0.25, "top_p": 1.0}')

        assert self.asked(**options) == Sampling(top_p=0.9, max_new_tokens=8)
        assert self.asked(evaluation=True, **options) == Sampling(temperature=0.25, max_new_tokens=8)


class TestColocateKwargs:
    def test_are_empty_if_trl_starts_no_engine(self):
        assert colocate_kwargs("model", config("unused")) == {}
        assert colocate_kwargs("model", config("unused", use_vllm=True, vllm_mode="server")) == {}

    def test_contain_the_dtype_of_the_trainer(self):
        for changes, dtype in (({}, "float32"), ({"bf16": True}, "bfloat16")):
            kwargs = colocate_kwargs("model", config("unused", use_vllm=True, vllm_mode="colocate", **changes))
            assert kwargs["dtype"] == dtype
        given = config("unused", use_vllm=True, vllm_mode="colocate", model_init_kwargs={"dtype": "float16"})
        assert colocate_kwargs("model", given)["dtype"] == "float16"

    @pytest.mark.parametrize(
        ("changes", "rows"), [({}, 16), ({"games_in_flight": 5}, 5), ({"steps_per_generation": 99}, 512)]
    )
    def test_leave_room_for_all_games_in_flight(self, changes, rows):
        settings = config("unused", use_vllm=True, vllm_mode="colocate", **changes)

        assert colocate_kwargs("model", settings)["max_num_seqs"] == rows

    def test_are_overridden_by_the_users(self):
        settings = config(
            "unused", use_vllm=True, vllm_mode="colocate", vllm_engine_kwargs='{"block_size": 16, "enable_lora": true}'
        )
        kwargs = colocate_kwargs("model", settings)

        assert (kwargs["block_size"], kwargs["enable_lora"], kwargs["enforce_eager"]) == (16, True, True)


class TestSleepMode:
    """Without an accelerator vLLM cannot sleep, so a stand-in records its calls."""

    def test_wakes_for_a_rollout_and_sleeps_after_it_even_if_it_fails(self):
        calls = []
        generation = SimpleNamespace(
            enable_sleep_mode=True,
            _llm_weights_sleeping=True,
            sync_weights=lambda: calls.append("weights"),
            llm=SimpleNamespace(
                wake_up=lambda tags: calls.append(tags),
                sleep=lambda level: calls.append(f"sleep {level}"),
                llm_engine=None,
            ),
        )
        trainer = SimpleNamespace(
            use_vllm=True,
            vllm_mode="colocate",
            vllm_generation=generation,
            _last_loaded_step=3,
            state=SimpleNamespace(global_step=3),
            args=SimpleNamespace(generation_kwargs=None, vllm_structured_outputs_regex=None),
            eos_token_ids=[1],
        )
        with pytest.raises(KeyError), _trl.open_engine(trainer):
            calls.append("play")
            raise KeyError

        assert calls == ["weights", ["kv_cache"], "play", "sleep 2"]
        assert generation._llm_weights_sleeping


class TestRefusals:
    def test_of_continuous_batching_name_vllm(self, tmp_path):
        with pytest.raises(ValueError, match="`use_transformers_continuous_batching` cannot .* vLLM: `use_vllm=True`"):
            config(tmp_path, use_transformers_continuous_batching=True)
        with pytest.raises(ValueError, match="vLLM"), pytest.warns(FutureWarning, match="deprecated"):
            config(tmp_path, use_transformers_paged=True)

    def test_of_continuous_batching_come_before_a_plain_trainer_plays(self, model_dir, tmp_path):
        trainer, _ = plain_trainer(model_dir, tmp_path, ["Sum-v0"], use_transformers_continuous_batching=True)

        with pytest.raises(ValueError, match="`use_transformers_continuous_batching` cannot"):
            trainer.train()

    def test_of_fsdp_suggest_vllm(self, model_dir, tmp_path, monkeypatch):
        settings = config(tmp_path)
        monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
        with pytest.raises(ValueError, match="FSDP shards the weights.* Generate with vLLM: `use_vllm=True`"):
            SpiralTrainer(model_dir, settings)

    def test_of_constrained_moves_name_the_game(self):
        class Secretive(LastStone):
            name, traits = "Secretive", Traits(seats=3)

            def start(self, seed):
                match = super().start(seed)
                match.legal_actions = lambda: None
                return match

        with pytest.raises(ValueError, match="needs games that list their legal moves, and Secretive does not"):
            SelfPlayRollout([LastStone(), Secretive()], SelfPlaySettings(constrain_moves=True))
