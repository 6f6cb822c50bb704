"""Settings: names, defaults and allowed values; and the home folder. core/settings.py ranks them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from msgspec import Struct

from holdfast.durations import LONGEST_DURATION, parse_duration
from holdfast.errors import ConfigError
from holdfast.text import shown

MIB = 1024 * 1024
Value = bool | int | float | str | None
BackoffStrategy = Literal["exponential", "linear", "fixed"]
LoggedJobs = Literal["all", "failures", "none"]
SettingName = Literal[
    "max_attempts",
    "backoff_strategy",
    "backoff_base",
    "backoff_factor",
    "backoff_max",
    "backoff_jitter",
    "job_timeout",
    "lease_seconds",
    "heartbeat_interval",
    "poll_interval",
    "stuck_seconds",
    "concurrency",
    "max_running",
    "group_concurrency",
    "fair",
    "prefetch",
    "rate_limit",
    "max_depth",
    "max_payload_bytes",
    "max_result_bytes",
    "max_log_bytes",
    "log_jobs",
    "retention_completed",
    "retention_failed",
    "shutdown_timeout",
    "transaction_seconds",
]


class Setting(Struct, frozen=True):
    """One setting: `parse` turns what a user entered into the value, or raises ValueError."""

    name: SettingName
    default: Value
    parse: Callable[[Any], Value]
    allowed: str
    per_type: bool = True


def default_database_url() -> str:
    """QUEUECTL_DATABASE_URL, or the SQLite file in the home folder."""
    given = os.environ.get("QUEUECTL_DATABASE_URL")
    if given:
        return given
    return sqlite_url(os.path.join(home_folder(), "queue.db"))


def sqlite_url(path: str) -> str:
    """The address of a SQLite file."""
    return "sqlite:///" + path.replace("%", "%25").replace("?", "%3F")


def home_folder() -> str:
    """QUEUECTL_HOME, or ~/.queuectl."""
    return os.environ.get("QUEUECTL_HOME") or os.path.join(os.path.expanduser("~"), ".queuectl")


def make_private_folder(path: str) -> None:
    """Create a folder that only we can access, and its parents up to the home folder."""
    home = home_folder()
    if path != home and path.startswith(home):
        make_private_folder(os.path.dirname(path))
    os.makedirs(path, mode=0o700, exist_ok=True)


def stop_file() -> str:
    """The file that stops all worker processes of this home folder while it exists."""
    return os.path.join(home_folder(), ".stop_workers")


class OutOfBounds(ValueError):
    """The value has the right type but is out of range; the message names the bound."""


def _bounded(number: float, low: float, high: float, *, above: bool = False) -> None:
    if not number >= low or (above and number == low):
        raise OutOfBounds(f"{'greater than' if above else 'at least'} {_plain(low)}")
    if number > high:
        raise OutOfBounds(f"at most {_plain(high)}")


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _whole(low: int, high: int = 2**31 - 1) -> Callable[[Any], Value]:
    def parse(value: Any) -> int:
        number = int(value) if isinstance(value, str) else value
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError
        _bounded(number, low, high)
        return int(number)

    return parse


def _number(low: float, high: float = 1e12, *, above: bool = False) -> Callable[[Any], Value]:
    def parse(value: Any) -> float:
        number = float(value)
        if isinstance(value, bool):
            raise ValueError
        _bounded(number, low, high, above=above)
        return number

    return parse


def _seconds(low: float, *, above: bool = False) -> Callable[[Any], Value]:
    check = _number(low, LONGEST_DURATION, above=above)
    return lambda value: check(parse_duration(value))


def _or_none(parse: Callable[[Any], Value]) -> Callable[[Any], Value]:
    def parse_or_none(value: Any) -> Value:
        if value is None or (isinstance(value, str) and value.lower() in ("none", "never", "null", "")):
            return None
        return parse(value)

    return parse_or_none


def _flag(value: Any) -> Value:
    if isinstance(value, str):
        value = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}.get(
            value.strip().lower(), value
        )
    if not isinstance(value, bool):
        raise ValueError
    return value


def _choice(*words: str) -> Callable[[Any], Value]:
    def parse(value: Any) -> str:
        if value not in words:
            raise ValueError
        return words[words.index(value)]  # a member of an enum may equal it, and print something else

    return parse


_ONE_UP = "a whole number of at least 1"
_DURATION_TEXT = "a duration: seconds, or a number with ms, s, m, h, d or w"
_ABOVE_ZERO = f"{_DURATION_TEXT}, greater than 0"
_QUEUE_WIDE = False

SETTINGS: Mapping[str, Setting] = {
    s.name: s
    for s in (
        Setting("max_attempts", 3, _whole(1), _ONE_UP),
        Setting(
            "backoff_strategy",
            "exponential",
            _choice(*get_args(BackoffStrategy)),
            "exponential, linear or fixed",
        ),
        Setting("backoff_base", 2.0, _number(0), "a number of at least 0"),
        Setting("backoff_factor", 1.0, _number(0), "a number of at least 0"),
        Setting("backoff_max", 21_600.0, _seconds(0), _DURATION_TEXT),
        Setting("backoff_jitter", 0.2, _number(0, 1), "a number from 0 to 1"),
        Setting("job_timeout", None, _or_none(_seconds(0, above=True)), f"none, or {_ABOVE_ZERO}"),
        Setting("lease_seconds", 30.0, _seconds(3), f"{_DURATION_TEXT}, at least 3", _QUEUE_WIDE),
        Setting("heartbeat_interval", 5.0, _seconds(0.1), f"{_DURATION_TEXT}, at least 0.1", _QUEUE_WIDE),
        Setting("poll_interval", 1.0, _seconds(0.01), f"{_DURATION_TEXT}, at least 0.01", _QUEUE_WIDE),
        Setting("stuck_seconds", 300.0, _seconds(0, above=True), _ABOVE_ZERO),
        Setting("concurrency", 10, _whole(1, 10_000), "a whole number from 1 to 10000"),
        Setting("max_running", None, _or_none(_whole(1)), f"none, or {_ONE_UP}"),
        Setting("group_concurrency", None, _or_none(_whole(1)), f"none, or {_ONE_UP}"),
        Setting("fair", False, _flag, "true or false"),
        Setting("prefetch", None, _or_none(_whole(0, 1000)), "none, or a whole number from 0 to 1000"),
        Setting("rate_limit", 0.0, _number(0, 1e6), "jobs per second, 0 = unlimited"),
        Setting("max_depth", None, _or_none(_whole(1)), f"none, or {_ONE_UP}"),
        Setting("max_payload_bytes", MIB, _whole(2, 512 * MIB), "a whole number of bytes, at least 2"),
        Setting("max_result_bytes", MIB, _whole(2, 512 * MIB), "a whole number of bytes, at least 2"),
        Setting("max_log_bytes", 10 * MIB, _whole(1024), "a whole number of bytes, at least 1024"),
        Setting("log_jobs", "all", _choice(*get_args(LoggedJobs)), "all, failures or none"),
        Setting(
            "retention_completed", None, _or_none(_seconds(0)), f"never, or {_DURATION_TEXT}", _QUEUE_WIDE
        ),
        Setting("retention_failed", None, _or_none(_seconds(0)), f"never, or {_DURATION_TEXT}", _QUEUE_WIDE),
        Setting("shutdown_timeout", 30.0, _seconds(0), _DURATION_TEXT, _QUEUE_WIDE),
        Setting("transaction_seconds", 5.0, _seconds(0, above=True), _ABOVE_ZERO, _QUEUE_WIDE),
    )
}

# What other specifications call our settings.
_OTHER_NAMES = {
    "max_retries": "max_attempts",
    "default_max_tries": "max_attempts",
    "max_concurrent_jobs": "concurrency",
    "job_retry_delay": "backoff_factor",
    "worker_heartbeat_interval": "heartbeat_interval",
    "timeout": "job_timeout",
}


def find_setting(key: object, *, type: str | None = None) -> Setting:
    """The setting of a name, in snake_case or kebab-case, or under another specification's name."""
    name = key.replace("-", "_") if isinstance(key, str) else ""
    setting = SETTINGS.get(_OTHER_NAMES.get(name, name))
    if setting is None:
        raise ConfigError(f"there is no setting {shown(key)}; allowed: {', '.join(sorted(SETTINGS))}")
    if type is not None and not setting.per_type:
        raise ConfigError(f"{setting.name} applies to the whole queue and can't be set for a type")
    return setting


def parse_setting(key: object, value: object, *, type: str | None = None) -> tuple[str, Value]:
    """The setting's own name and the value as it is stored."""
    setting = find_setting(key, type=type)
    try:
        return setting.name, setting.parse(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise ConfigError(
            f"{shown(value)} is not a valid value for {setting.name}; allowed: {setting.allowed}",
            hint=f"{setting.name} must be {error}" if isinstance(error, OutOfBounds) else None,
        ) from None
