"""One turn of a worker: everything it has to tell the database, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.job import Status
from holdfast.core.lifecycle import RELEASE
from holdfast.core.settings import Settings
from holdfast.core.starting import Lines
from holdfast.errors import CommitUncertain, StoreError
from holdfast.store.open import store_of
from holdfast.store.records import Claimed, Minute
from holdfast.worker.claiming import Asked, Claiming
from holdfast.worker.maintenance import Maintenance, finish_held
from holdfast.worker.outbox import Outbox, ProgressReport
from holdfast.worker.settle import Ended, Settler
from holdfast.worker.statistics import Statistics
from holdfast.worker.suspects import Suspects

if TYPE_CHECKING:
    from holdfast.queue import Queue


LONGEST_LOOK = 0.005
"""Seconds that a look for types may take within a transaction, where others wait for its end."""


class Taken(Struct):
    """What a turn has written and claimed, and how the next one goes on from there."""

    ended: Sequence[Ended] = ()
    accepted: dict[tuple[int, int], Status] = {}
    """The state that each accepted outcome led to."""
    asked: Asked = Asked([])
    claimed: Claimed = Claimed([])
    lines: Lines | None = None
    """Where the claim has left the lines, if there was as much in them as could be taken."""
    goes_on: bool = False
    """Whether there was room for more than was claimed, and more jobs appear to be ready; or more is to be
    written."""


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
        self._store = store_of(queue)
        self._outbox = outbox
        self._claiming = claiming
        self._slots = claiming.slots
        self._statistics = Statistics(worker_id)
        self._settler = Settler(worker_id, self._store, queue.events, self._statistics)
        self.maintenance = Maintenance(self._store, queue.events, self._statistics, held, is_steady)
        self._uncounted: list[Taken] = []
        self.uncertain = False
        """Whether the last commit failed with an unknown outcome."""

    @contextmanager
    def take(
        self,
        settings: Settings,
        lines: Lines | None,
        *,
        claim_limit: int,
        known: Collection[tuple[int, int]],
    ) -> Iterator[Taken]:
        """Commit everything. What is given is filled in at the end of the block, and `announce` tells of it.

        The block is for what can be done meanwhile: where there is a server, it is at work. `lines` are those
        of the last look, while there was as much in them as could be taken. `known` are the attempts that
        this process knows of; they are asked for only if the last commit is `uncertain`.
        """
        ended, progress = self._outbox.gather()
        unreported: Collection[int] = ()
        self._slots.measure()
        taken = Taken()
        is_whole = False
        try:
            if lines is None and claim_limit and self._reads_before() and self._slots.total_room()[0]:
                lines = self._claiming.read_lines(settings)
            leaves_more = self.maintenance.is_due() or not all(map(_is_plain, ended))
            is_plain = not (leaves_more or progress or self._statistics.is_due())
            # Where there is a server, the commit goes out with what is finished and claimed.
            is_whole = is_plain and self._store.is_shared and not self.uncertain
            with nullcontext() if is_whole else self._store.transaction():
                accepted: dict[tuple[int, int], Status] = {}
                if self.uncertain:
                    self._release_unknown(known)
                    accepted = self._settler.written_already(ended)
                    lines = None
                # Finish before claiming: an outcome is durable before anything new is taken.
                finishes = self._settler.finishes(ended, settings)
                minutes: list[Minute] = []
                if not is_plain:
                    yield taken  # first: this may take its time
                    minutes = self._statistics.portion() if self._statistics.is_due() else []
                    accepted |= self._store.finish_jobs(finishes)
                    finishes = []
                    self._settler.find_committed(ended, accepted)
                    unreported = self._write_more(ended, progress.values(), minutes, settings)
                if leaves_more and not self._reads_before():
                    lines = None
                claim = self._prepare_claim(lines, claim_limit, settings)
                with self._store.finish_and_claim(
                    finishes,
                    self._worker_id,
                    claim.asked.demands,
                    settings,
                    limit=claim.limit,
                    lease_seconds=settings.lease_seconds,
                    is_whole=is_whole,
                ) as answer:
                    if is_plain:
                        yield taken
                accepted |= answer.ended
                self._fill_in(taken, answer.claimed, claim, settings)
        except StoreError as error:
            self.maintenance.forget()
            # A turn that commits as a whole may have done so before it failed.
            self.uncertain = self.uncertain or is_whole or isinstance(error, CommitUncertain)
            raise
        self.uncertain = False
        if minutes:
            self._statistics.written(self._store.now())
        self._statistics.limit(taken.claimed.limited, self._store.now())
        taken.goes_on = taken.goes_on or self._statistics.goes_on
        held_up: list[Ended] = []
        if Status.PROCESSING in accepted.values():
            held_up = [end for end in ended if accepted.get(end.name) is Status.PROCESSING]
            ended = [end for end in ended if accepted.get(end.name) is not Status.PROCESSING]
        self._outbox.written(held_up, progress, unreported)
        taken.ended, taken.accepted = ended, accepted
        self._uncounted.append(taken)

    def take_alone(self, suspects: Suspects, settings: Settings) -> Taken:
        """Claim a job that has to run alone, in a commit of its own."""
        try:
            asked, claimed = suspects.claim(self._worker_id, settings)
        except CommitUncertain:
            self.uncertain = True
            raise
        return Taken(asked=asked, claimed=claimed)

    def count(self) -> None:
        """Note in the statistics what turns have committed since it was last done."""
        while self._uncounted:
            taken = self._uncounted.pop(0)
            self._settler.count(taken.ended, taken.accepted)

    def announce(self, taken: Taken) -> bool:
        """Tell what was committed. Returns whether there was anything to tell."""
        self._settler.announce(taken.ended, taken.accepted)
        has_maintained = self.maintenance.announce()
        self._settler.announce_claims(taken.claimed.claims)
        return has_maintained or bool(taken.ended or taken.claimed.claims)

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
            self.maintenance.read_next_due()
        self.maintenance.run(settings)
        if minutes:
            self._store.write_statistics(minutes)
        return unreported

    def _reads_before(self) -> bool:
        """Whether to read the lines before the transaction: that takes time, and others wait for its end.

        Jobs that the transaction itself makes ready are then left to the next search.
        """
        return self._claiming.looked_for > LONGEST_LOOK and not self._store.is_shared

    def _prepare_claim(self, lines: Lines | None, limit: int, settings: Settings) -> _Claim:
        room, at_once = self._slots.total_room()
        room = min(limit, room)
        limit = min(room, at_once) if self._store.is_shared else room
        if limit <= 0:
            return _Claim(room, 0, lines, Asked([]))
        lines = self._claiming.read_lines(settings) if lines is None else lines
        return _Claim(room, limit, lines, self._claiming.ask(lines, limit))

    def _fill_in(self, taken: Taken, claimed: Claimed, claim: _Claim, settings: Settings) -> None:
        """Note what a claim has brought; if what was asked for was in the way of others, ask for these."""
        lines, limit, asked = claim.lines, claim.limit, claim.asked
        limited = asked.limited | claimed.limited
        were_in_the_way = _advance(lines, asked, claimed)
        if lines and were_in_the_way and not claimed.claims:
            with self._store.transaction():
                while lines and were_in_the_way and not claimed.claims:
                    asked = self._claiming.ask(lines, limit)
                    claimed = self._store.claim_jobs(
                        self._worker_id,
                        asked.demands,
                        settings,
                        limit=limit,
                        lease_seconds=settings.lease_seconds,
                    )
                    limited |= asked.limited | claimed.limited
                    were_in_the_way = _advance(lines, asked, claimed)
        waits = [wait for wait in (asked.wait, claimed.wait) if wait is not None]
        wait = self._claiming.until_next(min(waits, default=None), limited, settings)
        taken.asked, taken.claimed = asked, replace(claimed, limited=limited, wait=wait)
        count = len(claimed.claims)
        most = min(limit, sum(demand.limit for demand in asked.demands))
        taken.goes_on = count == limit < claim.room or (0 < count < limit and bool(lines) and were_in_the_way)
        if claimed.heads is not None or count == most:
            taken.lines = lines or None

    def _release_unknown(self, known: Collection[tuple[int, int]]) -> None:
        """After a commit with an unknown outcome: release the jobs that only the database says we hold."""
        held = self._store.list_held(self._worker_id)
        self._store.finish_jobs([finish_held(h, RELEASE) for h in held if (h.seq, h.version) not in known])


class _Claim(NamedTuple):
    """What a turn is about to claim: up to `limit` jobs, though there is `room` for more."""

    room: int
    limit: int
    lines: Lines | None
    asked: Asked


def _advance(lines: Lines | None, asked: Asked, claimed: Claimed) -> bool:
    """Note what a claim has left in the lines. Returns whether types were asked for in vain."""
    if lines is None or claimed.heads is None:
        return False
    lines.advance({demand.type for demand in asked.demands}, claimed.heads, claimed.used_up)
    return len(claimed.heads) < len(asked.demands)


def _is_plain(end: Ended) -> bool:
    """Whether an outcome leaves nothing else to be done."""
    finish = end.finish
    return finish is not None and finish.decision.status is Status.COMPLETED and not finish.children


def _waits(end: Ended) -> bool:
    """Whether an outcome left something to be done at a later time."""
    if end.decision is not None and end.decision.status is Status.SCHEDULED:
        return True
    return any(child.delay is not None or child.run_at is not None for child in end.attempt.children)
