"""The recipe of the code game with a barely trained tiny player, and its frozen guesser."""

import json

import pytest

from tests.recipes.test_recipes import QUICK, load_recipe
from trl_spiral.games import get_game
from trl_spiral.games.code_game import CodeGame
from trl_spiral.opponents import Opponents
from trl_spiral.players import ScriptedPlayer


@pytest.fixture
def recipe():
    try:
        get_game("CodeGame-v0").check()
    except RuntimeError as missing:
        pytest.skip(str(missing))
    return load_recipe("code_game")


class TestCodeGame:
    @pytest.mark.parametrize("game", ["CodeGame-v0", "CodeGame-v0-frozen"])
    def test_prints_the_scores_of_each_seat_before_and_after(self, recipe, game, tmp_path, monkeypatch, capsys):
        from trl_spiral.tiny.player import TinyPlayerRecipe

        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(recipe, "TinyPlayerRecipe", lambda **chosen: TinyPlayerRecipe(**{**chosen, **QUICK}))
        monkeypatch.setattr(recipe, "GAMES", 4)
        small = ["--max_steps", "2", "--per_device_train_batch_size", "8", "--logging_steps", "1", "--save_steps", "2"]

        recipe.main(*recipe.parse(["--games", game, "--output_dir", str(tmp_path / "run"), *small]))

        printed = capsys.readouterr().out
        log = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
        assert all(f"| {when} | {game} | " in printed for when in ("before", "after"))
        assert (tmp_path / "run" / "model.safetensors").exists()
        # The frozen guesser is always the base model.
        met = {name for entry in log for name in entry if name.startswith("pool/share/")}
        assert met == ({"pool/share/base"} if game.endswith("frozen") else set())


class TestFixedGuesser:
    def test_seats_the_policy_first(self, recipe):
        policy, guesser = ScriptedPlayer("policy", str), ScriptedPlayer("guesser", str)
        seated = recipe.FixedGuesser({"guesser": 1.0}, players={"guesser": guesser})

        assert {seated(policy, 2, seed) for seed in range(8)} == {(policy, guesser)}
        assert {
            Opponents({"guesser": 1.0}, players={"guesser": guesser})(policy, 2, seed)[0] for seed in range(8)
        } == {
            policy,
            guesser,
        }


class TestParse:
    def test_a_named_model_gets_the_full_size_settings(self, recipe):
        args, model_args = recipe.parse(["--model_name_or_path", "some/model", "--use_cpu", "--bf16", "False"])

        assert (model_args.use_peft, model_args.lora_r, model_args.lora_alpha) == (True, 16, 32)
        assert (args.learning_rate, args.num_generations, args.opponents) == (2e-5, 2, "self")

    def test_a_frozen_guesser_is_the_base_model(self, recipe):
        args, _ = recipe.parse(["--games", "CodeGame-v0-frozen"])

        assert (args.games, args.opponents) == (["CodeGame-v0-frozen"], "base")


class TestSelfPlayRollout:
    def test_checks_first_whether_a_game_can_be_played(self):
        from trl_spiral.rollout_func import SelfPlayRollout

        class Missing(CodeGame):
            def check(self):
                raise RuntimeError("No sandbox here.")

        with pytest.raises(RuntimeError, match="No sandbox here"):
            SelfPlayRollout(Missing())
