"""Retrying, cancelling and deleting jobs; settings, pauses, and the database as a whole."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Unpack

from msgspec.structs import replace

from holdfast.config import SETTINGS, SettingName, Value, find_setting, parse_setting
from holdfast.core import check
from holdfast.core.clock import microseconds
from holdfast.core.filter import Filter, FilterWords, Moment, as_filter, read_moment
from holdfast.core.job import UNFINISHED, Job, Status, check_type, require_possible_id
from holdfast.durations import parse_duration
from holdfast.events import (
    JobCancelled,
    JobCancelRequested,
    JobDeleted,
    JobRetried,
    JobsPruned,
    QueuePaused,
    QueueResumed,
    SettingChanged,
)
from holdfast.listing import pages as listing
from holdfast.queue.reading import Reading
from holdfast.store.database import BREATH
from holdfast.store.prune import PrunePass
from holdfast.store.records import StopRequest

if TYPE_CHECKING:
    from holdfast.listing.actions import Acted, Action

_BATCH = 500
"""Jobs that a long operation changes in one commit."""


class Operating(Reading):
    """Operations on jobs and on the queue."""

    def retry(self, job_id: str, payload: object = None) -> Job:
        """Run a job again from its first attempt: one that failed, was cancelled or waits for a retry."""
        require_possible_id(job_id)
        text, key = None, None
        if payload is not None:
            text, key = self.admission.admit_again(self.require(job_id), payload, self.settings())
        job = self._with_limit(self._store.retry_job(job_id, text, key))
        self.events.emit(JobRetried(job_id=job.id, type=job.type))
        return job

    def retry_all(
        self, filter: Filter | None = None, *, limit: int | None = None, **words: Unpack[FilterWords]
    ) -> tuple[int, int]:
        """Retry every failed job, or the jobs that match a filter; at most `limit` of them.

        Returns how many were retried, and how many were skipped because another job holds their key or
        their state does not allow it.
        """
        chosen = _of_states(as_filter(filter, words), Status.FAILED)
        if limit is None and chosen == Filter(status=Status.FAILED, type=chosen.type, sort=chosen.sort):
            return self._retry_failed(chosen.type)
        return self._act_on_all("retry", chosen, limit)

    def cancel_all(
        self, filter: Filter | None = None, *, limit: int | None = None, **words: Unpack[FilterWords]
    ) -> tuple[int, int]:
        """Cancel every unfinished job, or the jobs that match a filter; at most `limit` of them.

        Waiting jobs are cancelled now, running ones are asked to stop. Returns how many jobs that was, and
        how many were skipped because they had finished.
        """
        return self._act_on_all("cancel", _of_states(as_filter(filter, words), *UNFINISHED), limit)

    def _act_on_all(self, action: Action, filter: Filter, limit: int | None) -> tuple[int, int]:
        most = None if limit is None else check.whole_number("limit", limit, listing.AMOUNTS)
        # Those there now: what is done to one may make it fit, or fit no more.
        made = self.act(action, list(islice(listing.walk(self._store, filter), most)))
        return made.done, made.refused

    def act(self, action: Action, job_ids: Iterable[str], *, kept: int = 100) -> Acted:
        """Retry, cancel or delete jobs; those that can't be are skipped, and the first `kept` named."""
        from holdfast.listing.actions import act

        ids = iter(check.items("job_ids", job_ids, "ids"))
        most = check.whole_number("kept", kept, listing.AMOUNTS)
        return act(self._store, self.events, action, ids, kept=most)

    def _retry_failed(self, type: str | None) -> tuple[int, int]:
        count, left = 0, 0
        after: int | None = 0
        while after is not None:
            examined, retried, after = self._store.retry_failed_jobs(type, after=after, limit=_BATCH)
            count += len(retried)
            left += examined - len(retried)
            for job_id, its_type in retried:
                self.events.emit(JobRetried(job_id=job_id, type=its_type))
            time.sleep(BREATH if after is not None else 0.0)
        return count, left

    def cancel(self, job_id: str) -> Job:
        """Cancel a waiting job now; ask a running one to stop."""
        require_possible_id(job_id)
        job = self._with_limit(self._store.cancel_job(job_id))
        event = JobCancelRequested if job.is_asked_to_stop else JobCancelled
        self.events.emit(event(job_id=job.id, type=job.type))
        return job

    async def cancel_async(self, job_id: str) -> Job:
        """`cancel` for asyncio. Once started, it completes even if it is no longer awaited."""
        return await self._threads.run(partial(self.cancel, job_id))

    def delete(self, job_id: str) -> None:
        """Delete a finished job and its history."""
        require_possible_id(job_id)
        job = self._store.get_job(job_id)
        self._store.delete_job(job_id)
        if job is not None:
            self.events.emit(JobDeleted(job_id=job.id, type=job.type))

    def cleanup(self, older_than: Moment | float) -> int:
        """Delete completed and cancelled jobs that finished before then, and return how many."""
        return self._prune(older_than, (Status.COMPLETED, Status.CANCELLED))

    def purge(self, older_than: Moment | float) -> int:
        """Delete failed jobs that finished before then, and return how many."""
        return self._prune(older_than, (Status.FAILED,))

    def _prune(self, older_than: Moment | float, statuses: tuple[Status, ...]) -> int:
        before = self._instant_before(older_than)
        total = 0
        prune_pass = PrunePass()
        while True:
            pruned = self._store.prune_jobs(
                finished_before=before, statuses=statuses, limit=_BATCH, prune_pass=prune_pass
            )
            total += len(pruned)
            if pruned:
                self.events.emit(JobsPruned(count=len(pruned), job_ids=pruned))
            if prune_pass.is_over:
                return total
            time.sleep(BREATH)

    def _instant_before(self, older_than: Moment | float) -> int:
        with suppress(ValueError, OverflowError):  # seconds may be a number alone
            older_than = timedelta(seconds=parse_duration(older_than))
        moment = read_moment("older_than", older_than)
        if isinstance(moment, timedelta):
            return self._store.now() - microseconds(moment.total_seconds())
        return check.instant("older_than", moment)

    # Settings.

    def config(self, type: str | None = None) -> dict[str, Value]:
        """The value in effect of every setting, for a type or for the whole queue."""
        chosen = _type_or_all(type)
        settings = self.refresh_settings()
        return {name: settings.get(name, chosen) for name in sorted(SETTINGS)}

    def set_config(self, key: SettingName, value: Value | timedelta, type: str | None = None) -> None:
        """Store a setting; running workers apply it within a second."""
        name, parsed = parse_setting(key, value, type=type)
        self._store.set_setting(name, _type_or_all(type), parsed)
        self.refresh_settings()
        self.events.emit(SettingChanged(key=name, value=parsed, type=type))

    def unset_config(self, key: SettingName, type: str | None = None) -> None:
        """Remove a stored setting, so that the next level down applies."""
        name = find_setting(key, type=type).name
        self._store.unset_setting(name, _type_or_all(type))
        self.refresh_settings()
        self.events.emit(SettingChanged(key=name, value=self.settings().get(name, type or ""), type=type))

    def set_rate_limit(self, rate: float, type: str | None = None) -> None:
        """Limit how many jobs start per second, across all processes; 0 means unlimited."""
        self.set_config("rate_limit", rate, type)

    def pause(self, type: str | None = None) -> None:
        """Pause the queue, or one job type, on every worker. Running jobs finish."""
        self._store.set_paused(_type_or_all(type), True)
        self.events.emit(QueuePaused(type=type))

    def resume(self, type: str | None = None) -> None:
        """Undo `pause` with the same argument."""
        self._store.set_paused(_type_or_all(type), False)
        self.events.emit(QueueResumed(type=type))

    # The database.

    def records(self, name: str) -> dict[str, Value]:
        """Values that a surface stores in the database under its own name (not a setting's), by id."""
        return {id: value for (known, id), value in self._store.get_settings().items() if known == name}

    def keep_record(self, name: str, id: str, value: Value) -> None:
        self._store.set_setting(name, id, value)

    def drop_record(self, name: str, id: str) -> None:
        self._store.unset_setting(name, id)

    def stop_workers(self, worker_ids: Iterable[str], *, at_once: bool = False) -> None:
        """Ask workers to stop: gracefully, or at once."""
        ids = [check.printable_text("worker_id", id) for id in check.items("worker_ids", worker_ids, "ids")]
        self._store.request_stop(ids, StopRequest.AT_ONCE if at_once else StopRequest.IN_ORDER)

    def back_up(self, path: str) -> None:
        """Write a complete copy of the database as it is now to a new file."""
        self._store.back_up(path)


def _of_states(filter: Filter, *statuses: Status) -> Filter:
    """The filter with its own states, or with these if it names none."""
    return filter if filter.statuses else replace(filter, status=statuses)


def _type_or_all(type: str | None) -> str:
    return "" if type is None else check_type(type)
