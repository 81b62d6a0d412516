"""The picture of win rates: its content and its layout."""

import itertools
import math
import random
import subprocess
import sys

import pytest


pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from trl_spiral.opponents.plots import draw_win_rates
from trl_spiral.opponents.ratings import Played, Ratings


def tournament(size, games=40, seed=0):
    """Return ratings of snapshots that improve by 30 points each, after a round robin."""
    rng = random.Random(seed)
    names = [f"step-{40 * number}" for number in range(1, size + 1)]
    played = [
        Played(
            (names[i], names[j]), (1.0, -1.0) if rng.random() < 1 / (1 + 10 ** (30 * (j - i) / 400)) else (-1.0, 1.0)
        )
        for i in range(size)
        for j in range(i)
        for _ in range(games)
    ]
    ratings = Ratings()
    ratings.update(played)
    return ratings


def rock_paper_scissors():
    ratings = Ratings()
    pairs = [("step-40", "step-80"), ("step-80", "step-120"), ("step-120", "step-40")]
    ratings.update([Played(pair, (1.0, -1.0)) for pair in pairs for _ in range(50)])
    return ratings


def table(ratings):
    matrix = ratings.matrix()
    return matrix, {name: ratings.rating(name) for name in matrix.names}


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Return a function that draws win rates and returns the figure."""
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *a, **k: (figures.append(figure), save(figure, *a, **k)))

    def draw(matrix, ratings=None):
        draw_win_rates(matrix, tmp_path / "win_rates.png", ratings)
        return figures[-1]

    return draw


def words(figure):
    return "\n".join(text.get_text() for text in figure.texts)


def columns(figure):
    return [label.get_text() for label in figure.axes[0].get_xticklabels()]


class TestDrawWinRates:
    def test_each_cell_contains_the_win_rate_and_the_number_of_games(self, drawn):
        ratings = Ratings()
        ratings.update([Played(("a", "b"), (1.0, -1.0))] * 30 + [Played(("a", "b"), (0.0, 0.0))] * 10)
        figure = drawn(ratings.matrix(["a", "b", "never met"]))

        cells = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
        # 30 wins and 10 draws count as 35 of 40.
        assert list(cells.values()) == ["88", "(40)", "12", "(40)"]
        assert [round(x) for x, _ in cells] == [1, 1, 0, 0]
        assert [round(y) for _, y in cells] == [0, 0, 1, 1]

    def test_pairs_that_never_met_are_hatched_and_the_diagonal_is_plain(self, drawn):
        ratings = Ratings()
        ratings.update([Played(("a", "b"), (1.0, -1.0))] * 30)
        figure = drawn(ratings.matrix(["a", "b", "never met"]))

        patches = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
        assert sorted(patch.get_xy() for patch in patches if patch.get_hatch()) == [
            (-0.5, 1.5),
            (0.5, 1.5),
            (1.5, -0.5),
            (1.5, 0.5),
        ]
        assert sorted(patch.get_xy() for patch in patches if not patch.get_hatch()) == [
            (x, x) for x in (-0.5, 0.5, 1.5)
        ]

    def test_one_half_is_white_and_the_ends_are_red_and_blue(self, drawn):
        (image,) = drawn(rock_paper_scissors().matrix()).axes[0].images
        red, white, blue = (image.to_rgba(rate) for rate in (0.0, 0.5, 1.0))

        assert min(white[:3]) > 0.95
        assert red[0] > 2 * red[2]
        assert blue[2] > 2 * blue[0]

    def test_rows_are_sorted_by_rating_next_to_their_intervals(self, drawn):
        matrix, ratings = table(tournament(6, games=200))
        figure = drawn(matrix, ratings)

        by_strength = sorted(matrix.names, key=lambda name: -ratings[name].mu)
        assert columns(figure) == by_strength != list(matrix.names)
        (points,) = figure.axes[1].lines
        assert list(points.get_xdata()) == [ratings[name].mu for name in by_strength]
        (bars,) = figure.axes[1].collections
        assert [(low[0], high[0]) for low, high in bars.get_segments()] == [
            (ratings[name].low, ratings[name].high) for name in by_strength
        ]
        # The best beats the worst: the last cell of the first row is above 50.
        assert int(figure.axes[0].texts[2 * (len(by_strength) - 2)].get_text()) > 50

    def test_without_ratings_rows_keep_the_order_of_the_matrix(self, drawn):
        matrix = tournament(4).matrix(["step-120", "step-40", "step-160", "step-80"])
        figure = drawn(matrix)

        assert columns(figure) == list(matrix.names)
        assert len(figure.axes) == 1

    def test_a_cycle_appears_in_the_title_and_below(self, drawn):
        figure = drawn(rock_paper_scissors().matrix())

        assert "Cyclic share: 100% of the differences" in words(figure)
        assert "step-40 beats step-80 beats step-120 beats step-40" in words(figure)

    def test_the_title_distinguishes_a_ladder_from_missing_data(self, drawn):
        ladder = Ratings()
        for pair, wins in ((("a", "b"), 64), (("b", "c"), 64), (("a", "c"), 76)):  # odds of 16:9, twice, are 256:81
            ladder.update([Played(pair, (1.0, -1.0))] * wins + [Played(pair, (-1.0, 1.0))] * (100 - wins))

        assert "Cyclic share: 0% of the differences" in words(drawn(ladder.matrix()))
        assert "unknown, no closed loop of pairs with 16 games" in words(drawn(tournament(2).matrix()))

        equals = Ratings()
        results = itertools.cycle([(1.0, -1.0), (-1.0, 1.0)])
        equals.update([Played(pair, next(results)) for pair in itertools.combinations("abc", 2) for _ in range(40)])

        assert "unknown, no differences beyond chance" in words(drawn(equals.matrix()))

    def test_only_the_first_five_cycles_are_listed(self, drawn):
        # Each of nine players beats the next four: n (n^2 - 1) / 24 = 30 cycles.
        ratings = Ratings()
        ratings.update(
            [
                Played((f"p{i}", f"p{(i + step) % 9}"), (1.0, -1.0))
                for i in range(9)
                for step in range(1, 5)
                for _ in range(40)
            ]
        )
        text = words(drawn(ratings.matrix()))

        assert text.count(" beats ") == 5 * 3
        assert "and 25 more cycles of three" in text

    @pytest.mark.parametrize("size", [2, 3, 9, 30])
    def test_texts_do_not_overlap(self, drawn, size):
        figure = drawn(*table(tournament(size)))
        draw = figure.canvas.get_renderer()
        shown = [text.get_window_extent(draw) for text in figure.texts if text.get_text()]
        for axes in figure.axes:
            shown += [text.get_window_extent(draw) for text in (*axes.texts, axes.xaxis.label) if text.get_text()]
            for axis in (axes.xaxis, axes.yaxis):
                # Ticks beyond the ends of the axis are not drawn.
                low, high = sorted(axis.get_view_interval())
                ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
                labels = [label for tick in ticks for label in (tick.label1, tick.label2) if label.get_visible()]
                shown += [label.get_window_extent(draw) for label in labels if label.get_text()]

        assert len(shown) >= 2 * size + 2 * size * (size - 1)
        assert all(figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 for box in shown)
        assert all(figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1 for box in shown)
        for one, other in itertools.combinations([tuple(box.extents) for box in shown], 2):
            assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]

    def test_long_names_fit(self, drawn):
        ratings = rock_paper_scissors()
        longest = "https://openrouter.ai/some-organisation/some-model-of-theirs"
        ratings.update(
            [Played(("step-40", longest), (1.0, -1.0))] * 20 + [Played((longest, "step-80"), (1.0, -1.0))] * 90
        )
        ratings.update([Played((longest, "step-120"), (-1.0, 1.0))] * 90)
        figure = drawn(*table(ratings))
        draw = figure.canvas.get_renderer()
        shown = [*figure.texts, *figure.axes[0].get_xticklabels(), *figure.axes[0].get_yticklabels()]

        assert longest in words(figure)
        for text in shown:
            box = text.get_window_extent(draw)
            assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1

    def test_any_text_is_a_valid_name(self, tmp_path):
        names = ["$\\frac{", "a\x1b[2J\nb", "org/" + "m" * 300, "\ud800 $x^2$"]
        ratings = Ratings()
        ratings.update([Played(pair, (1.0, -1.0)) for pair in itertools.combinations(names, 2)])
        draw_win_rates(ratings.matrix(names), tmp_path / "table.png", {name: ratings.rating(name) for name in names})

        assert (tmp_path / "table.png").stat().st_size < 1_000_000

    def test_names_are_not_broken_across_lines(self, drawn):
        names = [f"a-snapshot-with-quite-a-long-name-{number}" for number in range(3)]
        ratings = Ratings()
        ratings.update([Played((names[i], names[i - 2]), (1.0, -1.0)) for i in range(3) for _ in range(50)])
        text = words(drawn(ratings.matrix()))

        # Each of three names once, and the first one again.
        assert [text.count(name) for name in names] == [2, 1, 1]
        assert text.count("\n") >= 3

    def test_the_same_table_gives_the_same_bytes(self, tmp_path):
        matrix, ratings = table(tournament(5))
        for name in ("one.png", "other.png"):
            draw_win_rates(matrix, tmp_path / name, ratings)

        written = (tmp_path / "one.png").read_bytes()
        assert written == (tmp_path / "other.png").read_bytes()
        assert written.startswith(b"\x89PNG")
        assert b"Software" not in written

    def test_draws_two_players_that_never_met(self, drawn):
        matrix = Ratings().matrix(["a", "b"])

        assert all(math.isnan(rate) for row in matrix.rates for rate in row)
        assert not drawn(matrix).axes[0].texts

    def test_does_not_import_pyplot(self, tmp_path):
        program = (
            "import sys\n"
            "from trl_spiral.opponents.plots import draw_win_rates\n"
            "from trl_spiral.opponents.ratings import Ratings\n"
            "assert 'matplotlib' not in sys.modules\n"
            "draw_win_rates(Ratings().matrix(['a', 'b']), sys.argv[1])\n"
            "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", program, str(tmp_path / "empty.png")], check=True)

        assert (tmp_path / "empty.png").exists()


class TestWrongInput:
    def test_the_error_without_matplotlib_names_the_extra(self, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

        with pytest.raises(ImportError, match=r"pip install trl-spiral\[plots\]"):
            draw_win_rates(Ratings().matrix(["a", "b"]), tmp_path / "no.png")

    def test_refuses_one_player(self, tmp_path):
        with pytest.raises(ValueError, match="needs two players, and this one has 1"):
            draw_win_rates(Ratings().matrix(["a"]), tmp_path / "no.png")
