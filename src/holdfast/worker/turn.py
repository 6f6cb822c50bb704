"""One turn of a worker: everything it has to say to the database, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from holdfast import events as e
from holdfast.core.job import Status
from holdfast.core.lifecycle import RELEASE
from holdfast.core.settings import Settings
from holdfast.errors import CommitUncertain, StoreError
from holdfast.store.protocol import Activity, Claimed, Demand, Finish, Minute, Store
from holdfast.worker.claiming import Claiming
from holdfast.worker.maintenance import Maintenance
from holdfast.worker.settle import Ended, Settler
from holdfast.worker.slots import Slots
from holdfast.worker.statistics import Statistics

ProgressReport = tuple[int, int, float, str | None]
"""A report of progress: seq, version, fraction, message."""

Finished = tuple[Sequence[Ended], dict[tuple[int, int], Status]]
"""Outcomes, and the state that each accepted one led to."""


class Turn:
    """Writes outcomes, does what maintenance is due, claims.

    After a StoreError `take` is called again with the same outcomes; those that got through after all are
    found out, and announced as what they are.
    """

    def __init__(
        self,
        worker_id: str,
        store: Store,
        events: e.Events,
        claiming: Claiming,
        slots: Slots,
        maintenance: Maintenance,
        statistics: Statistics,
    ) -> None:
        self._worker_id = worker_id
        self._store = store
        self._events = events
        self._claiming = claiming
        self._slots = slots
        self._maintenance = maintenance
        self._statistics = statistics
        self._settler = Settler(worker_id, store, events, statistics)
        self._finished: Finished = ((), {})
        self._uncounted: list[Finished] = []
        self.held_up: list[Ended] = []
        """Outcomes that somebody's open transaction stands in the way of, to be offered again."""
        self.unreported: Collection[int] = ()
        """The seqs of progress reports that are to be offered again for the same reason."""
        self.seen: Mapping[str, Activity] | None = None
        """What a look has found: it holds for as long as there is as much of it as can be taken."""
        self.goes_on = False
        """Whether there was room for more than the last turn took, and as it seems more to take."""
        self.uncertain = False
        """Whether the last commit failed and may have happened all the same."""

    def take(
        self,
        ended: Sequence[Ended],
        progress: Collection[ProgressReport],
        settings: Settings,
        *,
        claim_limit: int,
        known: Callable[[], Collection[tuple[int, int]]],
        meanwhile: Callable[[], None],
    ) -> Claimed:
        """Commit it all; return the claims, which `announce` then tells of."""
        self._slots.measure()
        try:
            with self._store.transaction():
                accepted: dict[tuple[int, int], Status] = {}
                if self.uncertain:
                    self._release_unknown(known())
                    accepted = self._settler.written_already(ended)
                    self.seen = None
                # Finish before claiming: an outcome is durable before anything new is taken.
                finishes = self._settler.finishes(ended, settings)
                minutes: list[Minute] = []
                is_due = self._statistics.is_due() or self._maintenance.is_due()
                if progress or is_due or not all(map(_is_plain, ended)):
                    meanwhile()  # this may take its time
                    minutes = self._statistics.due()
                    accepted |= self._store.finish_jobs(finishes)
                    finishes = []
                    self._write_more(ended, progress, minutes, settings)
                    self.seen = None
                written, claimed = self._finish_and_claim(finishes, claim_limit, settings, meanwhile)
                accepted |= written
        except StoreError as error:
            self._maintenance.forget()
            self.uncertain = self.uncertain or isinstance(error, CommitUncertain)
            raise
        self.uncertain = False
        if minutes:
            self._statistics.written(self._store.now())
        self._statistics.limit(claimed.limited, self._store.now())
        self.held_up = []
        if Status.PROCESSING in accepted.values():
            self.held_up = [end for end in ended if accepted.get(end.name) is Status.PROCESSING]
            ended = [end for end in ended if accepted.get(end.name) is not Status.PROCESSING]
        self._finished = ended, accepted
        self._uncounted.append(self._finished)
        return claimed

    def count(self) -> None:
        """Note in the statistics what turns have committed since it was last done."""
        while self._uncounted:
            self._settler.count(*self._uncounted.pop(0))

    def announce(self, claimed: Claimed) -> None:
        """Tell what `take` committed."""
        finished, self._finished = self._finished, ((), {})
        self._settler.announce(*finished)
        self._maintenance.announce()
        if claimed.claims and self._events.wanted(e.JobClaimed):
            for claim in claimed.claims:
                self._events.emit(
                    e.JobClaimed(
                        job_id=claim.id, type=claim.type, attempt=claim.attempts, worker_id=self._worker_id
                    )
                )

    def leave(self) -> None:
        """The last write of a worker."""
        self.count()
        self._statistics.limit((), self._store.now())
        with self._store.transaction():
            self._store.write_statistics(self._statistics.changed())
            self._store.remove_workers([self._worker_id])

    def _write_more(
        self,
        ended: Sequence[Ended],
        progress: Collection[ProgressReport],
        minutes: Sequence[Minute],
        settings: Settings,
    ) -> None:
        """What has to be written now and then beside the outcomes."""
        if progress:
            self.unreported = self._store.write_progress(self._worker_id, progress)
        if any(_waits(end) for end in ended):
            self._maintenance.look()
        self._maintenance.run(settings)
        if minutes:
            self._store.write_statistics(minutes)

    def _finish_and_claim(
        self, finishes: Sequence[Finish], limit: int, settings: Settings, meanwhile: Callable[[], None]
    ) -> tuple[dict[tuple[int, int], Status], Claimed]:
        room, at_once = self._slots.total_room()
        room = min(limit, room)
        limit = min(room, at_once) if self._store.is_shared else room
        demands = self._demands(settings) if limit > 0 else []
        written, claimed = self._store.finish_and_claim(
            finishes,
            self._worker_id,
            demands,
            limit=limit,
            lease_seconds=settings.lease_seconds,
            meanwhile=meanwhile,
        )
        had_enough = 0 < len(claimed.claims) == min(limit, sum(demand.limit for demand in demands))
        self.goes_on = len(claimed.claims) == limit < room
        if not had_enough:
            self.seen = None
        return written, claimed

    def _demands(self, settings: Settings) -> list[Demand]:
        if self.seen is not None:
            demands = self._claiming.demands(self.seen, settings)
            # For limits over all processes it is to be known exactly which types are active.
            if not any(demand.rate or demand.max_running for demand in demands):
                return demands
        self.seen = self._store.list_active_types()
        return self._claiming.demands(self.seen, settings)

    def _release_unknown(self, known: Collection[tuple[int, int]]) -> None:
        """After a commit in doubt: give back what the database says is ours and we know nothing of."""
        unknown = [h for h in self._store.list_held(self._worker_id) if (h.seq, h.version) not in known]
        self._store.finish_jobs(
            [
                Finish(
                    seq=held.seq,
                    version=held.version,
                    worker_id=self._worker_id,
                    attempt=held.attempts,
                    decision=RELEASE,
                    started_at=held.started_at,
                )
                for held in unknown
            ]
        )


def _is_plain(end: Ended) -> bool:
    """Whether an outcome leaves nothing else to be done."""
    finish = end.finish
    return finish is not None and finish.decision.status is Status.COMPLETED and not finish.children


def _waits(end: Ended) -> bool:
    """Whether an outcome left something to be done at a later time."""
    if end.decision is not None and end.decision.status is Status.SCHEDULED:
        return True
    return any(child.delay is not None or child.run_at is not None for child in end.attempt.children)
