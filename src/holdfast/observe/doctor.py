"""Health checks: what is wrong with a queue or its environment, and how to fix it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from shlex import quote
from typing import TYPE_CHECKING

from holdfast.config import home_folder, stop_file
from holdfast.observe.overview import Overview, overview
from holdfast.observe.words import plural
from holdfast.store.records import Finding

if TYPE_CHECKING:
    from holdfast.queue import Queue

_CLOCK_SLACK = 5.0
_MUCH_HISTORY = 1_000_000


def examine(queue: Queue) -> list[Finding]:
    """All findings, in the order in which to fix them."""
    view = overview(queue)
    return [*queue.examine(), *_home(), *_clock(queue, view), *_workers(view), *_jobs(queue, view)]


def _home() -> Iterator[Finding]:
    home = home_folder()
    if os.path.isdir(home):
        mode = os.stat(home).st_mode
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            text = f"{home} is writable by other users, who could change what workers run"
            yield Finding.problem("home folder", text, f"chmod 700 {quote(home)}")
        elif not os.access(home, os.W_OK):
            text = f"{home} is not writable, so the output of commands is not kept"
            yield Finding.warning("home folder", text, "set QUEUECTL_HOME to a folder you can write to")
        else:
            yield Finding.ok("home folder", home)
    if os.path.lexists(stop_file()):
        text = f"{stop_file()} exists, so workers stop and none can start"
        yield Finding.warning("workers", text, f"rm {quote(stop_file())}")


def _clock(queue: Queue, view: Overview) -> Iterator[Finding]:
    """A job or a heartbeat from the future means that somebody's clock is wrong."""
    moments = [job.created_at for job in queue.jobs(limit=1)]
    moments += [worker.heartbeat_at for worker in queue.known_workers() if worker.heartbeat_at]
    now = queue.now()
    ahead = max(((moment - now).total_seconds() for moment in moments), default=0.0)
    if ahead > _CLOCK_SLACK:
        clock = f"this machine's clock ({view.now:%H:%M:%S} UTC)"
        text = f"the database contains a time {ahead:.0f} s ahead of {clock}"
        advice = "correct the clock (timedatectl, chronyc): schedules and leases depend on it"
        yield Finding.problem("clock", text, advice)
    else:
        yield Finding.ok("clock", f"{view.now:%Y-%m-%d %H:%M:%S} UTC; nothing in the database is ahead of it")


def _workers(view: Overview) -> Iterator[Finding]:
    pending, scheduled = view.counts["pending"], view.counts["scheduled"]
    if view.workers:
        yield Finding.ok("workers", f"{len(view.workers)} running")
        for type, count in view.without_worker.items():
            text = f"no worker for {type} ({plural(count)} waiting)"
            advice = "start a worker whose --app registers a handler for it, or cancel the jobs"
            yield Finding.warning("types", text, advice)
    elif pending or scheduled:
        text = f"none running, but jobs are waiting ({pending} pending, {scheduled} scheduled)"
        found = Finding.problem if pending else Finding.warning
        yield found("workers", text, "queuectl worker start")
    else:
        yield Finding.ok("workers", "none running, and no jobs are waiting")


def _jobs(queue: Queue, view: Overview) -> Iterator[Finding]:
    if view.stuck:
        first = view.stuck[0]
        text = f"{len(view.stuck)}, such as {first.id} (type {first.type})"
        advice = f"queuectl show {first.id}; stop it with queuectl cancel, and give its type a timeout"
        yield Finding.warning("stuck jobs", text, advice)
    else:
        yield Finding.ok("stuck jobs", "none")
    for type in view.paused:
        text = f"{type} is paused" if type else "the whole queue is paused"
        advice = f"queuectl resume{f' --type {type}' if type else ''}"
        yield Finding.warning("pauses", text, advice)
    kept = view.counts["completed"] + view.counts["cancelled"]
    if kept > _MUCH_HISTORY and queue.settings().get("retention_completed") is None:
        text = f"{kept} finished jobs are kept forever"
        yield Finding.warning("history", text, "queuectl config set retention_completed 30d")
