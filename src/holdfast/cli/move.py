"""queuectl move: the whole queue to another database."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress

from holdfast.cli.command import DONE, Call, Parser, UsageError, command, say
from holdfast.cli.output import Column, Progress, print_json, print_table, progress_bar
from holdfast.durations import parse_duration
from holdfast.errors import MoveFailed, StoreBusy
from holdfast.store.move import Copied, End, Move, open_end

_PATIENCE = "60s"
_LOOK = 0.1


def _arguments(parser: Parser) -> None:
    parser.add_argument(
        "--to", metavar="URL", required=True, help="the database to move to; it must hold no queue yet"
    )
    parser.add_argument(
        "--timeout", metavar="S", default=_PATIENCE, help="how long to wait for running jobs (60s)"
    )


@command(
    "queuectl move --to postgresql://queue@db.example.com/jobs",
    "queuectl --database postgresql://db/jobs move --to sqlite:////var/lib/jobs/queue.db --timeout 10m",
    arguments=_arguments,
)
def move(call: Call) -> int:
    """Move the whole queue to another database, and leave the old one closed.

    No job starts while it is at it, and nothing can be enqueued; jobs that run are waited for. Everything is
    copied and compared before the queue is opened in its new place. If that fails, or is killed, the queue is
    where it was and goes on. The old database keeps its rows, and tells who still uses it where the queue is.
    """
    arguments = call.arguments
    timeout = _timeout(arguments.timeout)
    if not arguments.to.strip():
        raise UsageError("queuectl move: --to needs an address")
    began = time.monotonic()
    with (
        closing(open_end(call.queue.url, create=False)) as source,
        closing(open_end(arguments.to)) as target,
    ):
        with closing(Move(source, target)) as moving:
            copied = None if moving.finish_earlier() else _move(moving, _sweep(call), timeout)
        _report(call, source, target, copied, time.monotonic() - began)
    return DONE


def _timeout(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"queuectl move: --timeout: {error}") from None


def _move(moving: Move, sweep: Callable[[], None], timeout: float) -> list[Copied]:
    moving.start()
    with progress_bar("waiting") as progress:
        _wait_until_idle(moving, sweep, timeout, progress)
    with progress_bar("copying") as progress:
        copied = moving.copy(progress)
    moving.switch()
    return copied


def _sweep(call: Call) -> Callable[[], None]:
    """What workers do for each other: the jobs of those that died come back."""
    from holdfast.worker.maintenance import Reaper

    store = call.queue.store
    reaper = Reaper(store)

    def sweep() -> None:
        settings = call.queue.settings()
        reaper.sweep(settings.heartbeat_seconds, settings)
        reaper.looked()

    return sweep


def _wait_until_idle(moving: Move, sweep: Callable[[], None], timeout: float, progress: Progress) -> None:
    """Wait for running jobs, then close the queue to all."""
    deadline = time.monotonic() + timeout
    most = 0
    while True:
        with suppress(StoreBusy):  # somebody's long transaction is waited for, too
            running = moving.count_running()
            most = max(most, running)
            progress(most - running, most)
            if not running and moving.freeze():
                return
            sweep()
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK)
    running = moving.count_running()
    what = f"{running} jobs are still running" if running else "somebody is still writing"
    raise MoveFailed(
        f"{what} after {timeout:g} s; the queue stays where it is",
        hint="wait, stop the workers, or give it more --timeout",
    )


def _report(call: Call, source: End, target: End, copied: list[Copied] | None, seconds: float) -> None:
    if call.wants_json:
        tables = [{"name": table.name, "rows": table.rows, "digest": table.digest} for table in copied or ()]
        print_json(
            {
                "from": source.address,
                "to": target.address,
                "finishedEarlierMove": copied is None,
                "tables": tables,
                "seconds": round(seconds, 3),
            }
        )
        return
    if copied is not None:
        print_table(
            [Column("TABLE", whole=True), Column("ROWS", right=True), Column("DIGEST", whole=True)],
            [(table.name, table.rows, table.digest) for table in copied],
            empty="",
        )
    say(f"the queue is in {target.address} now; give that address to workers and applications")
