"""queuectl enqueue: a job from flags or as JSON, or many from a file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from holdfast.cli.command import DONE, Call, Parser, UsageError, command
from holdfast.core.job import base_type
from holdfast.jobs import SHELL

# What a job may say, by the names of the flags. All of it stands in a JSON object too.
_TEXTS = ("id", "key", "run_at", "timeout", "delay", "key_for")
_NUMBERS = ("priority", "max_attempts")
_COMMAND = ("command", "cwd", "env", "limits")
_KEYS = (*_COMMAND, "lane", "type", "payload", *_TEXTS, *_NUMBERS)
# What the specifications and the HTTP API call some of them.
_OTHER_NAMES = {"max_retries": "max_attempts", "run_after": "run_at", "idempotency_key": "key"}


def _arguments(parser: Parser) -> None:
    parser.add_argument("job", nargs="?", metavar="JSON", help="the job as one JSON object")
    what = parser.add_argument_group("what to run")
    what.add_argument("--command", metavar="TEXT", help="a command for the system's shell")
    what.add_argument("--lane", metavar="NAME", help="the lane of a command: its type is shell:NAME")
    what.add_argument("--cwd", metavar="DIR", help="the folder a command runs in (the worker's)")
    what.add_argument(
        "--env", metavar="NAME=VALUE", action="append", help="a variable for a command; repeat it"
    )
    what.add_argument("--type", metavar="TYPE", help="the type of a job with a handler of its own")
    what.add_argument("--payload", metavar="JSON", help="its payload, a JSON object ({})")
    what.add_argument("--file", metavar="FILE", help="one JSON object a line, - for stdin")
    what.add_argument(
        "--chunk", metavar="N", type=int, help="with --file: commit every N lines (one commit, up to 100000)"
    )
    how = parser.add_argument_group("how to run it")
    how.add_argument("--id", metavar="ID", help="a name of your own (a UUID)")
    how.add_argument("--priority", metavar="N", type=int, help="higher first (0)")
    how.add_argument(
        "--max-attempts", metavar="N", type=int, help="how often to try (the setting max_attempts)"
    )
    how.add_argument("--timeout", metavar="S", help="how long an attempt may run: 30, 30s, 5m")
    when = how.add_mutually_exclusive_group()
    when.add_argument("--delay", metavar="S", help="not before that long from now: 10s, 2h")
    when.add_argument("--run-at", metavar="ISO", help="not before this instant: 2030-01-31T09:00:00Z")
    how.add_argument("--key", metavar="KEY", help="one job of a type holds a key; again, it is the same job")
    how.add_argument("--key-for", metavar="S", help="hold the key that long after the job has finished: 1d")


@command(
    "queuectl enqueue --command 'echo hi'",
    "queuectl enqueue --command './thumbs.sh' --lane media --priority 5 --timeout 10m --key thumbs:42",
    """queuectl enqueue '{"id": "job1", "command": "sleep 2", "delay": "10s"}'""",
    """queuectl enqueue --type send_email --payload '{"to": "a@b.c"}'""",
    "queuectl enqueue --file jobs.jsonl",
    arguments=_arguments,
    makes_queue=True,
)
def enqueue(call: Call) -> int:
    """Add a job, or many from a file, and print the id.

    When it returns, the job is stored and survives a crash. A job is a shell command (--command), a type
    with a handler of yours (--type, --payload), or a JSON object whose keys are the names of these flags. Of
    a file every line is checked before the first is stored.
    """
    arguments = call.arguments
    if arguments.file is not None:
        from holdfast.cli.bulk import enqueue_file

        return enqueue_file(call)
    if arguments.chunk is not None:
        raise UsageError("queuectl enqueue: --chunk goes with --file")
    type, payload, options = job_from(_given(arguments))
    job = call.queue.enqueue(type, payload, **options)
    if call.wants_json:
        from holdfast.cli.output import print_json
        from holdfast.observe.shapes import accepted

        print_json(accepted(job))
    else:
        sys.stdout.write(f"{job.id}\n")
    return DONE


def is_shell(type: object) -> bool:
    return isinstance(type, str) and base_type(type) == SHELL


def _given(arguments: Any) -> dict[str, Any]:
    """What the flags say, or the JSON object in their place."""
    flags = {name: getattr(arguments, name) for name in _KEYS if getattr(arguments, name, None) is not None}
    if arguments.job is None:
        if "payload" in flags:
            flags["payload"] = parse_object(flags["payload"], "--payload")
        if "env" in flags:
            flags["env"] = dict(_variable(text) for text in flags["env"])
        return flags
    if flags:
        raise UsageError(
            f"queuectl enqueue: a JSON object and --{min(flags).replace('_', '-')} exclude each other"
        )
    return parse_object(arguments.job, "the job")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"queuectl enqueue: --env {text!r} is not NAME=VALUE")
    return name, value


def job_from(given: Mapping[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The type, payload and options of a job that flags or a JSON object describe."""
    from holdfast.errors import ConfigError, shown

    said: dict[str, Any] = {}
    for name, value in given.items():
        key = _snake(name)
        key = _OTHER_NAMES.get(key, key)
        if key not in _KEYS:
            raise ConfigError(f"a job has no {shown(name)}; allowed: {', '.join(_KEYS)}")
        if key in said:
            raise ConfigError(f"{key} is given twice")
        if value is not None:
            said[key] = value
    type, payload = _what(said)
    return type, payload, {name: _option(name, said[name]) for name in (*_TEXTS, *_NUMBERS) if name in said}


def _what(said: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    from holdfast.errors import ConfigError, shown

    if "command" in said:
        type, lane = said.get("type", SHELL), said.get("lane")
        if "payload" in said or not is_shell(type):
            raise ConfigError(f"command and {'payload' if 'payload' in said else 'type'} exclude each other")
        if lane is not None and not (isinstance(lane, str) and lane):
            raise ConfigError(f"lane must be text that is not empty, not {shown(lane)}")
        command = said["command"]
        if not isinstance(command, str) or not command.strip():
            raise ConfigError(f"command must be text that is not empty, not {shown(command)}")
        return f"{type}:{lane}" if lane else type, {key: said[key] for key in _COMMAND if key in said}
    for key in (*_COMMAND, "lane"):
        if key in said:
            raise ConfigError(f"{key} goes with command")
    if "type" not in said:
        raise ConfigError("what is the job? say command, or type with a payload")
    payload = said.get("payload", {})
    if not isinstance(payload, dict):
        raise ConfigError(f"payload must be a JSON object, not {shown(payload)}")
    return said["type"], payload


def _option(name: str, value: Any) -> Any:
    if name != "run_at":
        return value
    from holdfast.core.clock import parse_instant

    return parse_instant(name, value)


def parse_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object from text; anything else is wrong usage."""
    from holdfast.core.payload import decode_strictly
    from holdfast.errors import ConfigError, shown

    try:
        value = decode_strictly(text)
    except RecursionError:
        raise ConfigError(f"{what} is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"{what} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{what} must be a JSON object, not {shown(value)}")
    return value


def _snake(name: str) -> str:
    """max-attempts and maxAttempts as max_attempts."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).replace("-", "_")
