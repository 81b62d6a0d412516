"""
Removal of secrets from strings that are written to a file or a log.

A secret is found by the name of its setting, or by its shape. Where its end is unclear, more than the secret is
hidden. A secret with neither a telling name nor a known shape stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any


HIDDEN = "HIDDEN"

_NAME = re.compile(
    r"passw|passphrase|pwd|secret|credential|authorization|cookie|signature|webhook|jwt|session[-_]?id"
    r"|(?:api|access|private|account)[-_]?key|(?:token|headers?)$|(?:^|[^a-z])(?:key|pass|pat|sig|auth)$",
    re.IGNORECASE,
)
_VARIABLE = re.compile(r"[-_]env$", re.IGNORECASE)
"""Settings that name an environment variable."""

_MANY_WORDS = re.compile(r"authorization|cookie|headers?$", re.IGNORECASE)
"""Names whose value may contain spaces."""

_NAMED = re.compile(r"""(?<![\w.-])([\w.-]++)(\\?["']?[ \t]*+[:=][ \t]*+|[ \t]++)(?=\S)""")
_QUOTED = r"""\\"[^"]*+"|"(?:[^"\\]|\\.)*+"|'[^']*+'|[\[{][^\n]*+"""
_ONE_WORD_VALUE = re.compile(rf"{_QUOTED}|\S++")
_LINE_VALUE = re.compile(rf"{_QUOTED}|[^\n']++")

_PROSE = re.compile(r"(?:token|key|pass): (?:`|[A-Za-z][a-z]*[.,;]?(?:\s|$))", re.IGNORECASE)
"""The end of a clause of a sentence, such as "no trained token: lower ...", rather than a setting."""

_URL = re.compile(r"(://[^\s?#\"'<>]*+)(\?[^\s#\"'<>]*+)?")
_SHAPES = (
    # Credentials in an address, with and without a scheme.
    (re.compile(r"(?<=://)(?:[^/\s]*@|[^/\s:@]++:[^\s@\"'<>]{0,200}+@)"), f"{HIDDEN}@"),
    (re.compile(r"(?<![\w.+-])[\w.+-]++:[^\s/@:\"']++@(?=[\w-])"), f"{HIDDEN}@"),
    (re.compile(r"\b(bearer)[ \t]++[^\s\"',]++", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"\b(basic)[ \t]++(?=[A-Za-z]*+[0-9+/=])[A-Za-z0-9+/]{6,}+=*+", re.IGNORECASE), rf"\1 {HIDDEN}"),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END)[\s\S])*+"), HIDDEN),
    (
        # Keys of Hugging Face, OpenAI, GitHub, GitLab, Slack, AWS, Google and others, and JSON web tokens.
        re.compile(
            r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{6,}+(?!\w)|sk[-_][\w-]{6,}+|gh[pousr]_\w{8,}+|github_pat_\w{8,}+"
            r"|glpat-[\w-]{8,}+|xox[a-z]-[\w-]{8,}+|(?:AKIA|ASIA)[A-Z0-9]{12,}+|AIza[\w-]{20,}+|ya29\.[\w.-]{8,}+"
            r"|(?:nvapi|pplx|xai)-[\w-]{12,}+|(?:gsk|r8|npm)_\w{16,}+|eyJ[\w-]{8,}+(?:\.[\w-]*+)*+)"
        ),
        HIDDEN,
    ),
)


def is_secret_name(name: str) -> bool:
    """Return whether the value of a setting of that name is a secret."""
    return _NAME.search(name) is not None and _VARIABLE.search(name) is None


def redact(text: str) -> str:
    """Return the text with each secret replaced by `HIDDEN`."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            clean = redact_all(value)
            return text if clean == value else json.dumps(clean, ensure_ascii=False)
    text = _without_named(text)
    text = _URL.sub(lambda url: f"{url[1]}?{HIDDEN}" if url[2] else url[0], text)
    for shape, shown in _SHAPES:
        text = shape.sub(shown, text)
    return text


def redact_all(value: Any) -> Any:
    """Return a nested value with `redact` applied to every string. Values under a secret's name are hidden whole."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {
            redact(name) if isinstance(name, str) else name: HIDDEN
            if isinstance(name, str) and is_secret_name(name) and _is_set(one)
            else redact_all(one)
            for name, one in value.items()
        }
    if isinstance(value, list | tuple):
        whole = all(isinstance(one, str) for one in value)
        return redact_command(value) if whole else [redact_all(one) for one in value]
    return value


def redact_command(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command without secrets. A secret's option hides everything up to the next option."""
    kept, hides = [], False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not argument.startswith("-"):
            kept.append(HIDDEN if hides else redact(argument))
            continue
        secret = is_secret_name(name)
        hides = secret and not equals
        kept.append(name + equals + (HIDDEN if secret else redact(value)) if equals else redact(argument))
    return kept


def _is_set(value: Any) -> bool:
    return value is not None and value != "" and not isinstance(value, bool)


def _without_named(text: str) -> str:
    """Hide the values of `name=value`, `name: value` and `--name value` where the name is a secret's."""
    parts, end = [], 0
    for found in _NAMED.finditer(text):
        name, separator = found.groups()
        if found.start() < end or not is_secret_name(name) or (separator.isspace() and not name.startswith("--")):
            continue
        if _PROSE.match(text, found.start()):
            continue
        value = (_LINE_VALUE if _MANY_WORDS.search(name) else _ONE_WORD_VALUE).match(text, found.end())
        if value is None or value[0] == HIDDEN:
            continue
        parts += [text[end : found.end()], f'"{HIDDEN}"' if value[0][0] in "\"'\\" else HIDDEN]
        end = value.end()
    return "".join([*parts, text[end:]])
