"""JSON as nested lists that can be opened and closed; numbers keep all their digits."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup, escape

MOST_NODES = 2_000
LONGEST_TEXT = 100_000
_OPEN_NODES = 40
"""A part with more values than this starts collapsed, except the outermost."""


def tree(value: Any) -> Markup:
    """The value as HTML. A very large one is shown as text, as far as that goes."""
    size = _size(value, MOST_NODES)
    if size > MOST_NODES:
        return _as_text(value)
    pieces: list[str] = []
    _write(value, pieces, is_outermost=True)
    return Markup("".join(pieces))


def _size(value: Any, most: int) -> int:
    """How many values there are, counted until `most` is passed; long texts count as many."""
    count = 0
    waiting = [value]
    while waiting and count <= most:
        item = waiting.pop()
        count += 1
        if isinstance(item, dict):
            waiting.extend(item.values())
            count += sum(len(name) for name in item) // 200
        elif isinstance(item, list):
            waiting.extend(item[: most + 1])
        elif isinstance(item, str):
            count += len(item) // 200
    return count


def _as_text(value: Any) -> Markup:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    shown, is_cut = text[:LONGEST_TEXT], len(text) > LONGEST_TEXT
    note = Markup('<p class="quiet">Truncated: the first %s of %s characters.</p>') % (
        f"{LONGEST_TEXT:,}",
        f"{len(text):,}",
    )
    return Markup('<pre tabindex="0">\n%s</pre>%s') % (shown, note if is_cut else "")


def _write(value: Any, pieces: list[str], *, is_outermost: bool = False) -> None:
    # The pieces are joined as they are, so every text among them is escaped here.
    if not isinstance(value, dict | list) or not value:
        pieces.append(str(_leaf(value)))
        return
    is_object = isinstance(value, dict)
    opening, closing = "{}" if is_object else "[]"
    noun = ("field" if is_object else "entry") if len(value) == 1 else ("fields" if is_object else "entries")
    is_open = is_outermost or _size(value, _OPEN_NODES) <= _OPEN_NODES
    pieces.append(f'<details class="json"{" open" if is_open else ""}><summary>{opening}')
    pieces.append(f'<span class="quiet"> {len(value):,} {noun} </span>{closing}</summary><ul>')
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for name, item in entries:
        pieces.append('<li><span class="name">')
        pieces.append(str(escape(json.dumps(name, ensure_ascii=False) if is_object else str(name))))
        pieces.append("</span>: ")
        _write(item, pieces)
        pieces.append("</li>")
    pieces.append("</ul></details>")


def _leaf(value: Any) -> Markup:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    kind = "text" if isinstance(value, str) else "figure" if is_number else "word"
    return Markup('<span class="%s">%s</span>') % (kind, json.dumps(value, ensure_ascii=False))
