"""Jobs whose key or id somebody's open transaction is about to take: they wait here, and hold up nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from holdfast.errors import StoreBusy
from holdfast.store.protocol import NewJob, Store, Verdict

PATIENCE = 2.0
"""Seconds until a job is refused."""
_PAUSE = 0.02


class Ticket(Protocol):
    """A caller who waits for the verdict on a job."""

    job: NewJob
    verdict: Verdict | None
    failure: Exception | None

    def wake(self) -> None: ...


class _Held(NamedTuple):
    ticket: Ticket
    deadline: float


class HeldUp:
    """Tries such jobs again until that transaction has ended, or for PATIENCE.

    One thread tries them all, for as long as there are any: so however many callers wait, they take no more
    than one connection.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._held: dict[object, list[_Held]] = {}
        self._thread: threading.Thread | None = None

    def has(self, job: NewJob) -> bool:
        """Whether a job of this key or id is held up."""
        return bool(self._held) and _name(job) in self._held

    def add(self, ticket: Ticket) -> None:
        held = _Held(ticket, time.monotonic() + PATIENCE)
        with self._lock:
            self._held.setdefault(_name(ticket.job), []).append(held)
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._serve, name="holdfast-enqueue-held-up", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads to be had: refused at once
            held, self._held = self._held, {}
            for each in (held for same in held.values() for held in same):
                _settle(each.ticket, _refused(each.ticket.job))
        else:
            self._thread = thread

    def _serve(self) -> None:
        while first := self._first_of_each():
            freed = self._try(first)
            # Who waits for the same key or id is answered as well.
            self._try([held for name in freed for held in self._held.get(name, [])])
            if not freed:
                time.sleep(_PAUSE)

    def _first_of_each(self) -> list[_Held]:
        with self._lock:
            if not self._held:
                self._thread = None
            return [same[0] for same in self._held.values()]

    def _try(self, tried: Sequence[_Held]) -> set[object]:
        """Insert those that can be; return the keys and ids of the ones that have their verdict."""
        if not tried:
            return set()
        try:
            verdicts = self._store.insert_jobs([held.ticket.job for held in tried], wait=False)
        except Exception as error:
            for held in tried:
                held.ticket.failure = error
                held.ticket.wake()
            return self._remove(tried)
        now = time.monotonic()
        settled = []
        for held, verdict in zip(tried, verdicts, strict=True):
            if not is_held_up(verdict):
                _settle(held.ticket, verdict)
            elif now >= held.deadline:
                _settle(held.ticket, _refused(held.ticket.job))
            else:
                continue
            settled.append(held)
        return self._remove(settled)

    def _remove(self, settled: Sequence[_Held]) -> set[object]:
        with self._lock:
            for held in settled:
                name = _name(held.ticket.job)
                self._held[name].remove(held)
                if not self._held[name]:
                    del self._held[name]
        return {_name(held.ticket.job) for held in settled}


def is_held_up(verdict: Verdict) -> bool:
    return isinstance(verdict.error, StoreBusy)


def _refused(job: NewJob) -> Verdict:
    return Verdict(id=job.id, error=StoreBusy(PATIENCE))


def _settle(ticket: Ticket, verdict: Verdict) -> None:
    ticket.verdict = verdict
    ticket.wake()


def _name(job: NewJob) -> object:
    return job.id if job.key is None else (job.type, job.key)
