"""The report of a run: the page docs/performance.md, whose generated parts are replaced, and its plots.

A generated part stands between `<!-- bench:NAME -->` and `<!-- /bench -->`. The prose around it is kept, and
so is a part of which this run measured nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import Note
from benchmarks.figures import OURS, Comparison, Entry, Result, expectations, number, spread, times
from benchmarks.plot import Bar, Kind, Panel, plot

PAGE = "performance.md"
_SECTIONS = {
    "SQLite": "sqlite",
    "PostgreSQL": "postgresql",
    "Redis": "redis",
    "Growth": "growth",
}
_PART = re.compile(r"(<!-- bench:(?P<name>\w+) -->\n).*?(<!-- /bench -->)", re.DOTALL)


@dataclass(frozen=True)
class Report:
    """What one run measured, and on what."""

    machine: str
    results: Sequence[Result]
    notes: Sequence[Note]


def write(report: Report, docs: Path) -> list[Path]:
    """Write the page and the plots; the files that were written."""
    page = docs / PAGE
    parts = dict(_parts(report))
    text = page.read_text("utf-8")
    written = _PART.sub(lambda part: _replaced(part, parts), text)
    page.write_text(written, "utf-8")
    images = docs / "images"
    images.mkdir(exist_ok=True)
    paths = [page]
    for title, name in _SECTIONS.items():
        comparisons = _section(report, title)
        if comparisons:
            path = images / f"performance-{name}.svg"
            weak = _weak(report.notes)
            panels = [_panel(comparison, weak) for comparison in comparisons]
            note = _MARKED if weak & _names(comparisons) else ""
            path.write_text(plot(_PLOTS[title], panels, note), "utf-8")
            paths.append(path)
    return paths


_PLOTS = {
    "SQLite": "Holdfast and other queues on SQLite",
    "PostgreSQL": "Holdfast and other queues on PostgreSQL",
    "Redis": "Queues on Redis, beside Holdfast",
    "Growth": "Holdfast with many jobs, and with few",
}


def _replaced(part: re.Match[str], parts: dict[str, str]) -> str:
    lines = parts.get(part["name"])
    return part[0] if lines is None else f"{part[1]}\n{lines}\n\n{part[3]}"


def _parts(report: Report) -> Iterator[tuple[str, str]]:
    yield "machine", report.machine
    for title, name in _SECTIONS.items():
        comparisons = _section(report, title)
        if comparisons:
            image = f"![{_PLOTS[title]}](images/performance-{name}.svg)"
            weak = _weak(report.notes)
            table = "\n".join(_table(comparisons, weak))
            note = f"\n\n{_MARKED}" if weak & _names(comparisons) else ""
            yield name, f"{image}\n\n{table}{note}"
    if report.notes:
        yield "queues", "\n".join(_notes(report.notes))
    if lines := list(_expectations(report.results)):
        yield "expectations", "\n".join(lines)


def _section(report: Report, title: str) -> list[Comparison]:
    return [each for each in report.results if isinstance(each, Comparison) and each.section == title]


def _names(comparisons: Sequence[Comparison]) -> set[str]:
    return {entry.who for comparison in comparisons for entry in comparison.entries}


def _weak(notes: Sequence[Note]) -> set[str]:
    """The queues whose jobs can be lost after they were accepted."""
    return {note.name for note in notes if not any(durable in note.durability for durable in _DURABLE)}


_DURABLE = ("synchronous=FULL", "synchronous=EXTRA", "fsync=on, synchronous_commit=on")
_MARK = " †"
_MARKED = "† A power cut can lose jobs that these queues have accepted."


def _table(comparisons: Sequence[Comparison], weak: set[str]) -> Iterator[str]:
    yield "| Benchmark | | Result | Rounds | Holdfast ÷ this |"
    yield "|---|---|---:|---:|---:|"
    for comparison in comparisons:
        for position, entry in enumerate(comparison.entries):
            ratio = comparison.ratio(entry.who) if position else None
            name = "" if position else comparison.name
            who = f"**{entry.who}**" if entry.who == OURS else _code(entry.who)
            who += _MARK if entry.who in weak else ""
            share = "" if ratio is None else times(ratio)
            yield f"| {name} | {who} | {number(entry.value)} {comparison.unit} | {spread(entry)} | {share} |"


def _code(who: str) -> str:
    return f"`{who}`" if who.startswith("python ") else who


def _notes(notes: Sequence[Note]) -> Iterator[str]:
    yield "| Queue | Database | Version | Worker | Durability |"
    yield "|---|---|---|---|---|"
    for note in notes:
        yield f"| {note.name} | {note.engine} | {note.version} | {note.setup} | {note.durability} |"


def _expectations(results: Sequence[Result]) -> Iterator[str]:
    found = list(expectations(results))
    if not found:
        return
    yield "| Benchmark | Measured, and expected | |"
    yield "|---|---|---|"
    for name, expectation in found:
        yield f"| {name} | {expectation.words} | {'met' if expectation.met else '**not met**'} |"


def _panel(comparison: Comparison, weak: set[str]) -> Panel:
    direction = "less is better" if comparison.less_is_better else "more is better"
    return Panel(
        comparison.name,
        f"{comparison.unit}, {direction}",
        [
            Bar(
                entry.who + (_MARK if entry.who in weak else ""),
                entry.value,
                number(entry.value),
                _kind(entry),
            )
            for entry in comparison.entries
        ],
    )


def _kind(entry: Entry) -> Kind:
    if entry.who.startswith(OURS):
        return "ours"
    return "floor" if entry.who.startswith(_FLOORS) else "other"


_FLOORS = ("bare", "python ", "in an empty", "without", "after")
