"""The recipes, run as a user runs them with tiny models: printed tables, files and uploads."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load, load_file

from tests.helpers import forks
from tests.helpers.hub_server import HubServer
from trl_spiral.lock import LOCK_FILE


ROOT = Path(__file__).parents[2]


def load_recipe(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "recipes" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# A player that is hardly warm.
QUICK = dict(steps=12, hidden_size=16, num_heads=2, head_dim=8, intermediate_size=16)

SMALL = [
    *("--use_cpu", "--bf16", "False", "--gradient_checkpointing", "False", "--report_to", "none"),
    *("--max_steps", "2", "--per_device_train_batch_size", "16", "--gradient_accumulation_steps", "1"),
    *("--max_completion_length", "8", "--save_steps", "1", "--num_iterations", "1"),
]


class TestSpiralTicTacToe:
    def test_uploads_the_model_with_its_card(self, model_dir, tmp_path):
        with HubServer() as hub:
            output = tmp_path / "run"
            options = ("--model_name_or_path", model_dir, "--output_dir", str(output), *SMALL)
            options += ("--push_to_hub", "--hub_model_id", "someone/spiral-ttt")
            # A new interpreter: libraries read where the hub is when they are imported.
            done = subprocess.run(
                [sys.executable, str(ROOT / "recipes/spiral_ttt.py"), *options],
                capture_output=True,
                text=True,
                timeout=400,
                env={**hub.environment(tmp_path), "OMP_NUM_THREADS": "1"},
            )

            assert done.returncode == 0, done.stderr[-3000:]
            files = hub.repos["someone/spiral-ttt"]
        card = files["README.md"].decode()

        assert "| after | minimax | second |" in done.stdout
        assert "2506.24119" in card and "SPIRAL" in card
        assert "| after | minimax | second |" in card
        assert "- spiral" in card and "- self-play" in card
        # The uploaded weights equal the saved ones, and differ from the initial ones.
        pushed, start = load(files["model.safetensors"]), load_file(Path(model_dir) / "model.safetensors")
        saved = load_file(output / "model.safetensors")
        assert all((pushed[name] == saved[name]).all() for name in saved)
        assert any((pushed[name] != start[name]).any() for name in saved)
        assert (output / LOCK_FILE).exists() and LOCK_FILE not in files

    def test_saves_model_metrics_and_transcripts(self, tmp_path, monkeypatch, capsys):
        from trl import ModelConfig

        from trl_spiral import SpiralConfig
        from trl_spiral.tiny.player import TinyPlayerRecipe

        recipe = load_recipe("spiral_ttt")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(recipe, "TinyPlayerRecipe", lambda seed: TinyPlayerRecipe(seed=seed, **QUICK))
        small = dict(
            output_dir=str(tmp_path / "run"),
            max_steps=4,
            per_device_train_batch_size=16,
            priming_games=20,
            logging_steps=1,
            save_steps=2,
        )

        recipe.main(SpiralConfig(**{**recipe.LAPTOP, **small}), ModelConfig())

        printed = capsys.readouterr().out
        transcripts = sorted((tmp_path / "run" / "transcripts").iterdir())
        log = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
        assert all(
            f"| {when} | {rival} |" in printed for when in ("before", "after") for rival in ("random", "minimax")
        )
        assert len(transcripts) == 10
        assert "Current Board" in transcripts[0].read_text() and "Wrote:" in transcripts[0].read_text()
        assert {"tictactoe/random/non_loss", "tictactoe/minimax/illegal"} <= set(log[0])
        assert (tmp_path / "run" / "model.safetensors").exists()
        assert "| after | minimax | second |" in (tmp_path / "run" / "README.md").read_text()

    def test_wrong_input_is_refused_before_a_player_is_made(self, tmp_path):
        options = ("--games", "TicTacTo-v0", "--output_dir", str(tmp_path / "run"))
        done = forks.run([sys.executable, ROOT / "recipes/spiral_ttt.py", *options])

        assert done.returncode != 0
        assert "There is no game called 'TicTacTo-v0'. Did you mean 'TicTacToe-v0'" in done.stderr
        assert not (tmp_path / "run").exists()


class TestSpiralKuhn:
    def test_prints_its_curve_and_saves_policy_tables(self, tmp_path, monkeypatch, capsys):
        from trl import ModelConfig

        from trl_spiral import SpiralConfig
        from trl_spiral.tiny.player import TinyPlayerRecipe

        recipe = load_recipe("spiral_kuhn")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(recipe, "TinyPlayerRecipe", lambda **chosen: TinyPlayerRecipe(**{**chosen, **QUICK}))
        small = dict(
            output_dir=str(tmp_path / "run"),
            max_steps=4,
            per_device_train_batch_size=16,
            priming_games=20,
            ref_model_sync_steps=2,
            logging_steps=1,
            save_steps=2,
        )

        recipe.main(SpiralConfig(**{**recipe.LAPTOP, **small}), ModelConfig())

        printed = capsys.readouterr().out
        grades = sorted(path.name for path in (tmp_path / "run" / "exploitability").iterdir())
        assert "| Kuhn-v0 | 0 | " in printed and "| Kuhn-v0 | 4 | " in printed
        assert grades == [f"Kuhn-v0-step-{step}.{end}" for step in (0, 4) for end in ("json", "md")]
        assert len(list((tmp_path / "run" / "transcripts").iterdir())) == 10
        assert (tmp_path / "run" / "model.safetensors").exists()


class TestSpiralMulti:
    def test_plays_all_three_games_and_prints_their_scores(self, tmp_path, monkeypatch, capsys):
        from trl import ModelConfig

        from trl_spiral import SpiralConfig
        from trl_spiral.tiny.player import TinyPlayerRecipe

        recipe = load_recipe("spiral_multi")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(recipe, "TinyPlayerRecipe", lambda **chosen: TinyPlayerRecipe(**{**chosen, **QUICK}))
        monkeypatch.setattr(recipe, "PAIRS", 5)
        small = dict(
            output_dir=str(tmp_path / "run"),
            max_steps=4,
            per_device_train_batch_size=16,
            ref_model_sync_steps=2,
            logging_steps=1,
            save_steps=2,
        )

        recipe.main(SpiralConfig(**{**recipe.LAPTOP, **small}), ModelConfig())

        printed = capsys.readouterr().out
        log = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
        names = {name for entry in log for name in entry}
        for game in recipe.GAMES:
            assert f"| {game} |" in printed
            assert {f"eval/{game}-random/all/win", f"selfplay/{game}/share"} <= names
        assert (tmp_path / "run" / "model.safetensors").exists()


CPU = ("--use_cpu", "--bf16", "False")
RECIPES = [path.stem for path in sorted((ROOT / "recipes").glob("*.py"))]


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "output", "games"),
        [
            ((), "spiral-kuhn", ["Kuhn-v0"]),
            (("--games", "Leduc-v0"), "spiral-leduc", ["Leduc-v0"]),
            (("--games=Leduc-v0",), "spiral-leduc", ["Leduc-v0"]),
            (("--model_name_or_path", "someone/model", *CPU), "spiral-kuhn-full", ["Kuhn-v0"]),
            (("--model_name_or_path=someone/model", "--games=Leduc-v0", *CPU), "spiral-kuhn-full", ["Leduc-v0"]),
        ],
    )
    def test_choose_the_settings(self, arguments, output, games):
        args, _ = load_recipe("spiral_kuhn").parse(list(arguments))

        assert (args.output_dir, args.games) == (output, games)

    @pytest.mark.parametrize(
        ("name", "game", "setting"),
        [("spiral_kuhn", "Leduc-v0", "output_dir"), ("code_game", "CodeGame-v0-frozen", "opponents")],
    )
    def test_choose_the_same_settings_from_a_file(self, name, game, setting, tmp_path):
        (tmp_path / "c.yaml").write_text(f"games: [{game}]\n")
        parse = load_recipe(name).parse
        named, filed = (parse(how)[0] for how in (["--games", game], ["--config", str(tmp_path / "c.yaml")]))

        assert filed.games == named.games == [game]
        assert getattr(filed, setting) == getattr(named, setting) != getattr(parse([])[0], setting)

    @pytest.mark.parametrize("name", RECIPES)
    @pytest.mark.parametrize("how", ["dashes", "yaml"])
    def test_accept_a_model_in_every_notation(self, name, how, tmp_path):
        (tmp_path / "c.yaml").write_text("model_name_or_path: someone/model\n")
        named = (
            ["--model-name-or-path", "someone/model"] if how == "dashes" else ["--config", str(tmp_path / "c.yaml")]
        )
        *_, args, model_args = load_recipe(name).parse([*named, *CPU])

        assert model_args.model_name_or_path == "someone/model"
        assert args.output_dir.endswith("-full")

    def test_penalize_an_illegal_move_more_than_any_loss(self):
        recipe = load_recipe("spiral_kuhn")
        kuhn, leduc = recipe.parse([])[0], recipe.parse(["--games=Leduc-v0"])[0]

        # The lowest returns are -2 and -13 chips.
        assert kuhn.forfeit[0] < -2.0 and leduc.forfeit[0] < -13.0

    @pytest.mark.parametrize(
        ("arguments", "weights"),
        [
            ((), [5.0, 16.0, 4.0]),
            (("--games", "Kuhn-v0", "TicTacToe-v0"), None),
            (("--games", "Kuhn-v0", "TicTacToe-v0", "--game_weights", "1", "2"), [1.0, 2.0]),
            (("--model_name_or_path", "someone/model", *CPU), None),
        ],
    )
    def test_drop_the_default_weights_with_other_games(self, arguments, weights):
        assert load_recipe("spiral_multi").parse(list(arguments))[0].game_weights == weights

    @pytest.mark.parametrize("name", ["spiral_kuhn", "spiral_multi"])
    def test_refuse_an_adapter_before_a_player_is_made(self, name, tmp_path, monkeypatch):
        recipe = load_recipe(name)
        monkeypatch.setattr(recipe, "make_tiny_player", lambda *_: pytest.fail("a player was made"))

        with pytest.raises(ValueError, match="`sync_ref_model` needs a separate reference model"):
            recipe.main(*recipe.parse(["--use_peft", "--output_dir", str(tmp_path / "run")]))
