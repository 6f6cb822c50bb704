"""queuectl status: the queue at a glance, once or as a live view."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from typing import Any

from holdfast.cli.command import Call, Command, argument
from holdfast.cli.output import Column, console, on_terminal, print_json, print_line, table
from holdfast.core.job import Status
from holdfast.errors import StoreError
from holdfast.listing.why import slots_of
from holdfast.observe import shapes, words
from holdfast.observe.overview import Overview, Rates, overview
from holdfast.queue import Queue
from holdfast.store.records import Running, WorkerRecord
from holdfast.text import one_line

_REFRESH = 1.0


@Command(
    "queuectl status",
    "queuectl status --watch",
    arguments=(argument("-w --watch", "live view; press Ctrl-C to exit"),),
)
def status(call: Call) -> None:
    """Show job counts, workers, stuck jobs, and job types without a worker."""
    if call.arguments.watch:
        _watch(call)
    else:
        _print_status(call, overview(call.queue))


def _print_status(call: Call, view: Overview) -> None:
    if call.wants_json:
        print_json(shapes.overview(view), compact=bool(call.arguments.watch))
    elif on_terminal():
        out = console()
        out.print(_screen(call.queue, view, out.width))
    else:
        for line in _plain(view):
            print_line(*line)
    sys.stdout.flush()


def _watch(call: Call) -> None:
    if call.wants_json or not on_terminal():
        while True:
            _print_status(call, overview(call.queue))
            time.sleep(_REFRESH)
    from rich.live import Live
    from rich.text import Text

    with Live(console=console(), screen=True, auto_refresh=False) as live:
        while True:
            try:
                shown = _screen(call.queue, overview(call.queue), live.console.width, live.console.height)
            except StoreError as error:  # a full disk or a locked file may pass
                shown = Text(one_line(str(error)), style="red")
            live.update(shown, refresh=True)
            time.sleep(_REFRESH)


def _plain(view: Overview) -> list[tuple[object, ...]]:
    lines: list[tuple[object, ...]] = [(state.value, view.counts[state]) for state in Status]
    lines.append(("workers", view.counts["workers"]))
    for type, counts in view.counts["by_type"].items():
        lines.append(("type", type, *(f"{state.value} {counts[state]}" for state in Status)))
    for group in view.groups:
        counts = f"waiting {group.waiting}", f"running {group.running}"
        lines.append(("group", group.group, f"type {group.type}", *counts))
    lines += [(word,) for word in _notices(view)]
    return lines


def _notices(view: Overview) -> list[str]:
    """What needs attention, one sentence each."""
    notices = []
    for type in view.paused:
        notices.append(f"type {type} is paused" if type else "the whole queue is paused")
    for type, count in view.without_worker.items():
        if view.workers:
            notices.append(f"no worker for {type} ({_waiting(count)})")
    if view.without_worker and not view.workers:
        notices.append(f"no worker is running ({_waiting(sum(view.without_worker.values()))})")
    for job in view.stuck[:5]:
        running_for = words.age(job.started_at, view.now)
        notices.append(f"{job.id} ({job.type}) has been running for {running_for} and may be stuck")
    if len(view.stuck) > 5:
        notices.append(f"{words.plain_plural(len(view.stuck) - 5, 'more job')} may be stuck")
    if view.oldest is not None:
        waited = words.age(view.oldest.since, view.now)
        notices.append(f"oldest waiting job: {view.oldest.id} ({view.oldest.type}), waiting for {waited}")
    return notices


def _waiting(count: int) -> str:
    return f"{words.plain_plural(count, 'job')} waiting"


def _screen(queue: Queue, view: Overview, width: int, height: int | None = None) -> Any:
    """All of it, for a terminal. On a live screen of so many lines what matters most comes first."""
    from rich.console import Group
    from rich.text import Text

    notices = [Text(one_line(notice), style="yellow") for notice in _notices(view)]
    if view.workers:
        workers = table(WORKER_COLUMNS, worker_rows(queue, view.workers, view.running, view.now), width)
    else:
        workers = Text("no worker is running", style="bright_black")
    if height is None:
        groups = [Text(), _group_table(view, width)] if view.groups else []
        return Group(_type_table(view, width, None), *groups, Text(), workers, Text(), *notices)
    head = Text(f"{view.now:%Y-%m-%d %H:%M:%S} UTC, press Ctrl-C to exit", style="bright_black")
    above = [head, *notices, Text()]
    below = 1 + min(workers.plain.count("\n") + 1, height // 3)
    room = height - sum(max(1, -(-len(part) // width)) for part in above) - below
    types = _type_table(view, width, room)
    return Group(*above, types, Text(), workers)


def _type_table(view: Overview, width: int, room: int | None) -> Any:
    """Counts and rates by type; if there isn't room for all, the busiest, and one line for the rest."""
    columns = [Column("TYPE"), *(Column(state.value.upper(), right=True, whole=True) for state in Status)]
    columns += [Column("DONE/S", right=True, whole=True), Column("FAILED/S", right=True, spare=True)]
    by_type = view.counts["by_type"]
    shown = list(by_type)
    if room is not None and len(shown) > room - 2:
        shown = sorted(shown, key=lambda type: _business(by_type[type]), reverse=True)[: max(1, room - 3)]
    rows = [_type_row(type, by_type[type], view.rates.get(type, Rates())) for type in shown]
    everything = "all" if len(shown) == len(by_type) else f"all ({len(by_type)})"
    rows.append(_type_row(everything, view.counts, *view.rates.values()))
    return table(columns, rows, width)


def _group_table(view: Overview, width: int) -> Any:
    """The groups with the most jobs waiting or running."""
    columns = [Column("GROUP"), Column("TYPE"), *(Column(n, right=True) for n in ("WAITING", "RUNNING"))]
    return table(columns, [(g.group, g.type, g.waiting, g.running) for g in view.groups], width)


def _business(counts: dict[str, int]) -> tuple[int, int]:
    return counts["pending"] + counts["processing"], sum(counts.values())


def _type_row(name: str, counts: dict[str, Any], *rates: Rates) -> list[object]:
    completed = sum(rate.completed for rate in rates)
    failed = sum(rate.failed + rate.retried for rate in rates)
    return [name, *(counts[state] for state in Status), _rate(completed), _rate(failed)]


def _rate(value: float) -> str:
    return "0" if not value else f"{value:.2f}" if value < 10 else f"{value:.0f}"


WORKER_COLUMNS = (
    Column("ID", whole=True),
    Column("PID", right=True, whole=True),
    Column("HOST", spare=True),
    Column("STATE"),
    Column("UP", right=True, spare=True),
    Column("HEARTBEAT", right=True, whole=True),
    Column("SLOTS", right=True, whole=True),
    Column("RUNNING", below=True),
)


def worker_rows(
    queue: Queue, workers: list[WorkerRecord], running: list[Running], now: datetime
) -> list[tuple[object, ...]]:
    settings = queue.settings()
    jobs: dict[str, list[str]] = {worker.id: [] for worker in workers}
    for job in running:
        jobs.setdefault(job.worker_id, []).append(job.id)
    return [
        (
            worker.id,
            worker.pid,
            worker.host,
            worker.state,
            words.age(worker.started_at, now),
            words.age(worker.heartbeat_at, now),
            f"{len(jobs[worker.id])}/{slots_of(worker, settings)}",
            ", ".join(jobs[worker.id]),
        )
        for worker in workers
    ]
