"""Text of models, programs and servers passes one filter on its way to terminals, logs, Markdown and pages."""

import ast
import gzip
import io
import json
import logging
import re
import unicodedata
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.helpers.completions_server import CompletionsServer
from tests.helpers.puzzle_replies import make_rows
from tests.helpers.training_runs import RecordingTrainer, config
from trl_spiral import EndpointEngine
from trl_spiral.callbacks import LiveCallback
from trl_spiral.callbacks.progress import progress_line
from trl_spiral.cli import main
from trl_spiral.cli.play import Aloud, ending_in_words
from trl_spiral.cli.tournament import standing_table, standings
from trl_spiral.engines.http.client import BadAnswer, ServerLost
from trl_spiral.engines.http.vllm_server import ServerEngine
from trl_spiral.evaluation.exact.policy_tables import format_policy_table
from trl_spiral.evaluation.matches import MatchReport, Outcome, match_table
from trl_spiral.evaluation.problems.comparison import asked_differently, compare_scores, comparison_table
from trl_spiral.evaluation.transcripts import make_record, write_transcripts
from trl_spiral.games import get_game
from trl_spiral.players import HumanPlayer
from trl_spiral.report import Run, render, render_comparison
from trl_spiral.sandbox import CannotContain, Job, LocalSandbox
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.types import Ending, Episode, Observation, Request, Trajectory, Turn


# Control sequences of 7 and of 8 bits, a title, a bell, backspaces; changes of direction; characters without width; line
# ends of Unicode; half a surrogate pair; and invisible characters of classes that are visible otherwise.
CONTROLS = (
    "\x1b[2J\x1b]0;owned\x07\r\x08\x00\x7f\x9b31m\x90q\x9c\x85\x0b\x0c\u202e\u2066\u200f\u061c\u200b\u200d\u2060\ufeff\xad"
    "\u2028\u2029\ud800\U000e0041\U000e0101\u3164\u115f\u034f\ufff9"
)
FORGED = (
    "x\n# Forged\n\n- seat 0: forged\n```\n~~~\n## Forged\n| a | b |\n|---|---|\n<script>x</script><img src=x> "
    "![x](http://e/x.png) [x](http://e) http://e &lt; `` ` `` *x* __x__ \\| \\\\| \\"
)
HOSTILE = f"{CONTROLS}{FORGED}{CONTROLS}"
GAME = get_game("TicTacToe-v0")


def is_shown(char):
    return char in "\n\t" or char.isprintable() or unicodedata.category(char) == "Zs"


def unsafe(text):
    """Characters of a shown text that should not be there."""
    blank = {"\u3164", "\u115f", "\u034f", "\U000e0101"}
    return sorted({char for char in text if not is_shown(char) or char in blank})


def names(text=HOSTILE):
    return (text, "policy")


def episode(text=HOSTILE, ending=Ending.FINISHED, **changes):
    """A game in which everything that can be a text is one."""
    turn = Turn(action=text, text=text, prompt_ids=(1,), completion_ids=(2,), logprobs=(-0.5,), policy="policy")
    trajectories = (Trajectory(0, (turn,)), Trajectory(1, ()))
    facts = dict(detail=text, order=(0,), moves=((0, text),), offender=0)
    return Episode(text, 0, names(text), trajectories, (1.0, -1.0), ending, **{**facts, **changes})


class TestTerminal:
    @pytest.mark.parametrize("ending", Ending)
    def test_the_end_of_a_game_is_one_line(self, ending):
        told = ending_in_words(episode(ending=ending), 1)

        assert unsafe(told) == []
        assert "\n" not in told

    def test_the_name_of_a_real_programs_exception_moves_no_cursor(self):
        try:
            sandbox = LocalSandbox(workers=1)
        except CannotContain as missing:
            pytest.skip(str(missing))
        name = "Evil\x1b[2J\n# Forged\u202e"
        with sandbox:
            (outcome,) = sandbox.run([Job(f"raise type({name!r}, (Exception,), {{}})()")])
        told = ending_in_words(episode(detail=f"the program failed: {outcome.error}"), 0)

        assert "Evil" in told
        assert unsafe(told) == []
        assert "\n" not in told

    def test_a_game_at_the_terminal(self):
        screen = io.StringIO()
        observation = Observation(
            HOSTILE, 0, ({"role": "user", "content": HOSTILE},), legal_actions=("[4]", HOSTILE), turns=0
        )
        HumanPlayer(lines=io.StringIO("[4]\n"), screen=screen).ask(observation)
        other = SimpleNamespace(name=HOSTILE, ask=lambda _: Turn(action=HOSTILE, text=f"I think {HOSTILE}"))
        Aloud(other, at_once=True, screen=screen).ask(observation)

        assert unsafe(screen.getvalue()) == []
        assert [line for line in screen.getvalue().split("\n") if " plays " in line] != []

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
    def test_a_terminal_of_any_encoding(self, encoding):
        raw = io.BytesIO()
        screen = io.TextIOWrapper(raw, encoding=encoding)
        observation = Observation("Game", 0, ({"role": "user", "content": f"│ é {HOSTILE}"},), legal_actions=("[4]",))
        HumanPlayer(lines=io.StringIO("[4]\n"), screen=screen).ask(observation)

        assert unsafe(raw.getvalue().decode(encoding)) == []

    @pytest.mark.parametrize("terminal", [False, True])
    def test_the_live_view(self, terminal):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
        trainer = SimpleNamespace(
            callback_handler=SimpleNamespace(callbacks=[]),
            rollout_func=SimpleNamespace(state=SimpleNamespace(episodes=1), episodes=[episode()]),
            accelerator=SimpleNamespace(num_processes=1),
            state=SimpleNamespace(global_step=3, max_steps=9, log_history=[], is_world_process_zero=True),
        )
        live = LiveCallback(trainer, console)
        live.on_train_begin(None, trainer.state, None)
        logs = {f"selfplay/{HOSTILE}/seat0/win": 0.5, "selfplay/games": 5.0, "selfplay/illegal_rate": 0.0}
        logs |= {f"exploitability/{CONTROLS}/exploitability": 0.5}
        live.on_log(None, trainer.state, None, logs=logs)
        live.on_log(None, trainer.state, None, logs={"selfplay/games": 5.0, "selfplay/illegal_rate": 0.9})
        live.on_train_end(None, trainer.state, None)
        # What rich writes itself: places, colours and the cursor.
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Zhlm]|\r", "", console.file.getvalue().replace("\x1b[2J", "unsafe \x07"))

        assert "0.5" in shown or "50%" in shown
        assert unsafe(shown) == []

    def test_a_line_of_progress(self):
        logs = {f"eval/{CONTROLS}-x/all/reward": 0.5, f"exploitability/{CONTROLS}/exploitability": 0.1}
        told = progress_line(3, logs)

        assert told.count("reward") == told.count("exploitability") == 1
        assert unsafe(told) == [] and "\n" not in told

    def test_what_trl_prints_of_completions(self, model_dir, tmp_path, capfd):
        trainer = RecordingTrainer(model_dir, config(tmp_path, max_steps=1, log_completions=True))
        rows = [HOSTILE.replace("\ud800", "")] * 2  # half a character is no text of a tokenizer, and no table takes it
        trainer._logs["prompt"].extend([[{"role": "user", "content": rows[0]}]] * 2)
        for column in (trainer._logs["completion"], trainer._logs["extra"]["told"]):
            column.extend(rows)
        trainer._logs["advantages"].extend([0.5, -0.5])
        trainer._logs["rewards"]["return"].extend([1.0, -1.0])
        trainer.log({"loss": 0.5})
        printed = capfd.readouterr().out

        assert "Forged" in printed
        assert unsafe(printed) == []
        assert list(trainer._logs["completion"]) == rows  # files and trackers keep what was written

    @pytest.mark.parametrize(
        "arguments",
        [
            ["report", "{}"],
            ["eval", "{}", "--game", "TicTacToe-v0"],
            ["eval", "random", "--game", "{}"],
            ["compare", "{}"],
            ["games", "{}"],
            ["--import", "{}", "games"],
        ],
        ids=" ".join,
    )
    def test_a_refused_argument_is_told_in_one_line(self, arguments, capfdbinary):
        name = f"{CONTROLS}\n# Forged"
        name = name.replace("\x00", "").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
        arguments = [one.format(name) for one in arguments]
        chosen = arguments if arguments[0] != "--import" else ["games", *arguments[:2]]

        assert main(chosen) == 2
        told = capfdbinary.readouterr().err.decode()
        assert unsafe(told) == []
        assert told.count("\n") == 1


class TestLogs:
    def test_a_message_is_one_line_without_secrets(self, caplog):
        logger = logging.getLogger("trl_spiral.engines.http.openai")
        logger.warning("%s said %s at %s", "rival", HOSTILE, "https://me:planted@host/v1?key=planted")
        (told,) = (record.getMessage() for record in caplog.records)

        assert unsafe(told) == []
        assert "\n" not in told and "planted" not in told
        assert told.startswith("rival said")

    def test_no_module_has_a_way_around_the_filter(self):
        found = []
        for path in sorted(Path(make_record.__code__.co_filename).parents[1].rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                if called in ("print", "sys.stdout.write", "sys.stderr.write", "logging.warning", "logging.error"):
                    found.append((path.name, called))
                if called == "logging.getLogger" and node.args:
                    found.append((path.name, called))

        # The first of them silences the HTTP library.
        assert found == [("client.py", "logging.getLogger"), ("printable.py", "logging.getLogger")]


class TestServers:
    def said(self, prepare):
        """The words of the error that a server's answer ends in."""
        with CompletionsServer() as server:
            prepare(server)
            engine = EndpointEngine(server.url, "m", api_key_env=None, max_retries=0)
            with engine:
                from tests.engines.http.test_openai import ASKED

                engine.add(0, ASKED)
                try:
                    engine.step()
                except BadAnswer as error:
                    return str(error)
                engine.metrics()
        return None

    def test_a_refusal(self):
        def refuse(server):
            server.failures = [(400, {"error": {"message": HOSTILE}})] * 3

        told = self.said(refuse)
        assert "HTTP 400" in told and unsafe(told) == [] and "\n" not in told

    def test_a_lost_reply_is_logged_in_one_line(self, caplog):
        def break_off(server):
            server.raw = [b"HTTP/1.1 \x1b[2J\x9b31m OK\r\n\r\n"] * 3

        self.said(break_off)
        (told,) = (record.getMessage() for record in caplog.records)
        assert "BadStatusLine" in told or "HTTP" in told
        assert unsafe(told) == [] and "\n" not in told

    def test_a_server_that_is_given_up(self):
        with CompletionsServer() as server:
            server.raw = [b"\x1b[2J\x9b31m\xe2\x80\xae\r\n\r\n"] * 50
            with ServerEngine(server.url, "tiny", patience=0.1) as engine:
                engine.add(0, Request((1, 2)))
                with pytest.raises(ServerLost, match="RemoteProtocolError") as error:
                    engine.step()

        assert unsafe(str(error.value)) == []


def tokens_of(text):
    """What Markdown reads in a text, by kind."""
    markdown_it = pytest.importorskip("markdown_it")  # comes with rich; the environment of vLLM has none
    found = markdown_it.MarkdownIt("commonmark").enable("table").parse(text)
    return [token for block in found for token in (block, *(block.children or ()))]


def forged(text):
    """What only a forged text can have put into Markdown."""
    kinds = ("html_block", "html_inline", "image", "link_open", "em_open", "strong_open")
    return [token.type for token in tokens_of(text) if token.type in kinds]


class TestMarkdown:
    @pytest.mark.parametrize(
        "text", [HOSTILE, FORGED, "```", "`", "", " ", "plain", "a_b", "_", "org/model", "\\", "\\|"]
    )
    @pytest.mark.parametrize("ending", Ending)
    def test_a_transcript_has_its_own_headings_and_no_others(self, text, ending, tmp_path):
        (path,) = write_transcripts([episode(text, ending)], tmp_path, lambda ids: text)
        written = path.read_bytes().decode()
        headings = [token.tag for token in tokens_of(written) if token.type == "heading_open"]
        fences = [token for token in tokens_of(written) if token.type == "fence"]

        assert unsafe(written) == []
        assert forged(written) == []
        assert headings == ["h1", "h2"]
        assert len(fences) == 2
        assert sum(token.type == "list_item_open" for token in tokens_of(written)) == 5

    @pytest.mark.parametrize("name", [HOSTILE, FORGED, "a|b", "a\\|b", "a\\\\|b", "|", "\\", "`|`", "a\\"])
    def test_a_table_has_as_many_cells_as_its_head(self, name):
        outcomes = [Outcome.of(episode(name), 0, 0), Outcome.of(episode(name), 1, 0)]
        played = [episode(name, counter=k) for k in range(3)]
        state = {
            **dict(state=name, seat=0, moves={"[bet]": 1.0}, illegal=0.0, reach=1.0, best_response="[bet]"),
        }
        numbers = dict(samples=None, nash_conv=0.0, exploitability=0.0, illegal=0.0, value=0.0)
        rows = [replace(row, model=name, task=name) for row in make_rows(1)]
        tables = {
            "matches": match_table([(name, MatchReport.of(GAME, name, name, outcomes))]),
            "tournament": standing_table(standings(played, names(name))),
            "comparison": comparison_table(compare_scores({row.sample: row for row in rows}.values())),
            "policy": format_policy_table(dict(game=name, best_response_values=(0, 0), states=[state], **numbers)),
        }
        for kind, text in tables.items():
            row_lengths = set()
            for line in text.split("\n"):
                if line.startswith("|"):
                    row_lengths.add(len(re.findall(r"(?:[^|\\]|\\.)*\|", line)))
                elif row_lengths:
                    assert len(row_lengths) == 1, (kind, text)
                    row_lengths = set()

            assert unsafe(text) == [], kind
            assert forged(text) == [], kind

    def test_sentences_below_a_table(self):
        (row, *_) = make_rows(1)
        rows = [replace(row, model=model, settings=json.dumps({HOSTILE: model})) for model in (HOSTILE, "b")]
        told = "\n".join(asked_differently(rows))

        assert "not asked alike" in told
        assert unsafe(told) == [] and forged(told) == []


def texts_in(page):
    """Every string that a page shows: of its summary, of its packed records, and its title."""

    def strings(value):
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from (text for pair in value.items() for one in pair for text in strings(one))
        elif isinstance(value, list):
            yield from (text for one in value for text in strings(one))

    yield re.search("<title>(.*?)</title>", page, re.DOTALL)[1]
    summary = re.search(r'<script type="application/json" id="summary">(.*?)</script>', page, re.DOTALL)[1]
    yield from strings(json.loads(summary))
    for block in re.findall(r'class="records">([^<]*)</script>', page):
        for line in gzip.decompress(b64decode(block)).decode().split("\n"):
            yield from strings(json.loads(line))


class TestPages:
    def test_of_a_run(self):
        from trl_spiral.players import RandomPlayer

        (real,) = play([referee(Start(GAME, [RandomPlayer()] * 2, seed=0, play_seed=0))])
        record = {**make_record(real, GAME, 1, "final"), "players": list(names()), "detail": HOSTILE, "game": HOSTILE}
        record["turns"][0] |= {"reply": HOSTILE, "sees": HOSTILE, "move": HOSTILE, "policy": HOSTILE}
        history = [{"step": 1, f"selfplay/{HOSTILE}/seat0/win": 0.5, HOSTILE: 1.0}]
        run = Run(HOSTILE, history=history, games=[record], games_kept=1, description={"command": HOSTILE})
        page = render(run, [SimpleNamespace(step=1, metric=HOSTILE, sentence=HOSTILE)])
        told = list(texts_in(page))

        assert sum("Forged" in text for text in told) > 10
        assert [text for text in told if unsafe(text)] == []
        assert unsafe(page) == []

    def test_of_a_comparison(self):
        rows = [replace(row, model=HOSTILE, response=HOSTILE) for row in make_rows(1)[:1]]
        page = render_comparison(compare_scores(rows), rows)

        assert any("Forged" in text for text in texts_in(page))
        assert [text for text in texts_in(page) if unsafe(text)] == []
