"""
The report in a browser: headless Chromium, driven by playwright.

The path of Chromium is the environment variable `CHROMIUM`, or found on the path. Without Chromium or playwright,
these tests are skipped.
"""

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.puzzle_replies import make_rows
from tests.helpers.run_folders import HOSTILE, write_games, write_run, write_state
from tests.report.test_damage import mutate
from trl_spiral.cli import main
from trl_spiral.evaluation.matches import play_matches
from trl_spiral.evaluation.problems.comparison import compare_scores
from trl_spiral.evaluation.transcripts import make_record
from trl_spiral.games import get_game
from trl_spiral.players import RandomPlayer
from trl_spiral.report import Run, read_run, render
from trl_spiral.report.comparison import render_comparison
from trl_spiral.text.printable import block


playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install playwright")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium on the path, nor named by $CHROMIUM")

# Chromium's sandbox refuses to run as root, as in containers. The other options prevent requests of Chromium itself.
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


WARNED = SimpleNamespace(step=20, metric="selfplay/reply_length", sentence="Replies shrink: raise the entropy bonus.")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of a complete run with 40 games."""
    folder = write_run(tmp_path_factory.mktemp("run") / "a-run")
    path = folder / "report.html"
    path.write_text(render(read_run(folder), [WARNED]), encoding="utf-8")
    return path


@pytest.fixture
def look(browser):
    """Open a page, and check that it makes no request and logs no error."""
    contexts, noise = [], []

    def look(path, width=1280, height=900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)  # milliseconds, for a machine with much else to do
        page.on("console", lambda message: noise.append(message.text))
        page.on("pageerror", lambda error: noise.append(str(error)))
        page.on(
            "request",
            lambda request: (
                noise.append(request.url)
                if request.url != path.as_uri() and not request.url.startswith("data:")
                else None
            ),
        )
        page.goto(path.as_uri())
        return page

    yield look
    for context in contexts:
        context.close()
    assert noise == []


def choose(page, label, value):
    page.get_by_label(label, exact=True).select_option(value)


class TestPage:
    def test_shows_the_contents_of_the_run(self, look, report):
        page = look(report)

        assert page.title() == "a-run: self-play report"
        assert page.locator("h1").inner_text() == "a-run"
        assert page.locator("#head").inner_text().count("train.py --seed 7") == 1
        assert page.locator(".chart").count() == 13
        assert page.locator(".matrix td.never").count() == 4  # step-40 has played against neither of the other two
        assert page.locator(".ladder .points").all_inner_texts()[0].startswith("1,")

    def test_marks_a_warning_only_in_the_curve_of_its_metric(self, look, report):
        page = look(report)

        assert "Replies shrink" in page.locator("#warnings").inner_text()
        assert page.locator(".warned").count() == 1
        assert page.locator(".chart", has=page.locator(".warned")).locator("h3").inner_text() == "Length of a reply"

    def test_marks_a_skew_between_seats_in_their_results(self, look, tmp_path):
        write_state(tmp_path)
        warning = SimpleNamespace(step=20, metric="selfplay/TicTacToe-v0/skew", sentence="Raise `opening_moves`.")
        (tmp_path / "report.html").write_text(render(read_run(tmp_path), [warning]), encoding="utf-8")
        page = look(tmp_path / "report.html")

        assert page.locator(".chart", has=page.locator(".warned")).locator("h3").all_inner_texts() == [
            "TicTacToe-v0, seat 0"
        ]
        assert page.locator("#warnings code").inner_text() == "opening_moves"

    def test_shows_the_policy_and_the_best_response(self, look, report):
        page = look(report)
        page.get_by_text("Policy in Kuhn-v0 at step 20").click()

        assert page.locator(".policy-table tr").count() == 61
        assert page.locator(".policy-table tr").nth(1).inner_text().split() == [
            "J69",
            "0",
            "69",
            "%",
            "[check]",
            "25",
            "%",
            "[bet]",
            "75",
            "%",
        ]
        assert page.locator(".policy-table .best").first.inner_text() == "[bet] 75 %"

    def test_reads_values_of_a_curve_by_keyboard(self, look, report):
        page = look(report)
        page.wait_for_selector(".view h4")
        turn = page.locator(".view h4").inner_text()
        chart = page.locator("#optimization .chart").first
        before = chart.locator(".legend").inner_text()
        chart.locator(".plot").focus()
        page.keyboard.press("Home")
        first = chart.locator(".when").inner_text(), chart.locator(".legend").inner_text()
        page.keyboard.press("ArrowRight")

        assert before == "loss 0"
        assert first == ("step 5", "loss 0.875")
        assert chart.locator(".when").inner_text() == "step 10"
        assert page.locator(".view h4").inner_text() == turn  # the replay does not move

    def test_a_missing_value_is_a_gap_in_the_curve(self, look, report):
        page = look(report)
        curve = page.locator(".chart", has_text="Gradient norm").locator(".curve").get_attribute("d")

        # The second of eight values is not a number: one point, then the others.
        assert curve.count("M") == 2

    def test_draws_other_metrics(self, look, report):
        page = look(report)

        assert page.get_by_label("Metric").locator("option").all_inner_texts() == ["something/of_our_own"]
        assert "1600" in page.locator("#others .legend").inner_text()

    def test_an_empty_run_shows_what_to_add(self, look, tmp_path):
        (tmp_path / "report.html").write_text(render(Run("empty")), encoding="utf-8")
        page = look(tmp_path / "report.html")
        texts = page.locator(".empty").all_inner_texts()

        assert any("TranscriptCallback(trainer, every=20" in text for text in texts)
        assert any("ExploitabilityCallback" in text for text in texts)

    @pytest.mark.parametrize("width", [390, 320])
    def test_fits_the_width_of_a_phone(self, width, look, report):
        page = look(report, width=width, height=844)
        page.wait_for_selector(".view h4")

        assert page.evaluate("document.documentElement.scrollWidth") == width

    def test_follows_the_dark_mode(self, look, report):
        pages = [look(report, color_scheme=scheme) for scheme in ("light", "dark")]
        paper, ink = (
            [page.evaluate(f"getComputedStyle(document.body).{name}") for page in pages]
            for name in ("backgroundColor", "color")
        )

        assert paper == ["rgb(251, 250, 248)", "rgb(20, 23, 26)"]
        assert ink == ["rgb(28, 32, 36)", "rgb(231, 233, 235)"]


class TestReplay:
    def test_steps_through_a_game(self, look, report):
        page = look(report)
        view = page.locator(".view")
        page.locator(".row").nth(2).click()
        page.wait_for_selector("text=TicTacToe-v0, game 2")
        boards = []
        while "Turn" in view.locator("h4").inner_text():
            boards.append(view.locator(".board").inner_text())
            page.keyboard.press("ArrowRight")

        assert len(boards) == view.locator("[data-turn]").count() - 1 > 4
        marks = [sum(board.count(mark) for mark in "OX") for board in boards]
        assert marks == list(range(len(boards)))
        assert view.locator("h4").inner_text() == "The end: finished"
        page.keyboard.press("ArrowLeft")
        assert f"Turn {len(boards)} of {len(boards)}" in view.locator("h4").inner_text()
        facts = dict(zip(view.locator("dt").all_inner_texts(), view.locator("dd").all_inner_texts(), strict=True))
        assert (facts["Tokens"], facts["Log-probability"]) == ("12", "−3.5 nats")
        assert facts["Advantage"][0] in "+−" and facts["Return"] in ("+1", "−1", "0")

    @pytest.mark.parametrize(
        ("name", "lines"),
        [("TicTacToe-v0", 5), ("ConnectFour-v0", 8), ("Kuhn-v0", None)],
        ids=lambda value: str(value),
    )
    def test_finds_the_board_in_an_observation(self, name, lines, look, tmp_path):
        game = get_game(name)
        (episode,) = play_matches(game, RandomPlayer(), RandomPlayer(), 0, 1)
        run = Run("boards", games=[make_record(episode, game, 0, "final")], games_kept=1)
        (tmp_path / "report.html").write_text(render(run), encoding="utf-8")
        page = look(tmp_path / "report.html")
        page.wait_for_selector(".view h4")
        boards = page.locator(".board").all_inner_texts()

        assert [len(board.split("\n")) for board in boards] == ([lines] if lines else [])

    def test_selects_games_by_keyboard(self, look, report):
        page = look(report)
        page.wait_for_selector("text=TicTacToe-v0, game 0")
        page.locator(".list").focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
            page.keyboard.press(key)
        page.wait_for_selector("text=Kuhn-v0, game 1")

        assert page.locator(".list").get_attribute("aria-activedescendant") == "game-1"
        page.keyboard.press("End")
        page.wait_for_selector("text=Kuhn-v0, game 39")

    def test_filters(self, look, report):
        page = look(report)
        count = page.locator(".count")
        choose(page, "Game", "Kuhn-v0")
        page.wait_for_selector("text=20 of 40 games")
        choose(page, "Against", "step-20")
        page.wait_for_selector("text=10 of 40 games")
        choose(page, "Step", "40")
        page.wait_for_selector("text=1 of 40 games")
        choose(page, "Ending", "finished")

        assert count.inner_text() == "1 of 40 games"
        page.wait_for_selector("text=Kuhn-v0, game 39")
        choose(page, "Game", "TicTacToe-v0")
        page.wait_for_selector("text=No recorded game matches")

    def test_searches_prompts_and_replies(self, look, report):
        page = look(report)
        page.get_by_label("Search").fill("WINDOW.PWNED")
        page.wait_for_selector("text=1 of 40 games")

        page.wait_for_selector("text=TicTacToe-v0, game 0")
        assert page.locator(".reply").inner_text() == block(HOSTILE)

    def test_text_of_a_model_is_not_markup(self, look, report, tmp_path):
        run = read_run(report.parent)
        game = {**run.games[0], "players": [HOSTILE, "policy"], "game": HOSTILE, "detail": HOSTILE}
        hostile = Run(
            HOSTILE, games=[game], games_kept=1, description={"command": HOSTILE, "settings": {HOSTILE: HOSTILE}}
        )
        warning = SimpleNamespace(step=1, metric=HOSTILE, sentence=HOSTILE)
        for plain in (False, True):
            (tmp_path / "report.html").write_text(render(hostile, [warning], plain), encoding="utf-8")
            page = look(tmp_path / "report.html")
            page.wait_for_selector(".reply")
            page.locator("[data-turn]").last.click()

            assert page.evaluate("window.pwned") is None
            assert page.locator("img, main a, script").count() == 3  # the page's own scripts
            assert page.locator("h1").inner_text().startswith("</script><script>window.pwned = 1</script>")

    def test_a_browser_without_decompression_shows_an_error(self, look, report, browser):
        context = browser.new_context()
        context.add_init_script("delete window.DecompressionStream")
        page = context.new_page()
        page.goto(report.as_uri())
        page.wait_for_selector("text=This browser cannot decompress the games")

        assert page.locator(".row").count() > 0
        context.close()

    def test_draws_only_the_visible_rows_of_five_thousand_games(self, look, tmp_path):
        write_state(tmp_path)
        write_games(tmp_path, 5000)
        (tmp_path / "report.html").write_text(render(read_run(tmp_path)), encoding="utf-8")
        page = look(tmp_path / "report.html")
        page.wait_for_selector("text=5,000 of 5,000 games")

        assert page.locator(".row").count() < 30
        page.locator(".list").focus()
        page.keyboard.press("End")
        page.wait_for_selector("text=Kuhn-v0, game 4999")
        assert page.locator(".row").count() < 30
        assert page.locator(".row").last.get_attribute("aria-posinset") == "5000"
        page.get_by_label("Search").fill("window.pwned")
        # The same 200 games repeat 25 times.
        page.wait_for_selector("text=25 of 5,000 games")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """The page of three models, with replies to four problems of Connections and four of Hanoi."""
    return write_comparison(tmp_path_factory.mktemp("comparison"), make_rows(4))


def write_comparison(folder, rows, plain=False):
    path = folder / "page.html"
    path.write_text(render_comparison(compare_scores(rows), rows, plain=plain), encoding="utf-8")
    return path


class TestComparison:
    def test_draws_mean_scores_with_their_intervals(self, look, comparison):
        page = look(comparison)
        chart = page.locator(".chart", has=page.locator("h3", has_text="connections"))

        assert page.title() == "connections, hanoi: comparison of models"
        assert chart.locator(".who").all_inner_texts() == ["careful", "hasty", "rude"]
        assert chart.locator(".points").all_inner_texts()[1].startswith("0.500 (")
        assert "−0.500 (" in chart.locator(".note").nth(1).inner_text()
        track, bar, interval = (
            chart.locator("li").nth(1).locator(name).bounding_box() for name in (".track", ".amount", ".interval")
        )
        assert bar["width"] == pytest.approx(track["width"] / 2, rel=0.01)
        assert interval["x"] < bar["x"] + bar["width"] < interval["x"] + interval["width"]

    def test_steps_through_a_puzzle(self, look, comparison):
        page = look(comparison)
        choose(page, "Task", "hanoi")
        choose(page, "Model", "careful")
        page.wait_for_selector("text=careful on hanoi")
        view = page.locator(".view")
        moves = view.locator("[data-turn]").count() - 1
        boards = [view.locator(".board").inner_text()]
        page.locator(".list").focus()
        for _ in range(moves):
            page.keyboard.press("ArrowRight")
            boards.append(view.locator(".board").inner_text())

        assert len(set(boards)) == moves + 1 > 2
        assert view.get_by_label("Next step").is_disabled()
        assert boards[0].split("moves to go")[0].endswith(f"{moves} ")
        assert boards[-1].endswith("0 moves to go.")
        facts = dict(zip(view.locator("dt").all_inner_texts(), view.locator("dd").all_inner_texts(), strict=True))
        assert (facts["Score"], facts["Solved"], facts["Legal moves"]) == ("1.000", "yes", str(moves))
        assert view.locator(".reply").inner_text().startswith("Let me think.\n\\boxed{[[")

    def test_arrow_keys_step_unless_a_field_has_the_focus(self, look, comparison):
        page = look(comparison)
        view = page.locator(".view")
        page.wait_for_selector(".view h4")
        page.keyboard.press("ArrowRight")  # with the focus on nothing
        after_one = view.locator("h4").inner_text()
        page.get_by_label("Search").focus()
        page.keyboard.press("ArrowRight")
        after_a_field = view.locator("h4").inner_text()
        view.locator(".reply").focus()
        page.keyboard.press("ArrowRight")

        assert after_one.startswith("Step 1 of ")
        assert after_a_field == after_one
        assert view.locator("h4").inner_text().startswith("Step 2 of ")

    def test_the_solution_is_not_a_step_of_the_reply(self, look, tmp_path, monkeypatch):
        task = SimpleNamespace(steps=lambda *_: ["start", "wrong"], solution=lambda _: "the right one")
        monkeypatch.setattr("trl_spiral.report.comparison.get_task", lambda name: task)
        page = look(write_comparison(tmp_path, make_rows(1)[:1]))
        view = page.locator(".view")
        page.wait_for_selector(".view h4")
        shown = []
        for _ in range(3):
            shown.append((view.locator("h4").inner_text(), view.locator(".board").inner_text()))
            page.keyboard.press("ArrowRight")

        assert shown == [("The start", "start"), ("Step 1 of 1", "wrong"), ("The solution", "the right one")]
        assert view.locator("[data-turn]").all_inner_texts() == ["start", "1", "solution"]

    def test_one_problem_has_no_intervals(self, look, tmp_path):
        page = look(write_comparison(tmp_path, make_rows(1)))
        chart = page.locator(".chart").first

        assert chart.locator(".points").all_inner_texts()[0] == "1.000"
        assert chart.locator(".interval").count() == 0
        assert "0.000 to careful on 1 shared problem" in chart.locator(".note").nth(1).inner_text()

    def test_shows_settings_that_differ_between_models(self, look, tmp_path):
        rows = [
            replace(one, settings=json.dumps({"temperature": float(one.model == "hasty")})) for one in make_rows(1)[:2]
        ]
        page = look(write_comparison(tmp_path, rows))

        page.wait_for_selector("text=At connections, temperature is 0.0 for careful, 1.0 for hasty: the models")

    def test_filters_and_searches(self, look, comparison):
        page = look(comparison)
        page.wait_for_selector("text=24 of 24 replies")
        choose(page, "Solved", "solved")
        page.wait_for_selector("text=12 of 24 replies")
        choose(page, "Task", "connections")
        page.wait_for_selector("text=6 of 24 replies")
        choose(page, "Model", "hasty")
        page.wait_for_selector("text=2 of 24 replies")
        choose(page, "Length", "truncated")

        page.wait_for_selector("text=No recorded reply matches")
        for label in ("Solved", "Task", "Model", "Length"):
            choose(page, label, "")
        page.get_by_label("Search").fill("LET ME THINK")
        page.wait_for_selector("text=8 of 24 replies")

    def test_text_of_a_model_is_not_markup(self, look, tmp_path):
        rows = [replace(one, model=HOSTILE, task=HOSTILE, problem=HOSTILE) for one in make_rows(1)[2:3]]
        # A registered task, whose steps quote the reply, and one that is not registered.
        for shown in (make_rows(1)[2:3], rows):
            for plain in (False, True):
                page = look(write_comparison(tmp_path, shown, plain))
                page.wait_for_selector(".reply")
                for stop in page.locator("[data-turn]").all():
                    stop.click()

                assert page.evaluate("window.pwned") is None
                assert page.locator("img, main a, script").count() == 3  # the page's own scripts
                assert page.locator(".reply").inner_text() == block(shown[0].response)

    def test_replies_to_an_unregistered_task_have_no_steps(self, look, tmp_path):
        page = look(write_comparison(tmp_path, [replace(one, task="gone") for one in make_rows(1)[:1]]))
        page.wait_for_selector("text=The task gone is not registered")

        assert page.locator("[data-turn]").count() == 1
        assert page.locator(".reply").inner_text().startswith("Let me think.")

    @pytest.mark.parametrize("width", [390, 320])
    def test_fits_the_width_of_a_phone(self, width, look, tmp_path):
        path = write_comparison(tmp_path, [replace(one, model=one.model * 20) for one in make_rows(2)])
        page = look(path, width=width, height=844)
        page.wait_for_selector(".view h4")

        assert page.evaluate("document.documentElement.scrollWidth") == width

    def test_follows_the_dark_mode(self, look, comparison):
        pages = [look(comparison, color_scheme=scheme) for scheme in ("light", "dark")]
        colours = [
            page.locator(".amount").first.evaluate("bar => getComputedStyle(bar).backgroundColor") for page in pages
        ]

        assert colours == ["rgb(43, 95, 158)", "rgb(127, 176, 230)"]


class TestDamagedRuns:
    @pytest.mark.parametrize("runs", [8, pytest.param(60, marks=pytest.mark.slow)])
    def test_every_page_of_a_mutated_run_is_complete(self, runs, browser, tmp_path):
        noise, drawn = [], 0
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: noise.append((seed, message.text)))
        page.on("pageerror", lambda error: noise.append((seed, str(error))))
        whole = write_run(tmp_path / "whole", games=4)
        for seed in range(int(os.environ.get("TRL_SPIRAL_FUZZ", runs))):
            folder = Path(shutil.copytree(whole, tmp_path / str(seed)))
            mutate(folder, random.Random(seed))
            if main(["report", str(folder)]) == 0:
                page.goto((folder / "report.html").as_uri())
                page.wait_for_selector(".view h4")  # the page draws it last
                for stop in range(page.locator("[data-turn]").count()):
                    page.locator("[data-turn]").nth(stop).click()
                drawn += 1
        context.close()

        assert noise == []
        assert drawn > runs // 12
