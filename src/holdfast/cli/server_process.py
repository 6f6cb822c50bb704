"""The program of the web server's process, started by `serve`: `python -m holdfast.cli.server_process`."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from msgspec import Struct

from holdfast.cli import open_closed_streams
from holdfast.cli.app import make_queue
from holdfast.cli.command import given_database
from holdfast.errors import DatabaseReplaced
from holdfast.events import ServerStarted
from holdfast.jobs import install
from holdfast.observe.log import LogOptions
from holdfast.supervisor.process import EXIT_CRASHED, EXIT_CUT_SHORT, Notice
from holdfast.supervisor.program import Tell, is_to_reconcile, run_program

TOKEN, READ_TOKEN = "QUEUECTL_TOKEN", "QUEUECTL_READ_TOKEN"
"""The variables that pass tokens to the server: anyone could read them in its arguments."""

_POLL_SECONDS = 1.0
"""Seconds between two checks that the database file is still in place."""


class Options(Struct, frozen=True, kw_only=True):
    """The server process's options; tokens are passed in the environment."""

    app: str | None
    allow_types: list[str]
    allowed_hosts: list[str]
    root_path: str
    enqueue_rate: float
    needs_workers: bool
    log: LogOptions
    descriptor: int
    address: str


def _prepare(options: Options, tell: Tell) -> Callable[[], int]:
    from holdfast.web import create_app
    from holdfast.web.reconciler import Asked
    from holdfast.web.server import make_server, serve

    handler = options.log.configure()
    for name in ("uvicorn.error", "asyncio"):
        foreign = logging.getLogger(name)
        foreign.addHandler(handler)
        foreign.propagate = False
        foreign.setLevel(logging.ERROR)  # below that it tells of every client's nonsense
    # Taken out of the environment: the application's own code has no use for them.
    token, read_token = os.environ.pop(TOKEN, None), os.environ.pop(READ_TOKEN, None)
    queue = make_queue(options.app, given_database())
    install(queue)
    queue.open()
    app = create_app(
        queue,
        token,
        read_token,
        options.allowed_hosts,
        options.allow_types,
        enqueue_rate=options.enqueue_rate,
        needs_workers=options.needs_workers,
    )
    shutdown_seconds = float(queue.settings().get("shutdown_timeout"))

    def tell_started() -> None:
        tell(Notice(database=queue.url))
        queue.events.emit(ServerStarted(address=options.address, pid=os.getpid()))
        if is_to_reconcile():
            app.state.backend.reconciler.start(Asked(on_start=True))

    def leave(code: int) -> NoReturn:
        """Exit at once, without waiting for threads that wait for the database."""
        tell(Notice(exit_code=code))
        logging.shutdown()
        os._exit(code)

    def watch_place() -> None:
        """Check the database now and then: an idle server would otherwise fail its next request."""
        while True:
            time.sleep(_POLL_SECONDS)
            try:
                queue.check_place()
            except DatabaseReplaced as error:
                tell(Notice(failure=str(error)))
                leave(EXIT_CRASHED)

    def work() -> int:
        threading.Thread(target=watch_place, daemon=True).start()
        # Before and after the server listens to them itself.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: leave(0))
        os.set_inheritable(options.descriptor, False)
        server = make_server(
            app,
            root_path=options.root_path,
            events=queue.events,
            shutdown_seconds=shutdown_seconds,
            on_started=tell_started,
        )
        if not serve(server, socket.socket(fileno=options.descriptor)):
            leave(EXIT_CUT_SHORT)
        queue.close()
        return 0

    return work


if __name__ == "__main__":
    open_closed_streams()
    run_program(Options, _prepare)
