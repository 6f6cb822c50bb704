"""Arguments of callers: each is what it must be, or a ConfigError that names it and says what is allowed."""

from __future__ import annotations

from holdfast.durations import LONGEST_DURATION, parse_duration
from holdfast.errors import ConfigError, shown


def whole_number(name: str, value: object, allowed: range) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
        raise ConfigError(
            f"{name} must be a whole number from {allowed[0]} to {allowed[-1]}, not {shown(value)}"
        )
    return value


def duration(name: str, value: object, *, above_zero: bool = False) -> float:
    """The seconds of a duration."""
    try:
        seconds = parse_duration(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_DURATION or (above_zero and seconds == 0):
        kind = "a duration over 0" if above_zero else "a duration from 0"
        raise ConfigError(f"{name} must be {kind}, such as 30, '5m', '2h' or a timedelta, not {shown(value)}")
    return seconds


def text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be text, not {shown(value)}")
    return value


def printable_text(name: str, value: object) -> str:
    """Text that every database takes: it has no NUL in it, and no half of a surrogate pair."""
    if not isinstance(value, str) or not value.isprintable():
        raise ConfigError(f"{name} must be printable text, not {shown(value)}")
    return value
