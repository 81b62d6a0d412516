"""The data and the HTML of a report. `tests/report/test_in_browser.py` tests the page in a browser."""

import base64
import gzip
import json
import math
import re
from types import SimpleNamespace

import pytest

from tests.helpers.run_folders import HOSTILE, log_history, write_games, write_pool, write_run, write_state
from trl_spiral.cli import main
from trl_spiral.report import Run, read_run, render
from trl_spiral.report.charts import groups, points


def titles(history):
    return {group.title: [chart.title for chart in group.charts] for group in groups(history)}


class TestGroups:
    def test_have_charts_of_logged_metrics_only(self):
        found = titles(log_history())

        assert found["How games end"] == ["Reward", "Draws", "TicTacToe-v0, seat 0"]
        assert found["Fixed opponents"] == ["TicTacToe-v0-random: wins"]
        assert found["Exploitability"] == ["Kuhn-v0"]
        assert found["Tic-tac-toe"] == ["Unbeaten, at the grading temperature"]
        assert found["Optimization"] == ["Loss", "Gradient norm", "KL to the reference"]

    def test_of_an_empty_log_have_headings_and_no_charts(self):
        assert len(titles([])) == 6
        assert not any(titles([]).values())

    def test_names_may_contain_dashes_and_slashes(self):
        found = titles(
            [
                {"step": 1, "eval/A-v0-host/m#x/pid-2/win": 1.0},
                {"step": 1, "exploitability/B-v0-3p/exploitability": 0.1},
            ]
        )

        assert found["Fixed opponents"] == ["A-v0-host/m#x: wins"]
        assert found["Exploitability"] == ["B-v0-3p"]


class TestPoints:
    def test_the_last_value_of_a_step_counts(self):
        history = [
            {"step": 5, "loss": 1.0},
            {"step": 10, "loss": 0.5},
            {"step": 5, "loss": 2.0},
            {"step": 15, "note": "none"},
        ]

        assert points(history, "loss") == [(5, 2.0), (10, 0.5)]


class TestReadRun:
    def test_reads_log_games_and_pool(self, tmp_path):
        run = read_run(write_run(tmp_path / "a-run"))

        assert (run.name, run.step, run.max_steps, run.description["seed"]) == ("a-run", 40, 40, 7)
        assert (len(run.games), run.games_kept) == (40, 40)
        assert tuple(run.ratings) == run.matrix.names
        assert run.matrix.names[0] == "policy"
        assert run.matrix.rates[0][run.matrix.names.index("step-20")] == pytest.approx(0.75)

    def test_reads_the_state_with_the_highest_step(self, tmp_path):
        write_state(tmp_path / "checkpoint-20", 20)
        write_state(tmp_path / "checkpoint-5", 5)

        assert read_run(tmp_path).step == 20
        write_state(tmp_path, 40)
        assert read_run(tmp_path).step == 40

    def test_reads_an_even_sample_of_many_games(self, tmp_path):
        write_games(tmp_path, 30)
        run = read_run(tmp_path, most_games=10)

        assert [game["number"] for game in run.games] == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27]
        assert run.games_kept == 30

    def test_reads_the_latest_grade_and_its_most_frequent_states(self, tmp_path):
        (grade,) = read_run(write_run(tmp_path)).grades

        assert (grade["step"], grade["number_of_states"], len(grade["states"])) == (20, 70, 60)
        assert [state["state"] for state in grade["states"][:2]] == ["J69", "J68"]

    def test_reads_ratings_from_the_log_if_there_is_no_pool(self, tmp_path):
        write_state(tmp_path)
        state = json.loads((tmp_path / "trainer_state.json").read_text())
        state["log_history"][-1] |= {
            f"pool/rating/{name}": mu
            for name, mu in {
                "policy": 1600.0,
                "policy/low": 1500.0,
                "policy/high": 1700.0,
                "random": 1400.0,
                "random/low": 1300.0,
                "random/high": 1500.0,
            }.items()
        }
        (tmp_path / "trainer_state.json").write_text(json.dumps(state))
        run = read_run(tmp_path)

        assert {name: (rating.mu, rating.low) for name, rating in run.ratings.items()} == {
            "policy": (1600.0, 1500.0),
            "random": (1400.0, 1300.0),
        }
        assert run.matrix is None

    def test_refuses_a_folder_without_a_run(self, tmp_path):
        with pytest.raises(ValueError, match="contains no run"):
            read_run(tmp_path)

    def test_names_a_truncated_state(self, tmp_path):
        (tmp_path / "trainer_state.json").write_text('{"global_')

        with pytest.raises(ValueError, match="trainer_state.json is damaged"):
            read_run(tmp_path)

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("[]", "it is not an object"),
            ("null", "it is not an object"),
            ('{"global_step": 1}', "it lacks 'max_steps'"),
        ],
    )
    def test_names_a_state_of_the_wrong_shape(self, text, reason, tmp_path):
        (tmp_path / "trainer_state.json").write_text(text)

        with pytest.raises(ValueError, match=rf"trainer_state.json is damaged \({reason}\)"):
            read_run(tmp_path)


class TestRender:
    def test_contains_every_game_compressed(self, tmp_path):
        games = write_games(tmp_path, 250)
        page = render(read_run(tmp_path))
        blocks = re.findall(r'<script type="text/plain" class="records">([^<]*)</script>', page)
        lines = [gzip.decompress(base64.b64decode(block)).decode().split("\n") for block in blocks]

        assert [len(block) for block in lines] == [100, 100, 50]
        assert json.loads(lines[2][49])["turns"] == games[249]["turns"]
        assert json.loads(lines[0][0])["seed"] == str(games[0]["seed"])

    @pytest.mark.parametrize("plain", [False, True])
    def test_text_of_a_model_is_not_markup(self, plain, tmp_path):
        write_games(tmp_path, 3)
        found = read_run(tmp_path)
        game = {**found.games[0], "players": [HOSTILE, "policy"]}
        run = Run(HOSTILE, games=[game, *found.games[1:]], games_kept=3, description={"command": HOSTILE})
        page = render(run, [SimpleNamespace(step=1, metric=HOSTILE, sentence=HOSTILE)], plain)

        assert "<script>window.pwned" not in page
        assert "<img" not in page
        assert page.count("<script") == page.count("</script>") == 3

    def test_makes_no_requests(self, tmp_path):
        page = render(read_run(write_run(tmp_path)))
        addresses = set(re.findall(r"""https?://[^"'\s)]+""", page))

        # An XML namespace, which is not fetched.
        assert addresses == {"http://www.w3.org/2000/svg"}
        assert "default-src 'none'" in page

    def test_the_same_run_gives_the_same_page(self, tmp_path):
        write_run(tmp_path)

        assert render(read_run(tmp_path)) == render(read_run(tmp_path))

    def test_nan_and_infinity_become_null(self, tmp_path):
        (game, *_) = write_games(tmp_path, 3)
        game = {**game, "returns": [math.inf, -math.inf], "turns": [{**game["turns"][0], "logprob": -math.inf}]}
        run = Run("run", games=[game], games_kept=1, description={"settings": {"beta": math.nan, "epsilon": math.inf}})
        page = render(run, plain=True)
        summary = re.search(r'<script type="application/json" id="summary">(.*?)</script>', page, re.DOTALL)[1]

        assert "NaN" not in summary
        assert json.loads(summary)["description"]["settings"] == {"beta": None, "epsilon": None}
        assert json.loads(summary)["games"][0][6] == [None, None]
        assert '"logprob":null' in page
        assert not re.search(r"[:,\[]-?(Infinity|NaN)[,}\]]", page)

    def test_a_run_with_only_a_log_has_a_page(self, tmp_path):
        write_state(tmp_path)

        assert 'class="records"' not in render(read_run(tmp_path))


class TestCommand:
    def test_writes_the_page_into_the_folder_of_the_run(self, tmp_path, capsys):
        write_run(tmp_path)

        assert main(["report", str(tmp_path), "--games", "10"]) == 0
        assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
        assert capsys.readouterr().out.endswith("10 of 40 recorded games\n")

    def test_writes_the_page_to_another_file(self, tmp_path):
        write_pool(tmp_path / "run")

        assert main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "page.html")]) == 0
        assert [path.name for path in sorted(tmp_path.iterdir())] == ["page.html", "run"]

    def test_refuses_a_folder_without_a_run_in_one_sentence(self, tmp_path, capsys):
        assert main(["report", str(tmp_path)]) == 2
        assert capsys.readouterr().err.startswith(f"trl-spiral report: {tmp_path} contains no run")

    def test_refuses_a_page_without_games(self, tmp_path, capsys):
        assert main(["report", str(tmp_path), "--games", "0"]) == 2
        assert "`--games` (0) must be at least 1" in capsys.readouterr().err
