"""Gathering what `why` needs to know about one job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.config import Value
from holdfast.core.explain import Situation
from holdfast.core.filter import COUNTED
from holdfast.core.job import Job, Status, base_type
from holdfast.core.settings import Settings
from holdfast.core.starting import Room
from holdfast.store.protocol import Store
from holdfast.store.records import JobsAhead, WorkerRecord


def situation_of(job: Job, store: Store, settings: Settings, workers: Sequence[WorkerRecord]) -> Situation:
    """What the queue knows that is relevant to a job; `workers` are those alive."""
    able = [w for w in workers if job.type in w.types or base_type(job.type) in w.types]
    usage = store.read_usage()
    ahead = store.count_ahead(job.id, COUNTED) if job.status is Status.PENDING else JobsAhead(0, False)
    holder = next((w for w in workers if w.id == job.worker_id), None)
    own = [_as_worker(worker, settings) for worker in able]
    return Situation(
        now=store.now(),
        worker=None if holder is None else f"{holder.host} (pid {holder.pid})",
        holds=tuple(Room(settings, usage, store.now()).holds(job.type, job.group)),
        workers=len(workers),
        workers_for_type=len(able),
        slots_for_type=sum(_slots_for(job.type, each, w) for w, each in zip(able, own, strict=True)),
        running=_running_beside(job.type, usage.running, own[0]) if own else 0,
        slots=sum(worker.concurrency for worker in workers),
        running_in_all=sum(usage.running.values()),
        losses=store.count_losses(job.id) if job.status is Status.PENDING else 0,
        ahead=ahead.count,
        ahead_capped=ahead.is_capped,
        fair=settings.limits(job.type).fair,
    )


def slots_of(worker: WorkerRecord, settings: Settings) -> int:
    """The jobs that a worker can run at a time, all its types together: those that share slots count once."""
    own = _as_worker(worker, settings)
    shared = {own.limits(type).slots.name: _slots_for(type, own, worker) for type in worker.types}
    return min(worker.concurrency, sum(shared.values()))


def _as_worker(worker: WorkerRecord, settings: Settings) -> Settings:
    """The settings as a worker has them: its code says how many slots its types have."""

    def declared(name: str) -> Mapping[str, Value]:
        return {"concurrency": worker.slots[name]} if name in worker.slots else {}

    return Settings(settings.stored, declared)


def _slots_for(type: str, own: Settings, worker: WorkerRecord) -> int:
    slots = own.limits(type).slots
    return min(worker.concurrency, int(slots.size)) if slots.name else worker.concurrency


def _running_beside(type: str, running: Mapping[str, int], own: Settings) -> int:
    """How many jobs run of this type, and of those that share a number of slots with it: not that of all."""
    name = own.limits(type).slots.name
    return sum(
        n for each, n in running.items() if each == type or (name and own.limits(each).slots.name == name)
    )
