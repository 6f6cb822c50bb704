"""The program of one worker process, started by the supervisor: `python -m holdfast.cli.worker_process`."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import NoReturn

import msgspec
from msgspec import Struct

from holdfast.cli import open_closed_streams
from holdfast.cli.app import load_app
from holdfast.errors import ConfigError, HoldfastError, UnknownType
from holdfast.events import Event, WorkerStarted
from holdfast.jobs import install
from holdfast.observe import log
from holdfast.queue import Queue
from holdfast.worker.seat import EXIT_CRASHED, EXIT_CUT_SHORT, EXIT_EXHAUSTED, EXIT_NOT_STARTED, Notice

EXIT_PATIENCE = 5.0
"""Seconds that the application's exit handlers and threads have when the worker has ended."""


class Options(Struct, frozen=True, kw_only=True):
    """What every worker process of a supervisor is told."""

    database: str | None
    app: str | None
    types: list[str] | None
    concurrency: int | None
    drain: bool
    log_format: str


def main() -> NoReturn:
    options = msgspec.json.decode(sys.argv[1], type=Options)
    notices, lifeline = int(sys.argv[2]), int(sys.argv[3])
    for descriptor in (notices, lifeline):
        os.set_inheritable(descriptor, False)
    open_closed_streams()
    _settle_signals()
    threading.Thread(target=_stop_with_supervisor, args=(lifeline,), daemon=True).start()
    log.configure(options.log_format)
    code = _work(options, notices)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # we are leaving already
    _tell(notices, Notice(exit_code=code))
    _exit(code)


def _work(options: Options, notices: int) -> int:
    try:
        queue = make_queue(options)
        worker = queue.worker(
            types=options.types, concurrency=options.concurrency, recycle=True, drain=options.drain
        )
        queue.open()
    except HoldfastError as error:
        wrong_usage = isinstance(error, ConfigError | UnknownType)
        _tell(notices, Notice(failure=str(error), wrong_usage=wrong_usage))
        return EXIT_NOT_STARTED

    def tell_started(event: Event) -> None:
        if isinstance(event, WorkerStarted):
            _tell(notices, Notice(worker_id=event.worker_id, database=queue.url))

    queue.events.subscribe(tell_started)
    try:
        finished = worker.run()
    except Exception as error:
        _tell(notices, Notice(failure=f"{type(error).__name__}: {error}"))
        return EXIT_CRASHED
    if worker.is_exhausted:
        return EXIT_EXHAUSTED
    return 0 if finished else EXIT_CUT_SHORT


def make_queue(options: Options) -> Queue:
    """The application's queue, or one of our own; --database beats what the application says."""
    if options.app is None:
        queue = Queue(options.database)
    else:
        queue = load_app(options.app)
        if options.database is not None:
            queue.close()
            queue.url = options.database
    install(queue, shell_slots=1 if options.concurrency is None else None)
    for type in options.types or ():
        queue.registry.require(type)
    return queue


def _tell(notices: int, notice: Notice) -> None:
    with suppress(BrokenPipeError):  # the supervisor was killed
        os.write(notices, msgspec.json.encode(notice) + b"\n")


def _settle_signals() -> None:
    """Until the worker listens, a signal simply ends us, without a traceback. Children must be waited for."""
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
            continue
    if code == EXIT_EXHAUSTED:
        os._exit(code)
    last_resort = threading.Timer(EXIT_PATIENCE, os._exit, (code,))
    last_resort.daemon = True
    last_resort.start()
    sys.exit(code)


if __name__ == "__main__":
    main()
