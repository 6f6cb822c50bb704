"""procrastinate: async tasks, finished jobs kept (its default), LISTEN on (its default)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector  # type: ignore[import-not-found]

CONCURRENCY = 10
"""As many at a time as our worker runs; its default is 1."""

_handle: Callable[[int], None] = print


def prepare(url: str) -> None:
    with _app(SyncPsycopgConnector(conninfo=url)).open() as app:
        app.schema_manager.apply_schema()


@contextmanager
def producer(url: str) -> Iterator[tuple[Callable[[int], None], Callable[[Iterable[int]], None]]]:
    with _app(SyncPsycopgConnector(conninfo=url)).open() as app:
        task = app.tasks["noop"]
        yield (
            lambda number: task.defer(number=number),
            lambda numbers: task.batch_defer(*({"number": number} for number in numbers)),
        )


def work(url: str, handle: Callable[[int], None]) -> None:
    global _handle
    _handle = handle

    async def run() -> None:
        async with _app(PsycopgConnector(conninfo=url)).open_async() as app:
            await app.run_worker_async(concurrency=CONCURRENCY)

    asyncio.run(run())


def _app(connector: Any) -> Any:
    app = App(connector=connector)

    @app.task(name="noop")
    async def noop(number: int) -> None:
        _handle(number)

    return app
