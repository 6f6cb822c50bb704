"""How data is printed: tables and colours on a terminal, plain lines with tabs elsewhere, JSON on demand."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast.text import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_STYLES = {
    "scheduled": "cyan",
    "pending": "yellow",
    "processing": "blue",
    "completed": "green",
    "failed": "red",
    "cancelled": "bright_black",
    "ok": "green",
    "warning": "yellow",
    "problem": "red",
}

_NARROWEST_TERMINAL = 20
_REFRESH = 0.1


def print_json(value: Any, *, compact: bool = False) -> None:
    """One JSON document, without anything that could control a terminal."""
    plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    text = json.dumps(value, ensure_ascii=plain, indent=None if compact else 2)
    if not text.replace("\n", "").isprintable():
        text = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
    sys.stdout.write(text + "\n")


def print_line(*parts: object) -> None:
    """One line of plain text with tab-separated parts, without anything that could control a terminal."""
    sys.stdout.write("\t".join(one_line(str(part)) for part in parts) + "\n")


def print_styled(text: str, style: str = "") -> None:
    """One line of text: styled on a terminal, plain elsewhere."""
    if on_terminal():
        console().print(one_line(text), style=style or None, soft_wrap=True)
    else:
        print_line(text)


def on_terminal() -> bool:
    return sys.stdout.isatty()


@cache
def console() -> Console:
    """A terminal's console. NO_COLOR and TERM=dumb are respected."""
    from rich.console import Console

    made = Console(highlight=False, emoji=False, markup=False, soft_wrap=False)
    made.width = max(_NARROWEST_TERMINAL, made.width)
    return made


class Progress(Protocol):
    """Called with how much is done, and the total if it is known."""

    def __call__(self, done: int, total: int | None = None, /) -> None: ...


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A bar on a terminal; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield lambda _done, _total=None: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        told = 0.0

        def tell(done: int, total: int | None = None) -> None:
            nonlocal told
            if time.monotonic() - told > _REFRESH or done == total:
                bar.update(task, completed=done, total=total)
                told = time.monotonic()

        yield tell


class Column(NamedTuple):
    """A column of a table.

    `whole` is never cut: it is there to be copied. `below` is put under its row where the terminal is too
    narrow for it. `spare` is left out then.
    """

    name: str
    whole: bool = False
    right: bool = False
    below: bool = False
    spare: bool = False


_GAP = 2
_NARROWEST = 8
_ENOUGH_BELOW = 24


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[object]], *, empty: str = "") -> None:
    """Rows as a table with headings on a terminal, as lines with tabs elsewhere."""
    if not on_terminal():
        for row in rows:
            print_line(*row)
    elif rows:
        out = console()
        out.print(table(columns, rows, out.width), soft_wrap=True)
    else:
        console().print(empty, style="bright_black")


def table(columns: Sequence[Column], rows: Sequence[Sequence[object]], width: int) -> Text:
    """A table that fits into a terminal of this width, as long as its whole columns do."""
    from rich.text import Text

    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    shown, widths = _fit(columns, cells, width)

    def line(row: Sequence[str], style: str | None = None) -> Text:
        parts = []
        for place, cell_width in widths.items():
            part = Text(row[place], style or style_of(row[place]), overflow="ellipsis")
            part.align("right" if columns[place].right else "left", cell_width)
            parts.append(part)
        joined = Text(" " * _GAP).join(parts)
        joined.rstrip()
        return joined

    lines = [line([column.name for column in columns], "bold")]
    for row in cells:
        lines.append(line(row))
        for place in shown - widths.keys():
            if row[place]:
                below = Text(row[place], "bright_black", overflow="ellipsis")
                below.truncate(max(_NARROWEST, width - 4))
                lines.append(Text.assemble("    ", below))
    return Text("\n").join(lines)


def _fit(columns: Sequence[Column], cells: list[list[str]], width: int) -> tuple[set[int], dict[int, int]]:
    """Which columns are shown at all, and the widths of those in the rows; the others go below theirs."""
    from rich.cells import cell_len

    natural = {
        place: max([len(column.name), *(cell_len(row[place]) for row in cells)])
        for place, column in enumerate(columns)
    }

    def excess(widths: dict[int, int]) -> int:
        return sum(widths.values()) + _GAP * (len(widths) - 1) - width

    shown, widths = set(natural), dict(natural)
    for place in [place for place, column in enumerate(columns) if column.below]:
        room = widths[place] - max(0, excess(widths))
        if room >= min(widths[place], _ENOUGH_BELOW):
            widths[place] = room
        else:
            del widths[place]
    for place in [place for place, column in enumerate(columns) if column.spare]:
        if excess(widths) > 0:
            shown.discard(place)
            del widths[place]
    for place in sorted(widths, key=lambda place: -widths[place]):
        if not columns[place].whole and excess(widths) > 0:
            widths[place] = max(min(widths[place], _NARROWEST), widths[place] - excess(widths))
    return shown, widths


def style_of(word: str) -> str:
    return _STYLES.get(word, "")
