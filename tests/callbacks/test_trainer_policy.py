"""Callbacks use the trainer's games, prompts and sampling: tested on the requests that engines receive."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
from datasets import Dataset
from transformers import AutoTokenizer
from trl import SFTConfig, SFTTrainer

from tests.callbacks.test_math import GSM8K
from tests.callbacks.test_mbpp import MBPP, Unused
from tests.helpers.games import LastStone
from tests.helpers.toy_games import SumGame
from tests.helpers.training_runs import config, plain_trainer
from trl_spiral import OpponentPool, SpiralTrainer, _trl
from trl_spiral.callbacks import (
    ExploitabilityCallback,
    MatchCallback,
    MathCallback,
    MBPPCallback,
    OpponentPoolCallback,
    TicTacToeCallback,
    TranscriptCallback,
)
from trl_spiral.callbacks import exploitability as exploitability_module
from trl_spiral.callbacks import tictactoe as tictactoe_module
from trl_spiral.callbacks.rating_games import play_rating_games
from trl_spiral.callbacks.trainer_policy import games_of
from trl_spiral.evaluation.transcripts import GAMES, read_game_log
from trl_spiral.games import get_game
from trl_spiral.types import Sampling


TONED = (
    "{% if tone %}{{ tone }} {% endif %}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DRAWN = dict(temperature=0.9, top_p=0.8, top_k=7, min_p=0.01, repetition_penalty=1.1, max_completion_length=6)
TRAINING = Sampling(0.9, 0.8, 7, 0.01, 1.1, 6, ("stop",))
EVALUATION = replace(TRAINING, temperature=0.5)


@pytest.fixture
def asked(monkeypatch):
    """Record all requests to engines, which get them without `legal_moves` and repetition penalty."""
    requests, opened = [], _trl.open_engine

    class Spy:
        def __init__(self, engine):
            self.engine = engine

        def add(self, ticket, request):
            requests.append(request)
            sampling = replace(request.sampling, repetition_penalty=1.0)
            self.engine.add(ticket, replace(request, legal_moves=(), sampling=sampling))

        def __getattr__(self, name):
            return getattr(self.engine, name)

    @contextmanager
    def open_engine(trainer, snapshots=None):
        with opened(trainer, snapshots) as engine:
            yield Spy(engine)

    monkeypatch.setattr(_trl, "open_engine", open_engine)
    return requests


@pytest.fixture
def make(model_dir, tmp_path):
    """Make a trainer in which every setting of play differs from its default."""

    def make(games=("Kuhn-v0",), constrain_moves=False, **changes):
        tokenizer = AutoTokenizer.from_pretrained(model_dir, chat_template=TONED)
        tokenizer.chat_template = TONED
        settings = dict(
            **DRAWN,
            eval_sampling={"temperature": 0.5},
            chat_template_kwargs={"tone": "Gently."},
            generation_kwargs={"stop": ["stop"]},
            games=[name for name in games if name != "Sum-v0"] or ["Kuhn-v0"],
        )
        played = [SumGame() if name == "Sum-v0" else get_game(name) for name in games]
        trainer = SpiralTrainer(
            model_dir, config(tmp_path, **{**settings, **changes}), games=played, processing_class=tokenizer
        )
        # Without vLLM, the configuration refuses it.
        rollout = trainer.rollout
        rollout.settings = replace(rollout.settings, constrain_moves=constrain_moves)
        return trainer

    return make


def at_start(callback):
    trainer = callback.trainer
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)


def at_end(callback):
    trainer = callback.trainer
    callback.on_train_end(trainer.args, trainer.state, trainer.control)


def rated(trainer):
    """Play rating games between two snapshots of the current policy."""
    pool = OpponentPool(f"{trainer.args.output_dir}/opponents")
    model = trainer.accelerator.unwrap_model(trainer.model)
    for step in (1, 2):
        pool.add(step, "weights", model.save_pretrained, name=f"step-{step}")
    callback = OpponentPoolCallback(trainer, pool, rating_games=2)
    play_rating_games(trainer, pool, "step-2", 2, callback.games, seed=0)


PLAYING = {
    "transcripts": lambda trainer: at_end(TranscriptCallback(trainer, games=12)),
    "matches": lambda trainer: at_start(MatchCallback(trainer, pairs=4)),
    "ratings": rated,
}
"""Callbacks that play whole games."""

ASKING = {
    "exploitability": lambda trainer: at_start(ExploitabilityCallback(trainer, samples=2)),
    "tictactoe": lambda trainer: at_start(TicTacToeCallback(trainer, games=2)),
    "math": lambda trainer: at_start(MathCallback(trainer, "gsm8k", limit=2, path=GSM8K)),
    "mbpp": lambda trainer: at_start(MBPPCallback(trainer, MBPP, limit=2, sandbox=Unused())),
}
"""Callbacks that play a fixed game, or pose single problems."""

ALL = PLAYING | ASKING


def sampling_expected(name):
    """Rating games use training sampling, problems are greedy, and all others use the trainer's evaluation."""
    if name == "ratings":
        return {TRAINING}
    if name == "tictactoe":
        return {EVALUATION, TRAINING}  # it also grades at the training temperature
    return {replace(EVALUATION, temperature=0.0)} if name in ("math", "mbpp") else {EVALUATION}


def texts(trainer, requests):
    return [trainer.processing_class.decode(request.prompt_ids) for request in requests]


class TestSettings:
    @pytest.mark.parametrize("name", ALL)
    def test_sampling_is_that_of_the_trainer(self, name, make, asked):
        ALL[name](make())

        assert {request.sampling for request in asked} == sampling_expected(name)

    @pytest.mark.parametrize("name", ALL)
    def test_the_chat_template_gets_the_arguments_of_the_trainer(self, name, make, asked):
        trainer = make()
        ALL[name](trainer)

        assert asked and all(text.startswith("Gently. <|im_start|>user\n") for text in texts(trainer, asked))

    @pytest.mark.parametrize("name", ALL)
    def test_the_prompt_style_is_that_of_the_trainer(self, name, make, asked):
        trainer = make(prompt_style="r1")
        ALL[name](trainer)

        assert asked and all(text.startswith("A conversation between User and") for text in texts(trainer, asked))

    @pytest.mark.parametrize("name", PLAYING)
    @pytest.mark.parametrize("unit", ["turn", "trajectory"])
    def test_games_are_conversations_if_those_of_the_trainer_are(self, unit, name, make, asked):
        trainer = make(["Sum-v0"], sample_unit=unit, max_completion_length=8)
        PLAYING[name](trainer)
        most = max(text.count("<|im_start|>assistant") for text in texts(trainer, asked))

        assert (most > 1) is (unit == "trajectory")

    @pytest.mark.parametrize("constrain", [False, True])
    @pytest.mark.parametrize("name", [*PLAYING, "exploitability", "tictactoe"])
    def test_moves_are_constrained_if_those_of_the_trainer_are(self, name, constrain, make, asked):
        ALL[name](make(constrain_moves=constrain))

        assert {bool(request.legal_moves) for request in asked} == {constrain}

    @pytest.mark.parametrize("name", ["math", "mbpp"])
    def test_answers_to_problems_are_never_constrained(self, name, make, asked):
        ALL[name](make(constrain_moves=True))

        assert {request.legal_moves for request in asked} == {()}

    @pytest.mark.parametrize("name", ["matches", "transcripts", "math", "exploitability"])
    def test_arguments_override_the_trainer(self, name, make, asked):
        trainer = make()
        given = dict(temperature=0.25, prompt_style="r1")
        {
            "matches": lambda: at_start(MatchCallback(trainer, "Nim-v0", pairs=1, **given)),
            "transcripts": lambda: at_end(TranscriptCallback(trainer, "Nim-v0", games=2, **given)),
            "math": lambda: at_start(MathCallback(trainer, "gsm8k", limit=1, path=GSM8K, **given)),
            "exploitability": lambda: at_start(ExploitabilityCallback(trainer, "Kuhn-v0", samples=1, **given)),
        }[name]()

        assert {request.sampling for request in asked} == {replace(TRAINING, temperature=0.25)}
        assert all(text.startswith("A conversation between User and") for text in texts(trainer, asked))

    def test_exact_grades_use_the_prompts_of_the_trainer(self, make, monkeypatch):
        trainer, found = make(prompt_style="r1"), []
        read = exploitability_module.language_model_strategy

        def strategy(model, renderer, game, temperatures):
            found.append((renderer, game, temperatures))
            return read(model, renderer, game, temperatures)

        monkeypatch.setattr(exploitability_module, "language_model_strategy", strategy)
        monkeypatch.setattr(
            tictactoe_module, "grade_tictactoe", lambda renderer, score: found.append((renderer,)) or []
        )
        for callback in (TicTacToeCallback(trainer), ExploitabilityCallback(trainer)):
            # In this style the prompt opens a thought, so that no reply is a move alone.
            with (
                pytest.raises(ValueError, match="opens a thought")
                if isinstance(callback, ExploitabilityCallback)
                else _nothing()
            ):
                at_start(callback)

        assert [one[0].style for one in found] == ["r1", "r1"]
        assert found[-1][1:] == ("Kuhn-v0", (0.5,))

    def test_exact_grades_refuse_temperature_zero(self, make):
        trainer = make(eval_sampling={"temperature": 0.0})

        for callback in (TicTacToeCallback(trainer), ExploitabilityCallback(trainer)):
            with pytest.raises(ValueError, match=r"temperature to grade at \(0.0\) must be above 0"):
                at_start(callback)


@contextmanager
def _nothing():
    yield


class TestGames:
    def test_transcripts_are_of_the_games_of_the_trainer(self, make, tmp_path):
        trainer = make(["Kuhn-v0", "Nim-v0"], game_weights=[1.0, 3.0], max_steps=2, repetition_penalty=1.0)
        trainer.add_callback(TranscriptCallback(trainer, every=1, games=7))
        trainer.train()
        final = [game["game"] for game in read_game_log(tmp_path / GAMES) if game["kind"] == "final"]

        assert (final.count("Kuhn-v0"), final.count("Nim-v0")) == (4, 3)

    def test_each_callback_plays_what_the_trainer_plays(self, make, tmp_path):
        trainer = make(["Kuhn-v0", "Leduc-v0", "Nim-v0"], game_weights=[1.0, 1.0, 0.0])
        pool = OpponentPool(tmp_path / "opponents")

        assert [game.name for game in MatchCallback(trainer).games] == ["Kuhn-v0", "Leduc-v0"]
        assert list(TranscriptCallback(trainer).played) == ["Kuhn-v0", "Leduc-v0"]
        assert list(ExploitabilityCallback(trainer).trees) == ["Kuhn-v0", "Leduc-v0"]
        rating = OpponentPoolCallback(trainer, pool, rating_games=2)
        assert [game.name for game in rating.games] == ["Kuhn-v0", "Leduc-v0"]

    def test_games_of_a_plain_trainer_are_those_of_its_rollout(self, model_dir, tmp_path):
        trainer, rollout = plain_trainer(model_dir, tmp_path, ["Nim-v0", "Sum-v0"])

        assert games_of(trainer) == rollout.games
        assert games_of(trainer, ["Kuhn-v0", LastStone()])[0].name == "Kuhn-v0"

    def test_a_game_without_a_random_player_is_played_only_against_itself(self, make, tmp_path):
        trainer = make(["TruthAndDeception-v0"], max_completion_length=4, repetition_penalty=1.0)
        at_end(TranscriptCallback(trainer, games=2))
        games = list(read_game_log(tmp_path / GAMES))

        assert [game["players"] for game in games] == [["policy", "policy"]] * 2

    def test_a_trainer_without_games_needs_games(self, model_dir, tmp_path):
        rows = [{"prompt": [{"role": "user", "content": "4"}], "completion": [{"role": "assistant", "content": "5"}]}]
        trainer = SFTTrainer(
            model_dir, SFTConfig(str(tmp_path), use_cpu=True, bf16=False), train_dataset=Dataset.from_list(rows)
        )
        pool = OpponentPool(tmp_path / "opponents")

        for make, option in (
            (MatchCallback, "games"),
            (TranscriptCallback, "game"),
            (ExploitabilityCallback, "games"),
            (lambda trainer: OpponentPoolCallback(trainer, pool, rating_games=1), "games"),
        ):
            with pytest.raises(ValueError, match=f"`{option}` is missing, and this trainer plays no games of its own"):
                make(trainer)

    def test_constrained_moves_need_games_that_list_them(self, make):
        trainer = make(constrain_moves=True)

        with pytest.raises(
            ValueError, match="`constrain_moves` needs games that list their legal moves, and TruthAndDeception-v0"
        ):
            MatchCallback(
                trainer, "TruthAndDeception-v0", rivals="https://host/v1#model", endpoint_kwargs={"api_key_env": ""}
            )
