"""procrastinate: async tasks, finished jobs kept and LISTEN on (its defaults), 10 jobs at a time (its default
is 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector  # type: ignore[import-not-found]

from benchmarks.queues import tally
from benchmarks.queues.place import ADDRESS, CONCURRENCY, SERVER_SETTINGS, Producer

PACKAGE = "procrastinate"


def _app(connector: Any) -> Any:
    app = App(connector=connector)

    @app.task(name="noop")
    async def noop(number: int) -> None:
        tally.count()

    @app.task(name="note")
    async def note(number: int) -> None:
        tally.note(number)

    return app


app = _app(PsycopgConnector(conninfo=ADDRESS))


def setup() -> None:
    with _app(SyncPsycopgConnector(conninfo=ADDRESS)).open() as opened:
        opened.schema_manager.apply_schema()


@contextmanager
def producer() -> Iterator[Producer]:
    with _app(SyncPsycopgConnector(conninfo=ADDRESS)).open() as opened:
        noop, note = opened.tasks["noop"], opened.tasks["note"]
        yield Producer(
            lambda number: noop.defer(number=number),
            lambda number: note.defer(number=number),
            lambda numbers: noop.batch_defer(*({"number": number} for number in numbers)),
        )


def durability() -> str:
    with _app(SyncPsycopgConnector(conninfo=ADDRESS)).open() as opened:
        return str(opened.connector.execute_query_one(f"{SERVER_SETTINGS} AS settings")["settings"])


def command(processes: int) -> list[str]:
    return ["procrastinate", "--app", f"{__name__}.app", "worker", "--concurrency", str(CONCURRENCY)]
