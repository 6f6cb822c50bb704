"""The web server's process that the benchmarks start: `python -m benchmarks.server sqlite:///path [no-op]`.

Prints its port when it is up. With `no-op` jobs are not stored: all else is done, and each request is
answered as if its job had been.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

from holdfast import Queue
from holdfast.store.open import store_of
from holdfast.store.records import NewJob, Verdict
from holdfast.web import create_app
from holdfast.web.server import make_server, serve


def main() -> None:
    queue = Queue(sys.argv[1])

    @queue.job
    def posted(number: int) -> None:
        raise AssertionError("no worker handles this type")

    queue.open()
    if sys.argv[2:] == ["no-op"]:
        now = store_of(queue).now

        def insert_jobs(jobs: Sequence[NewJob], *, atomic: bool = False, wait: bool = True) -> list[Verdict]:
            moment = now()
            return [Verdict(id=job.id, inserted=True, created_at=moment) for job in jobs]

        store_of(queue).insert_jobs = insert_jobs  # type: ignore[method-assign]
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    server = make_server(
        create_app(queue),
        root_path="",
        events=queue.events,
        shutdown_seconds=5.0,
        on_started=lambda: print(listener.getsockname()[1], flush=True),
    )
    serve(server, listener)
    queue.close()


if __name__ == "__main__":
    main()
