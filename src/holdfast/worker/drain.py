"""Draining: run the pending jobs in the calling thread, for tests and scripts."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING

from holdfast import events as e
from holdfast.context import CANCELLED, LOST, Attempt
from holdfast.core.clock import lease_clock
from holdfast.core.ids import new_id
from holdfast.core.job import Status
from holdfast.core.lifecycle import Released
from holdfast.core.settings import Settings
from holdfast.errors import NestedWrite, ResultIgnored, Retry, StoreBusy
from holdfast.store.open import store_of
from holdfast.store.records import Claimed
from holdfast.system.start_marks import StartMarks
from holdfast.worker.claiming import Asked, Claiming
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.maintenance import PROMOTE_BATCH
from holdfast.worker.run import Committed, Ending, run_here
from holdfast.worker.settle import Ended, Settler
from holdfast.worker.slots import Slots
from holdfast.worker.statistics import Statistics

if TYPE_CHECKING:
    from holdfast.queue import Queue


_PATIENCE = 5.0
_PAUSE = 0.05


def drain(queue: Queue, limit: int | None, *, raise_errors: bool = False) -> int:
    """Run due and pending jobs one after another, here; return how many ran.

    Jobs that they enqueue run too; those that wait for a retry or their time do not. Timeouts are not
    enforced: there is nobody else to do so.
    """
    drainer = Drainer(queue)
    count = 0
    try:
        while (limit is None or count < limit) and drainer.run_one():
            count += 1
            # A value that is lost is a mistake in the code: whoever runs it by hand is to learn of it.
            if drainer.raised is not None and (raise_errors or isinstance(drainer.raised, ResultIgnored)):
                raise drainer.raised
    finally:
        drainer.close()
    return count


class Drainer:
    """A worker with one slot and no thread but its heartbeat's."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._store = store_of(queue)
        self._id = new_id()
        self._marks = StartMarks(self._id)
        self._attempt: Attempt | None = None
        self.raised: BaseException | None = None
        """What the last handler raised; not Retry, which is an answer rather than an error."""
        self._claiming = Claiming(queue, Slots(1, lambda _: ("", 1)), None)
        self._settler = Settler(self._id, self._store, queue.events, Statistics(self._id))
        record, _ = self._claiming.describe_worker(self._id, self.state())
        self._store.register_worker(record, [])
        self._heartbeat = Heartbeat(self._id, self._store, queue.events, self)
        self._heartbeat.start()

    def run_one(self) -> bool:
        """Run the next job; False if there is none that can start now."""
        settings = self._queue.refresh_settings()
        leased_until = lease_clock() + settings.vouched_seconds
        with self._store.transaction():
            promoted = self._store.promote_jobs(PROMOTE_BATCH)
            asked, claimed = self._claim(settings)
        for id, type in promoted:
            self._queue.events.emit(e.JobPromoted(job_id=id, type=type))
        if not claimed.claims:
            return False
        attempt = self._claiming.attempt(claimed.claims[0], asked, time.monotonic(), leased_until)
        attempt.on_progress = self._progress
        attempt.on_begin = self._marks.begin
        self._attempt = attempt
        self._settler.announce_claims(claimed.claims)
        attempt.start(self._store.now)
        try:
            ending = copy_context().run(run_here, attempt, passing=(KeyboardInterrupt,))
            self._settle(attempt, ending)
        except KeyboardInterrupt:
            self._settle(attempt, Committed() if attempt.committed else Released())
            raise
        return True

    def _claim(self, settings: Settings) -> tuple[Asked, Claimed]:
        """One job: first of those that have to run alone, because nothing else runs here."""
        suspects = self._store.list_suspect_types()
        if suspects:
            asked = self._claiming.ask_for_one(suspects, settings)
            claimed = self._claim_one(asked, settings, alone=True)
            if claimed.claims:
                return asked, claimed
        asked = self._claiming.ask(self._claiming.read_lines(settings), 1)
        return asked, self._claim_one(asked, settings)

    def _claim_one(self, asked: Asked, settings: Settings, *, alone: bool = False) -> Claimed:
        return self._store.claim_jobs(
            self._id, asked.demands, settings, limit=1, lease_seconds=settings.lease_seconds, alone=alone
        )

    def _settle(self, attempt: Attempt, ending: Ending) -> None:
        ended = [Ended(attempt, ending)]
        self.raised = None if isinstance(ended[0].exception, Retry) else ended[0].exception
        deadline = time.monotonic() + _PATIENCE
        while True:
            accepted = self._store.finish_jobs(self._settler.finishes(ended, self._queue.settings()))
            if accepted.get(ended[0].name) is not Status.PROCESSING:
                break
            if time.monotonic() > deadline:  # it may be the caller's own transaction that is in the way
                raise StoreBusy(_PATIENCE)
            time.sleep(_PAUSE)
        self._attempt = None
        self._marks.end([attempt.mark])
        self._settler.count(ended, accepted)
        self._settler.announce(ended, accepted)

    def close(self) -> None:
        self._heartbeat.stop()
        self._settler.leave()
        self._marks.close(keep=self._attempt is not None)

    # For the heartbeat.

    def lease_settings(self) -> Settings:
        return self._queue.settings()

    def state(self) -> str:
        return "draining"

    def turn_age(self) -> float:
        return 0.0

    def leased(self) -> list[Attempt]:
        return [attempt] if (attempt := self._attempt) is not None else []

    def lose(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            if not attempt.committed:
                attempt.stop_reason = LOST

    def cancel(self, claims: Collection[tuple[int, int]]) -> None:
        for attempt in self.leased():
            if attempt.name in claims:
                attempt.stop_reason = CANCELLED

    def touch(self) -> None:
        self._marks.touch()

    def forget(self) -> None:
        pass  # it will be gone soon

    def _progress(self, attempt: Attempt, fraction: float, message: str | None) -> None:
        with suppress(NestedWrite):  # inside ctx.transaction() the job is all but complete
            self._store.write_progress(self._id, [(*attempt.name, fraction, message)])
