"""queuectl config: reading and changing settings."""

from __future__ import annotations

from typing import Any

from holdfast.cli.command import DONE, Call, Parser, command, type_argument
from holdfast.cli.output import Column, print_json, print_line, print_table
from holdfast.config import SETTINGS, Value, find_setting
from holdfast.observe import shapes


def _key(parser: Parser) -> None:
    parser.add_argument("key", metavar="KEY", help="the setting")
    type_argument(parser)


def _key_and_value(parser: Parser) -> None:
    parser.add_argument("key", metavar="KEY", help="the setting")
    parser.add_argument("value", metavar="VALUE", help="its value; durations may be 30s, 5m, 2h, 7d")
    type_argument(parser)


@command("queuectl config list", "queuectl config list --type shell", arguments=type_argument)
def list_settings(call: Call) -> int:
    """List every setting with the value in force."""
    type = call.arguments.type
    values = call.queue.config(type)
    stored = call.queue.settings().stored
    shape = shapes.settings(values, stored, type)
    if call.wants_json:
        print_json(shape)
        return DONE
    columns = [
        Column("SETTING", whole=True),
        Column("VALUE", whole=True),
        Column("FROM", whole=True),
        Column("ALLOWED", spare=True),
    ]
    rows: list[tuple[Any, ...]] = [
        (name, shown_value(value), _source(stored, name, type), SETTINGS[name].allowed)
        for name, value in values.items()
    ]
    if type is None:
        for its_type, settings in shape["byType"].items():
            rows += [(name, shown_value(value), f"type {its_type}", "") for name, value in settings.items()]
    print_table(columns, rows, empty="")
    return DONE


@command("queuectl config get backoff_base", arguments=_key)
def get_setting(call: Call) -> int:
    """Print the value in force of a setting."""
    return _answer(call, "{value}")


@command(
    "queuectl config set backoff_base 3",
    "queuectl config set max_running 2 --type shell:media",
    "queuectl config set job_timeout none",
    arguments=_key_and_value,
    makes_queue=True,
)
def set_setting(call: Call) -> int:
    """Store a setting, for the whole queue or for a type; running workers follow within a second."""
    call.queue.set_config(call.arguments.key, call.arguments.value, call.arguments.type)
    return _answer(call, "{name} is {value}{for_type}")


@command("queuectl config unset backoff_base", arguments=_key, makes_queue=True)
def unset_setting(call: Call) -> int:
    """Forget a stored setting, so that the next level down holds again."""
    call.queue.unset_config(call.arguments.key, call.arguments.type)
    return _answer(call, "{name} is {value}{for_type}")


def _answer(call: Call, text: str) -> int:
    name = find_setting(call.arguments.key).name
    type = call.arguments.type
    value = call.queue.config(type)[name]
    if call.wants_json:
        print_json(shapes.setting(name, value, type))
    else:
        for_type = f" for {type}" if type else ""
        print_line(text.format(name=name, value=shown_value(value), for_type=for_type))
    return DONE


def _source(stored: Any, name: str, type: str | None) -> str:
    if type and (name, type) in stored:
        return f"type {type}"
    return "set" if (name, "") in stored else "default"


def shown_value(value: Value) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) and value < 1e6 else str(value)
