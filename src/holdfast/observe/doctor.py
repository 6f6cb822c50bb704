"""The check-up: what is wrong with a queue or where it lives, and what to do about it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING

from holdfast.config import home_folder, stop_file
from holdfast.core.clock import to_datetime
from holdfast.observe.overview import Overview, overview
from holdfast.store.protocol import Finding

if TYPE_CHECKING:
    from holdfast.queue import Queue

_CLOCK_SLACK = 5.0
_MUCH_HISTORY = 1_000_000


def examine(queue: Queue) -> list[Finding]:
    """Everything that can be checked from here, in the order of what to mend first."""
    view = overview(queue)
    return [
        *queue.store.examine(),
        *_home(),
        *_clock(queue, view),
        *_workers(view),
        *_jobs(queue, view),
    ]


def _home() -> Iterator[Finding]:
    home = home_folder()
    if os.path.isdir(home):
        mode = os.stat(home).st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            text = f"{home} can be written by others, who could change what workers run"
            yield Finding(level="problem", check="home folder", text=text, advice=f"chmod 700 {quote(home)}")
        elif not os.access(home, os.W_OK):
            text = f"{home} can't be written, so commands keep no log"
            advice = "set QUEUECTL_HOME to a folder of your own"
            yield Finding(level="warning", check="home folder", text=text, advice=advice)
        else:
            yield Finding(level="ok", check="home folder", text=home)
    if os.path.lexists(stop_file()):
        text = f"{stop_file()} exists: no worker runs or starts"
        yield Finding(level="warning", check="workers", text=text, advice=f"rm {quote(stop_file())}")


def _clock(queue: Queue, view: Overview) -> Iterator[Finding]:
    """A job or a heartbeat from the future means that somebody's clock is wrong."""
    newest = queue.jobs(limit=1)
    moments = [job.created_at for job in newest]
    moments += [worker.heartbeat_at for worker in queue.store.list_workers() if worker.heartbeat_at]
    now = to_datetime(queue.store.now())
    ahead = max(((moment - now).total_seconds() for moment in moments), default=0.0)
    if ahead > _CLOCK_SLACK:
        text = (
            f"the database holds a time {ahead:.0f} s ahead of this machine's clock ({view.now:%H:%M:%S} UTC)"
        )
        advice = "set the clock (timedatectl, chronyc): schedules and leases follow it"
        yield Finding(level="problem", check="clock", text=text, advice=advice)
    else:
        yield Finding(
            level="ok", check="clock", text=f"{view.now:%Y-%m-%d %H:%M:%S} UTC, nothing is ahead of it"
        )


def _workers(view: Overview) -> Iterator[Finding]:
    pending, scheduled = view.counts["pending"], view.counts["scheduled"]
    if view.workers:
        yield Finding(level="ok", check="workers", text=f"{len(view.workers)} running")
    elif pending or scheduled:
        text = f"none is running, and jobs wait ({pending} pending, {scheduled} scheduled)"
        level = "problem" if pending else "warning"
        yield Finding(level=level, check="workers", text=text, advice="queuectl worker start")
    else:
        yield Finding(level="ok", check="workers", text="none is running, and no job waits")
    for type, count in view.without_worker.items():
        if view.workers:
            yield Finding(
                level="warning",
                check="types",
                text=f"{type} has waiting jobs ({count}), and no running worker handles it",
                advice="start a worker whose --app registers a handler for it, or cancel them",
            )


def _jobs(queue: Queue, view: Overview) -> Iterator[Finding]:
    if view.stuck:
        first = view.stuck[0]
        yield Finding(
            level="warning",
            check="stuck jobs",
            text=f"{len(view.stuck)}, such as {first.id} of type {first.type}",
            advice=f"queuectl show {first.id}; queuectl cancel ends it; give its type a timeout",
        )
    else:
        yield Finding(level="ok", check="stuck jobs", text="none")
    for type in view.paused:
        text = f"{type} is paused" if type else "the whole queue is paused"
        advice = f"queuectl resume{f' --type {type}' if type else ''}"
        yield Finding(level="warning", check="pauses", text=text, advice=advice)
    kept = view.counts["completed"] + view.counts["cancelled"]
    if kept > _MUCH_HISTORY and queue.settings().get("retention_completed") is None:
        text = f"{kept} finished jobs are kept for ever"
        advice = "queuectl config set retention_completed 30d"
        yield Finding(level="warning", check="history", text=text, advice=advice)
