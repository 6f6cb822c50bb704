"""One turn of a worker: everything it has to tell the database, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.core.job import Status
from holdfast.core.lifecycle import RELEASE
from holdfast.core.settings import Settings
from holdfast.errors import CommitUncertain, StoreError
from holdfast.store.records import Activity, Claimed, Demand, Finish, Minute
from holdfast.worker.claiming import Claiming
from holdfast.worker.maintenance import Maintenance, finish_held
from holdfast.worker.outbox import Outbox, ProgressReport
from holdfast.worker.settle import Ended, Settler
from holdfast.worker.statistics import Statistics

if TYPE_CHECKING:
    from holdfast.queue import Queue

Finished = tuple[Sequence[Ended], dict[tuple[int, int], Status]]
"""Outcomes, and the state that each accepted one led to."""


class Turn:
    """Writes outcomes, does what maintenance is due, claims.

    After a StoreError the outbox offers the same outcomes again; those that got through after all are found
    out, and announced as what they are.
    """

    def __init__(
        self,
        queue: Queue,
        worker_id: str,
        outbox: Outbox,
        claiming: Claiming,
        held: Callable[[], Collection[tuple[int, int]]],
        is_steady: Callable[[], bool],
    ) -> None:
        self._worker_id = worker_id
        self._store = queue.store
        self._outbox = outbox
        self._claiming = claiming
        self._slots = claiming.slots
        self._statistics = Statistics(worker_id)
        self._settler = Settler(worker_id, self._store, queue.events, self._statistics)
        self.maintenance = Maintenance(self._store, queue.events, self._statistics, held, is_steady)
        self._finished: Finished = ((), {})
        self._uncounted: list[Finished] = []
        self.seen: Mapping[str, Activity] | None = None
        """What a look has found: it holds for as long as there is as much of it as can be taken."""
        self.goes_on = False
        """Whether there was room for more than the last turn claimed, and more jobs appear to be ready."""
        self.uncertain = False
        """Whether the last commit failed with an unknown outcome."""

    def take(
        self,
        settings: Settings,
        *,
        claim_limit: int,
        known: Callable[[], Collection[tuple[int, int]]],
        meanwhile: Callable[[], None],
    ) -> Claimed:
        """Commit everything; return the claims, which `announce` then announces."""
        ended, progress = self._outbox.gather()
        unreported: Collection[int] = ()
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
                is_due = self._statistics.is_due() or self.maintenance.is_due()
                if progress or is_due or not all(map(_is_plain, ended)):
                    meanwhile()  # this may take its time
                    minutes = self._statistics.changed() if self._statistics.is_due() else []
                    accepted |= self._store.finish_jobs(finishes)
                    finishes = []
                    unreported = self._write_more(ended, progress.values(), minutes, settings)
                    self.seen = None
                written, claimed = self._finish_and_claim(finishes, claim_limit, settings, meanwhile)
                accepted |= written
        except StoreError as error:
            self.maintenance.forget()
            self.uncertain = self.uncertain or isinstance(error, CommitUncertain)
            raise
        self.uncertain = False
        if minutes:
            self._statistics.written(self._store.now())
        self._statistics.limit(claimed.limited, self._store.now())
        held_up: list[Ended] = []
        if Status.PROCESSING in accepted.values():
            held_up = [end for end in ended if accepted.get(end.name) is Status.PROCESSING]
            ended = [end for end in ended if accepted.get(end.name) is not Status.PROCESSING]
        self._outbox.written(held_up, progress, unreported)
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
        self.maintenance.announce()
        self._settler.announce_claims(claimed.claims)

    def leave(self) -> None:
        """A worker's last write."""
        self.count()
        self._statistics.limit((), self._store.now())
        self._settler.leave()

    def _write_more(
        self,
        ended: Sequence[Ended],
        progress: Collection[ProgressReport],
        minutes: Sequence[Minute],
        settings: Settings,
    ) -> Collection[int]:
        """Write what is due besides the outcomes.

        Returns the seqs of progress reports that another open transaction blocks.
        """
        unreported = self._store.write_progress(self._worker_id, progress) if progress else ()
        if any(_waits(end) for end in ended):
            self.maintenance.look()
        self.maintenance.run(settings)
        if minutes:
            self._store.write_statistics(minutes)
        return unreported

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
        """After a commit with an unknown outcome: release the jobs that only the database says we hold."""
        held = self._store.list_held(self._worker_id)
        self._store.finish_jobs([finish_held(h, RELEASE) for h in held if (h.seq, h.version) not in known])


def _is_plain(end: Ended) -> bool:
    """Whether an outcome leaves nothing else to be done."""
    finish = end.finish
    return finish is not None and finish.decision.status is Status.COMPLETED and not finish.children


def _waits(end: Ended) -> bool:
    """Whether an outcome left something to be done at a later time."""
    if end.decision is not None and end.decision.status is Status.SCHEDULED:
        return True
    return any(child.delay is not None or child.run_at is not None for child in end.attempt.children)
