"""The program of the web server's process, started by `serve`: `python -m holdfast.cli.server_process`."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import msgspec
from msgspec import Struct

from holdfast.cli.app import given_database, make_queue
from holdfast.cli.serve import READ_TOKEN, TOKEN
from holdfast.cli.supervised import Notices, is_to_reconcile, run_supervised
from holdfast.errors import DatabaseReplaced, HoldfastError
from holdfast.events import ServerStarted
from holdfast.jobs import install
from holdfast.observe import log
from holdfast.store.protocol import Store
from holdfast.worker.seat import EXIT_CRASHED, EXIT_CUT_SHORT, Notice

_LOOK = 1.0
"""Seconds between two looks whether the database is still in its place."""


class Options(Struct, frozen=True, kw_only=True):
    """What the server's process is told; tokens come by the environment."""

    app: str | None
    allow_types: list[str]
    allowed_hosts: list[str]
    root_path: str
    enqueue_rate: float
    needs_workers: bool
    log_format: str
    descriptor: int
    address: str


def main() -> None:
    run_supervised(lambda notices: _serve(msgspec.json.decode(sys.argv[1], type=Options), notices))


def _serve(options: Options, notices: Notices) -> int:
    from holdfast.web import create_app
    from holdfast.web.reconciler import Asked
    from holdfast.web.server import make_server, serve

    handler = log.configure(options.log_format)
    for name in ("uvicorn.error", "asyncio"):
        foreign = logging.getLogger(name)
        foreign.addHandler(handler)
        foreign.propagate = False
        foreign.setLevel(logging.ERROR)  # below that it tells of every client's nonsense
    # Taken out of the environment: the application's own code has no use for them.
    token, read_token = os.environ.pop(TOKEN, None), os.environ.pop(READ_TOKEN, None)
    try:
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
    except HoldfastError as error:
        return notices.refuse(error)

    def tell_started() -> None:
        queue.events.emit(ServerStarted(address=options.address, pid=os.getpid()))
        notices.tell(Notice(database=queue.url))
        if is_to_reconcile():
            app.state.desk.reconciler.start(Asked(on_start=True))

    def leave(code: int) -> NoReturn:
        """At once: threads that wait for the database are not waited for."""
        notices.tell(Notice(exit_code=code))
        logging.shutdown()
        os._exit(code)

    def leave_replaced(error: DatabaseReplaced) -> None:
        notices.tell(Notice(failure=str(error)))
        leave(EXIT_CRASHED)

    threading.Thread(target=_watch_place, args=(queue.store, leave_replaced), daemon=True).start()
    # Before and after the server listens to them itself.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: leave(0))
    os.set_inheritable(options.descriptor, False)
    try:
        server = make_server(
            app,
            root_path=options.root_path,
            events=queue.events,
            shutdown_seconds=shutdown_seconds,
            on_started=tell_started,
        )
        finished = serve(server, socket.socket(fileno=options.descriptor))
    except Exception as error:
        notices.tell(Notice(failure=f"{type(error).__name__}: {error}"))
        return EXIT_CRASHED
    if not finished:
        leave(EXIT_CUT_SHORT)
    queue.close()
    return 0


def _watch_place(store: Store, on_replaced: Callable[[DatabaseReplaced], None]) -> None:
    """A server without a request does not use its database, and would greet the next one with an error."""
    while True:
        time.sleep(_LOOK)
        try:
            store.check_place()
        except DatabaseReplaced as error:
            on_replaced(error)


if __name__ == "__main__":
    main()
