"""Instants, durations and counts in words, the same wherever people read them. times.js words ages alike."""

from __future__ import annotations

from datetime import datetime

from holdfast.core.filter import COUNTED
from holdfast.durations import in_words, relative


def seconds(value: float | None) -> str:
    """A duration, short: 0.8 ms, 42 ms, 1.5 s, 3 min 20 s, 2 h 5 min, 4 d 3 h."""
    return "–" if value is None else in_words(value)


def bound(value: float | None) -> str:
    """The upper bound of a percentile."""
    if value is None:
        return "longer"
    if value < 1:
        return f"≤ {value * 1000:g} ms"
    return f"≤ {value:g} s" if value < 60 else f"≤ {seconds(value)}"


def percent(fraction: float) -> int:
    """Progress as a percentage from 0 to 100."""
    return round(100 * min(1.0, max(0.0, fraction)))


def age(moment: datetime | None, now: datetime) -> str:
    """The time since an instant."""
    return "" if moment is None else seconds((now - moment).total_seconds())


def ago(moment: datetime | None, now: datetime) -> str:
    """How long ago, or in how long, in one unit."""
    return "–" if moment is None else relative((moment - now).total_seconds())


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant(moment: datetime | None) -> str:
    """An instant in a table, to the second."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def moment(moment: datetime) -> str:
    """The whole instant, for reading."""
    return f"{instant(moment)} UTC"


def number(value: float) -> str:
    """A number with separators: 1,234,567; small fractions have two digits."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    if value < 0.1:
        return f"{value:.2g}"
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def setting(value: object) -> str:
    """A setting's value as a person would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def capped(count: int) -> str:
    """A count that was made up to COUNTED and one more."""
    return f"{COUNTED:,}+" if count > COUNTED else f"{count:,}"


def plural(count: int, word: str = "job") -> str:
    return f"1 {word}" if count == 1 else f"{count:,} {word}s"


def plain_plural(count: int, word: str) -> str:
    """The same, for output that a program may read."""
    return plural(count, word).replace(",", "")


def sentence(text: str, length: int = 400) -> str:
    """A reason or an error, capitalised as a sentence."""
    line = first_line(text, length)
    return line[:1].upper() + line[1:]


def first_line(text: str | None, length: int | None = None) -> str:
    """The first non-empty line, cut to a length."""
    line = next((line.strip() for line in (text or "").splitlines() if line.strip()), "")
    return line if length is None or len(line) <= length else f"{line[: length - 1]}…"
