"""The overview: is the queue healthy, what is it doing, and what has failed?"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from holdfast.core.clock import MINUTE, SECOND, from_datetime, to_datetime
from holdfast.core.filter import COUNTED
from holdfast.core.job import Status
from holdfast.observe import words
from holdfast.observe.overview import MOST_GROUPS, stuck, without_worker
from holdfast.observe.pulse import Pulse, pulse
from holdfast.queue import Queue
from holdfast.store.records import HOUR, Minute, Running, WorkerRecord
from holdfast.web.backend import backend_of
from holdfast.web.dashboard.page import Headline, page, query_of
from holdfast.web.dashboard.reconcile import last_differences

router = APIRouter(include_in_schema=False)

MOST_TYPES = 12
"""Types that are shown at first."""

MOST_WORKERS = 20
MOST_ERRORS = 8
RECENT_FAILURES = 10
_LONG_WAIT = 30.0
"""Seconds after which it is suspicious that a ready job waits while nothing is running."""

_OPEN = (Status.PENDING, Status.PROCESSING, Status.FAILED)


@router.get("/")
async def overview(request: Request) -> Response:
    has_all_types = query_of(request).get("types") == "all"
    view = await backend_of(request).call(_view_of, has_all_types)
    return page(request, "overview.html", events="limit=1", **view)


def _view_of(queue: Queue, has_all_types: bool) -> dict[str, Any]:
    """All that the page shows, read one after another."""
    moment = queue.now()
    now = from_datetime(moment)
    counts = queue.stats()
    workers = queue.workers(restarting=True)
    running = queue.running()
    paused = queue.paused()
    settings = queue.refresh_settings()
    held = {type: settings.limits(type).paused for type in counts["by_type"]}
    blocked = {*paused, *(type for type, names in held.items() if names)}
    last_hour = pulse(queue.statistics(HOUR - 1), now // MINUTE, now % MINUTE / SECOND)
    unserved = without_worker(counts, workers)
    oldest = queue.oldest_waiting()
    groups = queue.error_groups(MOST_ERRORS + 1)
    return {
        "now": moment,
        "counts": counts,
        "pulse": last_hour,
        "chart": chart(last_hour.minutes),
        "headline": headline(
            counts,
            workers,
            len(running),
            blocked,
            unserved,
            None if oldest is None else (moment - oldest.since).total_seconds(),
        ),
        "is_paused": "" in paused,
        "paused_types": [type for type in paused if type],
        "paused_lanes": {
            name: sum(name in names for type, names in held.items() if type != name) for name in paused
        },
        "workers": [_worker(worker, running) for worker in workers[:MOST_WORKERS]],
        "worker_count": len(workers),
        "slots": sum(worker.concurrency for worker in workers),
        "running_count": len(running),
        "stuck": stuck(queue, running, moment),
        "unserved": unserved,
        "differences": last_differences(queue),
        "types": type_bars(counts["by_type"], None if has_all_types else MOST_TYPES),
        "type_count": len(counts["by_type"]),
        "most_types": MOST_TYPES,
        "failures": queue.page(status="failed", sort="finished", limit=RECENT_FAILURES, brief=True).jobs,
        "groups": groups[:MOST_ERRORS],
        "has_more_groups": len(groups) > MOST_ERRORS,
        "retrying": queue.count(status="retrying", cap=COUNTED + 1),
        "oldest": oldest,
        "outlook": outlook(counts, workers, blocked, unserved, last_hour),
        "busiest": queue.busiest_groups(MOST_GROUPS),
    }


def _worker(worker: WorkerRecord, running: Sequence[Running]) -> dict[str, Any]:
    mine = [job for job in running if job.worker_id == worker.id]
    return {"record": worker, "running": mine[:3], "more": max(0, len(mine) - 3), "count": len(mine)}


def headline(
    counts: dict[str, Any],
    workers: Sequence[WorkerRecord],
    running: int,
    paused: Collection[str],
    unserved: dict[str, int],
    oldest_seconds: float | None = None,
) -> Headline:
    """The headline. Having no workers is different from having only busy ones.

    `paused` are the types that a pause holds, their own or that of their base; "" is the whole queue.
    """
    pending = counts["pending"]
    waiting = _waiting(pending)
    slots = sum(worker.concurrency for worker in workers)
    if "" in paused:
        return Headline("warning", "Paused", f"No jobs start until the queue is resumed; {waiting}.")
    if not workers:
        total = pending + counts["scheduled"] + counts["processing"]
        if not total:
            return Headline("warning", "No workers", "No worker is running, and no jobs are waiting.")
        text = f"No worker is running; {_waiting(total)}. Start one: `queuectl worker start`."
        return Headline("problem", "No workers", text)
    if pending and not _runnable(counts, (), unserved):
        return Headline("problem", f"No worker for {_types(unserved)}", f"{waiting.capitalize()}.")
    if pending and not _runnable(counts, paused, unserved):
        text = f"{waiting.capitalize()}, all of types that are paused or have no worker."
        return Headline("warning", "Blocked", text)
    if pending and not running and (oldest_seconds or 0) > _LONG_WAIT:
        free = f"{words.plural(slots, 'slot')} {'is' if slots == 1 else 'are'} free"
        waiting += f", the oldest for {words.seconds(oldest_seconds)}"
        advice = "A limit may be holding them back: the oldest job's page shows why."
        return Headline("warning", "Waiting", f"No jobs are running although {free}; {waiting}. {advice}")
    if running >= slots and pending:
        used = "The only slot is" if slots == 1 else f"All {slots:,} slots are"
        return Headline("busy", "Busy", f"{used} in use; {waiting}.")
    if pending or running:
        text = f"{running:,} of {words.plural(slots, 'slot')} in use; {waiting}."
        return Headline("busy" if pending else "good", "Working", text)
    return Headline("good", "Idle", "No jobs are waiting or running.")


def _waiting(count: int) -> str:
    return f"{words.plural(count)} waiting" if count else "no jobs waiting"


def _types(unserved: dict[str, int]) -> str:
    """The only type, or the number of types."""
    return f"`{next(iter(unserved))}`" if len(unserved) == 1 else f"{len(unserved):,} types"


def _runnable(counts: dict[str, Any], paused: Collection[str], unserved: dict[str, int]) -> int:
    """The pending jobs whose type is neither paused nor without a worker."""
    return sum(
        states[Status.PENDING]
        for type, states in counts["by_type"].items()
        if type not in unserved and type not in paused
    )


def outlook(
    counts: dict[str, Any],
    workers: Sequence[WorkerRecord],
    paused: Collection[str],
    unserved: dict[str, int],
    last_hour: Pulse,
) -> str:
    """How long the waiting jobs will take, at the rate of the last few minutes."""
    if not counts["pending"]:
        return "no jobs waiting"
    if "" in paused:
        return "blocked: queue paused"
    if not workers:
        return "blocked: no workers"
    waiting = _runnable(counts, paused, unserved)
    if not waiting:
        return "blocked"
    left = last_hour.seconds_until_empty(waiting)
    return "no estimate yet" if left is None else f"about {words.seconds(left)}"


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


def chart(minutes: Sequence[Minute]) -> dict[str, Any]:
    """Stacked bars, one a minute: what completed below, what failed on top."""
    top = _round_up(max((tally.completed + tally.failed for tally in minutes), default=0))
    step = CHART_WIDTH / max(1, len(minutes))
    bars = []
    for place, tally in enumerate(minutes):
        completed = _height(tally.completed, top)
        failed = _height(tally.failed, top)
        when = to_datetime(tally.minute * MINUTE)
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
        "from": to_datetime(minutes[0].minute * MINUTE) if minutes else None,
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


def type_bars(
    by_type: dict[str, dict[str, int]], most_types: int | None = MOST_TYPES
) -> list[dict[str, Any]]:
    """The types with the most to do, or all; each with its counts as parts of a bar, on one scale."""

    def rank(item: tuple[str, dict[str, int]]) -> tuple[int, int, str]:
        type, counts = item
        return -sum(counts[state] for state in _OPEN), -sum(counts.values()), type

    ranked = sorted(by_type.items(), key=rank)[:most_types]
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
