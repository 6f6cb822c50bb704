"""Gathering what `why` needs to know about one job."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.explain import Facts
from holdfast.core.filter import COUNTED
from holdfast.core.job import Job, Status, base_type
from holdfast.core.settings import Settings
from holdfast.store.protocol import Store
from holdfast.store.records import Line, WorkerRecord


def facts_about(job: Job, store: Store, settings: Settings, workers: Sequence[WorkerRecord]) -> Facts:
    """What the queue knows that is relevant to a job; `workers` are those alive."""
    paused = store.list_paused()
    able = [w for w in workers if job.type in w.types or base_type(job.type) in w.types]
    rate = settings.resolve("rate_limit", job.type)
    cap = settings.resolve("max_running", job.type)
    running = {type: counts[Status.PROCESSING] for type, counts in store.count_jobs().items()}
    line = store.line_before(job.id, COUNTED) if job.status is Status.PENDING else Line(0, False)
    holder = next((w for w in workers if w.id == job.worker_id), None)
    return Facts(
        now=store.now(),
        worker=None if holder is None else f"{holder.host} (pid {holder.pid})",
        paused_all="" in paused,
        paused_type=job.type in paused,
        workers=len(workers),
        workers_for_type=len(able),
        slots_for_type=sum(_slots_for(job.type, worker, settings) for worker in able),
        running=running.get(job.type, 0),
        slots=sum(worker.concurrency for worker in workers),
        running_in_all=sum(running.values()),
        max_running=cap.value,
        running_under_cap=sum(
            count
            for type, count in running.items()
            if settings.resolve("max_running", type).source == cap.source
        ),
        rate_limit=rate.value,
        rate_wait=store.get_rate_wait(rate.source, rate.value) if rate.value else 0.0,
        ahead=line.ahead,
        ahead_capped=line.capped,
    )


def slots_of(worker: WorkerRecord, settings: Settings) -> int:
    """The jobs that a worker can run at a time, all its types together."""
    return min(worker.concurrency, sum(_slots_for(type, worker, settings) for type in worker.types))


def _slots_for(type: str, worker: WorkerRecord, settings: Settings) -> int:
    """The jobs of a type that a worker runs at a time: as stored for the type, else as its code says."""
    for name in (type, base_type(type)):
        if ("concurrency", name) in settings.stored:
            return min(worker.concurrency, int(settings.get("concurrency", name)))
    return min(worker.concurrency, worker.slots.get(base_type(type), worker.concurrency))
