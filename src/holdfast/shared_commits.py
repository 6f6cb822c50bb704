"""Concurrent enqueues share commits: who waits for whom, and who commits."""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.errors import CommitUncertain, NestedWrite, QueueClosed, StoreUnavailable
from holdfast.held_up import HeldUp, is_held_up
from holdfast.store.protocol import NewJob, Store, Verdict

if TYPE_CHECKING:
    import asyncio
    from queue import SimpleQueue

    _Calls = SimpleQueue["tuple[SharedCommits, _AsyncTicket] | None"]

LONGEST_WAIT = 30.0
"""Seconds after which nobody waits any longer for somebody else's commit."""


class _Ticket:
    """One caller's job on its way into a shared commit."""

    def __init__(self, job: NewJob) -> None:
        self.job = job
        self.verdict: Verdict | None = None
        self.failure: Exception | None = None
        self.behind: _Ticket | None = None
        """Who led when it got in line."""
        self.batch: list[_ThreadTicket | _AsyncTicket] = []
        """What it commits, if it leads."""

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
        self._turn = threading.Lock()
        self._turn.acquire()

    def wait(self) -> bool:
        return self._turn.acquire(timeout=LONGEST_WAIT)

    def wake(self) -> None:
        with suppress(RuntimeError):  # it is awake
            self._turn.release()

    lead = wake


class _AsyncTicket(_Ticket):
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
        self._commits.committer.commit(self._commits, self)


class SharedCommits:
    """Lets concurrent enqueues share a commit.

    The first caller commits in its own thread, at once. Those who arrive meanwhile are the next batch, which
    one of them commits. So nobody waits for company, each returns only when its own job is durable, and
    under load an fsync serves many. Each row has its own verdict: a duplicate fails only its caller, and one
    that has to wait for somebody else's transaction does so apart.

    Whoever leads may be interrupted anywhere, by Ctrl-C or in a signal handler that does not return. Then the
    next in line leads, and takes over the batch: rows that got through are known by their tokens. What even
    that does not help ends in an error after LONGEST_WAIT.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._waiting: list[_ThreadTicket | _AsyncTicket] = []
        self._leader: _ThreadTicket | _AsyncTicket | None = None
        self._inside: set[int] = set()
        """The threads that are in here, where a signal handler may find them."""
        self._held_up = HeldUp(self._store)
        self.committer = Committer()
        weakref.finalize(self, self.committer.stop).atexit = False

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
            _fail(leader, CommitUncertain(f"the commit was interrupted by {type(error).__name__}"))
        finally:
            self._inside.discard(me)

    def close(self) -> None:
        """Return when those who are in line have their answers."""
        self.committer.close()

    def _refuse_interrupted(self) -> int:
        """This thread, unless it is in here already and a signal handler has interrupted it: it would wait
        for itself."""
        me = threading.get_ident()
        if me in self._inside:
            raise NestedWrite(interrupted=True)
        return me

    def _join(self, ticket: _ThreadTicket | _AsyncTicket) -> None:
        """Get in line; who finds nobody at it leads."""
        if self._held_up.has(ticket.job):
            self._held_up.add(ticket)
            return
        with self._lock:
            self._waiting.append(ticket)
            if self._leader is None:
                self._leader = ticket
            ticket.behind = self._leader

    def _leave(self, ticket: _ThreadTicket | _AsyncTicket) -> None:
        """Get out of line, and leave to the next one what was ours to commit."""
        with self._lock:
            left = [t for t in ticket.batch if not t.is_settled and not self._held_up.has(t.job)]
            self._waiting = [other for other in (*left, *self._waiting) if other is not ticket]
        for other in ticket.batch:
            if other.is_settled:
                other.wake()
        self._hand_over(ticket)

    def _give_up(self, ticket: _ThreadTicket | _AsyncTicket) -> StoreUnavailable:
        """Wait no longer for whoever leads, nor let others wait."""
        with self._lock:
            was_waiting = ticket in self._waiting
            if was_waiting:
                self._waiting.remove(ticket)
        if was_waiting:
            self._hand_over(ticket.behind)
            return StoreUnavailable(f"the commit before this one has not ended for {LONGEST_WAIT:g} s")
        return CommitUncertain(f"the commit has not ended for {LONGEST_WAIT:g} s: it may still take effect")

    def _commit(self, leader: _ThreadTicket | _AsyncTicket) -> None:
        """Commit everybody in line, the leader among them, and let the next one lead."""
        with self._lock:
            leader.batch, self._waiting = self._waiting, []
        try:
            verdicts = self._store.insert_jobs([ticket.job for ticket in leader.batch], wait=False)
        except Exception as error:
            for ticket in leader.batch:
                _fail(ticket, error)
        else:
            for ticket, verdict in zip(leader.batch, verdicts, strict=True):
                if is_held_up(verdict):
                    self._held_up.add(ticket)
                else:
                    ticket.verdict = verdict
                    ticket.wake()
        self._hand_over(leader)

    def _hand_over(self, leader: _Ticket | None) -> None:
        """Let the next one in line lead, unless somebody else does by now; call whoever does."""
        while True:
            with self._lock:
                if self._leader is leader:
                    self._leader = self._waiting[0] if self._waiting else None
                successor = self._leader
            if successor is None or self._leads(successor):
                return
            leader = successor

    def _leads(self, ticket: _ThreadTicket | _AsyncTicket) -> bool:
        """Call it to lead. False if it can't: then it is out of line, and knows why."""
        try:
            ticket.lead()
        except StoreUnavailable as error:
            with self._lock:
                self._waiting = [other for other in self._waiting if other is not ticket]
            _fail(ticket, error)
            return False
        return True


def _fail(ticket: _ThreadTicket | _AsyncTicket, error: Exception) -> None:
    ticket.failure = error
    ticket.wake()


class Committer:
    """The thread that commits for coroutines. It starts with the first of them, and ends with the queue.

    A daemon: it serves for as long as there is anybody to ask, the interpreter's own shutdown included.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._calls: _Calls | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def commit(self, commits: SharedCommits, leader: _AsyncTicket) -> None:
        """Let the thread do it. Raises StoreUnavailable if there is none."""
        with self._lock:
            if self._closed and self._thread is not threading.current_thread():
                raise QueueClosed("the queue is closed")
            if self._calls is None:
                self._calls = self._start()
            self._calls.put((commits, leader))

    def _start(self) -> _Calls:
        from queue import SimpleQueue

        calls: _Calls = SimpleQueue()
        thread = threading.Thread(target=_serve, args=(calls,), name="holdfast-enqueue", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise StoreUnavailable(
                f"no thread can be started to commit in: {error}", hint="raise the limit of processes"
            ) from error
        self._thread = thread
        return calls

    def close(self) -> None:
        """Let the thread end, and wait until it has: all who are in line get their answers before."""
        with self._lock:
            self._closed = True
        self.stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(LONGEST_WAIT)

    def stop(self) -> None:
        if self._calls is not None:
            self._calls.put(None)


def _serve(calls: _Calls) -> None:
    ends = False
    while not (ends and calls.empty()):
        call = calls.get()
        if call is None:
            ends = True
        else:
            commits, leader = call
            commits.commit_for(leader)
            del commits, leader  # a queue that nobody holds any more can go meanwhile
        del call


_all: weakref.WeakSet[SharedCommits] = weakref.WeakSet()


def _begin_anew() -> None:
    """In a forked child, which has none of the threads that were waiting or committing."""
    for commits in list(_all):
        commits._reset()


os.register_at_fork(after_in_child=_begin_anew)
