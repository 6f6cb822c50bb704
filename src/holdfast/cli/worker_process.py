"""The program of one worker process, started by the supervisor: `python -m holdfast.cli.worker_process`."""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgspec import Struct

from holdfast.cli import open_closed_streams
from holdfast.cli.app import make_queue
from holdfast.cli.command import given_database
from holdfast.events import Event, ReconciliationFailed, WorkerStarted
from holdfast.jobs import install
from holdfast.observe.log import LogOptions
from holdfast.queue import Queue
from holdfast.supervisor.process import EXIT_CUT_SHORT, EXIT_EXHAUSTED, Notice
from holdfast.supervisor.program import Tell, is_to_reconcile, run_program


class Options(Struct, frozen=True, kw_only=True):
    """The options that a supervisor passes to every worker process."""

    app: str | None
    types: list[str] | None = None
    concurrency: int | None = None
    drain: bool = False
    log: LogOptions


def _prepare(options: Options, tell: Tell) -> Callable[[], int]:
    options.log.configure()
    queue = make_queue(options.app, given_database())
    install(queue, shell_slots=1 if options.concurrency is None else None)
    for name in options.types or ():
        queue.registry.require(name)
    worker = queue.worker(
        types=options.types, concurrency=options.concurrency, recycle=True, drain=options.drain
    )
    queue.open()

    def reconcile_once(event: Event) -> None:
        if isinstance(event, WorkerStarted) and is_to_reconcile():
            threading.Thread(target=_reconcile, args=(queue,), name="holdfast-reconcile", daemon=True).start()

    worker.on_registered = lambda: tell(Notice(worker_id=worker.id, database=queue.url))
    queue.events.subscribe(reconcile_once)

    def work() -> int:
        finished = worker.run()
        if worker.is_exhausted:
            return EXIT_EXHAUSTED
        return 0 if finished else EXIT_CUT_SHORT

    return work


def _reconcile(queue: Queue) -> None:
    """Reconcile in the background, while jobs are running."""
    from holdfast.reconcile import reconcile

    try:
        reconcile(queue, on_start=True)
    except Exception as error:
        queue.events.emit(ReconciliationFailed(error=f"{type(error).__name__}: {error}", exception=error))
    finally:
        queue.close_thread()


if __name__ == "__main__":
    open_closed_streams()
    run_program(Options, _prepare)
