"""Jobs whose key or id another open transaction is about to take: they wait here and block nobody else."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import chain

from holdfast.errors import StoreBusy
from holdfast.store.protocol import Store
from holdfast.store.records import NewJob, Verdict

PATIENCE = 2.0
"""Seconds until a job is refused."""
_PAUSE = 0.02


class Ticket(ABC):
    """One caller's job on its way into a shared commit."""

    def __init__(self, job: NewJob) -> None:
        self.job = job
        self.verdict: Verdict | None = None
        self.failure: Exception | None = None
        self.behind: Ticket | None = None
        """Who led when it got in line."""
        self.batch: list[Ticket] = []
        """What it commits, if it leads."""
        self.refused_at = math.inf
        """When it has been held up for long enough."""

    @property
    def is_settled(self) -> bool:
        return self.verdict is not None or self.failure is not None

    def outcome(self) -> Verdict:
        if self.failure is not None:
            raise self.failure
        assert self.verdict is not None
        return self.verdict

    def settle(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.wake()

    def fail(self, error: Exception) -> None:
        self.failure = error
        self.wake()

    @abstractmethod
    def wake(self) -> None:
        """Wake up everyone who waits, to check again."""

    @abstractmethod
    def lead(self) -> None:
        """Let it commit for all in line. Raises StoreUnavailable if it can't."""


class HeldUp:
    """Retries such jobs until that transaction has ended, or for PATIENCE.

    One thread retries all of them while there are any, so however many callers wait, they use only one
    connection.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._held: dict[object, list[Ticket]] = {}
        self._thread: threading.Thread | None = None

    def has(self, job: NewJob) -> bool:
        """Whether a job of this key or id is held up."""
        return bool(self._held) and _name(job) in self._held

    def add(self, ticket: Ticket) -> None:
        ticket.refused_at = time.monotonic() + PATIENCE
        with self._lock:
            self._held.setdefault(_name(ticket.job), []).append(ticket)
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name="holdfast-enqueue-held-up", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # out of threads: refused at once
            held, self._held = self._held, {}
            for ticket in chain.from_iterable(held.values()):
                ticket.settle(_refused(ticket.job))
        else:
            self._thread = thread

    def _serve(self) -> None:
        while first := self._first_of_each():
            freed = self._try(first)
            # Who waits for the same key or id is answered as well.
            self._try([ticket for name in freed for ticket in self._held.get(name, [])])
            if not freed:
                time.sleep(_PAUSE)

    def _first_of_each(self) -> list[Ticket]:
        with self._lock:
            if not self._held:
                self._thread = None
            return [same[0] for same in self._held.values()]

    def _try(self, tried: Sequence[Ticket]) -> set[object]:
        """Insert those that can be; return the keys and ids of the ones that have their verdict."""
        if not tried:
            return set()
        try:
            verdicts = self._store.insert_jobs([ticket.job for ticket in tried], wait=False)
        except Exception as error:
            for ticket in tried:
                ticket.fail(error)
            return self._remove(tried)
        now = time.monotonic()
        for ticket, verdict in zip(tried, verdicts, strict=True):
            if not is_held_up(verdict):
                ticket.settle(verdict)
            elif now >= ticket.refused_at:
                ticket.settle(_refused(ticket.job))
        return self._remove([ticket for ticket in tried if ticket.is_settled])

    def _remove(self, settled: Sequence[Ticket]) -> set[object]:
        with self._lock:
            for ticket in settled:
                name = _name(ticket.job)
                self._held[name].remove(ticket)
                if not self._held[name]:
                    del self._held[name]
        return {_name(ticket.job) for ticket in settled}


def is_held_up(verdict: Verdict) -> bool:
    return isinstance(verdict.error, StoreBusy)


def _refused(job: NewJob) -> Verdict:
    return Verdict(id=job.id, error=StoreBusy(PATIENCE))


def _name(job: NewJob) -> object:
    return job.id if job.key is None else (job.type, job.key)
