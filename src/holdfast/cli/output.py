"""How data is printed: tables and colours on a terminal, plain lines with tabs elsewhere, JSON on demand."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.errors import one_line

if TYPE_CHECKING:
    from rich.console import Console

STATUS_STYLES = {
    "scheduled": "cyan",
    "pending": "yellow",
    "processing": "blue",
    "completed": "green",
    "failed": "red",
    "cancelled": "bright_black",
}

LEVEL_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


def print_json(value: Any, *, compact: bool = False) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=None if compact else 2)
    sys.stdout.write(text + "\n")


def print_line(*parts: object) -> None:
    """One line of plain text, its parts separated by tabs; nothing in it can act on a terminal."""
    sys.stdout.write("\t".join(one_line(str(part)) for part in parts) + "\n")


def on_terminal() -> bool:
    return sys.stdout.isatty()


def console() -> Console:
    """A terminal's console. NO_COLOR and TERM=dumb are respected."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, markup=False, soft_wrap=False)


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Rows as a table with headings on a terminal, as lines with tabs elsewhere."""
    if not on_terminal():
        for row in rows:
            print_line(*row)
    elif rows:
        console().print(table(columns, rows))
    else:
        console().print(empty, style="bright_black")


class Column:
    """A column of a table. One that is `whole` is never cut: it is there to be copied."""

    def __init__(self, name: str, *, whole: bool = False, right: bool = False, wide: bool = False) -> None:
        self.name = name
        self.whole = whole
        self.right = right
        self.wide = wide


def table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        made.add_column(
            column.name,
            justify="right" if column.right else "left",
            no_wrap=True,
            overflow="fold" if column.whole else "ellipsis",
            min_width=column_width(column, rows, columns.index(column)),
            ratio=1 if column.wide else None,
        )
    for row in rows:
        made.add_row(*(Text(one_line(str(cell)), style=style_of(str(cell))) for cell in row))
    return made


def column_width(column: Column, rows: Sequence[Sequence[object]], place: int) -> int | None:
    if not column.whole:
        return None
    return max([len(column.name), *(len(str(row[place])) for row in rows)])


def style_of(word: str) -> str:
    return STATUS_STYLES.get(word) or LEVEL_STYLES.get(word) or ""


def seconds_text(seconds: float) -> str:
    """A duration for people: 0.12 s, 45 s, 3m 20s, 2h 5m, 4d 3h."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    for size, unit, part, part_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size}{unit}" + (f" {rest}{part_unit}" if rest else "")
    return f"{whole} s"


def age(moment: datetime | None, now: datetime) -> str:
    return "" if moment is None else seconds_text(max(0.0, (now - moment).total_seconds()))


def moment_text(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0]
