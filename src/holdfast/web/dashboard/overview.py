"""The first page: is the queue well, what does it do, and what has failed?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from holdfast.core.clock import SECOND, to_datetime
from holdfast.core.job import Status
from holdfast.observe.overview import MOST_RUNNING, stuck, without_worker
from holdfast.observe.pulse import Pulse, Tally, first_minute, pulse
from holdfast.queue import Queue
from holdfast.store.protocol import Running, WorkerRecord
from holdfast.web.dashboard import words
from holdfast.web.dashboard.page import page
from holdfast.web.dashboard.reconcile import last_differences
from holdfast.web.desk import desk_of

router = APIRouter(include_in_schema=False)

MOST_TYPES = 12
MOST_WORKERS = 20
MOST_GROUPS = 8
RECENT_FAILURES = 10
_MINUTE = 60 * SECOND
_LONG_WAIT = 30.0
"""Seconds after which it is odd that a ready job waits while nothing runs."""

_WAITING = (Status.PENDING, Status.PROCESSING)


@router.get("/")
async def overview(request: Request) -> Response:
    desk = desk_of(request)
    view = await desk.call(_look, desk.queue)
    return page(request, "overview.html", events="limit=1", **view)


def _look(queue: Queue) -> dict[str, Any]:
    """All that the page shows, read one after another."""
    store = queue.store
    now = store.now()
    moment = to_datetime(now)
    counts = queue.stats()
    workers = queue.workers(restarting=True)
    running = store.list_running(MOST_RUNNING)
    paused = sorted(store.list_paused())
    last_hour = pulse(
        store.list_statistics(first_minute(now // _MINUTE)), now // _MINUTE, now % _MINUTE / SECOND
    )
    unserved = without_worker(counts, workers)
    oldest = store.oldest_waiting()
    groups = queue.error_groups(MOST_GROUPS + 1)
    return {
        "now": moment,
        "counts": counts,
        "pulse": last_hour,
        "chart": chart(last_hour.minutes),
        "headline": headline(
            counts,
            workers,
            len(running),
            paused,
            unserved,
            None if oldest is None else (moment - oldest.since).total_seconds(),
        ),
        "is_paused": "" in paused,
        "paused_types": [type for type in paused if type],
        "workers": [_worker(worker, running) for worker in workers[:MOST_WORKERS]],
        "worker_count": len(workers),
        "slots": sum(worker.concurrency for worker in workers),
        "running_count": len(running),
        "stuck": stuck(queue, running, moment),
        "unserved": unserved,
        "differences": last_differences(queue),
        "types": type_bars(counts["by_type"]),
        "type_count": len(counts["by_type"]),
        "failures": queue.page(status="failed", sort="finished", limit=RECENT_FAILURES, brief=True).jobs,
        "groups": groups[:MOST_GROUPS],
        "has_more_groups": len(groups) > MOST_GROUPS,
        "retrying": queue.count(status="retrying", cap=words.CAP + 1),
        "oldest": oldest,
        "outlook": outlook(counts, workers, paused, unserved, last_hour),
    }


def _worker(worker: WorkerRecord, running: Sequence[Running]) -> dict[str, Any]:
    mine = [job for job in running if job.worker_id == worker.id]
    return {
        "record": worker,
        "running": mine[:3],
        "more": max(0, len(mine) - 3),
        "count": len(mine),
    }


class Headline(Struct, frozen=True):
    """The state of the whole queue in a word and a sentence. `level` is good, busy, warning or problem."""

    level: str
    word: str
    text: str


def headline(
    counts: dict[str, Any],
    workers: Sequence[WorkerRecord],
    running: int,
    paused: Sequence[str],
    unserved: dict[str, int],
    oldest_seconds: float | None = None,
) -> Headline:
    """What an operator wants to know first. No workers is not the same as busy ones."""
    pending = counts["pending"]
    slots = sum(worker.concurrency for worker in workers)
    if "" in paused:
        return Headline("warning", "Paused", f"No job starts until the queue is resumed; {_waits(pending)}.")
    if not workers:
        total = pending + counts["scheduled"] + counts["processing"]
        if total:
            return Headline(
                "problem",
                "No workers",
                f"Nothing runs the jobs: {_waits(total)}. Start one: queuectl worker start.",
            )
        return Headline("warning", "No workers", "No worker is running; nothing waits either.")
    if pending and not any(
        states[Status.PENDING] for type, states in counts["by_type"].items() if type not in unserved
    ):
        whose = "its type" if pending == 1 else "their types"
        return Headline("problem", "Not served", f"{_waits(pending)}, and no running worker handles {whose}.")
    if pending and not _runnable(counts, paused, unserved):
        return Headline(
            "warning", "Held back", f"{_waits(pending)}, only of types that are paused or not served."
        )
    if pending and not running and (oldest_seconds or 0) > _LONG_WAIT:
        return Headline(
            "warning",
            "Waiting",
            f"Nothing runs though {words.plural(slots, 'slot')} {'is' if slots == 1 else 'are'} free;"
            f" {_waits(pending)}, the oldest for"
            f" {words.seconds(oldest_seconds)}. A limit may hold them back: the oldest job's page says why.",
        )
    if running >= slots and pending:
        return Headline("busy", "Busy", f"All {words.plural(slots, 'slot')} in use; {_waits(pending)}.")
    if pending:
        return Headline(
            "busy", "Working", f"{running:,} of {words.plural(slots, 'slot')} in use; {_waits(pending)}."
        )
    if running:
        return Headline(
            "good", "Working", f"{running:,} of {words.plural(slots, 'slot')} in use; nothing waits."
        )
    return Headline("good", "Idle", "Nothing waits and nothing runs.")


def _waits(count: int) -> str:
    if not count:
        return "nothing waits"
    return "1 job waits" if count == 1 else f"{count:,} jobs wait"


def _runnable(counts: dict[str, Any], paused: Sequence[str], unserved: dict[str, int]) -> int:
    """The pending jobs whose type is neither paused nor without a worker."""
    return sum(
        states[Status.PENDING]
        for type, states in counts["by_type"].items()
        if type not in unserved and type not in paused
    )


def outlook(
    counts: dict[str, Any],
    workers: Sequence[WorkerRecord],
    paused: Sequence[str],
    unserved: dict[str, int],
    last_hour: Pulse,
) -> str:
    """When what waits will be done, at the pace of the last minutes."""
    if not counts["pending"]:
        return "nothing waits"
    if "" in paused:
        return "never: the queue is paused"
    if not workers:
        return "never: no worker runs"
    waiting = _runnable(counts, paused, unserved)
    if not waiting:
        return "never: nothing of it can run"
    left = last_hour.seconds_until_empty(waiting)
    return "not known: nothing ended lately" if left is None else f"in {words.seconds(left)}"


# Pictures.

CHART_WIDTH = 600
CHART_HEIGHT = 120


class Bar(Struct, frozen=True):
    x: float
    completed_y: float
    completed_height: float
    failed_y: float
    failed_height: float
    title: str


def chart(minutes: Sequence[Tally]) -> dict[str, Any]:
    """Stacked bars, one a minute: what completed below, what failed on top."""
    top = _round_up(max((tally.completed + tally.failed for tally in minutes), default=0))
    step = CHART_WIDTH / max(1, len(minutes))
    bars = []
    for place, tally in enumerate(minutes):
        completed = _height(tally.completed, top)
        failed = _height(tally.failed, top)
        when = to_datetime(tally.minute * _MINUTE)
        bars.append(
            Bar(
                round(place * step, 2),
                round(CHART_HEIGHT - completed, 2),
                completed,
                round(CHART_HEIGHT - completed - failed, 2),
                failed,
                f"{when:%H:%M} UTC: {tally.completed:,} completed, {tally.failed:,} failed",
            )
        )
    return {
        "bars": bars,
        "top": top,
        "width": round(step * 0.8, 2),
        "from": to_datetime(minutes[0].minute * _MINUTE) if minutes else None,
    }


def _height(count: int, top: int) -> float:
    """A bar that stands for something can be seen."""
    return max(1.5, round(count / top * CHART_HEIGHT, 2)) if count and top else 0.0


def _round_up(value: int) -> int:
    """The next 1, 2 or 5 with zeros."""
    size = 1
    while True:
        for step in (1, 2, 5):
            if step * size >= value:
                return step * size
        size *= 10


def type_bars(by_type: dict[str, dict[str, int]]) -> list[dict[str, Any]]:
    """The types with most to do, each with its counts as parts of a bar; all bars on one scale."""
    ranked = sorted(by_type.items(), key=lambda item: (-_open(item[1]), -sum(item[1].values()), item[0]))
    ranked = ranked[:MOST_TYPES]
    most = max((sum(counts.values()) for _, counts in ranked), default=0)
    bars = []
    for type, counts in ranked:
        parts = []
        x = 0.0
        for state, count in counts.items():
            width = round(100 * count / most, 2) if most else 0.0
            if count:
                parts.append({"state": state, "count": count, "x": round(x, 2), "width": max(0.4, width)})
            x += width
        bars.append({"type": type, "counts": counts, "total": sum(counts.values()), "parts": parts})
    return bars


def _open(counts: dict[str, int]) -> int:
    return sum(counts[state] for state in _WAITING) + counts[Status.FAILED]
