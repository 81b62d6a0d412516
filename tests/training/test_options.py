"""Options that hold keyword arguments, and options that were removed."""

import dataclasses
import sys

import pytest
from trl import ModelConfig

from tests.helpers import forks
from tests.helpers.training_runs import config
from trl_spiral import SpiralConfig, SpiralParser
from trl_spiral.games import get_game
from trl_spiral.opponents import PoolSettings
from trl_spiral.selfplay.advantages import BatchMean, GroupMean, ReturnsOnly, RoleBaseline
from trl_spiral.selfplay.position_values import PositionValues
from trl_spiral.selfplay.referee import Forfeit
from trl_spiral.training.options import REMOVED, make_estimator


CPU = ["--use_cpu", "true", "--bf16", "false", "--report_to", "none"]


def parse(folder, *arguments):
    args, _ = SpiralParser((SpiralConfig, ModelConfig)).parse_args_and_config(
        ["--output_dir", str(folder), *CPU, *arguments]
    )
    return args


def yaml(folder, text):
    path = folder / "run.yaml"
    path.write_text(text)
    return ["--config", str(path)]


class TestRemoved:
    @pytest.mark.parametrize("name", REMOVED)
    def test_is_refused_from_python_yaml_and_the_command_line(self, name, tmp_path):
        sentence = rf"^`{name}` is not an option any more: .*\.$"
        with pytest.raises(ValueError, match=sentence):
            config(tmp_path, **{name: 1})
        with pytest.raises(ValueError, match=sentence):
            parse(tmp_path, f"--{name}", "1")
        with pytest.raises(ValueError, match=sentence):
            parse(tmp_path, f"--{name.replace('_', '-')}=1")
        with pytest.raises(ValueError, match=sentence):
            parse(tmp_path, *yaml(tmp_path, f"{name}: 1\n"))

    def test_is_no_option(self):
        fields = {field.name for field in dataclasses.fields(SpiralConfig)}

        assert set(REMOVED) & fields == set()

    def test_names_only_options_that_exist(self):
        fields = {field.name for field in dataclasses.fields(SpiralConfig)}
        named = {word for remedy in REMOVED.values() for word in remedy.split("`")[1::2]}

        assert {name for name in named if name.islower() and "=" not in name} <= fields

    def test_leaves_other_unknown_options_to_trl(self, tmp_path):
        with pytest.raises(ValueError, match="not used by the HfArgumentParser"):
            parse(tmp_path, "--no_such_option", "1")
        with pytest.raises(ValueError, match="Unknown arguments from config file"):
            parse(tmp_path, *yaml(tmp_path, "no_such_option: 1\n"))


class TestForfeit:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [(-3.0, Forfeit(-3.0, 1.0)), ([-3.0], Forfeit(-3.0, 1.0)), ((-1.5, 0.5), Forfeit(-1.5, 0.5))],
    )
    def test_is_one_or_two_numbers(self, given, expected, tmp_path):
        assert config(tmp_path, forfeit=given).self_play.forfeit == expected

    def test_is_read_from_the_command_line_and_yaml(self, tmp_path):
        expected = Forfeit(-1.5, 0.5)

        assert parse(tmp_path).self_play.forfeit == Forfeit()
        assert parse(tmp_path, "--forfeit", "-1.5", "0.5").self_play.forfeit == expected
        assert parse(tmp_path, *yaml(tmp_path, "forfeit: [-1.5, 0.5]\n")).self_play.forfeit == expected
        assert parse(tmp_path, *yaml(tmp_path, "forfeit: -2\n")).self_play.forfeit == Forfeit(-2, 1.0)


class TestKeywordArguments:
    def test_are_read_from_the_command_line_and_yaml(self, tmp_path):
        expected = {"decay": 0.5, "per_episode": True}
        text = "advantage_kwargs:\n  decay: 0.5\n  per_episode: true\n"

        for arguments in (
            ["--advantage_kwargs", '{"decay": 0.5, "per_episode": true}'],
            yaml(tmp_path, text),
        ):
            assert parse(tmp_path, *arguments).advantage_kwargs == expected

    def test_of_the_pool_are_its_settings(self, tmp_path):
        assert PoolSettings.of(None) == PoolSettings()
        args = parse(tmp_path, "--pool_kwargs", '{"eviction": "ladder", "rating_games": 4}')
        assert PoolSettings.of(args.pool_kwargs) == PoolSettings(eviction="ladder", rating_games=4)

    def test_of_self_play_reach_its_settings(self, tmp_path):
        args = config(
            tmp_path,
            advantage_estimator="group",
            advantage_kwargs={"games_per_start": 4},
            baseline_per_opponent=False,
            opening_moves=2,
        )

        assert (args.self_play.games_per_start, args.self_play.opening_moves) == (4, 2)
        assert not args.self_play.baseline_per_opponent
        assert args.self_play.row_advantages


class TestMakeEstimator:
    @pytest.mark.parametrize(
        ("name", "given", "kind"),
        [
            ("role", {"decay": 0.5, "discount": 0.9, "per_episode": True}, RoleBaseline),
            ("batch", {"discount": 0.9}, BatchMean),
            ("group", {"discount": 0.9, "games_per_start": 2}, GroupMean),
            ("none", {"discount": 0.9}, ReturnsOnly),
            ("position", {"discount": 0.9, "trace": 0.5, "rate": 0.2}, PositionValues),
        ],
    )
    def test_passes_the_arguments(self, name, given, kind):
        estimator = make_estimator(name, given)

        assert type(estimator) is kind
        for argument, value in given.items():
            assert argument == "games_per_start" or getattr(estimator, argument) == value

    def test_finds_games_between_rivals(self):
        games = [get_game(name) for name in ("TicTacToe-v0", "Kuhn-v0", "TowerOfHanoi-v0")]

        # Kuhn poker has hidden cards, and the tower one seat.
        assert make_estimator("position", None, games).rivals == {"TicTacToe-v0"}


def test_help_lists_the_options():
    command = "from trl_spiral import SpiralConfig, SpiralParser; SpiralParser(SpiralConfig).parse_args(['--help'])"
    done = forks.run([sys.executable, "-c", command])

    assert done.returncode == 0, done.stderr
    assert "--advantage_kwargs" in done.stdout and "--pool_eviction" not in done.stdout
