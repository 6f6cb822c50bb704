"""What all processes under the supervisor do alike: tell it how they are, end with it, leave in order."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import msgspec

from holdfast.cli import open_closed_streams
from holdfast.errors import ConfigError, HoldfastError, UnknownType
from holdfast.worker.seat import EXIT_EXHAUSTED, EXIT_NOT_STARTED, Notice

EXIT_PATIENCE = 5.0
"""Seconds that the application's exit handlers and threads have when the work has ended."""


RECONCILE = "QUEUECTL_RECONCILE"
"""Environment that asks one process of several to compare the completed jobs with the world."""


class Notices:
    """The pipe to the supervisor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def tell(self, notice: Notice) -> None:
        with suppress(BrokenPipeError):  # the supervisor was killed
            os.write(self._descriptor, msgspec.json.encode(notice) + b"\n")

    def refuse(self, error: HoldfastError) -> int:
        """Say why nothing can be started; returns the exit code."""
        wrong_usage = isinstance(error, ConfigError | UnknownType)
        self.tell(Notice(failure=str(error), wrong_usage=wrong_usage))
        return EXIT_NOT_STARTED


def run_supervised(work: Callable[[Notices], int]) -> NoReturn:
    """Run a program whose last two arguments are the descriptors of its notices and its lifeline.

    `work` returns the exit code.
    """
    descriptors = [int(argument) for argument in sys.argv[-2:]]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    open_closed_streams()
    _settle_signals()
    threading.Thread(target=_stop_with_supervisor, args=(descriptors[1],), daemon=True).start()
    notices = Notices(descriptors[0])
    code = work(notices)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # we are leaving already
    notices.tell(Notice(exit_code=code))
    _exit(code)


def is_to_reconcile() -> bool:
    """Whether this process is the one to compare the completed jobs with the world. Asked once."""
    return os.environ.pop(RECONCILE, None) is not None


def _settle_signals() -> None:
    """Until the program listens, a signal simply ends us: no traceback. Children must be waited for."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def _stop_with_supervisor(lifeline: int) -> None:
    """The pipe ends when the supervisor has died: nobody would ever stop or replace this process."""
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _exit(code: int) -> NoReturn:
    """Leave in order, but within a bound: threads of the application may never end."""
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
