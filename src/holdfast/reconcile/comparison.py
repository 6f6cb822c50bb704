"""Comparing completed jobs with their actual effects.

The completed jobs of each type that can check its effects are read from last to first. Of several jobs about
the same thing, only the last is checked, so a file that a later job replaced or deleted is no discrepancy.
Differences are checked again at the end: if a job changed the same thing in the meantime, or is still
running, they don't count. Memory use is constant however many jobs there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

from msgspec import Struct, json
from msgspec.structs import replace

from holdfast.core.clock import to_datetime
from holdfast.core.filter import FINISHED_AT
from holdfast.core.job import RETRYING, Job, Status
from holdfast.errors import HoldfastError
from holdfast.handlers.handler import Reconcile
from holdfast.reconcile.report import KEPT, Covered, Discrepancy, Report
from holdfast.store.disk_memory import DiskMemory
from holdfast.store.open import store_of
from holdfast.store.records import JobFilter, Place, Placed
from holdfast.text import shown

if TYPE_CHECKING:
    from holdfast.queue import Queue

_READ = 500
_LONGEST = 4096

Progress = Callable[[int, int], None]
"""Called with the number of jobs read, and the total."""


def compare(queue: Queue, wanted: set[str], progress: Progress) -> Report:
    """The report on the requested types."""
    begun = to_datetime(store_of(queue).now())
    covered = _covered(queue)
    report = Report(
        started_at=begun,
        finished_at=begun,
        covered=[type for type in covered if type.type in wanted],
        left_out=[type.type for type in covered if type.type not in wanted and type.completed],
    )
    with DiskMemory() as memory:
        comparison = _Comparison(queue, wanted, report, memory, progress)
        comparison.walk()
        if report.differing:
            comparison.settle()
        records = islice(memory.records(), KEPT)
        report.discrepancies = [json.decode(record, type=Discrepancy) for record in records]
    report.finished_at = to_datetime(store_of(queue).now())
    return report


def checks(queue: Queue) -> dict[str, Reconcile]:
    """How to check the jobs of each type that has, or had, some."""
    handlers = {type: queue.registry.find(type) for type in store_of(queue).count_enqueued()}
    return {type: found.reconcile for type, found in handlers.items() if found and found.reconcile}


def _covered(queue: Queue) -> list[Covered]:
    counts, enqueued = store_of(queue).count_jobs(), store_of(queue).count_enqueued()
    covered = []
    for type in sorted(checks(queue)):
        first = store_of(queue).list_jobs(replace(_completed(type), ascending=True, limit=1))
        kept = counts.get(type, {})
        covered.append(
            Covered(
                type=type,
                completed=kept.get(Status.COMPLETED, 0),
                since=first[0].finished_at if first else None,
                removed=max(0, enqueued.get(type, 0) - sum(kept.values())),
            )
        )
    return covered


def _completed(type: str, since: int | None = None) -> JobFilter:
    return JobFilter(
        statuses=(Status.COMPLETED,), type=type, sort=FINISHED_AT, since=since, limit=_READ, brief=True
    )


def _pages(queue: Queue, filter: JobFilter) -> Iterator[Placed]:
    while True:
        rows, following = store_of(queue).list_placed(filter)
        yield from rows
        if following is None:
            return
        filter = replace(filter, after=following)


class _Comparison(Struct):
    """The walk over the jobs, and what it has come upon."""

    queue: Queue
    wanted: set[str]
    report: Report
    memory: DiskMemory
    progress: Progress
    newest: dict[str, Place] = {}
    done: int = 0
    total: int = 0

    def walk(self) -> None:
        """Ask about the last job for each thing, the latest first."""
        checks = self._checks()
        counts = store_of(self.queue).count_jobs()
        self.total = sum(counts.get(type, {}).get(Status.COMPLETED, 0) for type in checks)
        lists = (_pages(self.queue, _completed(type)) for type in checks)
        for placed in heapq.merge(*lists, key=lambda placed: placed.place, reverse=True):
            self.newest.setdefault(placed.job.type, placed.place)
            job = store_of(self.queue).get_job(placed.job.id)
            if job is not None and job.status is Status.COMPLETED:  # it may have been deleted meanwhile
                if job.type in self.wanted:
                    self.report.jobs += 1
                    self._ask(job, checks[job.type])
                elif subject := _subject(job, checks[job.type]):
                    self.memory.add(subject)
            self.done += 1
            self._tell()

    def settle(self) -> None:
        """Drop what a job has changed that the walk has not read, or may just be changing.

        Those at work are read first: one that completes meanwhile is then found among the completed.
        """
        for type, how in self._checks().items():
            last = self.newest.get(type)
            completed = _completed(type, since=last.key if last else None)
            for placed in chain(_pages(self.queue, _at_work(type)), _pages(self.queue, completed)):
                self._tell()
                is_read = last and placed.job.status is Status.COMPLETED and placed.place <= last
                if is_read or not placed.job.attempts:  # the latter has not begun
                    continue
                job = store_of(self.queue).get_job(placed.job.id)
                subject = job and _subject(job, how)
                if subject:
                    settled = self.memory.forget(subject)
                    self.report.unsettled += settled
                    self.report.differing -= settled

    def _tell(self) -> None:
        self.progress(self.done, max(self.total, self.done))

    def _checks(self) -> dict[str, Reconcile]:
        """How to check the types that are asked about, and those that name their subjects in the same way:
        a job of these may be the last for a thing, too."""
        of_all = checks(self.queue)
        subjects = {of_all[type].subject for type in self.wanted if type in of_all} - {None}
        return {type: how for type, how in of_all.items() if type in self.wanted or how.subject in subjects}

    def _ask(self, job: Job, how: Reconcile) -> None:
        report = self.report
        subject = job.id
        try:
            if how.subject is not None:
                subject = _text(how.subject(job))
                if not self.memory.add(subject):
                    report.superseded += 1
                    return
            problem = how.check(job)
            is_checked = True
        except (Exception, SystemExit) as error:
            problem = f"could not be checked: {_words(error)}"
            is_checked = False
        report.checked += is_checked
        if problem is None:
            return
        report.differing += is_checked
        report.unchecked += not is_checked
        found = Discrepancy(
            job_id=job.id,
            type=job.type,
            subject=subject[:_LONGEST],
            problem=_storable(str(problem))[:_LONGEST],
            completed_at=job.finished_at or job.updated_at,
            is_checked=is_checked,
        )
        # What could not be checked is not settled by a later job: it is kept under no name.
        self.memory.record(subject if is_checked else "", json.encode(found))


def _at_work(type: str) -> JobFilter:
    statuses = (Status.PROCESSING, RETRYING, Status.PENDING)
    return JobFilter(statuses=statuses, type=type, limit=_READ, brief=True)


def _subject(job: Job, how: Reconcile) -> str | None:
    """What a job is about, if that can be told: what its handler would refuse changes nothing."""
    try:
        return None if how.subject is None else _text(how.subject(job))
    except (Exception, SystemExit):
        return None


def _text(subject: object) -> str:
    if not isinstance(subject, str):
        raise TypeError(f"the subject of a job must be a string, not {shown(subject)}")
    return _storable(subject)


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
