"""Concurrent enqueues share commits: who waits for whom, and who commits."""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from holdfast.enqueueing.held_up import HeldUp, Ticket, is_held_up
from holdfast.errors import CommitUncertain, NestedWrite, QueueClosed, StoreUnavailable
from holdfast.store.protocol import Store
from holdfast.store.records import NewJob, Verdict
from holdfast.system.threads import Threads

if TYPE_CHECKING:
    import asyncio

LONGEST_WAIT = 30.0
"""Seconds after which callers stop waiting for someone else's commit."""
_PAUSE = 0.002


class _ThreadTicket(Ticket):
    """A thread that waits until its job is settled, or until it is its turn to commit."""

    def __init__(self, job: NewJob) -> None:
        super().__init__(job)
        self._turn = threading.Lock()
        self._turn.acquire()

    def wait(self) -> bool:
        return self._turn.acquire(timeout=LONGEST_WAIT)

    def wake(self) -> None:
        with suppress(RuntimeError):  # it is awake
            self._turn.release()

    lead = wake


class _AsyncTicket(Ticket):
    """A coroutine that waits until its job is settled; a thread of ours commits in its place."""

    def __init__(self, job: NewJob, loop: asyncio.AbstractEventLoop, commits: SharedCommits) -> None:
        super().__init__(job)
        self._loop = loop
        self._commits = commits
        self._woken: asyncio.Future[None] = loop.create_future()

    async def wait(self) -> None:
        overdue = self._loop.call_later(LONGEST_WAIT, self._resolve)
        try:
            await self._woken
        finally:
            overdue.cancel()

    def wake(self) -> None:
        with suppress(RuntimeError):  # its loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    def lead(self) -> None:
        try:
            self._commits.committing.submit(partial(self._commits.commit_for, self))
        except RuntimeError as error:
            raise StoreUnavailable(
                f"can't start a thread to commit in: {error}", hint="raise the process limit"
            ) from error


class SharedCommits:
    """Lets concurrent enqueues share a commit.

    The first caller commits at once, in its own thread. Calls that arrive in the meantime form the next
    batch, which one of them commits. So nobody waits for a batch to fill, each call returns only when its own
    job is durable, and under load one fsync serves many. Each row has its own verdict: a duplicate fails only
    its own call, and a job that has to wait for another transaction waits separately.

    The leader may be interrupted anywhere, by Ctrl-C or by a signal handler that does not return. Then the
    next in line leads, and takes over the batch: rows that were already committed are recognised by their
    tokens. If even that doesn't help, calls raise an error after LONGEST_WAIT.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._waiting: list[Ticket] = []
        self._leader: Ticket | None = None
        self._inside: set[int] = set()
        """The threads that are in here, where a signal handler may find them."""
        self._held_up = HeldUp(self._store)
        self._is_closed = False
        self.committing = Threads("holdfast-enqueue", 1, linger=None)
        """Where commits are made for coroutines, until the queue is closed or nobody holds it any more."""
        weakref.finalize(self, self.committing.close).atexit = False

    def insert(self, job: NewJob) -> Verdict:
        me = self._refuse_interrupted()
        ticket = _ThreadTicket(job)
        try:
            self._inside.add(me)
            self._join(ticket)
            while not ticket.is_settled:
                if self._leader is ticket:
                    self._commit(ticket)
                elif not ticket.wait():
                    raise self._give_up(ticket)
        except BaseException:
            self._leave(ticket)
            raise
        finally:
            self._inside.discard(me)
        return ticket.outcome()

    async def insert_async(self, job: NewJob) -> Verdict:
        import asyncio

        if self._is_closed:
            raise QueueClosed("the queue is closed")
        me = self._refuse_interrupted()
        ticket = _AsyncTicket(job, asyncio.get_running_loop(), self)
        try:
            self._inside.add(me)
            self._join(ticket)
            if self._leader is ticket and not self._leads(ticket):
                self._hand_over(ticket)
        except BaseException:
            self._leave(ticket)
            raise
        finally:
            self._inside.discard(me)
        await ticket.wait()
        if not ticket.is_settled:
            raise self._give_up(ticket)
        return ticket.outcome()

    def commit_for(self, leader: _AsyncTicket) -> None:
        """Commit in place of a coroutine, unless that was done when it was called before."""
        if self._leader is not leader:
            return
        me = threading.get_ident()
        try:
            self._inside.add(me)
            self._commit(leader)
        except BaseException as error:
            self._leave(leader)
            leader.fail(CommitUncertain(f"the commit was interrupted by {type(error).__name__}"))
        finally:
            self._inside.discard(me)

    def close(self) -> None:
        """Return when all coroutines in line have their results."""
        self._is_closed = True
        deadline = time.monotonic() + LONGEST_WAIT
        while isinstance(self._leader, _AsyncTicket) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        self.committing.close()

    def _refuse_interrupted(self) -> int:
        """This thread, unless it is in here already and a signal handler has interrupted it: it would wait
        for itself."""
        me = threading.get_ident()
        if me in self._inside:
            raise NestedWrite(interrupted=True)
        return me

    def _join(self, ticket: Ticket) -> None:
        """Get in line; the first one in an empty line leads."""
        if self._held_up.has(ticket.job):
            self._held_up.add(ticket)
            return
        with self._lock:
            self._waiting.append(ticket)
            if self._leader is None:
                self._leader = ticket
            ticket.behind = self._leader

    def _leave(self, ticket: Ticket) -> None:
        """Leave the line, and pass on to the next one what we were to commit."""
        with self._lock:
            left = [t for t in ticket.batch if not t.is_settled and not self._held_up.has(t.job)]
            self._waiting = [other for other in (*left, *self._waiting) if other is not ticket]
        for other in ticket.batch:
            if other.is_settled:
                other.wake()
        self._hand_over(ticket)

    def _give_up(self, ticket: Ticket) -> StoreUnavailable:
        """Stop waiting for the current leader, for everyone in line."""
        with self._lock:
            was_waiting = ticket in self._waiting
            if was_waiting:
                self._waiting.remove(ticket)
        if was_waiting:
            self._hand_over(ticket.behind)
            return StoreUnavailable(f"the previous commit has not finished after {LONGEST_WAIT:g} s")
        return CommitUncertain(
            f"the commit has not finished after {LONGEST_WAIT:g} s and may yet take effect"
        )

    def _commit(self, leader: Ticket) -> None:
        """Commit everybody in line, the leader among them, and let the next one lead."""
        with self._lock:
            leader.batch, self._waiting = self._waiting, []
        try:
            verdicts = self._store.insert_jobs([ticket.job for ticket in leader.batch], wait=False)
        except Exception as error:
            for ticket in leader.batch:
                ticket.fail(error)
        else:
            for ticket, verdict in zip(leader.batch, verdicts, strict=True):
                if is_held_up(verdict):
                    self._held_up.add(ticket)
                else:
                    ticket.settle(verdict)
        self._hand_over(leader)

    def _hand_over(self, leader: Ticket | None) -> None:
        """Let the next one in line lead, unless somebody else already does; call the leader."""
        while True:
            with self._lock:
                if self._leader is leader:
                    self._leader = self._waiting[0] if self._waiting else None
                successor = self._leader
            if successor is None or self._leads(successor):
                return
            leader = successor

    def _leads(self, ticket: Ticket) -> bool:
        """Call it to lead. False if it can't: then it is out of line, and knows why."""
        try:
            ticket.lead()
        except StoreUnavailable as error:
            with self._lock:
                self._waiting = [other for other in self._waiting if other is not ticket]
            ticket.fail(error)
            return False
        return True


_all: weakref.WeakSet[SharedCommits] = weakref.WeakSet()


def _begin_again() -> None:
    """In a forked child, which has none of the threads that were waiting or committing."""
    for commits in list(_all):
        commits._reset()


os.register_at_fork(after_in_child=_begin_again)
