"""
Keep control tokens out of text that no template has written.

A tokenizer turns the text of a control token, such as `<|im_end|>`, into the token wherever it stands, in the words of
another seat too. `ControlText` encodes such text in two pieces, so that the words stay and the token does not appear.
`escape_control_text` is for tokenizers that are out of reach: it inserts a space.
"""

from __future__ import annotations

import re
from typing import Any


CUT = "\ufdd0"
"""Separates pieces that are encoded on their own. A Unicode noncharacter, so no text needs it."""

_TAG = re.compile(r"<[^<>\s]+>")
# Each alternative is bounded and begins with a character that it does not hold again, so a search is linear.
_KNOWN = re.compile(
    r"""
        <[|｜][^<>\s]{1,64}>                       # ChatML, Llama 3, Phi, Cohere, DeepSeek, gpt-oss
      | <[^<>\s|｜]{1,64}[|｜]>
      | </?(?:s|bos|eos|pad|unk|mask|sop|eop|think|thinking|tools|image)>
      | </?[a-z]{1,32}(?:_[a-z]{1,32}){1,3}>       # Gemma's turns, Qwen's tools, StarCoder's files
      | <(?:unused|SPECIAL_|extra_id_|reserved_)[0-9]{1,5}>
      | <</?SYS>>                                  # Llama 2
      | \[/?(?:
            INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|MODEL_SETTINGS   # Mistral
            |THINK|ARGS|CALL_ID|IMG|IMG_BREAK|IMG_END|PREFIX|MIDDLE|SUFFIX
            |g?MASK|CLS|SEP|PAD|UNK|BOS|EOS|@BOS@|multimodal|toxicity
        )\]
    """,
    re.VERBOSE,
)


def escape_control_text(text: str) -> str:
    """Return `text` with a space in each control token of a known model family: `< |im_end|>`."""
    return _KNOWN.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


class ControlText:
    """
    Finds and separates control tokens in text, for one tokenizer.

    A control token is an added token that is special, or written as a tag, such as `<think>`, or that another model
    family uses. Runs of spaces, single characters and words that were added to a vocabulary are ordinary text.

    Args:
        tokenizer ([`~text.prompts.Tokenizer`]):
            The tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        tokens = {number: token for number, token in tokenizer.added_tokens_decoder.items() if _is_control(token)}
        self._ids = frozenset(tokens)
        self._texts = frozenset(token.content for token in tokens.values())
        self._lengths = sorted(set(map(len, self._texts)))
        self._first = re.compile("|".join(re.escape(first) for first in {text[0] for text in self._texts}) or "(?!)")
        # These are found in normalized text: `＜think＞` may be one of them.
        self._are_normalized = any(token.normalized for token in tokens.values())

    def cut(self, text: str) -> str:
        """Return `text` with `CUT` in each control token of the tokenizer."""
        cut = self._first.sub(self._cut, text)
        if not self._are_normalized:
            return cut
        return CUT.join(CUT.join(piece) if self._ids & {*self._ids_of(piece)} else piece for piece in cut.split(CUT))

    def cut_known(self, text: str) -> str:
        """Return `text` cut, and spelled out where a template may hold a control token as plain text (`[INST]`)."""
        return _KNOWN.sub(lambda found: CUT.join(found[0]), self.cut(text))

    def escape(self, text: str) -> str:
        """Return `text` with a space in each control token of the tokenizer."""
        return self.cut(text).replace(CUT, " ")

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of `text`, each piece between two `CUT` on its own."""
        return tuple(number for piece in text.split(CUT) for number in self._ids_of(piece))

    def _ids_of(self, piece: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(piece, add_special_tokens=False)
        return ids

    def _cut(self, first: re.Match[str]) -> str:
        start, text = first.start(), first.string
        is_control = any(text[start : start + length] in self._texts for length in self._lengths)
        return first.group() + CUT * is_control


def _is_control(token: Any) -> bool:
    word = token.content.strip(" \t\r\n▁")
    return len(word) > 1 and (token.special or bool(_TAG.fullmatch(word) or _KNOWN.fullmatch(word)))
