"""The program of one worker process, started by the supervisor: `python -m holdfast.cli.worker_process`."""

from __future__ import annotations

import sys
import threading

import msgspec
from msgspec import Struct

from holdfast.cli.app import given_database, make_queue
from holdfast.cli.supervised import Notices, is_to_reconcile, run_supervised
from holdfast.errors import HoldfastError
from holdfast.events import Event, ReconciliationFailed, WorkerStarted
from holdfast.jobs import install
from holdfast.observe import log
from holdfast.queue import Queue
from holdfast.worker.seat import EXIT_CRASHED, EXIT_CUT_SHORT, EXIT_EXHAUSTED, Notice


class Options(Struct, frozen=True, kw_only=True):
    """What every worker process of a supervisor is told."""

    app: str | None
    types: list[str] | None
    concurrency: int | None
    drain: bool
    log_format: str


def main() -> None:
    run_supervised(lambda notices: _work(msgspec.json.decode(sys.argv[1], type=Options), notices))


def _work(options: Options, notices: Notices) -> int:
    log.configure(options.log_format)
    try:
        queue = make_queue(options.app, given_database())
        install(queue, shell_slots=1 if options.concurrency is None else None)
        for name in options.types or ():
            queue.registry.require(name)
        worker = queue.worker(
            types=options.types, concurrency=options.concurrency, recycle=True, drain=options.drain
        )
        queue.open()
    except HoldfastError as error:
        return notices.refuse(error)

    def tell_started(event: Event) -> None:
        if isinstance(event, WorkerStarted):
            notices.tell(Notice(worker_id=event.worker_id, database=queue.url))
            if is_to_reconcile():
                threading.Thread(
                    target=_reconcile, args=(queue,), name="holdfast-reconcile", daemon=True
                ).start()

    queue.events.subscribe(tell_started)
    try:
        finished = worker.run()
    except Exception as error:
        notices.tell(Notice(failure=f"{type(error).__name__}: {error}"))
        return EXIT_CRASHED
    if worker.is_exhausted:
        return EXIT_EXHAUSTED
    return 0 if finished else EXIT_CUT_SHORT


def _reconcile(queue: Queue) -> None:
    """Compare the completed jobs with the world, beside the work."""
    from holdfast.reconcile import reconcile

    store = queue.store  # later it may be closed, and asking for it would open it again
    try:
        reconcile(queue, on_start=True)
    except Exception as error:
        queue.events.emit(ReconciliationFailed(error=f"{type(error).__name__}: {error}", exception=error))
    finally:
        store.close_thread()


if __name__ == "__main__":
    main()
