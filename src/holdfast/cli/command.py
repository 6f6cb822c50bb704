"""The parts of a queuectl command: its arguments, its help, and the call that runs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Self

if TYPE_CHECKING:
    from holdfast.queue import Queue

_EXAMPLES = "examples:"

DONE = 0
FAILED = 1
WRONG_USAGE = 2


GIVEN_DATABASE = "QUEUECTL_GIVEN_DATABASE"
"""Passes --database to the processes that queuectl starts."""


def given_database() -> str | None:
    """The --database that was passed to whoever started this process. Can be read once."""
    return os.environ.pop(GIVEN_DATABASE, None)


class UsageError(Exception):
    """The command line is wrong; the message says how."""


class Parser(argparse.ArgumentParser):
    """argparse, except that errors are raised, as one line."""

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stdout).write(message)  # argparse would swallow a full disk

    def error(self, message: str) -> NoReturn:
        name = self.prog.removeprefix("queuectl ")
        raise UsageError(f"{name}: {message} (see {self.prog} --help)")


Declare = Callable[[Any], object]
"""Adds an argument, or several, to a parser or a group of one."""


def argument(usage: str, help: str, **options: Any) -> Declare:
    """An argument of a command: see `declare`."""
    return lambda parser: declare(parser, usage, help, **options)


def declare(parser: Any, usage: str, help: str, **options: Any) -> None:
    """Add an argument that is used like this: `--limit N` takes a value, `--full` is a flag, `id ID` stands
    alone. The options are those of argparse's `add_argument`."""
    names = usage.split()
    if len(names) > 1 and not names[-1].startswith("-"):
        options["metavar"] = names.pop()
    elif names[-1].startswith("-") and "choices" not in options:
        options["action"] = "store_true"
    parser.add_argument(*names, help=help, **options)


type_argument = argument("--type T", "only this job type and the lanes that inherit from it")
id_argument = argument("id ID", "job id")
APP = "--app PKG.MODULE:QUEUE"


class Call:
    """One call of a command: its arguments, and the queue they name, opened when it is first used.

    Unless it `makes_queue`, a command that finds none says so.
    """

    def __init__(self, arguments: argparse.Namespace, *, makes_queue: bool) -> None:
        self.arguments = arguments
        self._makes_queue = makes_queue

    @cached_property
    def queue(self) -> Queue:
        from holdfast.cli.app import make_queue

        app: str | None = getattr(self.arguments, "app", None)
        return make_queue(app, self.arguments.database, create=self._makes_queue)

    @property
    def wants_json(self) -> bool:
        return bool(self.arguments.json)

    def seconds(self, name: str) -> float:
        """The duration that an option names."""
        from holdfast.durations import parse_duration

        try:
            return parse_duration(getattr(self.arguments, name))
        except ValueError as error:
            raise UsageError(f"--{name}: {error}") from None

    def require_between(self, name: str, low: int, high: int) -> None:
        """Refuse a number that is out of bounds."""
        value = getattr(self.arguments, name)
        if not low <= value <= high:
            raise UsageError(f"--{name} must be between {low} and {high}, not {value}")

    def answer(self, value: Any, *lines: str) -> None:
        """Print the outcome: the value if JSON was requested, otherwise the lines."""
        from holdfast.cli.output import print_json, print_line

        if self.wants_json:
            print_json(value)
        else:
            for line in lines:
                print_line(line)

    def close(self) -> None:
        if "queue" in vars(self):
            self.queue.close()


class Command:
    """Makes a function a command: how its arguments are declared, and examples of its use.

    The function's docstring is its help: the first line a summary, the rest what it does. It returns the
    exit code, or nothing if all went well.
    """

    def __init__(
        self,
        *examples: str,
        arguments: tuple[Declare, ...] = (),
        prints_data: bool = True,
        makes_queue: bool = False,
    ) -> None:
        self.makes_queue = makes_queue
        self._examples = examples
        self._arguments = arguments
        self._prints_data = prints_data

    def __call__(self, run: Callable[[Call], int | None]) -> Self:
        self.run = run
        paragraphs = [" ".join(text.split()) for text in (run.__doc__ or "").split("\n\n")]
        self.summary, self._description = paragraphs[0], "\n\n".join(paragraphs)
        return self

    def parser(self, name: str) -> Parser:
        parser = Parser(
            prog=f"queuectl {name}",
            description=self._description,
            epilog="\n".join([_EXAMPLES, *(f"  {example}" for example in self._examples)]),
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        for add in self._arguments:
            add(parser)
        database_help = "database of the queue (default: QUEUECTL_DATABASE_URL, or queue.db in QUEUECTL_HOME)"
        declare(parser, "--database URL", database_help)
        if self._prints_data:
            declare(parser, "--json", "print JSON, in the format of the HTTP API")
        else:
            parser.set_defaults(json=False)
        return parser


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Wraps paragraphs, and leaves the examples as they are."""

    def __init__(self, prog: str) -> None:
        # argparse would ask shutil for the width: slow to import, and asked in every run.
        try:
            width = os.get_terminal_size().columns
        except OSError:
            width = 80
        super().__init__(prog, width=min(width, 110) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_EXAMPLES):
            return super()._fill_text(text, width, indent)
        from textwrap import fill

        return "\n\n".join(fill(paragraph, width) for paragraph in text.split("\n\n"))


def say(message: str) -> None:
    """Print a line for people, separate from the data."""
    from holdfast.text import one_line

    try:
        sys.stderr.write(f"queuectl: {one_line(message)}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # nobody is there to read it; the exit code still tells
