"""
The frame of every page: one template and one style sheet, everything inline, nothing fetched.

Text of models is data, not markup: the page contains it as JSON or compressed, with every `<` escaped, and its scripts
display it as text. In addition, a content security policy allows only the page's own script, by its hash, and no
request.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from trl_spiral.text.printable import block, map_strings, one_line


BLOCK = 100
"""Records that are decompressed together, when one of them is opened."""


def assemble(
    title: str,
    many: str,
    scripts: Sequence[str],
    summary: Mapping[str, Any],
    records: Iterable[Mapping[str, Any]],
    plain: bool,
) -> str:
    """
    Return a page.

    Args:
        title (`str`):
            Title of the page.
        many (`str`):
            Plural noun for the records.
        scripts (`Sequence[str]`):
            Names of the script files, in order.
        summary (`Mapping`):
            Data that is loaded when the page opens.
        records (`Iterable[Mapping]`):
            Data that is decompressed when it is opened.
        plain (`bool`):
            Whether records are not compressed, for browsers older than May 2023. The page is then several times
            larger.

    Returns:
        `str`: HTML. The same data gives the same page.
    """
    script = "(() => {\n" + "\n".join(map(_asset, scripts)) + "\n})();"
    lines = [_json(record) for record in records]
    blocks = [_pack("\n".join(lines[at : at + BLOCK]), plain) for at in range(0, len(lines), BLOCK)]
    return _filled(
        _asset("page.html"),
        {
            "title": html.escape(one_line(title)),
            "many": html.escape(many),
            "hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            "style": _asset("page.css"),
            "summary": _inert(_json({**summary, "block": BLOCK, "plain": plain})),
            "blocks": "\n".join(f'<script type="text/plain" class="records">{block}</script>' for block in blocks),
            "script": script,
        },
    )


def _asset(name: str) -> str:
    return (files("trl_spiral.report") / name).read_text(encoding="utf-8")


def _filled(template: str, values: Mapping[str, str]) -> str:
    """Replace each `{{name}}` in the template. One pass, so that text in a value is never replaced."""
    head, *parts = template.split("{{")
    return head + "".join(values[name] + rest for name, _, rest in (part.partition("}}") for part in parts))


def _json(value: Any) -> str:
    return json.dumps(_without_infinities(map_strings(value, block)), separators=(",", ":"), allow_nan=False)


def _without_infinities(value: Any) -> Any:
    """Replace `NaN` and infinities with `null`: JSON has neither, and a browser would refuse the whole page."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _without_infinities(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(one) for one in value]
    return value


def _inert(text: str) -> str:
    """Escape JSON so that it cannot end its HTML element."""
    return text.replace("<", "\\u003c")


def _pack(lines: str, plain: bool) -> str:
    if plain:
        return _inert(lines)
    # Without a modification time, so that the same games give the same page.
    return base64.b64encode(gzip.compress(lines.encode(), compresslevel=6, mtime=0)).decode()


def finite(number: float | None) -> float | None:
    """Return a number with six digits, or `None` if it is not finite, since JSON has no infinity."""
    return float(f"{number:.6g}") if number is not None and math.isfinite(number) else None
