import json

import pytest

from tests.helpers.lora_policies import lora_model
from tests.helpers.strategy_models import reply_model
from trl_spiral.cli import main
from trl_spiral.opponents import OpponentPool


class TestEval:
    def test_prints_a_table_and_writes_the_same_numbers(self, model_dir, tmp_path, capsys):
        arguments = ["eval", model_dir, "--game", "TicTacToe-v0", "--against", "random", "minimax", "--pairs", "3"]
        arguments += ["--max-new-tokens", "8", "--json"]
        for name in ("one", "two"):
            assert main([*arguments, str(tmp_path / name / "eval.json")]) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if "TicTacToe-v0" in line]
        written = [(tmp_path / name / "eval.json").read_text() for name in ("one", "two")]

        assert written[0] == written[1]
        assert lines[:6] == lines[6:]
        matches = json.loads(written[0])["matches"]
        assert [(match["opponent"], list(match["seats"])) for match in matches] == [
            ("random", ["0", "1", "all"]),
            ("minimax", ["0", "1", "all"]),
        ]
        win, low, high = matches[0]["seats"]["0"]["win"]
        assert f"| 3 | {100 * win:.1f} [{100 * low:.1f}, {100 * high:.1f}] |" in lines[0]

    @pytest.mark.parametrize(("reply", "longest", "kind"), [("[4]", 1, "truncated"), ("nine", 8, "illegal")])
    def test_counts_truncated_replies_separately_from_illegal_ones(
        self, reply, longest, kind, tokenizer, tmp_path, capsys
    ):
        reply_model(tokenizer, {reply: 1.0}).save_pretrained(tmp_path / "player")
        tokenizer.save_pretrained(tmp_path / "player")
        arguments = ["--game", "TicTacToe-v0", "--pairs", "2", "--max-new-tokens", str(longest)]
        file = tmp_path / "eval.json"

        assert main(["eval", str(tmp_path / "player"), *arguments, "--json", str(file)]) == 0
        header, _, *rows = capsys.readouterr().out.splitlines()
        shown = dict(zip(header.split(" | "), rows[2].split(" | "), strict=True))
        (match,) = json.loads(file.read_text())["matches"]
        found = {name: match["seats"]["all"][name][0] for name in ("loss", "illegal", "truncated")}
        assert found == {"loss": 1.0, "illegal": 0.0, "truncated": 0.0, kind: 1.0}
        assert shown["illegal %"].startswith(f"{100 * found['illegal']:.1f} [")
        assert shown["cut off %"].startswith(f"{100 * found['truncated']:.1f} [")

    def test_a_player_can_be_its_own_opponent(self, capsys):
        assert main(["eval", "random", "--game", "TicTacToe-v0", "--against", "random", "--pairs", "4"]) == 0
        assert "| random | TicTacToe-v0 | random | all | 8 |" in capsys.readouterr().out

    def test_a_pool_is_several_opponents_and_not_one_model(self, model_dir, tmp_path, capsys):
        pool = OpponentPool(tmp_path / "opponents")
        for step in (2, 4):
            pool.add(step, "adapter", lora_model(model_dir).save_pretrained)
        settings = ["--game", "TicTacToe-v0", "--pairs", "1", "--max-new-tokens", "8"]

        assert main(["eval", "random", "--against", str(pool.folder), *settings]) == 0
        shown = capsys.readouterr().out
        assert "| step-2 | all | 2 |" in shown and "| step-4 | all | 2 |" in shown
        assert main(["eval", str(pool.folder), *settings]) == 2
        assert f"must name one player, and it names 2. Choose {pool.folder}#step-4." in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["radnom", "--game", "TicTacToe-v0"], "no scripted player called 'radnom'"),
            (["random", "--game", "TicTacTo-v0"], "There is no game called 'TicTacTo-v0'. Did you mean"),
            (["random", "--game", "PigDice-v0-50", "--against", "minimax"], "no minimax player for PigDice-v0-50"),
            (["random", "--game", "TicTacToe-v0", "--pairs", "0"], "`--pairs` (0) must be at least 1"),
            (
                ["random", "--game", "TicTacToe-v0", "--temperature", "-1"],
                "`--temperature` (-1.0) must not be negative",
            ),
            (["random", "--game", "TicTacToe-v0", "--device", "nowhere"], "`--device` (nowhere) cannot be used: "),
            (["random", "--game", "CodeGame-v0"], "trl-spiral eval: Nothing here contains programs.\n"),
        ],
    )
    def test_refuses_in_one_sentence(self, arguments, sentence, capsys, no_sandbox):
        assert main(["eval", *arguments]) == 2

        said = capsys.readouterr().err
        assert sentence in said
        assert "Traceback" not in said
