"""
What every page is made of: one template, one style sheet, everything inline, nothing fetched.

What models wrote is data and never markup: it stands in the page as JSON or packed, with every `<` escaped, and its
scripts put it on the screen as text alone. Beside that, a content security policy lets nothing run but the page's own
script, by its hash, and nothing be fetched at all.
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
"""Records that are unpacked together, when one of them is looked at."""


def assemble(
    title: str,
    many: str,
    scripts: Sequence[str],
    summary: Mapping[str, Any],
    records: Iterable[Mapping[str, Any]],
    plain: bool,
) -> str:
    """
    The whole page.

    Args:
        title (`str`):
            What the browser's tab says.
        many (`str`):
            What the records are, in the plural.
        scripts (`Sequence[str]`):
            Names of the files that draw it, in their order.
        summary (`Mapping`):
            What is there when the page opens.
        records (`Iterable[Mapping]`):
            What is unpacked when it is looked at.
        plain (`bool`):
            Whether records are left unpacked, several times as large: for browsers older than May 2023, which cannot unpack.

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
    """The template with each `{{name}}` replaced. One pass, so that nothing in a value is taken for a name."""
    head, *parts = template.split("{{")
    return head + "".join(values[name] + rest for name, _, rest in (part.partition("}}") for part in parts))


def _json(value: Any) -> str:
    return json.dumps(_without_infinities(map_strings(value, block)), separators=(",", ":"), allow_nan=False)


def _without_infinities(value: Any) -> Any:
    """Whatever is no number becomes `null`: a browser reads neither `NaN` nor `Infinity`, and would show nothing at all."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _without_infinities(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(one) for one in value]
    return value


def _inert(text: str) -> str:
    """JSON that cannot end the element that it stands in."""
    return text.replace("<", "\\u003c")


def _pack(lines: str, plain: bool) -> str:
    if plain:
        return _inert(lines)
    # Without a time of day, so that the same games are packed alike.
    return base64.b64encode(gzip.compress(lines.encode(), compresslevel=6, mtime=0)).decode()


def finite(number: float | None) -> float | None:
    """A number as a page holds it: JSON knows no infinity, and six digits are more than a screen shows."""
    return float(f"{number:.6g}") if number is not None and math.isfinite(number) else None
