r"""
Read replies: thinking, boxes and code blocks.

A model may think in `<think> </think>` before it answers, and its prompt may have opened the thinking already.
Unfinished thinking contains no answer.
"""

from __future__ import annotations

import re

from trl_spiral.types import Observation


MAX_MOVE = 512
"""Characters of the longest move of any game."""

_MAX_REPLY = 65_536
_BOX = "\\boxed{"

# The program of a move has a fence before and after it.
_OPENS = re.compile(r"(?:^|</think>)([ \t]*)```python[ \t]*$", re.MULTILINE)
_CLOSES = re.compile(r"^[ \t]*```", re.MULTILINE)

_OPENING = r"^[ \t]*```[ \t]*(?:python3?|py)\b"
_BLOCK = re.compile(rf"{_OPENING}[^\n]*\n(.*?)(?:(?={_OPENING})|^[ \t]*```(?!\w)|\Z)", re.DOTALL | re.MULTILINE | re.I)


# ---- thinking ----
def opened_thinking(prompt: str) -> str:
    """Return `"<think>"` if a rendered prompt ends in it, else `""`. The reply continues from there."""
    return "<think>" if prompt.rstrip().endswith("<think>") else ""


def _finished(reply: str) -> str:
    """Return the end of a reply, without unfinished thinking."""
    unfinished = reply.find("<think>", reply.rfind("</think>") + 1)
    return (reply[:unfinished] if unfinished >= 0 else reply)[-_MAX_REPLY:]


def _after_thinking(reply: str) -> str:
    """Return the part of a reply after its last `</think>`."""
    return reply.rsplit("</think>", 1)[-1]


# ---- boxes ----
def extract_move(reply: str, longest: int = MAX_MOVE) -> str | None:
    r"""
    Return the move in a reply, as the player wrote it.

    The move is the content of the last `\boxed{}` outside unfinished thinking. A reply of a single line without any
    `\boxed{}`, such as `[4]` or `4`, is the move itself. Nothing is guessed: an unclosed box or a paragraph of prose
    contains no move.

    Args:
        reply (`str`):
            The whole reply. Only the last 65,536 characters before unfinished thinking are read.
        longest (`int`, defaults to `512`):
            Characters of the longest move.

    Returns:
        `str` or `None`: The move, stripped; `None` if there is none or it is too long.
    """
    text = _finished(reply)
    if _BOX in text:
        return _last_box(text, longest)
    move = _after_thinking(text).strip()
    return move if 0 < len(move) <= longest and "\n" not in move else None


def boxed_answer(reply: str) -> str | None:
    r"""
    Return the LaTeX in the last `\boxed{}` of a reply, outside unfinished thinking.

    Braces may be nested. An escaped brace, `\{`, does not count as one.

    Args:
        reply (`str`):
            The whole reply. Only the last 65,536 characters before unfinished thinking are read.

    Returns:
        `str` or `None`: The answer, stripped; `None` if there is no box, or the last one is empty or unclosed.
    """
    return _last_box(_finished(reply), _MAX_REPLY, escapes=True)


def _last_box(text: str, longest: int, escapes: bool = False) -> str | None:
    """Return the content of the last box; `None` if that is unclosed, empty or too long, or there is none."""
    start = text.rfind(_BOX)
    if start < 0:
        return None
    # Of `\boxed{\boxed{[4]}}` the inner box counts, which is the one that `rfind` finds.
    depth = 0
    inner = position = start + len(_BOX)
    end = min(len(text), inner + longest + 1)
    while position < end:
        if escapes and text[position] == "\\":
            position += 1
        elif text[position] == "{":
            depth += 1
        elif text[position] == "}":
            if depth == 0:
                return text[inner:position].strip() or None
            depth -= 1
        position += 1
    return None


# ---- code blocks ----
def extract_code_move(reply: str) -> str | None:
    r"""
    Return the move in a reply to an observation that asks for a program.

    The program is the last ```` ```python ```` block outside unfinished thinking. It begins on a line of its own and
    ends at the first line that starts with a fence. The answer is the content of the last `\boxed{}` below it; a box
    inside the program belongs to the program. The block may be indented as a whole, as in a list, and lines may end in
    `\r\n`.

    Args:
        reply (`str`):
            The whole reply. Only the last 65,536 characters before unfinished thinking are read.

    Returns:
        `str` or `None`: The block with its fences and, on the line below, the content of the box, in the format of
        [`~games.code_game.read_program`]; `None` if either is missing.
    """
    text = _finished(reply).replace("\r\n", "\n")
    *_, opened = (None, *_OPENS.finditer(text))
    closed = _CLOSES.search(text, opened.end()) if opened else None
    if opened is None or closed is None or (answer := _last_box(text[closed.end() :], MAX_MOVE)) is None:
        return None
    # Only the indentation of the fence is removed. The rest belongs to the program.
    program = re.sub(rf"^[ \t]{{0,{len(opened[1])}}}", "", text[opened.end() : closed.start()], flags=re.MULTILINE)
    return f"```python{program}```\n{answer}"


def read_move(observation: Observation, reply: str) -> str | None:
    """Return the move in a reply: `extract_code_move` if the observation asks for a program, else `extract_move`."""
    return extract_code_move(reply) if observation.asks_program else extract_move(reply)


def extract_program(reply: str) -> str:
    """
    Return the program in a reply: its last ```python block, else the whole text.

    Thinking does not count, finished (up to the last `</think>`) or not (if the rest begins with `<think>`). An
    unclosed block ends at the next one or at the end of the reply.

    Args:
        reply (`str`):
            The whole reply.

    Returns:
        `str`: Python source, or any other text; blank if there is none.
    """
    text = _after_thinking(reply)
    if text.lstrip().startswith("<think>"):
        return ""
    blocks = _BLOCK.findall(text)
    return blocks[-1] if blocks else text
