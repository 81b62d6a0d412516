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
from trl_spiral.cli.play import ShownPlayer, ending_sentence
from trl_spiral.cli.tournament import standing_table, standings
from trl_spiral.engines.http.client import BadAnswer, ServerLost
from trl_spiral.engines.http.vllm_server import ServerEngine
from trl_spiral.evaluation.exact.policy_tables import format_policy_table
from trl_spiral.evaluation.matches import MatchReport, SeatResult, match_table
from trl_spiral.evaluation.problems.comparison import asked_differently, compare_scores, comparison_table
from trl_spiral.evaluation.transcripts import make_record, write_transcripts
from trl_spiral.games import get_game
from trl_spiral.players import HumanPlayer
from trl_spiral.report import Run, render, render_comparison
from trl_spiral.sandbox import CannotContain, Job, LocalSandbox
from trl_spiral.selfplay.referee import Start, play, referee
from trl_spiral.types import Ending, Episode, Observation, Request, Trajectory, Turn


# Control sequences of 7 and of 8 bits, a title, a bell, backspaces; changes of direction; characters without width;
# line ends of Unicode; half a surrogate pair; and invisible characters of otherwise visible classes.
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
    """Return the characters of a displayed text that should not be in it."""
    blank = {"\u3164", "\u115f", "\u034f", "\U000e0101"}
    return sorted({char for char in text if not is_shown(char) or char in blank})


def names(text=HOSTILE):
    return (text, "policy")


def episode(text=HOSTILE, ending=Ending.FINISHED, **changes):
    """Return a game with a hostile text wherever it can have one."""
    turn = Turn(action=text, text=text, prompt_ids=(1,), completion_ids=(2,), logprobs=(-0.5,), policy="policy")
    trajectories = (Trajectory(0, (turn,)), Trajectory(1, ()))
    facts = dict(detail=text, order=(0,), moves=((0, text),), offender=0)
    return Episode(text, 0, names(text), trajectories, (1.0, -1.0), ending, **{**facts, **changes})


class TestTerminal:
    @pytest.mark.parametrize("ending", Ending)
    def test_the_ending_of_a_game_is_one_line(self, ending):
        output = ending_sentence(episode(ending=ending), 1)

        assert unsafe(output) == []
        assert "\n" not in output

    def test_the_exception_name_of_a_program_moves_no_cursor(self):
        try:
            sandbox = LocalSandbox(workers=1)
        except CannotContain as missing:
            pytest.skip(str(missing))
        name = "Evil\x1b[2J\n# Forged\u202e"
        with sandbox:
            (outcome,) = sandbox.run([Job(f"raise type({name!r}, (Exception,), {{}})()")])
        output = ending_sentence(episode(detail=f"the program failed: {outcome.error}"), 0)

        assert "Evil" in output
        assert unsafe(output) == []
        assert "\n" not in output

    def test_a_game_is_filtered(self):
        screen = io.StringIO()
        observation = Observation(
            HOSTILE, 0, ({"role": "user", "content": HOSTILE},), legal_actions=("[4]", HOSTILE), turns=0
        )
        HumanPlayer(lines=io.StringIO("[4]\n"), screen=screen).ask(observation)
        other = SimpleNamespace(name=HOSTILE, ask=lambda _: Turn(action=HOSTILE, text=f"I think {HOSTILE}"))
        ShownPlayer(other, at_once=True, screen=screen).ask(observation)

        assert unsafe(screen.getvalue()) == []
        assert [line for line in screen.getvalue().split("\n") if " plays " in line] != []

    @pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
    def test_any_encoding_works(self, encoding):
        raw = io.BytesIO()
        screen = io.TextIOWrapper(raw, encoding=encoding)
        observation = Observation("Game", 0, ({"role": "user", "content": f"│ é {HOSTILE}"},), legal_actions=("[4]",))
        HumanPlayer(lines=io.StringIO("[4]\n"), screen=screen).ask(observation)

        assert unsafe(raw.getvalue().decode(encoding)) == []

    @pytest.mark.parametrize("terminal", [False, True])
    def test_the_live_view_is_filtered(self, terminal):
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
        # Positions, colours and cursor sequences of rich itself.
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Zhlm]|\r", "", console.file.getvalue().replace("\x1b[2J", "unsafe \x07"))

        assert "0.5" in shown or "50%" in shown
        assert unsafe(shown) == []

    def test_a_line_of_progress_is_filtered(self):
        logs = {f"eval/{CONTROLS}-x/all/reward": 0.5, f"exploitability/{CONTROLS}/exploitability": 0.1}
        output = progress_line(3, logs)

        assert output.count("reward") == output.count("exploitability") == 1
        assert unsafe(output) == [] and "\n" not in output

    def test_completions_that_trl_prints_are_filtered(self, model_dir, tmp_path, capfd):
        trainer = RecordingTrainer(model_dir, config(tmp_path, max_steps=1, log_completions=True))
        rows = [HOSTILE.replace("\ud800", "")] * 2  # tokenizers and tables refuse half a surrogate pair
        trainer._logs["prompt"].extend([[{"role": "user", "content": rows[0]}]] * 2)
        for column in (trainer._logs["completion"], trainer._logs["extra"]["output"]):
            column.extend(rows)
        trainer._logs["advantages"].extend([0.5, -0.5])
        trainer._logs["rewards"]["return"].extend([1.0, -1.0])
        trainer.log({"loss": 0.5})
        printed = capfd.readouterr().out

        assert "Forged" in printed
        assert unsafe(printed) == []
        assert list(trainer._logs["completion"]) == rows  # files and trackers keep the original

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
    def test_a_refused_argument_is_one_line(self, arguments, capfdbinary):
        name = f"{CONTROLS}\n# Forged"
        name = name.replace("\x00", "").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
        arguments = [one.format(name) for one in arguments]
        chosen = arguments if arguments[0] != "--import" else ["games", *arguments[:2]]

        assert main(chosen) == 2
        output = capfdbinary.readouterr().err.decode()
        assert unsafe(output) == []
        assert output.count("\n") == 1


class TestLogs:
    def test_a_message_is_one_line_without_secrets(self, caplog):
        logger = logging.getLogger("trl_spiral.engines.http.openai")
        logger.warning("%s said %s at %s", "rival", HOSTILE, "https://me:planted@host/v1?key=planted")
        (output,) = (record.getMessage() for record in caplog.records)

        assert unsafe(output) == []
        assert "\n" not in output and "planted" not in output
        assert output.startswith("rival said")

    def test_no_module_bypasses_the_filter(self):
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
        """Return the error message that results from a server's answer."""
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

    def test_a_refusal_is_one_line(self):
        def refuse(server):
            server.failures = [(400, {"error": {"message": HOSTILE}})] * 3

        output = self.said(refuse)
        assert "HTTP 400" in output and unsafe(output) == [] and "\n" not in output

    def test_a_lost_reply_is_logged_in_one_line(self, caplog):
        def break_off(server):
            server.raw = [b"HTTP/1.1 \x1b[2J\x9b31m OK\r\n\r\n"] * 3

        self.said(break_off)
        (output,) = (record.getMessage() for record in caplog.records)
        assert "BadStatusLine" in output or "HTTP" in output
        assert unsafe(output) == [] and "\n" not in output

    def test_a_lost_server_is_one_line(self):
        with CompletionsServer() as server:
            server.raw = [b"\x1b[2J\x9b31m\xe2\x80\xae\r\n\r\n"] * 50
            with ServerEngine(server.url, "tiny", patience=0.1) as engine:
                engine.add(0, Request((1, 2)))
                with pytest.raises(ServerLost, match="RemoteProtocolError") as error:
                    engine.step()

        assert unsafe(str(error.value)) == []


def tokens_of(text):
    """Return the Markdown elements of a text, by kind."""
    markdown_it = pytest.importorskip("markdown_it")  # a dependency of rich; missing in the environment of vLLM
    found = markdown_it.MarkdownIt("commonmark").enable("table").parse(text)
    return [token for block in found for token in (block, *(block.children or ()))]


def forged(text):
    """Return Markdown elements that only a forged text can contain."""
    kinds = ("html_block", "html_inline", "image", "link_open", "em_open", "strong_open")
    return [token.type for token in tokens_of(text) if token.type in kinds]


class TestMarkdown:
    @pytest.mark.parametrize(
        "text", [HOSTILE, FORGED, "```", "`", "", " ", "plain", "a_b", "_", "org/model", "\\", "\\|"]
    )
    @pytest.mark.parametrize("ending", Ending)
    def test_a_transcript_has_only_its_own_headings(self, text, ending, tmp_path):
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
    def test_a_table_has_as_many_cells_as_its_header(self, name):
        outcomes = [SeatResult.of(episode(name), 0, 0), SeatResult.of(episode(name), 1, 0)]
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

    def test_sentences_below_a_table_are_filtered(self):
        (row, *_) = make_rows(1)
        rows = [replace(row, model=model, settings=json.dumps({HOSTILE: model})) for model in (HOSTILE, "b")]
        output = "\n".join(asked_differently(rows))

        assert "asked differently" in output
        assert unsafe(output) == [] and forged(output) == []


def texts_in(page):
    """Return every string of a page: of its summary, its packed records, and its title."""

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
    def test_of_a_run_are_filtered(self):
        from trl_spiral.players import RandomPlayer

        (real,) = play([referee(Start(GAME, [RandomPlayer()] * 2, seed=0, play_seed=0))])
        record = {**make_record(real, GAME, 1, "final"), "players": list(names()), "detail": HOSTILE, "game": HOSTILE}
        record["turns"][0] |= {"reply": HOSTILE, "sees": HOSTILE, "move": HOSTILE, "policy": HOSTILE}
        history = [{"step": 1, f"selfplay/{HOSTILE}/seat0/win": 0.5, HOSTILE: 1.0}]
        run = Run(HOSTILE, history=history, games=[record], games_kept=1, description={"command": HOSTILE})
        page = render(run, [SimpleNamespace(step=1, metric=HOSTILE, sentence=HOSTILE)])
        output = list(texts_in(page))

        assert sum("Forged" in text for text in output) > 10
        assert [text for text in output if unsafe(text)] == []
        assert unsafe(page) == []

    def test_of_a_comparison_are_filtered(self):
        rows = [replace(row, model=HOSTILE, response=HOSTILE) for row in make_rows(1)[:1]]
        page = render_comparison(compare_scores(rows), rows)

        assert any("Forged" in text for text in texts_in(page))
        assert [text for text in texts_in(page) if unsafe(text)] == []
