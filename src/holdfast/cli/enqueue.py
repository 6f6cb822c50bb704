"""queuectl enqueue: a job from flags or as JSON, or many from a file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from holdfast.cli.command import Call, Command, Parser, UsageError, declare
from holdfast.core.job import base_type
from holdfast.enqueueing.options import OPTIONS
from holdfast.jobs import SHELL

if TYPE_CHECKING:
    from holdfast.handlers.options import EnqueueOptions

# What a job may say, by the names of the flags. All of it stands in a JSON object too.
_COMMAND = ("command", "cwd", "env", "limits")
_KEYS = (*_COMMAND, "lane", "type", "payload", *OPTIONS)
# What the HTTP API and the specifications call some of them.
_OTHER_NAMES = {option.http_name: name for name, option in OPTIONS.items() if option.http_name}
_OTHER_NAMES["max_retries"] = "max_attempts"


def _arguments(parser: Parser) -> None:
    declare(parser, "job JSON", "the job as one JSON object", nargs="?")
    what = partial(declare, parser.add_argument_group("what to run"))
    what("--command TEXT", "shell command to run")
    what("--lane NAME", "lane of the command: the job type is shell:NAME")
    what("--cwd DIR", "folder to run the command in (default: the worker's)")
    what("--env NAME=VALUE", "environment variable for the command; repeatable", action="append")
    what("--type TYPE", "job type, for a job with its own handler")
    what("--payload JSON", "payload of the job, a JSON object (default: {})")
    what("--file FILE", "read jobs from a file, one JSON object per line; - is stdin")
    what("--chunk N", "with --file: commit every N lines (default: one commit, up to 100000 lines)", type=int)
    _declare_options(parser.add_argument_group("job options"))


def _declare_options(flags: Any) -> None:
    """A flag for each option of a job; those that exclude each other are mutually exclusive."""
    either = {o.excludes: flags.add_mutually_exclusive_group() for o in OPTIONS.values() if o.excludes}
    for option in OPTIONS.values():
        where = either.get(option.excludes or option.name, flags)
        example = f", such as {option.example}" if option.kind in ("duration", "instant") else ""
        how = {"type": int} if option.kind == "whole" else {}
        declare(where, f"--{option.name.replace('_', '-')} {option.metavar}", option.help + example, **how)


@Command(
    "queuectl enqueue --command 'echo hi'",
    "queuectl enqueue --command './thumbs.sh' --lane media --priority 5 --timeout 10m --key thumbs:42",
    "queuectl enqueue --command './export.sh' --group customer:42",
    """queuectl enqueue '{"id": "job1", "command": "sleep 2", "delay": "10s"}'""",
    """queuectl enqueue --type send_email --payload '{"to": "a@b.c"}'""",
    "queuectl enqueue --file jobs.jsonl",
    arguments=(_arguments,),
    makes_queue=True,
)
def enqueue(call: Call) -> None:
    """Enqueue one job, or many from a file, and print the ids.

    When the command returns, the job is stored and survives a crash. A job is a shell command (--command), a
    type with your own handler (--type, --payload), or a JSON object whose keys are the names of these flags.
    With --file, every line is validated before the first job is stored.
    """
    arguments = call.arguments
    if arguments.file is not None:
        from holdfast.cli.enqueue_file import enqueue_file

        enqueue_file(call)
        return
    if arguments.chunk is not None:
        raise UsageError("--chunk requires --file")
    type, payload, options = job_from(_given(arguments))
    job = call.queue.enqueue(type, payload, **options)
    if call.wants_json:
        from holdfast.cli.output import print_json
        from holdfast.observe.shapes import accepted

        print_json(accepted(job))
    else:
        sys.stdout.write(f"{job.id}\n")


def _given(arguments: Any) -> dict[str, Any]:
    """The job as described by the flags, or by the JSON object in their place."""
    flags = {name: getattr(arguments, name) for name in _KEYS if getattr(arguments, name, None) is not None}
    if arguments.job is None:
        if "payload" in flags:
            flags["payload"] = parse_object(flags["payload"], "--payload")
        if "env" in flags:
            flags["env"] = dict(_variable(text) for text in flags["env"])
        return flags
    if flags:
        raise UsageError(f"a JSON object and --{min(flags).replace('_', '-')} are mutually exclusive")
    return parse_object(arguments.job, "the job")


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--env {text!r} must have the form NAME=VALUE")
    return name, value


def job_from(given: Mapping[str, Any]) -> tuple[str, dict[str, Any], EnqueueOptions]:
    """The type, payload and options of a job that flags or a JSON object describe."""
    from holdfast.errors import ConfigError
    from holdfast.text import shown

    said: dict[str, Any] = {}
    for name, value in given.items():
        key = _snake(name)
        key = _OTHER_NAMES.get(key, key)
        if key not in _KEYS:
            raise ConfigError(f"unknown job option {shown(name)}; allowed: {', '.join(_KEYS)}")
        if key in said:
            raise ConfigError(f"{key} is given twice")
        if value is not None:
            said[key] = value
    type, payload = _what(said)
    options = {name: said[name] for name in OPTIONS if name in said}
    for name in options:
        if OPTIONS[name].kind == "instant":
            from holdfast.core.clock import parse_instant

            options[name] = parse_instant(name, options[name])
    return type, payload, cast("EnqueueOptions", options)


def _what(said: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    from holdfast.errors import ConfigError
    from holdfast.text import shown

    if "command" in said:
        type, lane = said.get("type", SHELL), said.get("lane")
        if "payload" in said or not isinstance(type, str) or base_type(type) != SHELL:
            other = "payload" if "payload" in said else "type"
            raise ConfigError(f"command and {other} are mutually exclusive")
        if lane is not None and not (isinstance(lane, str) and lane):
            raise ConfigError(f"lane must be a non-empty string, not {shown(lane)}")
        command = said["command"]
        if not isinstance(command, str) or not command.strip():
            raise ConfigError(f"command must be a non-empty string, not {shown(command)}")
        return f"{type}:{lane}" if lane else type, {key: said[key] for key in _COMMAND if key in said}
    for key in (*_COMMAND, "lane"):
        if key in said:
            raise ConfigError(f"{key} requires command")
    if "type" not in said:
        raise ConfigError("nothing to run: give a command, or a type with a payload")
    payload = said.get("payload", {})
    if not isinstance(payload, dict):
        raise ConfigError(f"payload must be a JSON object, not {shown(payload)}")
    return said["type"], payload


def parse_object(text: str, what: str) -> dict[str, Any]:
    """A JSON object from text; anything else is a usage error."""
    from holdfast.core.payload import decode_strictly
    from holdfast.errors import ConfigError
    from holdfast.text import shown

    try:
        value = decode_strictly(text)
    except ValueError as error:
        raise ConfigError(f"{what} {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{what} must be a JSON object, not {shown(value)}")
    return value


def _snake(name: str) -> str:
    """max-attempts and maxAttempts as max_attempts."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).replace("-", "_")
