"""Plots: panels of horizontal bars as one SVG file, readable on a light page and on a dark one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

_WIDTH = 760
_MARGIN = 16
_LABELS = 210
"""Where the bars begin."""
_VALUES = 90
"""What is kept free for the number behind the longest bar."""
_BAR, _STEP = 16, 22
_TITLE, _HEAD, _GAP = 36, 26, 14

# A page in Markdown shows the file as an image: its own media query is all that can tell dark from light.
_STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
.title { font-size: 16px; font-weight: 600 }
.name { font-weight: 600 }
.unit { fill: #57606a }
.label { text-anchor: end }
.page { fill: #ffffff }
.ours { fill: #1a7f5a }
.other { fill: #8c959f }
.floor { fill: #c8d1da }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .unit { fill: #9da7b1 }
  .page { fill: #0d1117 }
  .ours { fill: #3fb68b }
  .other { fill: #6e7681 }
  .floor { fill: #3d444d }
}
"""


Kind = Literal["ours", "other", "floor"]


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    text: str
    kind: Kind


@dataclass(frozen=True)
class Panel:
    """One measure: its bars have a scale of their own, which begins at 0."""

    name: str
    unit: str
    bars: Sequence[Bar]


def plot(title: str, panels: Iterable[Panel], note: str = "") -> str:
    """The text of an SVG file; the note stands at its foot."""
    lines: list[str] = []
    top = _TITLE + _MARGIN
    for panel in panels:
        lines += _panel(panel, top)
        top += _HEAD + _STEP * len(panel.bars) + _GAP
    if note:
        lines.append(f'<text class="unit" x="{_MARGIN}" y="{top + 8}">{escape(note)}</text>')
    height = top + _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{_WIDTH}" height="{height}" rx="6"/>',
            f'<text class="title" x="{_MARGIN}" y="{_TITLE}">{escape(title)}</text>',
            *lines,
            "</svg>",
            "",
        ]
    )


def _panel(panel: Panel, top: int) -> Iterator[str]:
    yield (
        f'<text x="{_MARGIN}" y="{top + 14}"><tspan class="name">{escape(panel.name)}</tspan>'
        f'<tspan class="unit" dx="8">{escape(panel.unit)}</tspan></text>'
    )
    longest = max((bar.value for bar in panel.bars), default=0) or 1
    room = _WIDTH - _LABELS - _VALUES - _MARGIN
    for place, bar in enumerate(panel.bars):
        y = top + _HEAD + _STEP * place
        width = max(1.0, room * bar.value / longest)
        yield f'<text class="label" x="{_LABELS - 8}" y="{y + 12.5}">{escape(bar.label)}</text>'
        yield (
            f'<rect class="{bar.kind}" x="{_LABELS}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2">'
            f"<title>{escape(f'{bar.label}: {bar.text}')}</title></rect>"
        )
        yield f'<text x="{_LABELS + width + 6:.1f}" y="{y + 12.5}">{escape(bar.text)}</text>'
