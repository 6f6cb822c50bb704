"""Times as Holdfast stores them: whole microseconds since 1970, UTC. And the clock for leases."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

from holdfast.errors import ConfigError
from holdfast.text import shown

Clock = Callable[[], int]
"""Returns the current time in microseconds. Tests pass a clock that they can move."""

SECOND = 1_000_000
MINUTE = 60 * SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def system_clock() -> int:
    """The machine's clock."""
    return time.time_ns() // 1000


def _sleepless_clock() -> int:
    """A monotonic clock that keeps counting while the machine is suspended; on Linux, not the default one."""
    try:
        time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.CLOCK_BOOTTIME
    except (AttributeError, OSError):
        return time.CLOCK_MONOTONIC


lease_clock: Callable[[], float] = partial(time.clock_gettime, _sleepless_clock())
"""The clock for a worker's own leases, in seconds.

Leases expire even while the machine is suspended, so this clock keeps counting; nobody can set it, and all
processes on a machine read the same value.
"""


def to_datetime(instant: int) -> datetime:
    return _EPOCH + timedelta(microseconds=instant)


def from_datetime(moment: datetime) -> int:
    """The instant of an aware datetime."""
    return (moment - _EPOCH) // _MICROSECOND


def to_iso(instant: int) -> str:
    """ISO 8601 in UTC with a Z, as every surface shows it."""
    return to_datetime(instant).isoformat().replace("+00:00", "Z")


def parse_instant(name: str, text: object) -> datetime:
    """Parse a time that a user or a program wrote; raises ConfigError, naming `name`, if it is invalid."""
    try:
        moment = read_iso(text)
    except ValueError:
        raise ConfigError(
            f"{name} must be an ISO 8601 time such as 2030-01-31T09:00:00Z, not {shown(text)}"
        ) from None
    require_zone(name, moment, text)
    return moment


def require_zone(name: str, moment: datetime, given: object) -> None:
    """Refuse an instant without a time zone, read from what was `given`."""
    if moment.utcoffset() is None:
        raise ConfigError(f"{name} {shown(given)} needs a time zone, as in 2030-01-31T09:00:00Z")


def read_iso(text: object) -> datetime:
    """ISO 8601; raises ValueError. A zone's + may be a space: that is what an unescaped URL makes of it."""
    if not isinstance(text, str):
        raise ValueError
    return datetime.fromisoformat(_LOST_PLUS.sub(r"\1+\2", text))


_LOST_PLUS = re.compile(r"(T[\d:.]+) (\d\d)")


def microseconds(seconds: float) -> int:
    return round(seconds * SECOND)
