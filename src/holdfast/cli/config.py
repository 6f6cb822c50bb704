"""queuectl config, pause, resume and rate-limit: what applies to all workers."""

from __future__ import annotations

from typing import Any

from holdfast.cli.command import Call, Command, argument, type_argument
from holdfast.cli.output import Column, print_json, print_table
from holdfast.config import SETTINGS, find_setting
from holdfast.core.settings import Settings
from holdfast.observe import shapes, words

_key = argument("key KEY", "name of the setting")
_value = argument("value VALUE", "new value; write durations as 30s, 5m, 2h or 7d")


@Command("queuectl config list", "queuectl config list --type shell", arguments=(type_argument,))
def list_settings(call: Call) -> None:
    """List all settings with their current values."""
    type = call.arguments.type
    values = call.queue.config(type)
    settings = call.queue.settings()
    shape = shapes.settings(values, settings.stored, type)
    if call.wants_json:
        print_json(shape)
        return
    columns = [
        Column("SETTING", whole=True),
        Column("VALUE", whole=True),
        Column("FROM", whole=True),
        Column("ALLOWED", spare=True),
    ]
    rows: list[tuple[Any, ...]] = [
        (name, words.setting(value), _source(settings, name, type or ""), SETTINGS[name].allowed)
        for name, value in values.items()
    ]
    if type is None:
        for its_type, settings in shape["byType"].items():
            rows += [(name, words.setting(value), f"type {its_type}", "") for name, value in settings.items()]
    print_table(columns, rows)


@Command("queuectl config get backoff_base", arguments=(_key, type_argument))
def get_setting(call: Call) -> None:
    """Print the current value of a setting."""
    _answer(call, "{value}")


@Command(
    "queuectl config set backoff_base 3",
    "queuectl config set max_running 2 --type shell:media",
    "queuectl config set job_timeout none",
    arguments=(_key, _value, type_argument),
    makes_queue=True,
)
def set_setting(call: Call) -> None:
    """Change a setting for the whole queue or one job type; workers apply it within a second."""
    call.queue.set_config(call.arguments.key, call.arguments.value, call.arguments.type)
    _answer(call, "{name} is {value}{for_type}")


@Command("queuectl config unset backoff_base", arguments=(_key, type_argument), makes_queue=True)
def unset_setting(call: Call) -> None:
    """Remove a stored setting, so that the next level applies, usually the default."""
    call.queue.unset_config(call.arguments.key, call.arguments.type)
    _answer(call, "{name} is {value}{for_type}")


def _answer(call: Call, text: str) -> None:
    name = find_setting(call.arguments.key).name
    type = call.arguments.type
    value = call.queue.config(type)[name]
    for_type = f" for {type}" if type else ""
    line = text.format(name=name, value=words.setting(value), for_type=for_type)
    call.answer(shapes.setting(name, value, type), line)


def _source(settings: Settings, name: str, type: str) -> str:
    """Whose value it is: a lane's may be that of its base type."""
    owner = settings.resolve(name, type).source
    if (name, owner) in settings.stored:
        return f"type {owner}" if owner else "set"
    return f"code of {owner}" if owner else "default"


@Command("queuectl pause", "queuectl pause --type send_email", arguments=(type_argument,), makes_queue=True)
def pause(call: Call) -> None:
    """Pause the queue, or one job type, on every worker; running jobs finish."""
    call.queue.pause(call.arguments.type)
    _tell(call, {"paused": True}, "the whole queue", " is paused")


@Command("queuectl resume", "queuectl resume --type send_email", arguments=(type_argument,), makes_queue=True)
def resume(call: Call) -> None:
    """Resume the queue, or one job type, after a pause.

    Use the same --type as for the pause: the queue and each type are paused separately.
    """
    type = call.arguments.type
    call.queue.resume(type)
    others = call.queue.refresh_settings().limits(type or "").paused
    still = "".join(f", but {name or 'the whole queue'} still is" for name in others[:1])
    _tell(call, {"paused": False}, "the whole queue", f" is no longer paused{still}")


@Command(
    "queuectl rate-limit 10",
    "queuectl rate-limit 0.5 --type send_email",
    arguments=(argument("rate N", "jobs per second, across all processes; 0 means unlimited"), type_argument),
    makes_queue=True,
)
def rate_limit(call: Call) -> None:
    """Limit how many jobs start per second, in total or for one type."""
    type = call.arguments.type
    call.queue.set_rate_limit(call.arguments.rate, type)
    rate = call.queue.settings().get("rate_limit", type or "")
    limit = f": {rate:g} jobs per second" if rate else ": unlimited"
    _tell(call, {"tasksPerSecond": rate}, "all types", limit)


def _tell(call: Call, value: dict[str, object], everything: str, what: str) -> None:
    type = call.arguments.type
    call.answer(value | ({"type": type} if type else {}), (type or everything) + what)
