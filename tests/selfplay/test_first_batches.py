"""Runs that learn nothing, one of each kind, and healthy runs, each trained for ten steps."""

import json
import logging
import re
from dataclasses import replace

import pytest
from datasets import Dataset

from tests.helpers.strategy_models import reply_model
from tests.helpers.toy_games import SumGame
from tests.helpers.training_runs import config, history, plain_trainer
from tests.training.test_two_ranks import SCRIPT, launch
from trl_spiral import AlgorithmConfig, AlgorithmTrainer, SpiralTrainer
from trl_spiral.callbacks import CollapseCallback
from trl_spiral.report import read_run, render
from trl_spiral.selfplay.first_batches import FirstBatches, Tally, count_replies, quoted
from trl_spiral.selfplay.monitoring import CollapseWarning
from trl_spiral.types import Ending, Episode, Trajectory, Turn


STEPS = 10
CENTRE = "\\boxed{[4]}"  # legal in the toy game, whose sum decides


@pytest.fixture
def warnings(caplog):
    """Return the warnings of runs that learn nothing or collapse."""
    caplog.set_level(logging.WARNING, "trl_spiral")
    return lambda: [record.getMessage() for record in caplog.records if "monitoring" in record.name]


@pytest.fixture
def play(model_dir, tokenizer, tmp_path):
    """Train a player of the toy game for ten steps: the tiny model, or one that recites."""

    def play(replies=None, game=None, resume=None, **changes):
        model = reply_model(tokenizer, replies) if replies else model_dir
        trainer = SpiralTrainer(
            model,
            args=config(tmp_path, **{"max_steps": STEPS, "learning_rate": 1e-6, **changes}),
            games=[game or SumGame()],
            processing_class=tokenizer,
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return play


@pytest.fixture
def answer(model_dir, tokenizer, tmp_path):
    """Train at prompts with a reward for ten steps."""

    def answer(reward, replies=None, **changes):
        settings = dict(
            output_dir=str(tmp_path),
            algorithm="dr_grpo",
            per_device_train_batch_size=16,
            num_generations=8,
            max_steps=STEPS,
            max_completion_length=8,
            learning_rate=1e-6,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        )
        prompts = [[{"role": "user", "content": f"You are Player {number}."}] for number in (0, 1)]
        trainer = AlgorithmTrainer(
            reply_model(tokenizer, replies) if replies else model_dir,
            reward,
            AlgorithmConfig(**{**settings, **changes}),
            Dataset.from_dict({"prompt": prompts * 8, "place": [0, 1] * 8}),
            processing_class=tokenizer,
        )
        trainer.train()
        return trainer

    return answer


def by_place(place, **kwargs):
    return [float(one) for one in place]


def by_turns(completions, **kwargs):
    return [float(number % 2) for number in range(len(completions))]


def by_length(completion_ids, **kwargs):
    return [sum(ids) % 7 / 7 for ids in completion_ids]


def equal(completions, **kwargs):
    return [0.25] * len(completions)


def only_warning(warnings):
    (sentence,) = warnings()
    return sentence


class TestGames:
    @pytest.mark.parametrize("unit", ["turn", "trajectory"])
    def test_replies_that_are_cut_off(self, unit, play, warnings):
        trainer = play({CENTRE: 1.0}, max_completion_length=2, sample_unit=unit)

        # One batch in four steps: the first step of the second one is enough. One reply a game, which it ends.
        games = sum(entry.get("selfplay/games", 0.0) for entry in trainer.state.log_history if entry["step"] <= 5)
        assert only_warning(warnings).startswith(
            f"Step 5: 100% of the first {games:.0f} replies were cut off at `max_completion_length` (2): raise it, or "
            "turn thinking off by `chat_template_kwargs={'enable_thinking': False}`; one reply: '"
        )

    @pytest.mark.parametrize("reply", ["You are", "You are\nwin"])
    def test_replies_without_a_box(self, reply, play, warnings):
        play({reply: 1.0})

        assert re.match(
            r"Step 5: 100% of the first \d+ replies contain no move in a `\\boxed\{\}`: ", only_warning(warnings)
        )
        assert "fine-tuned on legal replies" in only_warning(warnings)
        assert only_warning(warnings).endswith(f"; one reply: {reply!r}.")

    def test_boxes_with_an_illegal_move(self, play, warnings):
        play({"\\boxed{9}": 1.0})

        assert re.match(
            r"Step 5: 100% of the first \d+ replies contain an illegal move in their `\\box", only_warning(warnings)
        )
        assert "`constrain_moves`" in only_warning(warnings)
        assert only_warning(warnings).endswith("; one reply: '\\\\boxed{9}'.")

    def test_failures_add_up_and_the_most_frequent_one_is_named(self, play, warnings):
        play({"\\boxed{9}": 0.7, "You are": 0.28, "\\boxed{[4]}": 0.02})

        found = re.match(
            r"Step 5: (\d+)% of the first \d+ replies contain an illegal move .*, "
            r"and (\d+)% contain no legal move for an",
            only_warning(warnings),
        )
        assert 0.9 <= (int(found[1]) + int(found[2])) / 100 < 1.01
        assert int(found[1]) > int(found[2]) > 0

    def test_games_that_are_all_drawn(self, play, warnings):
        play({"\\boxed{[0]}": 1.0})

        assert re.match(
            r"Step 5: All of the first 32 rows have the same reward \(0\), so no reply is", only_warning(warnings)
        )
        assert "`opening_moves`" in only_warning(warnings)

    def test_seats_that_always_have_the_same_result(self, play, warnings):
        # The second seat always wins, and its baseline is 1: rewards differ, and all advantages are 0.
        play({CENTRE: 1.0}, SumGame(long=2))

        assert re.match(r"Step 5: The first 32 rows have no token to train on", only_warning(warnings))
        assert "`advantage_estimator`" in only_warning(warnings)

    def test_a_deterministic_policy(self, play, warnings):
        # The seed decides how long a game is, and so who wins.
        trainer = play({CENTRE: 1.0})

        assert {entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry} == {0.0}
        assert re.match(
            r"Step 5: The gradient norm is 0 in each of the first 5 steps, although \d+ tok", only_warning(warnings)
        )
        assert "`temperature` (1)" in only_warning(warnings)

    def test_a_short_run_is_judged_at_its_end(self, play, warnings):
        play({"\\boxed{9}": 1.0}, max_steps=2)

        assert only_warning(warnings).startswith("Step 2: 100% of the first ")

    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_a_healthy_run_gives_no_warning(self, seed, play, warnings):
        trainer = play(seed=seed, learning_rate=1e-3)

        assert warnings() == []
        assert not any("collapse/warnings" in entry for entry in trainer.state.log_history)

    def test_a_plain_trainer_with_the_callback(self, model_dir, tmp_path, warnings):
        trainer, _ = plain_trainer(model_dir, tmp_path, ["Sum-v0"], max_steps=4, max_completion_length=1)
        trainer.add_callback(CollapseCallback(trainer))
        trainer.train()

        assert re.match(r"Step 2: \d+% of the first \d+ replies were cut off", only_warning(warnings))


class TestPrompts:
    def test_replies_that_are_cut_off(self, answer, warnings):
        answer(by_length, {CENTRE: 1.0}, max_completion_length=2)

        assert only_warning(warnings).startswith(
            "Step 2: 100% of the first 32 replies were cut off at `max_completion_length` (2)"
        )

    def test_rewards_that_are_all_equal(self, answer, warnings):
        answer(equal)

        assert only_warning(warnings).startswith(
            "Step 2: All of the first 32 rows have the same reward (0.25), so no reply is "
        )
        assert "check that the reward can read such replies" in only_warning(warnings)

    def test_rewards_that_are_equal_for_each_prompt(self, answer, warnings):
        answer(by_place)

        assert only_warning(warnings).startswith("Step 2: The first 32 rows have no token to train on")
        assert "`num_generations` (8)" in only_warning(warnings)

    def test_a_deterministic_policy(self, answer, warnings):
        answer(by_turns, {CENTRE: 1.0})

        assert only_warning(warnings).startswith(
            "Step 2: The gradient norm is 0 in each of the first 2 steps, although "
        )

    @pytest.mark.parametrize("algorithm", ["dr_grpo", "gpg", "reinforce", "rloo"])
    def test_a_healthy_run_gives_no_warning(self, algorithm, answer, warnings):
        answer(by_length, algorithm=algorithm)

        assert warnings() == []


class TestStorage:
    def test_is_in_the_log_the_state_and_the_report(self, play, warnings, tmp_path):
        trainer = play({"\\boxed{9}": 1.0})
        trainer.save_state()
        counted = [entry for entry in trainer.state.log_history if "collapse/warnings" in entry]
        (warning,) = read_run(tmp_path).warnings

        assert [(entry["step"], entry["collapse/warnings"]) for entry in counted] == [(5, 1.0)]
        assert f"Step {warning.step}: {warning.sentence}" == only_warning(warnings)
        assert json.dumps(warning.sentence)[1:-1] in render(read_run(tmp_path), read_run(tmp_path).warnings)

    @pytest.mark.parametrize("killed_at", [2, 4, 6])
    def test_a_resumed_run_warns_once(self, killed_at, play, warnings, tmp_path):
        settings = dict(replies={"\\boxed{9}": 1.0}, save_strategy="steps", save_steps=2)
        straight = play(**settings)
        said = warnings()
        resumed = play(**settings, resume=str(tmp_path / f"checkpoint-{killed_at}"))

        assert len(said) == 1
        assert warnings()[1:] == (said if killed_at < 5 else [])
        assert history(resumed) == history(straight)
        (callback,) = (one for one in resumed.callback_handler.callbacks if isinstance(one, CollapseCallback))
        assert [f"Step {one.step}: {one.sentence}" for one in callback.monitor.warnings] == said

    def test_two_ranks_add_their_counts_and_rank_zero_warns(self, model_dir, tmp_path):
        run = dict(
            name="cut_off",
            model=model_dir,
            games=["Sum-v0"],
            config=dict(output_dir=str(tmp_path / "out"), max_steps=6, max_completion_length=1),
        )
        (tmp_path / "runs.json").write_text(json.dumps([run]))
        done = launch(SCRIPT, tmp_path / "runs.json")
        entries = json.loads((tmp_path / "cut_off_0.json").read_text())["history"]

        assert done.returncode == 0, done.stderr
        games = sum(entry.get("selfplay/games", 0.0) for entry in entries if entry["step"] <= 5)
        sentence = f"of the first {games:.0f} replies were cut off"
        assert done.stderr.count("replies were cut off") == done.stderr.count(sentence) == 1


class TestTally:
    def turn(self, text, action="[4]", **changes):
        return Turn(action, text, policy="policy", **changes)

    def episode(self, ending, *turns):
        return Episode("toy", 0, ("policy",), (Trajectory(0, turns),), (0.0,), ending, offender=0)

    def test_counts_each_reply_of_the_policy_once(self):
        legal = self.turn("\\boxed{[4]}")
        guest = replace(legal, policy=None)
        tally = Tally()
        count_replies(
            [
                self.episode(Ending.FINISHED, legal, guest, legal),
                self.episode(Ending.ILLEGAL_MOVE, legal, self.turn("\\boxed{9}", "9")),
                self.episode(Ending.ILLEGAL_MOVE, self.turn("\\boxed{", None)),
                self.episode(Ending.TRUNCATED, legal, self.turn("I think", None, truncated=True)),
                self.episode(Ending.PLAYER_LOST, self.turn("", None, lost=True)),
            ],
            tally,
        )

        assert (tally.replies, tally.illegal, tally.no_box, tally.truncated) == (7, 1, 1, 1)
        assert (tally.samples["illegal"], tally.samples["truncated"]) == ("\\boxed{9}", "I think")

    @pytest.mark.parametrize(("failed", "cause"), [(89, None), (90, "illegal")])
    def test_ninety_percent_are_enough(self, failed, cause):
        tally = Tally(batches=2, replies=100, illegal=failed, rows=100, trained_tokens=1, lowest=-1.0, highest=1.0)

        assert tally.cause == cause

    def test_waits_for_enough_replies(self):
        assert not FirstBatches(Tally(batches=9, replies=31, rows=31)).is_due
        assert not FirstBatches(Tally(batches=1, replies=99, rows=99)).is_due
        assert FirstBatches(Tally(batches=2, replies=32, rows=9)).is_due

    def test_one_rank_with_a_gradient_is_enough(self):
        tally = Tally(rows=1, trained_tokens=1, lowest=0.0, highest=1.0)
        tally.add([Tally(still_steps=1), Tally(still_steps=0)])
        assert tally.cause is None

        tally = Tally(rows=1, trained_tokens=1, lowest=0.0, highest=1.0)
        tally.add([Tally(still_steps=1), Tally(still_steps=1)])
        assert tally.cause == "no_gradient"

    def test_round_trips_through_its_state(self):
        first = FirstBatches(Tally(2, 5, samples={"any": "x"}), 1, True, [CollapseWarning(5, "loss", "None.")])

        assert FirstBatches.from_state_dict(json.loads(json.dumps(first.state_dict()))) == first

    def test_a_sample_cannot_reach_the_terminal(self):
        shown = quoted("a\x1b[2Jb\n\u202e" + "x" * 1000 + "end")

        assert shown.isprintable() and len(shown) < 200
        assert shown.startswith("'a\\x1b[2Jb\\n") and shown.endswith("xend'")
