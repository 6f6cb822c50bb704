"""What every supervised program does: report its state, end with its supervisor, shut down gracefully."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

import msgspec

from holdfast.errors import ConfigError, HoldfastError, UnknownType
from holdfast.supervisor.process import EXIT_CRASHED, EXIT_EXHAUSTED, EXIT_NOT_STARTED, RECONCILE, Notice

T = TypeVar("T")

EXIT_PATIENCE = 5.0
"""Seconds that the application's exit handlers and threads get once the work has ended."""


Tell = Callable[[Notice], None]
"""Reports to the supervisor."""

Prepare = Callable[[T, Tell], Callable[[], int]]
"""Gets all ready that options ask for; what it returns does the work, and returns the exit code."""


def run_program(options: type[T], prepare: Prepare[T]) -> NoReturn:
    """Run a program whose arguments are its options and the descriptors of its notices and its lifeline."""
    told, *numbers = sys.argv[1:]
    notices, lifeline = (int(number) for number in numbers)
    for descriptor in (notices, lifeline):
        os.set_inheritable(descriptor, False)
    # Until the program listens, a signal simply ends us: no traceback. Children must be waited for.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_stop_with_supervisor, args=(lifeline,), daemon=True).start()

    def tell(notice: Notice) -> None:
        with suppress(BrokenPipeError):  # the supervisor was killed
            os.write(notices, msgspec.json.encode(notice) + b"\n")

    code = _work(msgspec.json.decode(told, type=options), prepare, tell)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # we are leaving already
    tell(Notice(exit_code=code))
    _exit(code)


def _work(options: T, prepare: Prepare[T], tell: Tell) -> int:
    try:
        work = prepare(options, tell)
    except HoldfastError as error:
        tell(Notice(failure=str(error), wrong_usage=isinstance(error, ConfigError | UnknownType)))
        return EXIT_NOT_STARTED
    try:
        return work()
    except Exception as error:
        tell(Notice(failure=f"{type(error).__name__}: {error}"))
        return EXIT_CRASHED


def is_to_reconcile() -> bool:
    """Whether this is the process that should reconcile. Can be asked once."""
    return os.environ.pop(RECONCILE, None) is not None


def _stop_with_supervisor(lifeline: int) -> None:
    """The pipe ends when the supervisor has died: nobody would ever stop or replace this process."""
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _exit(code: int) -> NoReturn:
    """Exit gracefully but within a time limit: the application's threads may never end."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # What is left in it would be written again at the end, and make the exit code 120.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if code == EXIT_EXHAUSTED:
        os._exit(code)
    last_resort = threading.Timer(EXIT_PATIENCE, os._exit, (code,))
    last_resort.daemon = True
    last_resort.start()
    sys.exit(code)
