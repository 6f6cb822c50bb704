"""Durations as callers give them: seconds, a timedelta, or text such as 10s."""

from __future__ import annotations

import math
import re
from datetime import timedelta

LONGEST_DURATION = 1e10
"""Seconds, some three centuries: an instant that far ahead can still be shown."""

Duration = float | timedelta | str

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")


def parse_duration(value: object) -> float:
    """Seconds from a number, a timedelta or text such as 10s, 1.5h, 7d. Raises ValueError if it is none."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < 1e15 else math.inf
    match = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("it is not a duration")
    return float(match[1]) * _UNITS[match[2] or "s"]
