"""Whether the world is still as the completed jobs left it: looked at and told, never repaired.

The completed jobs of each type that knows how to check its effects are read from the last to the first. Of
those about one thing only the last is asked, so a file that a later job replaced or deleted is no
discrepancy. What differs is looked at again at the end: a job that changed the same thing meanwhile, or has
begun to and is not over yet, settles it. Memory stays flat however many jobs there are.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from msgspec import DecodeError, Struct, json, to_builtins
from msgspec.structs import replace

from holdfast.core.clock import to_datetime
from holdfast.core.job import RETRYING, Job, Status, base_type
from holdfast.errors import ConfigError, HoldfastError, StoreError, shown
from holdfast.events import DiscrepancyFound, Reconciled, ReconciliationFailed
from holdfast.handler import Reconcile
from holdfast.store.protocol import FINISHED_AT, JobFilter, Place, Placed
from holdfast.store.scratch import Scratch

if TYPE_CHECKING:
    from holdfast.queue import Queue

KEPT = 1000
"""Discrepancies that a report lists; it counts them all."""

_READ = 500
_LONGEST = 4096

Progress = Callable[[int, int], None]
"""Is told how many of how many jobs have been read."""


class Discrepancy(Struct, frozen=True, kw_only=True, rename="camel"):
    """A completed job whose effect is not there, or could not be checked."""

    job_id: str
    type: str
    subject: str
    problem: str
    completed_at: datetime
    is_checked: bool


class Covered(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a report can speak of: the completed jobs of a type that are still kept, from the first on.

    `removed` is how many jobs of the type are no longer kept, in whichever state they ended.
    """

    type: str
    completed: int
    since: datetime | None
    removed: int


class Report(Struct, kw_only=True, rename="camel"):
    """What came of a reconciliation.

    `left_out` are types with completed jobs that were not asked about. Of the `jobs` read, `checked` were
    compared with the world. `superseded` were followed by a later job for the same thing; `unsettled`
    differed, but a job for the same thing is at work.
    """

    started_at: datetime
    finished_at: datetime
    covered: list[Covered]
    left_out: list[str] = []
    jobs: int = 0
    checked: int = 0
    superseded: int = 0
    unsettled: int = 0
    differing: int = 0
    unchecked: int = 0
    discrepancies: list[Discrepancy] = []

    @property
    def is_clean(self) -> bool:
        return not self.differing and not self.unchecked


def reconcile(
    queue: Queue,
    *,
    types: Sequence[str] | None = None,
    on_start: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> Report:
    """Compare the completed jobs with the world, and keep the report in the database.

    With `on_start` only the checks that are meant for it. What `progress` raises ends it.
    """
    started = time.monotonic()
    report = _compare(queue, _wanted(queue, types, on_start=on_start), progress)
    for found in report.discrepancies:
        queue.events.emit(
            DiscrepancyFound(
                job_id=found.job_id, type=found.type, subject=found.subject, problem=found.problem
            )
        )
    _keep(queue, report)
    queue.events.emit(
        Reconciled(
            jobs=report.jobs,
            checked=report.checked,
            differing=report.differing,
            unchecked=report.unchecked,
            seconds=time.monotonic() - started,
        )
    )
    return report


def _compare(queue: Queue, wanted: set[str], progress: Progress) -> Report:
    begun = to_datetime(queue.store.now())
    covered = _covered(queue)
    report = Report(
        started_at=begun,
        finished_at=begun,
        covered=[type for type in covered if type.type in wanted],
        left_out=[type.type for type in covered if type.type not in wanted and type.completed],
    )
    with Scratch() as scratch:
        comparison = _Comparison(queue, wanted, report, scratch, progress)
        comparison.walk()
        if report.differing:
            comparison.settle()
        records = islice(scratch.records(), KEPT)
        report.discrepancies = [json.decode(record, type=Discrepancy) for record in records]
    report.finished_at = to_datetime(queue.store.now())
    return report


def _keep(queue: Queue, report: Report) -> None:
    try:
        queue.store.write_reconciliation(json.encode(report).decode())
    except StoreError as error:
        queue.events.emit(
            ReconciliationFailed(error=f"its report could not be kept: {error}", exception=error)
        )


def last_report(queue: Queue) -> Report | None:
    """The report of the last reconciliation, whichever process made it; None if there is none we can read."""
    text = queue.store.read_reconciliation()
    try:
        return None if text is None else json.decode(text, type=Report)
    except DecodeError:
        return None


def as_json(report: Report) -> dict[str, Any]:
    """A report as the HTTP API and `queuectl --json` show it."""
    shape: dict[str, Any] = to_builtins(report)
    return shape


def checkable_types(queue: Queue) -> list[str]:
    """The types whose handlers here know how to check their effects."""
    return sorted(handler.type for handler in queue.registry.handlers() if handler.reconcile is not None)


def require_checkable(queue: Queue, types: Iterable[str]) -> None:
    """Raise ConfigError for a type whose handler here can't check its effects."""
    for type in types:
        handler = queue.registry.find(type)
        if handler is None or handler.reconcile is None:
            allowed = ", ".join(checkable_types(queue)) or "none"
            raise ConfigError(f"jobs of type {shown(type)} can't be checked here; those that can: {allowed}")


def _wanted(queue: Queue, types: Sequence[str] | None, *, on_start: bool) -> set[str]:
    """The types to ask about."""
    if types is not None and not types:
        raise ConfigError("types= names no type; leave it out to check all")
    require_checkable(queue, types or ())
    return {
        type
        for type, how in _checks(queue).items()
        if (types is None or type in types or base_type(type) in types) and (how.on_start or not on_start)
    }


def _checks(queue: Queue) -> dict[str, Reconcile]:
    """How to check the jobs of each type that has, or had, some."""
    handlers = {type: queue.registry.find(type) for type in queue.store.count_enqueued()}
    return {type: found.reconcile for type, found in handlers.items() if found and found.reconcile}


def _covered(queue: Queue) -> list[Covered]:
    counts, enqueued = queue.store.count_jobs(), queue.store.count_enqueued()
    covered = []
    for type in sorted(_checks(queue)):
        first = queue.store.list_jobs(replace(_completed(type), ascending=True, limit=1))
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
        rows, following = queue.store.list_placed(filter)
        yield from rows
        if following is None:
            return
        filter = replace(filter, after=following)


class _Comparison:
    """The walk over the jobs, and what it has come upon."""

    def __init__(
        self, queue: Queue, wanted: set[str], report: Report, scratch: Scratch, progress: Progress
    ) -> None:
        self._queue = queue
        self._wanted = wanted
        self._report = report
        self._scratch = scratch
        self._progress = progress
        self._newest: dict[str, Place] = {}
        self._done = self._total = 0

    def walk(self) -> None:
        """Ask about the last job for each thing, the latest first."""
        checks = self._checks()
        counts = self._queue.store.count_jobs()
        self._total = sum(counts.get(type, {}).get(Status.COMPLETED, 0) for type in checks)
        lists = (_pages(self._queue, _completed(type)) for type in checks)
        for placed in heapq.merge(*lists, key=lambda placed: placed.place, reverse=True):
            self._newest.setdefault(placed.job.type, placed.place)
            job = self._queue.store.get_job(placed.job.id)
            if job is not None and job.status is Status.COMPLETED:  # it may have been deleted meanwhile
                if job.type in self._wanted:
                    self._report.jobs += 1
                    self._ask(job, checks[job.type])
                elif subject := _subject(job, checks[job.type]):
                    self._scratch.add(subject)
            self._done += 1
            self._tell()

    def settle(self) -> None:
        """Drop what a job has changed that the walk has not read, or may just be changing.

        Those at work are read first: one that completes meanwhile is then found among the completed.
        """
        for type, how in self._checks().items():
            last = self._newest.get(type)
            completed = _completed(type, since=last.key if last else None)
            for placed in chain(_pages(self._queue, _at_work(type)), _pages(self._queue, completed)):
                self._tell()
                is_read = last and placed.job.status is Status.COMPLETED and placed.place <= last
                if is_read or not placed.job.attempts:  # the latter has not begun
                    continue
                job = self._queue.store.get_job(placed.job.id)
                subject = job and _subject(job, how)
                if subject:
                    settled = self._scratch.forget(subject)
                    self._report.unsettled += settled
                    self._report.differing -= settled

    def _tell(self) -> None:
        self._progress(self._done, max(self._total, self._done))

    def _checks(self) -> dict[str, Reconcile]:
        """How to check the types that are asked about, and those that name their subjects in the same way:
        a job of these may be the last for a thing, too."""
        checks = _checks(self._queue)
        subjects = {checks[type].subject for type in self._wanted if type in checks} - {None}
        return {type: how for type, how in checks.items() if type in self._wanted or how.subject in subjects}

    def _ask(self, job: Job, how: Reconcile) -> None:
        report = self._report
        subject = job.id
        try:
            if how.subject is not None:
                subject = _text(how.subject(job))
                if not self._scratch.add(subject):
                    report.superseded += 1
                    return
            problem = how.check(job)
            is_checked = True
        except (Exception, SystemExit) as error:
            problem = f"it could not be checked: {_words(error)}"
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
        self._scratch.record(subject if is_checked else "", json.encode(found))


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
        raise TypeError(f"the subject of a job is text, not {shown(subject)}")
    return _storable(subject)


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
