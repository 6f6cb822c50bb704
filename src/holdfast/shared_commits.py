"""Concurrent enqueues share commits: who waits for whom, and who commits."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.errors import StoreUnavailable
from holdfast.store.protocol import NewJob, Store, Verdict

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor


class _Ticket:
    """One caller's job on its way into a shared commit."""

    def __init__(self, job: NewJob) -> None:
        self.job = job
        self.verdict: Verdict | None = None
        self.failure: Exception | None = None
        self.leads = False

    @property
    def is_settled(self) -> bool:
        return self.verdict is not None or self.failure is not None

    def outcome(self) -> Verdict:
        if self.failure is not None:
            raise self.failure
        assert self.verdict is not None
        return self.verdict


class _ThreadTicket(_Ticket):
    """A thread that waits until its job is settled, or until it is its turn to commit."""

    def __init__(self, job: NewJob) -> None:
        super().__init__(job)
        turn = threading.Lock()
        turn.acquire()
        self.wait = turn.acquire
        self.settle = turn.release
        self.lead = turn.release


class _AsyncTicket(_Ticket):
    """A coroutine that waits until its job is settled; a thread of ours commits in its place."""

    def __init__(self, job: NewJob, loop: asyncio.AbstractEventLoop, lead: Callable[[], object]) -> None:
        super().__init__(job)
        self._loop = loop
        self.settled: asyncio.Future[None] = loop.create_future()
        self.lead = lead

    def settle(self) -> None:
        with suppress(RuntimeError):  # its loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)


class SharedCommits:
    """Lets concurrent enqueues share a commit.

    The first caller commits in its own thread, at once. Those who arrive meanwhile are the next batch, which
    one of them commits. So nobody waits for company, each returns only when its own job is durable, and
    under load an fsync serves many. Each row has its own verdict: a duplicate fails only its caller.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._waiting: list[_ThreadTicket | _AsyncTicket] = []
        self._leading = False
        self._committer: ThreadPoolExecutor | None = None

    def insert(self, job: NewJob) -> Verdict:
        ticket = _ThreadTicket(job)
        try:
            self._join(ticket)
            if not ticket.leads:
                ticket.wait()
            if not ticket.is_settled:
                self._commit_batch()
        except BaseException:  # such as Ctrl-C: the others must not wait for us
            self._leave(ticket)
            raise
        return ticket.outcome()

    async def insert_async(self, job: NewJob) -> Verdict:
        import asyncio

        ticket = _AsyncTicket(job, asyncio.get_running_loop(), self._commit_in_thread)
        self._join(ticket)
        if ticket.leads:
            self._commit_in_thread()
        await ticket.settled
        return ticket.outcome()

    def close(self) -> None:
        if self._committer is not None and self._pid == os.getpid():
            self._committer.shutdown()

    def _join(self, ticket: _ThreadTicket | _AsyncTicket) -> None:
        """Get in line; who finds nobody at it commits."""
        if self._pid != os.getpid():
            self._reset()  # a forked child has none of the threads that were waiting or committing
        with self._lock:
            self._waiting.append(ticket)
            ticket.leads, self._leading = not self._leading, True

    def _leave(self, ticket: _ThreadTicket) -> None:
        """Get out of line, and let the next one lead if it was our turn."""
        with self._lock:
            if ticket not in self._waiting:
                return
            self._waiting.remove(ticket)
        if ticket.leads:
            self._hand_over()

    def _commit_in_thread(self) -> None:
        with self._lock:
            if self._committer is None:
                from concurrent.futures import ThreadPoolExecutor

                self._committer = ThreadPoolExecutor(1, "holdfast-enqueue")
        self._committer.submit(self._commit_batch)

    def _commit_batch(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
        verdicts: Sequence[Verdict | None] = [None] * len(batch)
        failure: Exception | None = StoreUnavailable("the commit was interrupted")
        try:
            verdicts = self._store.insert_jobs([ticket.job for ticket in batch])
            failure = None
        except Exception as error:
            failure = error
        finally:
            for ticket, verdict in zip(batch, verdicts, strict=True):
                ticket.verdict, ticket.failure = verdict, failure
                ticket.settle()
            self._hand_over()

    def _hand_over(self) -> None:
        with self._lock:
            successor = self._waiting[0] if self._waiting else None
            self._leading = successor is not None
            if successor is not None:
                successor.leads = True
        if successor is not None:
            successor.lead()
