"""From a command line to an exit code: which command it names, and what its errors mean."""

from __future__ import annotations

import os
import sys

from holdfast.cli import was_interrupted
from holdfast.cli.command import DONE, FAILED, WRONG_USAGE, Call, Command, UsageError, given_database, say

COMMANDS = {
    "enqueue": "enqueue:enqueue",
    "worker start": "worker:start",
    "worker stop": "worker:stop",
    "worker list": "worker:list_workers",
    "serve": "serve:serve",
    "status": "status:status",
    "list": "list:list_jobs",
    "show": "show:show",
    "logs": "logs:logs",
    "why": "show:why",
    "retry": "actions:retry",
    "cancel": "actions:cancel",
    "delete": "actions:delete",
    "dlq list": "actions:dlq_list",
    "dlq retry": "actions:dlq_retry",
    "dlq purge": "actions:dlq_purge",
    "cleanup": "actions:cleanup",
    "pause": "config:pause",
    "resume": "config:resume",
    "rate-limit": "config:rate_limit",
    "config list": "config:list_settings",
    "config get": "config:get_setting",
    "config set": "config:set_setting",
    "config unset": "config:unset_setting",
    "report": "report:report",
    "reconcile": "reconcile:reconcile_jobs",
    "migrate": "database:migrate",
    "backup": "database:backup",
    "move": "database:move",
    "doctor": "doctor:doctor",
    "completion": "completion:completion",
}
"""Where each command lives: module:name, below holdfast.cli."""

GROUPS = {
    "worker": "Run, stop and list worker processes.",
    "dlq": "The dead-letter queue: jobs that failed permanently.",
    "config": "Read and change settings; running workers apply changes within a second.",
}

_HELP = ("-h", "--help")


def run(words: list[str]) -> int:
    """Run one command line and return the exit code. Errors are one line on stderr."""
    if os.name == "nt":
        say("queuectl runs on Linux and macOS; on Windows, run it inside WSL")
        return FAILED
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    code = DONE
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except BrokenPipeError:
        return code  # who read us has seen enough
    except OSError as error:
        say(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
        return FAILED
    except UsageError as error:
        say(str(error))
        return WRONG_USAGE
    except Exception as error:
        if os.environ.get("QUEUECTL_DEBUG"):
            raise
        if was_interrupted() or _came_of_interrupt(error):
            raise KeyboardInterrupt from error
        say(f"unexpected error: {type(error).__name__}: {error} (QUEUECTL_DEBUG=1 shows the traceback)")
        return FAILED
    return code


def _came_of_interrupt(error: BaseException | None) -> bool:
    """Whether an error was raised while a Ctrl-C was being handled, as argparse's own clean-up does."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _dispatch(words: list[str]) -> int:
    words, database = leading_options(words)
    if words and words[0] == "help":
        words = [*words[1:], "--help"]
    if not words or words[0] in _HELP:
        sys.stdout.write(_overview())
        return DONE if words else WRONG_USAGE
    if words[0] == "--version":
        from holdfast import __version__

        sys.stdout.write(f"queuectl {__version__}\n")
        return DONE
    if words[0] == "__complete":
        from holdfast.cli.completion import complete

        complete(words[1:])
        return DONE
    for word in words:
        if not word.isascii() and word != word.encode("utf-8", "replace").decode():
            raise UsageError(f"{word!r} is not valid UTF-8")
    if words[0] in GROUPS and (len(words) == 1 or words[1] in _HELP):
        sys.stdout.write(_overview(words[0]))
        return DONE if len(words) > 1 else WRONG_USAGE
    name, rest = find_command(words)
    return _call(load(name), name, rest, database)


def leading_options(words: list[str]) -> tuple[list[str], str | None]:
    """`--database URL` may stand before the command, too."""
    if words and words[0] == "--database":
        if len(words) == 1:
            raise UsageError("--database: expected one argument")
        return words[2:], words[1]
    if words and words[0].startswith("--database="):
        return words[1:], words[0].partition("=")[2]
    return words, None


def find_command(words: list[str]) -> tuple[str, list[str]]:
    """The command that a line names, and the words after it."""
    for length in (1, 2):
        name = " ".join(words[:length])
        if name in COMMANDS:
            return name, words[length:]
    wrong = " ".join(words[: 2 if words[0] in GROUPS else 1])
    from difflib import get_close_matches

    near = get_close_matches(wrong, COMMANDS, 1)
    hint = f"did you mean {near[0]}?" if near else "see queuectl --help"
    raise UsageError(f"unknown command {wrong!r} ({hint})")


def load(name: str) -> Command:
    """The command of a name, with its module imported."""
    # Before msgspec, whose own import of it ends in a segmentation fault if a Ctrl-C comes in between.
    import datetime  # noqa: F401
    from importlib import import_module

    module, _, attribute = COMMANDS[name].partition(":")
    found: Command = getattr(import_module(f"holdfast.cli.{module}"), attribute)
    return found


def _call(command: Command, name: str, words: list[str], database: str | None) -> int:
    try:
        arguments = command.parser(name).parse_intermixed_args(words)
    except SystemExit:  # --help has been printed
        return DONE
    if arguments.database is None:
        arguments.database = database or given_database()
    from holdfast.errors import ConfigError, HoldfastError, InvalidPayload, UnknownType

    call = Call(arguments, makes_queue=command.makes_queue)
    try:
        code = command.run(call) or DONE
    except KeyboardInterrupt:
        # Not closed: what was interrupted may be in disorder, and closing would wait for it. We end anyway.
        raise
    except UsageError as error:
        say(f"{name}: {error}")
        code = WRONG_USAGE
    except HoldfastError as error:
        say(str(error))
        code = WRONG_USAGE if isinstance(error, ConfigError | InvalidPayload | UnknownType) else FAILED
    except BaseException:
        call.close()
        raise
    call.close()
    return code


def _overview(group: str | None = None) -> str:
    from textwrap import fill

    names = [name for name in COMMANDS if group is None or name.split()[0] == group]
    width = max(len(name) for name in names)
    intro = GROUPS[group] if group else "Manage a Holdfast job queue."
    usage = f"usage: queuectl {group or ''} COMMAND [options]".replace("  ", " ")
    indent = " " * (width + 4)
    commands = [
        fill(load(name).summary, 80, initial_indent=f"  {name:<{width}}  ", subsequent_indent=indent)
        for name in names
    ]
    lines = [usage, "", intro, "", *commands, ""]
    lines += [
        "Run queuectl COMMAND --help for details and examples.",
        "Every command accepts --database URL.",
        "",
    ]
    return "\n".join(lines)
