"""Waiting for jobs to finish: one thread per queue watches for everyone who waits."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.core.job import Job
from holdfast.errors import JobNotFound, QueueClosed, StoreUnavailable

if TYPE_CHECKING:
    from concurrent.futures import Future

    from holdfast.store.protocol import Store, Watch

_POLL_SECONDS = 1.0
"""Seconds after which all jobs are checked again, even without a notification."""
_LINGER = 0.25
"""Seconds that the thread stays alive when nobody is waiting."""


class FinishWatcher:
    """Tells when jobs have finished.

    All waiters, in threads and on any number of event loops, share one watch, and one query for all of their
    jobs whenever somebody has committed something. The thread ends when nobody is waiting.
    """

    def __init__(self, store: Callable[[], Store], get: Callable[[str], Job | None]) -> None:
        self._store = store
        self._get = get
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()  # who waits may be interrupted by a signal handler that waits, too
        self._waiting: dict[str, set[Future[Job]]] = {}
        self._new: set[str] = set()
        """Jobs that were not looked at yet."""
        self._thread: threading.Thread | None = None
        self._watch: Watch | None = None

    def _forget_parent(self) -> None:
        """In a forked child, there is no such thread and nobody is waiting; the lock may be held forever."""
        if self._pid != os.getpid():
            self._reset()

    def future(self, job_id: str) -> Future[Job]:
        """Resolves to the job once it is finished, or to JobNotFound. Cancel it to stop waiting."""
        from concurrent.futures import Future

        self._forget_parent()
        future: Future[Job] = Future()
        with self._lock:
            self._waiting.setdefault(job_id, set()).add(future)
            self._new.add(job_id)
            if self._thread is None:
                self._start()
            self._wake()
        future.add_done_callback(lambda future: self._forget(job_id, future))
        return future

    def close(self) -> None:
        """End every wait with QueueClosed."""
        self._forget_parent()
        with self._lock:
            thread = self._thread
            self._fail(QueueClosed("the queue was closed while waiting for this job"))
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="holdfast-wait", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread = None
            self._fail(
                StoreUnavailable(f"can't start a thread to wait in: {error}", hint="raise the process limit")
            )

    def _wake(self) -> None:
        if self._watch is not None:
            self._watch.wake()

    def _forget(self, job_id: str, future: Future[Job]) -> None:
        with self._lock:
            others = self._waiting.get(job_id, set())
            others.discard(future)
            if not others:
                self._waiting.pop(job_id, None)
            if not self._waiting:
                self._wake()

    def _fail(self, error: Exception) -> None:
        """Let nobody wait any longer, and the thread end."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            self._thread = None
            self._wake()
        for futures in waiting.values():
            for future in futures:
                _resolve(future, error)

    def _run(self) -> None:
        try:
            store = self._store()
            watch = self._watch = store.watch()
            try:
                self._look_until_nobody_waits(store, watch)
            finally:
                with self._lock:
                    if self._watch is watch:  # and not the one of a thread that came after
                        self._watch = None
                watch.close()
                store.close_thread()
        except Exception as error:
            if self._thread is threading.current_thread():
                self._fail(error)

    def _look_until_nobody_waits(self, store: Store, watch: Watch) -> None:
        next_look = 0.0
        while self._is_needed(watch):
            began = time.monotonic()
            changed = watch.changed() or began >= next_look
            with self._lock:
                job_ids = set(self._waiting) if changed else self._new & self._waiting.keys()
                self._new = set()
            if changed:
                next_look = began + _POLL_SECONDS
            self._look_at(store, job_ids)
            # Rests for as long as it has read: where others commit all the time, it leaves them the half.
            time.sleep(time.monotonic() - began)
            watch.wait(_POLL_SECONDS)

    def _is_needed(self, watch: Watch) -> bool:
        """Whether anybody is waiting or about to; if not, this thread ends."""
        if not self._waiting and self._thread is threading.current_thread():
            watch.wait(_LINGER)
        with self._lock:
            if self._thread is not threading.current_thread():
                return False
            if not self._waiting:
                self._thread = None
            return self._thread is not None

    def _look_at(self, store: Store, job_ids: Collection[str]) -> None:
        unfinished: set[str] = set()
        if len(job_ids) > 1:  # a single one is read whole at once
            unfinished = {job.id for job in store.get_jobs(list(job_ids)) if not job.is_finished}
        for job_id in set(job_ids) - unfinished:
            job = self._get(job_id)
            if job is None or job.is_finished:
                with self._lock:
                    futures = list(self._waiting.get(job_id, ()))
                for future in futures:
                    _resolve(future, job or JobNotFound(job_id))


def _resolve(future: Future[Job], outcome: Job | Exception) -> None:
    from concurrent.futures import InvalidStateError

    with suppress(InvalidStateError):  # it was given up just now
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
