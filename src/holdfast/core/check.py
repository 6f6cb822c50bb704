"""Validating callers' arguments: a ConfigError names an invalid one, and says what is allowed.

A number or text of a subclass, such as an enum, is returned as the plain type: the way its class prints or
encodes it must not affect what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from holdfast.core.clock import from_datetime
from holdfast.durations import LONGEST_DURATION, parse_duration
from holdfast.errors import ConfigError
from holdfast.text import shown


def whole_number(name: str, value: object, allowed: range) -> int:
    # Not `in allowed`: for a class of its own, range looks at each of its numbers.
    if isinstance(value, bool) or not isinstance(value, int) or not allowed.start <= value < allowed.stop:
        raise ConfigError(
            f"must be a whole number from {allowed[0]} to {allowed[-1]}, not {shown(value)}", option=name
        )
    return int.__index__(value)


def duration(name: str, value: object, *, above_zero: bool = False) -> float:
    """The seconds of a duration."""
    try:
        seconds = parse_duration(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_DURATION or (above_zero and seconds == 0):
        kind = "a duration greater than 0" if above_zero else "a duration of at least 0"
        raise ConfigError(f"must be {kind}, such as 30, '5m' or '2h', not {shown(value)}", option=name)
    return seconds


def optional_duration(name: str, value: object) -> float | None:
    return None if value is None else duration(name, value)


def instant(name: str, value: object) -> int:
    """The microseconds of an aware datetime."""
    if not isinstance(value, datetime):
        raise ConfigError(f"must be a datetime, not {shown(value)}", option=name)
    if value.utcoffset() is None:
        raise ConfigError("is a naive datetime; give it a time zone, as in datetime.now(UTC)", option=name)
    try:
        return from_datetime(value.astimezone(UTC))
    except OverflowError:
        raise ConfigError(f"is {value}, which is out of range in UTC", option=name) from None


def items(name: str, value: object, kind: str) -> Iterable[Any]:
    """An iterable that isn't a string, which would yield its characters."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigError(f"must be a list of {kind}, not {shown(value)}", option=name)
    return value


def mapping(name: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"must be a dict, not {shown(value)}", option=name)
    return value


def text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"must be text, not {shown(value)}", option=name)
    return str.__str__(value)


def short_text(name: str, value: object, most: int) -> str:
    """Printable text that is neither empty nor longer than that."""
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isprintable():
        raise ConfigError(f"must be 1 to {most} printable characters, not {shown(value)}", option=name)
    return str.__str__(value)


def printable_text(name: str, value: object) -> str:
    """Text that every database accepts: no NUL, no lone surrogates."""
    if not isinstance(value, str) or not value.isprintable():
        raise ConfigError(f"must be printable text, not {shown(value)}", option=name)
    return str.__str__(value)
