"""The block behind ctx.transaction(): how it is entered and left, in threads and in coroutines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.core.lifecycle import completion
from holdfast.core.payload import encode_result
from holdfast.errors import (
    DatabaseReplaced,
    HoldfastError,
    Interrupted,
    QueueArriving,
    QueueClosed,
    QueueMoved,
    StoreUnavailable,
)
from holdfast.store.open import store_of
from holdfast.store.scope import Scope
from holdfast.system.threads import Threads

if TYPE_CHECKING:
    from concurrent.futures import Future

    from holdfast.context import Attempt, Context
    from holdfast.store.protocol import AttemptTransaction

_PAUSE = 0.25
"""Seconds after which a store that could not be reached is tried again."""
_BEGINNING = 8
_ENDING = 1000
"""More than a queue ever has blocks open: what begins may wait for what ends, which waits for nobody."""


class TransactionThreads:
    """The threads in which the blocks of a queue's coroutines begin and end."""

    def __init__(self) -> None:
        self.beginning = Threads("holdfast-transaction-begin", _BEGINNING)
        self.ending = Threads("holdfast-transaction-end", _ENDING)


class Transaction:
    """What ctx.transaction() returns.

    In async handlers, it waits for the lock and the disk in a thread, so that the event loop isn't blocked.
    """

    def __init__(self, context: Context, attempt: Attempt) -> None:
        self._context = context
        self._attempt = attempt
        self._threads = attempt.host.transaction_threads
        self._scope: Scope | None = None
        self._is_abandoned = False

    def hold(self) -> None:
        if self._scope is None:
            raise HoldfastError("ctx.hold() can only be called inside ctx.transaction()")
        self._transaction.hold()

    def __enter__(self) -> Any:
        # Around all of it: a signal handler may come while the lock is taken, or the disk written.
        self._enter_scope()
        try:
            self._begin()
        except BaseException:
            self._leave_scope()
            raise
        return self._transaction.connection

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self._end(kind)()
        finally:
            self._leave_scope()

    async def __aenter__(self) -> Any:
        import asyncio

        begun = self._threads.beginning.submit(self._begin)
        try:
            await asyncio.shield(asyncio.wrap_future(begun))
        except asyncio.CancelledError:
            # The lock may be ours a moment later; it must not stay with nobody.
            self._is_abandoned = True
            if not begun.cancel():
                begun.add_done_callback(self._abandon)
            raise
        self._enter_scope()
        return self._transaction.connection

    async def __aexit__(self, kind: object, *_: object) -> None:
        import asyncio

        self._leave_scope()
        ended = asyncio.wrap_future(self._in_thread(self._end(kind)))
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            await asyncio.wait([ended])  # what was begun is known to have happened, or not
            raise

    def _begin(self) -> None:
        self._transaction = self._prepare_patiently()
        self._transaction.begin(self._check_wait)

    def _prepare_patiently(self) -> AttemptTransaction:
        """What the block needs from the store, which a handler's own process may have to open first."""
        while True:
            try:
                return self._prepare()
            except (QueueClosed, QueueMoved, QueueArriving, DatabaseReplaced):
                raise
            except StoreUnavailable:
                self._check_wait()
            time.sleep(_PAUSE)

    def _prepare(self) -> AttemptTransaction:
        attempt, host = self._attempt, self._attempt.host
        seconds = host.settings().transaction_seconds
        self._result_limit = attempt.result_limit  # inside the block nothing waits for another connection
        return store_of(host).begin_attempt_transaction(attempt.claim, seconds)

    def _check_wait(self) -> None:
        """Called while it can't begin: ends the wait of an attempt that should stop."""
        if self._attempt.stop_reason is not None or self._is_abandoned:
            raise Interrupted(self._attempt.stop_reason)
        if self._attempt.on_wait is not None:
            self._attempt.on_wait()

    def _abandon(self, begun: Future[None]) -> None:
        if not begun.cancelled() and begun.exception() is None:
            self._in_thread(self._transaction.rollback)

    def _in_thread(self, end: Callable[[], None]) -> Future[None]:
        try:
            return self._threads.ending.submit(end)
        except RuntimeError:  # no thread can be started: the loop has to wait
            from concurrent.futures import Future

            ended: Future[None] = Future()
            try:
                end()
            except BaseException as error:
                ended.set_exception(error)
            else:
                ended.set_result(None)
            return ended

    def _enter_scope(self) -> None:
        self._scope = Scope.enter(store_of(self._attempt.host).url)

    def _leave_scope(self) -> None:
        assert self._scope is not None
        self._scope.leave()

    def _end(self, kind: object) -> Callable[[], None]:
        return self._commit if kind is None else self._transaction.rollback

    def _commit(self) -> None:
        result = encode_result(self._context.result, self._result_limit)
        self._attempt.committed_result = result
        self._transaction.commit(completion(result), self._attempt.children, self._committed)

    def _committed(self) -> None:
        self._attempt.committed = True
        if self._attempt.on_commit is not None:
            self._attempt.on_commit()
