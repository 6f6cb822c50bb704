"""Instants, durations and counts in words, as the pages show them. live.js words ages the same way."""

from __future__ import annotations

from datetime import datetime

CAP = 10_000
"""Counts are made up to here."""

_DAY = 86_400


def seconds(value: float | None) -> str:
    """A duration, short: 0.8 ms, 42 ms, 1.5 s, 3 min 20 s, 2 h 5 min, 4 d 3 h."""
    if value is None:
        return "–"
    value = max(0.0, value)
    if value < 0.001:
        return f"{value * 1000:.1f} ms" if value else "0 s"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    if value < 9.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    for unit, name, smaller, small_name in (
        (_DAY, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name}" + (f" {rest} {small_name}" if rest else "")
    raise AssertionError


def bound(value: float | None) -> str:
    """The upper bound that a percentile lies below."""
    if value is None:
        return "longer"
    if value < 1:
        return f"≤ {value * 1000:g} ms"
    return f"≤ {value:g} s" if value < 60 else f"≤ {seconds(value)}"


def percent(fraction: float) -> int:
    """How far something is, from 0 to 100."""
    return round(100 * min(1.0, max(0.0, fraction)))


def ago(moment: datetime | None, now: datetime) -> str:
    """How long ago, or in how long, in one unit."""
    if moment is None:
        return "–"
    distance = (now - moment).total_seconds()
    text = _one_unit(abs(distance))
    if text == "0 s":
        return "now"
    return f"{text} ago" if distance > 0 else f"in {text}"


def _one_unit(value: float) -> str:
    whole = int(value)
    for unit, name in ((_DAY, "d"), (3600, "h"), (60, "min")):
        if whole >= unit:
            return f"{whole // unit} {name}"
    return f"{whole} s"


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(moment: datetime) -> str:
    """The whole instant, for reading."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def number(value: float) -> str:
    """With separators: 1,234,567; of small fractions two digits."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def setting(value: object) -> str:
    """A setting's value as a person would write it."""
    if value is None:
        return "none"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def capped(count: int) -> str:
    """A count that was made up to CAP and one more."""
    return f"{CAP:,}+" if count > CAP else f"{count:,}"


def plural(count: int, word: str = "job") -> str:
    return f"1 {word}" if count == 1 else f"{count:,} {word}s"


def sentence(text: str, length: int = 400) -> str:
    """A reason or an error as a sentence begins."""
    line = first_line(text, length)
    return line[:1].upper() + line[1:]


def first_line(text: str | None, length: int = 200) -> str:
    """The first line that says something, cut."""
    line = next((line.strip() for line in (text or "").splitlines() if line.strip()), "")
    return line if len(line) <= length else f"{line[: length - 1]}…"
