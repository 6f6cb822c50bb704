"""queuectl migrate, backup and move: the database that contains the queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress

from holdfast.cli.command import Call, Command, UsageError, argument, say
from holdfast.cli.output import Column, Progress, print_json, print_table, progress_bar
from holdfast.errors import MoveFailed, StoreBusy
from holdfast.store.move import Move, open_end
from holdfast.store.transfer import Copied, End

_POLL_SECONDS = 0.1


@Command("queuectl migrate", "queuectl --database postgresql://db/app migrate", makes_queue=True)
def migrate(call: Call) -> None:
    """Create the queue's tables, or upgrade them to this version."""
    call.queue.migrate()
    url = call.queue.address
    call.answer({"database": url, "upToDate": True}, f"{url} is up to date")


@Command(
    "queuectl backup /var/backups/queue.db",
    arguments=(argument("file FILE", "file to create; it must not exist yet"),),
)
def backup(call: Call) -> None:
    """Write a consistent snapshot of the queue to a file while workers keep running."""
    file = call.arguments.file
    call.queue.back_up(file)
    call.answer({"database": call.queue.address, "file": file}, file)


@Command(
    "queuectl move --to postgresql://queue@db.example.com/jobs",
    "queuectl --database postgresql://db/jobs move --to sqlite:////var/lib/jobs/queue.db --timeout 10m",
    arguments=(
        argument("--to URL", "database to move to; it must not contain a queue yet", required=True),
        argument("--timeout S", "how long to wait for running jobs (default: 60s)", default="60s"),
    ),
)
def move(call: Call) -> None:
    """Move the whole queue to another database and close the old one.

    During the move, no job starts and nothing can be enqueued; running jobs finish first. Everything is
    copied and verified before the queue opens in its new place. If the move fails or is killed, the queue
    continues where it was. The old database keeps its rows, and tells programs that still use it where the
    queue is now.
    """
    arguments = call.arguments
    timeout = call.seconds("timeout")
    if not arguments.to.strip():
        raise UsageError("--to requires an address")
    began = time.monotonic()
    with closing(open_end(call.queue.url, create=False)) as source, closing(open_end(arguments.to)) as target:
        with closing(Move(source, target)) as moving:
            from holdfast.worker.maintenance import sweeper

            copied = None if moving.finish_earlier() else _move(moving, sweeper(call.queue), timeout)
        _report(call, source, target, copied, time.monotonic() - began)


def _move(moving: Move, sweep: Callable[[], None], timeout: float) -> list[Copied]:
    moving.start()
    with progress_bar("waiting") as progress:
        _wait_until_idle(moving, sweep, timeout, progress)
    with progress_bar("copying") as progress:
        copied = moving.copy(progress)
    moving.switch()
    return copied


def _wait_until_idle(moving: Move, sweep: Callable[[], None], timeout: float, progress: Progress) -> None:
    """Wait for running jobs, then close the queue to everyone."""
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
        time.sleep(_POLL_SECONDS)
    running = moving.count_running()
    jobs = "1 job is" if running == 1 else f"{running} jobs are"
    what = f"{jobs} still running" if running else "another program is still writing to the database"
    raise MoveFailed(
        f"{what} after {timeout:g} s; the queue stays where it is",
        hint="wait, stop the workers, or increase --timeout",
    )


def _report(call: Call, source: End, target: End, copied: list[Copied] | None, seconds: float) -> None:
    if call.wants_json:
        print_json(
            {
                "from": source.address,
                "to": target.address,
                "finishedEarlierMove": copied is None,
                "tables": [
                    {"name": each.name, "rows": each.rows, "digest": each.digest} for each in copied or []
                ],
                "seconds": round(seconds, 3),
            }
        )
        return
    if copied is not None:
        print_table(
            [Column("TABLE", whole=True), Column("ROWS", right=True), Column("DIGEST", whole=True)],
            [(table.name, table.rows, table.digest) for table in copied],
        )
    say(f"the queue is now in {target.address}; use this address for workers and applications")
