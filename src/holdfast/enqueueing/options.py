"""The options of one job. Every surface takes them from this table: what they mean, and how they are checked.

To add an option, add it here, to `handlers/options.py` for type checkers, and to NewJob.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from holdfast.core import check
from holdfast.core.job import PRIORITIES, check_group, check_id
from holdfast.errors import ConfigError

MAX_KEY_LENGTH = 512
_ATTEMPTS = range(1, 2**31)

Kind = Literal["whole", "text", "duration", "instant"]
"""What a value is made of, and so how a surface reads it."""


class Option(Struct, frozen=True, kw_only=True):
    """One option. `check` returns the value as NewJob has it, or raises ConfigError."""

    name: str
    kind: Kind
    check: Callable[[str, Any], Any]
    meaning: str
    default: str = ""
    """What holds for a job that does not have it, if that is worth saying."""
    example: Any = None
    metavar: str
    label: str = ""
    http_name: str = ""
    """What HTTP calls it, in snake_case, if that differs."""
    excludes: str = ""
    needs: str = ""
    is_shared: bool = True
    """Whether many jobs that are enqueued together may have it in common."""
    may_be_none: bool = True
    """Whether None means that it is not given."""

    @property
    def title(self) -> str:
        """Its name in a form."""
        return self.label or self.name.replace("_", " ").capitalize()

    @property
    def help(self) -> str:
        """Its meaning, with its default."""
        return f"{self.meaning} (default: {self.default})" if self.default else self.meaning


def _id(_: str, value: object) -> str:
    return check_id(value)


OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option(
            name="id",
            kind="text",
            check=_id,
            meaning="your own id for the job",
            default="a generated UUID",
            metavar="ID",
            label="ID",
            is_shared=False,
        ),
        Option(
            name="priority",
            kind="whole",
            check=partial(check.whole_number, allowed=PRIORITIES),
            meaning="higher priorities run first",
            default="0",
            metavar="N",
            may_be_none=False,
        ),
        Option(
            name="group",
            kind="text",
            check=check_group,
            meaning="whose job it is, for limits per group and fair turns",
            example="customer:42",
            metavar="NAME",
        ),
        Option(
            name="max_attempts",
            kind="whole",
            check=partial(check.whole_number, allowed=_ATTEMPTS),
            meaning="how many times the job may start",
            default="the setting max_attempts",
            example=3,
            metavar="N",
        ),
        Option(
            name="timeout",
            kind="duration",
            check=partial(check.duration, above_zero=True),
            meaning="time limit for each attempt",
            example="5m",
            metavar="S",
        ),
        Option(
            name="delay",
            kind="duration",
            check=check.duration,
            meaning="wait at least this long before the first attempt",
            example="10s",
            metavar="S",
        ),
        Option(
            name="run_at",
            kind="instant",
            check=check.instant,
            meaning="don't start before this time, instead of after a delay",
            example="2030-01-31T09:00:00Z",
            metavar="ISO",
            label="Run at (UTC)",
            http_name="run_after",
            excludes="delay",
        ),
        Option(
            name="key",
            kind="text",
            check=partial(check.short_text, most=MAX_KEY_LENGTH),
            meaning="deduplication key: returns the unfinished job of this type that has it, if any",
            example="welcome:42",
            metavar="KEY",
            label="Deduplication key",
            http_name="idempotency_key",
            is_shared=False,
        ),
        Option(
            name="key_for",
            kind="duration",
            check=check.duration,
            meaning="keep the key for this long after the job has finished",
            example="1d",
            metavar="S",
            label="Keep key for",
            needs="key",
            is_shared=False,
        ),
    )
}


def check_options(names: AbstractSet[str]) -> None:
    """Unknown ones are an error that lists the known ones. Their values are checked by `checked`."""
    unknown = names - OPTIONS.keys()
    if unknown:
        raise ConfigError(f"there is no option {min(unknown, key=str)!r}; allowed: {', '.join(OPTIONS)}")


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given, as NewJob has them."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        option = OPTIONS[name]
        if value is not None or not option.may_be_none:
            values[name] = option.check(name, value)
    for name in values:
        option = OPTIONS[name]
        if option.needs and option.needs not in values:
            raise ConfigError(f"needs a {option.needs}", option=name)
        if option.excludes in values:
            raise ConfigError(f"and {option.excludes} are mutually exclusive", option=name)
    return values


def with_defaults(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, filled in with a handler's where the caller set none."""
    check_options(defaults.keys())
    said = {name for name, value in options.items() if value is not None}
    for option in OPTIONS.values():
        if option.excludes and said & {option.name, option.excludes}:
            said |= {option.name, option.excludes}
    return {**options, **{name: value for name, value in defaults.items() if name not in said}}
