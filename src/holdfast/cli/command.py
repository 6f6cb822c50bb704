"""What a command of queuectl is made of: its arguments, its help, and the call that runs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from holdfast.queue import Queue

_EXAMPLES = "examples:"

DONE = 0
FAILED = 1
WRONG_USAGE = 2


GIVEN_DATABASE = "QUEUECTL_GIVEN_DATABASE"
"""In the environment of the processes that queuectl starts: the --database it was given."""


class UsageError(Exception):
    """The command line is wrong. The message says how, and where help is."""


class Parser(argparse.ArgumentParser):
    """argparse, but for its errors: one line, raised."""

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stdout).write(message)  # argparse would swallow a full disk

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} (see {self.prog} --help)")


class Call:
    """One call of a command: its arguments, and the queue they name, opened when it is first used.

    Unless it `makes_queue`, a command that finds none says so.
    """

    def __init__(self, arguments: argparse.Namespace, *, makes_queue: bool = False) -> None:
        self.arguments = arguments
        self._makes_queue = makes_queue
        self._queue: Queue | None = None

    @property
    def queue(self) -> Queue:
        if self._queue is None:
            from holdfast.queue import Queue

            self._queue = Queue(self.arguments.database, create=self._makes_queue)
        return self._queue

    @property
    def wants_json(self) -> bool:
        return bool(self.arguments.json)

    def close(self) -> None:
        if self._queue is not None:
            self._queue.close()


class Command:
    """A command: the function that runs it, and how its arguments are declared.

    The function's docstring is its help: the first line a summary, the rest what it does.
    """

    def __init__(
        self,
        run: Callable[[Call], int],
        *,
        arguments: Callable[[Parser], None],
        examples: tuple[str, ...],
        prints_data: bool,
        makes_queue: bool,
    ) -> None:
        self.run = run
        self.makes_queue = makes_queue
        self._arguments = arguments
        self._examples = examples
        self._prints_data = prints_data
        self.summary, _, details = (run.__doc__ or "").strip().partition("\n")
        paragraphs = [self.summary, *details.strip().split("\n\n")] if details else [self.summary]
        self._description = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

    def parser(self, name: str) -> Parser:
        parser = Parser(
            prog=f"queuectl {name}",
            description=self._description,
            epilog="\n".join([_EXAMPLES, *(f"  {example}" for example in self._examples)]),
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        self._arguments(parser)
        parser.add_argument(
            "--database",
            metavar="URL",
            help="the queue's database (QUEUECTL_DATABASE_URL, or queue.db in the home)",
        )
        if self._prints_data:
            parser.add_argument("--json", action="store_true", help="print JSON, as the HTTP API answers")
        else:
            parser.set_defaults(json=False)
        return parser


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Fills paragraphs, and leaves the examples as they are."""

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


def command(
    *examples: str,
    arguments: Callable[[Parser], None] = lambda _: None,
    prints_data: bool = True,
    makes_queue: bool = False,
) -> Callable[[Callable[[Call], int]], Command]:
    """Make a function a command."""

    def decorate(run: Callable[[Call], int]) -> Command:
        return Command(
            run, arguments=arguments, examples=examples, prints_data=prints_data, makes_queue=makes_queue
        )

    return decorate


def type_argument(parser: Parser) -> None:
    parser.add_argument("--type", metavar="T", help="only for jobs of this type")


def for_each(ids: list[str], action: Callable[[str], Any]) -> tuple[list[Any], int]:
    """Do something for each id: what came of those that worked, and the exit code. Each failure is a line."""
    from holdfast.errors import ConfigError, HoldfastError, InvalidPayload, StoreError

    done, code = [], DONE
    for id in ids:
        try:
            done.append(action(id))
        except (StoreError, ConfigError, InvalidPayload):
            raise  # not about this one
        except HoldfastError as error:
            say(str(error))
            code = FAILED
    return done, code


def say(message: str) -> None:
    """A line for people, beside the data."""
    from holdfast.errors import one_line

    try:
        sys.stderr.write(f"queuectl: {one_line(message)}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # nobody is there to read it; the exit code still tells
