"""What `worker start` and `serve` share: supervised processes, and the signals that stop them."""

from __future__ import annotations

import os
import sys

import msgspec

from holdfast.cli.command import APP, DONE, FAILED, GIVEN_DATABASE, Call, argument
from holdfast.config import stop_file
from holdfast.errors import HoldfastError
from holdfast.observe.log import LogOptions
from holdfast.supervisor.supervisor import Supervisor, signals_to
from holdfast.system.lifeline import PYTHON
from holdfast.system.process_group import MARKS

MOST_WORKERS = 1000

handlers_argument = argument(APP, "load your handlers from this module and queue")
no_reconcile_argument = argument(
    "--no-reconcile", "skip the check of completed jobs at startup (see queuectl reconcile)"
)
log_arguments = (
    argument(
        "--log-format", "log format (default: text on a terminal, otherwise JSON)", choices=("text", "json")
    ),
    argument(
        "--log-level",
        "lowest level to log (default: info)",
        choices=("debug", "info", "warning", "error"),
        default="info",
    ),
)


def log_options(call: Call) -> LogOptions:
    arguments = call.arguments
    return LogOptions(
        arguments.log_format or ("text" if sys.stdout.isatty() else "json"), arguments.log_level
    )


def refuse_stop_file() -> None:
    if os.path.lexists(stop_file()):
        raise HoldfastError(
            f"workers can't start while {stop_file()} exists", hint="remove it to start workers"
        )


def process_command(module: str, options: msgspec.Struct) -> list[str]:
    """The command that runs one of our modules with these options."""
    return [*PYTHON, f"holdfast.cli.{module}", msgspec.json.encode(options).decode()]


def clean_environment(database: str | None) -> dict[str, str]:
    """Ours without the marks of a job: workers that a command starts are not to end with it.

    A --database that was given is handed on in it: an address may hold a password, and everybody can read
    the command lines of processes.
    """
    kept = {name: value for name, value in os.environ.items() if name not in MARKS}
    return kept if database is None else {**kept, GIVEN_DATABASE: database}


def run(supervisor: Supervisor) -> int:
    """Run until every process has ended or signals have stopped them; return the exit code."""
    with signals_to(supervisor):
        return DONE if supervisor.run() else FAILED
