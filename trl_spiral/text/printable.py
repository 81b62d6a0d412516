"""
The one filter for text that models, programs and servers wrote, before it reaches a terminal, a log or Markdown.

A filtered text has no control sequences, no changes of direction, no characters without width, and no halves of a
surrogate pair. Each of these characters becomes U+FFFD.
"""

from __future__ import annotations

import hashlib
import logging
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from trl_spiral.text.secrets import redact


_SUSPECT = re.compile(r"[^\n\t -~]+")
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\uffa0\U000e0100-\U000e01ef]")
"""Characters without a mark of their own that Unicode does not class as format characters."""

_PLAIN = re.compile(r"[\w .,:;()'\"/+=%!?–-]*")
_EMPHASIS = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
_LONGEST_FILE_NAME = 100  # characters: file systems take 255 bytes, and a number and a suffix are added


def block(text: str) -> str:
    """Return the text with its lines and tabs, safe for a terminal or a page."""
    return _SUSPECT.sub(_filtered, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return the text as a single line, safe for a terminal, a log or a page."""
    return block(text).translate({ord("\n"): " ", ord("\t"): " "})


def reported(said: object) -> str:
    """Return the text of an error, a server or a program as a single line, safe to show and without secrets."""
    return one_line(redact(str(said)))


def _filtered(found: re.Match[str]) -> str:
    run = found[0]
    if run.isprintable() and not _INVISIBLE.search(run):
        return run
    return "".join(char if _is_shown(char) else "\ufffd" for char in run)


def _is_shown(char: str) -> bool:
    if char.isprintable():
        return not _INVISIBLE.match(char)
    return unicodedata.category(char) == "Zs"  # spaces other than the ASCII one


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a nested value of mappings, lists and tuples with every string changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            change(name) if isinstance(name, str) else name: map_strings(one, change) for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [map_strings(one, change) for one in value]
    return value


# ---- Markdown ----
def inline(text: str) -> str:
    """Return the text for the middle of a Markdown line: as it is, or as code if Markdown would read any of it."""
    shown = one_line(text)
    is_plain = _PLAIN.fullmatch(shown) and "://" not in shown and not _EMPHASIS.search(shown)
    return shown if is_plain else code(shown)


def code(text: str) -> str:
    """Return the text as an inline code span of Markdown."""
    shown, fence = one_line(text), "`" * (1 + _longest_backticks(text))
    # Markdown takes one space off each end, if there is one at both.
    pad = " " if shown.startswith(("`", " ")) or shown.endswith(("`", " ")) else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def cell(text: str, as_code: bool = False) -> str:
    r"""
    Return the text for a cell of a Markdown table.

    A table is split before code is read, at every bar without a backslash. Two backslashes are one of the text.
    """
    shown = code(text) if as_code else inline(text)
    return shown.replace("\\|", "\\ |").replace("|", "\\|")


def fenced_lines(text: str) -> list[str]:
    """Return the lines of a fenced block of Markdown. The fence is longer than any that the text contains."""
    fence = "`" * max(3, 1 + _longest_backticks(text))
    return [f"{fence}text", block(text), fence]


def _longest_backticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


# ---- files ----
def file_name(text: str) -> str:
    """
    Return a name for a file of any text: short, without separators, in ASCII.

    A changed text gets a digest at its end, and so does one with capitals: some file systems ignore case.
    """
    kept = re.sub(r"[^A-Za-z0-9._-]", "_", text[:_LONGEST_FILE_NAME])
    if kept == text.lower() and text.strip("."):
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{kept.strip('.')}-{digest}"


# ---- terminals and logs ----
def echo(text: str = "", screen: TextIO | None = None, end: str = "\n") -> None:
    """Write a text to a terminal, standard output by default."""
    screen = screen or sys.stdout
    encoding = screen.encoding or "utf-8"
    screen.write((block(text) + end).encode(encoding, "replace").decode(encoding))
    screen.flush()


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module. Each of its messages is one line, without control sequences or secrets."""
    logger = logging.getLogger(name)
    logger.addFilter(_clean)
    return logger


def _clean(record: logging.LogRecord) -> bool:
    record.msg, record.args = reported(record.getMessage()), None
    return True
