"""Durations as callers give them (seconds, a timedelta, or text such as 10s) and as people read them."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from itertools import pairwise

LONGEST_DURATION = 1e10
"""Seconds, about three centuries: an instant that far ahead can still be displayed."""

Duration = float | timedelta | str

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_READ_AS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")


def parse_duration(value: object) -> float:
    """Seconds from a number, a timedelta or text such as 10s, 1.5h, 7d; ValueError for anything else."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e15 else math.inf
    match = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("not a duration")
    return float(match[1]) * _UNITS[match[2] or "s"]


def in_words(seconds: float) -> str:
    """A duration in its two largest units: 0.8 ms, 42 ms, 1.5 s, 3 min 20 s, 2 h 5 min, 4 d 3 h."""
    seconds = max(0.0, seconds)
    if seconds < 0.001:
        return f"{seconds * 1000:.1f} ms" if seconds else "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for (unit, name), (smaller, small_name) in pairwise(_READ_AS):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{whole} s"


def relative(seconds: float) -> str:
    """When something is, by the seconds until then: in 59 min, now, just now, 6 s ago."""
    if abs(seconds) < 1:
        return "now" if seconds > 0 else "just now"
    return f"in {rounded_down(seconds)}" if seconds > 0 else f"{rounded_down(-seconds)} ago"


def rounded_down(seconds: float) -> str:
    """A duration in its largest unit alone: 6 s, 59 min, 3 h, 12 d."""
    whole = int(seconds)
    for unit, name in _READ_AS:
        if whole >= unit:
            return f"{whole // unit} {name}"
    return "0 s"
